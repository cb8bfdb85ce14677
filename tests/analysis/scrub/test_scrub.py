"""A shared copy answers as its report does, and holds nothing else of it."""

import os
import sqlite3
from contextlib import closing

import pytest
from nvtx_kernels.analysis import compare, doctor, kernels, page, scrub, timeline
from nvtx_kernels.analysis.scrub.allowed import RUN_FACTS, STRINGS, TABLES
from nvtx_kernels.analysis.views.registry import VIEWS
from nvtx_kernels.profiling.workload.measurement import description
from nvtx_kernels.profiling.workload.model_steps import Workload
from nvtx_kernels.profiling.workload.settings import with_defaults

from tests.analysis.making import private
from tests.analysis.making.bundled import DATA, OURS, REPORTS, unpacked
from tests.analysis.making.copies import answers, inside, rows, scrubbed

ANSWERS = [
    ["--format", "json", "--include-warmup", "--operators", "keep"],
    ["--format", "csv", "--like-nsys"],
    ["--every-index", "--full-names"],
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return private.plant(unpacked("h200_compiled.sqlite", tmp_path_factory.mktemp("planted")))


@pytest.fixture(scope="module")
def copy_of_planted(planted):
    return scrubbed(planted)


@pytest.mark.parametrize("name", REPORTS)
def test_copy_answers_as_its_report(tmp_path, capsys, name):
    report = unpacked(name, tmp_path)
    before = report.read_bytes()
    copy = scrubbed(report)
    for options in ANSWERS[:2]:
        assert answers(copy, capsys, options) == answers(report, capsys, options)
    assert report.read_bytes() == before


OTHER_COMMANDS = {
    **{f"view {view}": (kernels, "REPORT", "--view", view) for view in VIEWS if view != "explain"},
    "view explain": (kernels, "REPORT", "--view", "explain", "--kernel", "gemm"),
    "doctor": (doctor, "REPORT"),
    "timeline": (timeline, "REPORT", "-o", "OUT"),
    "page": (page, "REPORT", "-o", "OUT"),
    "comparison": (compare, "OTHER", "REPORT", "--format", "csv"),
}


@pytest.mark.parametrize("command", OTHER_COMMANDS.values(), ids=OTHER_COMMANDS.keys())
def test_every_command_says_the_same_of_the_copy(planted, copy_of_planted, tmp_path, capsys, command):
    results = []
    for report in (planted, copy_of_planted):
        files = {"REPORT": report, "OUT": tmp_path / "out", "OTHER": DATA / OURS[0]}
        capsys.readouterr()
        status = command[0].main([str(files.get(word, word)) for word in command[1:]])
        written = files["OUT"].read_bytes() if files["OUT"].exists() else b""
        results.append((status, *capsys.readouterr(), written))
    assert results[0] == results[1]
    assert any(results[0][1:])


def test_copy_of_a_planted_report_answers_alike_and_holds_nothing_planted(planted, copy_of_planted, capsys):
    held = copy_of_planted.read_bytes()
    assert [value for value in private.VALUES if value.encode() in held] == []
    assert all(value.encode() in planted.read_bytes() for value in private.VALUES)
    for options in ANSWERS:
        assert answers(copy_of_planted, capsys, options) == answers(planted, capsys, options)


def test_check_finds_every_kind_and_shows_no_value(planted, capsys):
    assert scrub.main([str(planted), "--check"]) == scrub.WOULD_LEAK
    said = capsys.readouterr().out
    assert [kind for kind in private.KINDS if f"\n{kind} " not in said] == []
    assert [value for value in private.VALUES if value in said] == []
    assert "my_own_notes" not in said


def test_check_finds_what_only_freed_pages_hold(tmp_path, capsys):
    report = unpacked("h200_compiled.sqlite", tmp_path)
    with closing(sqlite3.connect(report)) as connection:
        private.delete_a_table_of(connection, private.TOKEN)
    assert scrub.main([str(report), "--check"]) == scrub.WOULD_LEAK
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("token-like strings") and line.endswith("freed pages") for line in lines)
    assert private.TOKEN.encode() not in scrubbed(report).read_bytes()


