"""A shared copy answers as its report does, and holds nothing else of it."""

import json
import os
import re
import sqlite3
import struct
from contextlib import closing

import pytest
from nvtx_kernels.analysis import compare, doctor, page, scrub, timeline, view
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.marks import (
    CALL_MARK,
    FLOPS_MARK,
    RECORDED_MARK,
    RUN_MARK,
    TRAINING_MARK,
    UNRECORDED_MARK,
    read_mark,
)
from nvtx_kernels.analysis.readers.nsys_tables import STRINGS
from nvtx_kernels.analysis.scrub.allowed import TABLES, Role
from nvtx_kernels.analysis.scrub.names import Names
from nvtx_kernels.analysis.scrub.words import EVERYBODYS, words_of
from nvtx_kernels.analysis.views.registry import VIEWS
from nvtx_kernels.analysis.vocabulary.settings import CHOICES
from nvtx_kernels.profiling.study.one_run import mark_text
from nvtx_kernels.profiling.study.settings import AUTOCAST_DTYPE, with_defaults
from nvtx_kernels.profiling.study.workload import Workload

from tests.analysis.making import private
from tests.analysis.making.allocated import two_steps
from tests.analysis.making.bundled import DATA, OURS, REPORTS, unpacked
from tests.analysis.making.copies import answers, inside, rows, scrubbed
from tests.analysis.readers.test_nccl_payloads import COMMUNICATOR, SHARE, START, of_rank, payload, size
from tests.analysis.readers.test_nccl_payloads import report as report_of_nccl
from tests.analysis.readers.test_nsys_versions import GREEN, alter

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


def test_an_empty_text_that_hides_a_registered_name_stays_empty(tmp_path, capsys):
    report = unpacked("h200_train_fp32.sqlite", tmp_path)
    inside(report, "UPDATE NVTX_EVENTS SET text = '' WHERE textId IS NOT NULL AND eventType = 59")
    assert answers(scrubbed(report), capsys, ANSWERS[0]) == answers(report, capsys, ANSWERS[0])


@pytest.mark.parametrize("name", REPORTS)
def test_copy_answers_as_its_report_and_would_leak_nothing(tmp_path, capsys, name):
    report = unpacked(name, tmp_path)
    before = report.read_bytes()
    copy = scrubbed(report)
    for options in ANSWERS[:2]:
        assert answers(copy, capsys, options) == answers(report, capsys, options)
    assert report.read_bytes() == before
    assert scrub.main([str(copy), "--check"]) == 0
    assert capsys.readouterr().out == "report.sqlite: nothing private found\n"


OTHER_COMMANDS = {
    **{f"view {name}": (view, name, "REPORT") for name in VIEWS},
    "view kernels": (view, "kernels", "REPORT", "--kernel", "gemm"),
    "doctor": (doctor, "REPORT"),
    "timeline": (timeline, "REPORT", "-o", "OUT"),
    "page": (page, "REPORT", "-o", "OUT"),
    "comparison": (compare, "OTHER", "REPORT", "--format", "csv"),
}


def with_green_contexts(folder):
    return alter(with_payloads(folder), *GREEN)


def with_payloads(folder):
    ranges = [
        START,
        ("ncclAllReduce", 40, size(1 << 20)),
        ("ncclAllGather", 60, size(1 << 16, SHARE)),
        ("ncclReduceScatter", 70, payload(SHARE, "<QQ", COMMUNICATOR, 4096)),
        ("ncclBroadcast", 80, b"jdoe"),
        ("ncclReduce", 90, of_rank(2)),
    ]
    return report_of_nccl(folder, ranges, [45, 62, 72, 82, 92])


SPECIAL = {"payloads": with_payloads, "green contexts": with_green_contexts, "allocations": two_steps}


@pytest.fixture(scope="module", params=["planted", *SPECIAL])
def pair(request, planted, copy_of_planted, tmp_path_factory):
    """A report and its copy."""
    if request.param == "planted":
        return planted, copy_of_planted
    report = SPECIAL[request.param](tmp_path_factory.mktemp("special"))
    return report, scrubbed(report)


@pytest.mark.parametrize("command", OTHER_COMMANDS.values(), ids=OTHER_COMMANDS.keys())
def test_every_command_says_the_same_of_the_copy(pair, tmp_path, capsys, command):
    results = []
    for report in pair:
        files = {"REPORT": report, "OUT": tmp_path / "out", "OTHER": DATA / OURS[0]}
        capsys.readouterr()
        status = command[0].main([str(files.get(word, word)) for word in command[1:]])
        written = files["OUT"].read_bytes() if files["OUT"].exists() else b""
        answer = (*capsys.readouterr(), written.decode())
        paths = [text.replace(str(report), "REPORT") for text in answer]
        results.append((status, *(re.sub("communicator 0x[0-9a-f]+", "communicator", text) for text in paths)))
    assert results[0] == results[1]
    assert any(results[0][1:])


def test_copy_of_payloads_has_the_figures_alone(tmp_path, capsys):
    report = with_green_contexts(tmp_path)
    inside(report, "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET name = 'Jdoes field' WHERE name = 'CUDA device'")
    assert {(row.where, row.text) for row in scrub.sharing_of(report, of_copy=True).unknown()} >= {
        ("NVTX_EVENTS", "(bytes that ranges carry)"),
        ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "Jdoes field"),
    }
    copy = scrubbed(report)
    messages, of_copy = read(report).messages, read(copy).messages
    assert max(messages.root_or_peer) == 2
    for field in ("launch", "ranks", "sent_bytes", "received_bytes", "root_or_peer"):
        assert getattr(messages, field).tolist() == getattr(of_copy, field).tolist() != []
    assert read(copy).notes == read(report).notes
    assert [word for word in ("Green contexts", "payloads of 1 ") if word not in str(read(copy).notes)] == []
    held = copy.read_bytes()
    assert [private for private in (b"doe", b"GPU-0", struct.pack("<Q", COMMUNICATOR)) if private in held] == []
    assert scrub.main([str(copy), "--check"]) == 0
    inside(report, "UPDATE NVTX_EVENTS SET text = 'mine', textId = NULL WHERE text = 'ncclAllReduce'")
    kept = scrubbed(report, "--keep", "mine")
    assert rows(kept, "SELECT binaryData FROM NVTX_EVENTS WHERE text = 'mine'") == [(None,)]


def test_copy_of_a_planted_report_answers_alike_and_holds_nothing_planted(planted, copy_of_planted, capsys):
    held = copy_of_planted.read_bytes()
    assert [value for value in private.VALUES if value.encode() in held] == []
    assert all(value.encode() in planted.read_bytes() for value in private.VALUES)
    for options in ANSWERS:
        assert answers(copy_of_planted, capsys, options) == answers(planted, capsys, options)


def test_check_lists_everything_that_is_planted(planted, capsys):
    listed = {(row.where, row.text) for row in scrub.sharing_of(planted, of_copy=True).unknown() if row.count}
    assert private.LISTED - listed == set()
    assert scrub.main([str(planted), "--check"]) == scrub.WOULD_LEAK
    assert "META_DATA_CAPTURE" in capsys.readouterr().out


def test_check_of_kept_names_finds_nothing_if_they_are_kept_again(tmp_path, capsys):
    report = unpacked(OURS[1], tmp_path)
    last = "(SELECT max(textId) FROM NVTX_EVENTS WHERE eventType = 59)"
    inside(report, f"UPDATE StringIds SET value = 'Jdoes Layer 3' WHERE id = {last}")
    copy = scrubbed(report, "--keep", "Jdoes *")
    assert rows(copy, "SELECT count(*) FROM StringIds WHERE value = 'Jdoes Layer 3'") == [(1,)]
    assert [scrub.main([str(copy), "--check", *keep]) for keep in ([], ["--keep", "Jdoes *"])] == [3, 0]