@pytest.mark.parametrize("name", OURS)
def test_check_finds_nothing_in_a_copy(tmp_path, capsys, name):
    copy = scrubbed(unpacked(name, tmp_path), "--rename-ranges")
    capsys.readouterr()
    assert scrub.main([str(copy), "--check"]) == 0
    assert capsys.readouterr().out == "report.sqlite contains nothing that looks private\n"


def test_copy_has_allowed_tables_and_columns_only(copy_of_planted):
    copy = copy_of_planted
    tables = {name for (name,) in rows(copy, "SELECT name FROM sqlite_master")}
    assert tables - {STRINGS} <= TABLES.keys()
    for table in tables - {STRINGS}:
        assert {row[1] for row in rows(copy, f"PRAGMA table_info({table})")} <= TABLES[table].keys()
    assert rows(copy, "PRAGMA freelist_count") == [(0,)]


def test_times_that_are_dates_count_from_the_first(tmp_path, capsys):
    report, epoch = unpacked("h200_train_fp32.sqlite", tmp_path), 1_795_173_292_279_457_769
    for table in (
        "NVTX_EVENTS",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CUPTI_ACTIVITY_KIND_MEMSET",
    ):
        inside(report, f'UPDATE {table} SET start = start + {epoch}, "end" = "end" + {epoch}')
    copy = scrubbed(report)
    assert rows(copy, "SELECT min(start) FROM NVTX_EVENTS")[0][0] == 0
    assert answers(copy, capsys, ANSWERS[0]) == answers(report, capsys, ANSWERS[0])


def test_output_in_the_reports_place_is_refused(tmp_path, capsys):
    report, link = unpacked(OURS[1], tmp_path), tmp_path / "link.sqlite"
    before = report.read_bytes()
    link.symlink_to(report)
    os.link(report, tmp_path / "hard.sqlite")
    for target in (report, link, tmp_path / "hard.sqlite"):
        assert scrub.main([str(report), "-o", str(target)]) == 2
        assert "is the report itself. Name another file with -o." in capsys.readouterr().err
    assert report.read_bytes() == before


WRONG = {
    "no report": (["{0}/missing.sqlite", "-o", "{0}/x"], 1, "does not exist"),
    "no report to check": (["{0}/missing.sqlite", "--check"], 1, "does not exist"),
    "nsys's own file": (["{0}/run.nsys-rep", "-o", "{0}/x"], 1, "Make one with `nsys export --type sqlite`"),
    "another JSON file": (["{0}/other.json", "--check"], 1, "is not a trace of PyTorch's profiler"),
    "no folder": (["{0}/report.sqlite", "-o", "{0}/no/folder/x"], 2, "cannot be written: No such file"),
    "a file for a folder": (["{0}/report.sqlite", "-o", "{0}/report.sqlite/x"], 2, "cannot be written: Not a"),
}


@pytest.mark.parametrize(("arguments", "status", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_command_says_what_is_wrong(tmp_path, capsys, arguments, status, sentence):
    unpacked(OURS[1], tmp_path)
    (tmp_path / "run.nsys-rep").write_bytes(b"nsys")
    (tmp_path / "other.json").write_text("{}")
    assert scrub.main([word.format(tmp_path) for word in arguments]) == status
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_text_where_a_number_belongs_is_refused(tmp_path, capsys):
    report = unpacked(OURS[1], tmp_path)
    inside(report, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 'secret' WHERE rowid = 3")
    assert scrub.main([str(report), "-o", str(tmp_path / "x")]) == 1
    assert "values in CUPTI_ACTIVITY_KIND_KERNEL that nsys never writes there" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.sqlite"]


def test_every_fact_that_a_run_may_say_of_itself_can_be_shared(monkeypatch):
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    sizes = {"d_model": 48, "d_ff": 80, "layers": 5, "heads": 3, "vocab_size": 99}
    told = description(Workload(with_defaults({"size": "tiny", "device": "cpu", **sizes})))
    assert {"watched_by", *sizes} <= told.keys() <= RUN_FACTS