def test_check_finds_rows_that_were_deleted(tmp_path, capsys):
    report = scrubbed(unpacked("h200_compiled.sqlite", tmp_path))
    with closing(sqlite3.connect(report)) as connection:
        private.delete_a_table_of(connection, private.TOKEN)
    assert scrub.main([str(report), "--check"]) == scrub.WOULD_LEAK
    assert "(rows that were deleted) freed pages" in capsys.readouterr().out
    assert private.TOKEN.encode() not in scrubbed(report).read_bytes()


def test_copy_has_allowed_tables_and_columns_only(copy_of_planted):
    copy = copy_of_planted
    tables = {name for (name,) in rows(copy, "SELECT name FROM sqlite_master")}
    assert tables - {STRINGS} <= TABLES.keys()
    for table in tables - {STRINGS}:
        assert {row[1] for row in rows(copy, f"PRAGMA table_info({table})")} <= TABLES[table].keys()
    assert rows(copy, "PRAGMA freelist_count") == [(0,)]


def test_times_that_are_dates_count_from_the_first(tmp_path, capsys):
    report, epoch = unpacked("h200_train_fp32.sqlite", tmp_path), 1_795_173_292_279_457_769
    activities = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET"))
    for table in ("NVTX_EVENTS", *activities):
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


@pytest.fixture
def of_run(monkeypatch):
    """The facts of a run's mark."""
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    sizes = {"d_model": 48, "d_ff": 80, "layers": 5, "heads": 3, "vocab_size": 99}
    text = mark_text(Workload(with_defaults({"size": "tiny", "device": "cpu", **sizes})))
    return json.loads(text.removeprefix(RUN_MARK))


def test_every_fact_that_a_run_says_of_itself_is_shared(of_run):
    text = RUN_MARK + json.dumps(of_run, separators=(",", ":"))
    assert Names().shared(Role.MARK, text) == text


CHOSEN = {
    **CHOICES,
    "device": ("cpu", "cuda", "cuda:1"),
    "autocast": ("off", *(str(dtype).removeprefix("torch.") for dtype in AUTOCAST_DTYPE.values())),
}


@pytest.mark.parametrize(("setting", "choice"), [(name, choice) for name in CHOSEN for choice in CHOSEN[name]])
def test_every_choice_of_a_setting_is_shared_whatever_the_program_is_called(of_run, setting, choice):
    facts = {name: fact for name, fact in of_run.items() if name not in ("flops", "bytes")} | {setting: choice}
    assert read_mark(RUN_MARK + json.dumps(facts))[1] == []
    own = words_of([*map(str, facts.values()), *(str(word) for words in CHOSEN.values() for word in words)])
    assert {"train", "reference", "small", "cuda", "nsys"} - own <= EVERYBODYS
    shared = Names(own_words=own).shared(Role.MARK, RUN_MARK + json.dumps(facts))
    assert json.loads(shared.removeprefix(RUN_MARK)) == facts


def test_schema_of_a_mark_is_shared_whatever_the_program_is_called():
    tflops = dict.fromkeys(["tf32", "bf16", "complex64", "float8_e4m3fn"], 1.0)
    peaks = {"tflops": tflops, "gigabytes_per_s": 2.0}
    marks = [
        TRAINING_MARK + json.dumps({"event": event}) for event in ("begin", "measure", "end", "step", "update")
    ]
    timed = {"clock": "gpu", "step_ns": [5], "where": "after", "span_ns": {"forward": [3.5]}, "shape": "fbA"}
    marks += [UNRECORDED_MARK + json.dumps(timed), RECORDED_MARK + '{"shapes": ["fbA"], "sizes": [64]}']
    marks += [CALL_MARK + '{"positions": 31}']
    for mark in (*marks, FLOPS_MARK + json.dumps({"version": 1, "part": 0, "parts": 1, "peaks": peaks})):
        assert read_mark(mark)[1] == []
        assert Names(own_words=words_of([mark])).shared(Role.MARK, mark) == mark
    assert "jdoe" not in Names().shared(Role.MARK, RUN_MARK + '{"mode":"jdoe","size":"small, jdoe 3"}')
