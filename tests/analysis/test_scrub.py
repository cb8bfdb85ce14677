"""A shared copy answers as its report does, and holds nothing else of it."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from analysis import compare, doctor, kernels, page, scrub, timeline
from analysis.scrubbing.allowed import STRINGS, TABLES
from analysis.views.registry import VIEWS
from analysis.vocabulary import without_suffixes
from tests.analysis import private
from tests.analysis.bundled import DATA, OTHERS, OURS, REPORTS, needs_shared, unpacked

RENAMED = [
    (OURS[0], "auto"),
    (OURS[3], "keep"),
    *(pytest.param(OTHERS[at], "keep", marks=needs_shared) for at in (1, 4)),
    *(pytest.param(OTHERS[at], "auto", marks=needs_shared) for at in (4, 11)),
]
ANSWERS = [
    ["--format", "json", "--include-warmup", "--operators", "keep"],
    ["--format", "csv", "--like-nsys"],
    ["--every-index", "--full-names"],
]


def scrubbed(report, *options, status=0):
    """Return the copy of a report, in a folder of its own under the same name."""
    copy = report.parent / f"shared{len(options)}" / report.name
    copy.parent.mkdir()
    assert scrub.main([str(report), "-o", str(copy), *options]) == status
    return copy


def answers(report, capsys, options):
    """Return all that the command says, and its exit status."""
    capsys.readouterr()
    status = kernels.main([str(report), *options])
    return status, *(text.replace(str(report), "REPORT") for text in capsys.readouterr())


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return private.plant(unpacked("h200_compiled.sqlite", tmp_path_factory.mktemp("planted")))


def rows(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize("name", REPORTS)
def test_copy_answers_as_its_report(tmp_path, capsys, name):
    report = unpacked(name, tmp_path)
    before = report.read_bytes()
    copy = scrubbed(report)
    for options in ANSWERS:
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
def test_every_command_says_the_same_of_the_copy(planted, tmp_path, capsys, command):
    (tmp_path / "shared").mkdir()
    copy, results = tmp_path / "shared" / planted.name, []
    scrub.main([str(planted), "-o", str(copy)])
    for report in (planted, copy):
        files = {"REPORT": report, "OUT": tmp_path / "out", "OTHER": DATA / OURS[0]}
        capsys.readouterr()
        status = command[0].main([str(files.get(word, word)) for word in command[1:]])
        written = files["OUT"].read_bytes() if files["OUT"].exists() else b""
        results.append((status, *capsys.readouterr(), written))
    assert results[0] == results[1]
    assert any(results[0][1:])


def test_copy_of_a_planted_report_answers_alike_and_holds_nothing_planted(planted, capsys):
    copy = scrubbed(planted)
    held = copy.read_bytes()
    assert [value for value in private.VALUES if value.encode() in held] == []
    assert all(value.encode() in planted.read_bytes() for value in private.VALUES)
    for options in ANSWERS:
        assert answers(copy, capsys, options) == answers(planted, capsys, options)


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
    assert capsys.readouterr().out == "report.sqlite holds nothing that looks private\n"


def test_copy_has_allowed_tables_and_columns_only(planted, tmp_path):
    copy = tmp_path / "copy.sqlite"
    scrub.main([str(planted), "-o", str(copy)])
    tables = {name for (name,) in rows(copy, "SELECT name FROM sqlite_master")}
    assert tables - {STRINGS} <= TABLES.keys()
    for table in tables - {STRINGS}:
        assert {row[1] for row in rows(copy, f"PRAGMA table_info({table})")} <= TABLES[table].keys()
    assert rows(copy, "PRAGMA freelist_count") == [(0,)]


def inside(path, sql, *parameters):
    """Change a report."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(sql, parameters)
        connection.commit()


LAMBDA = "void run<{lambda(int) at /home/jdoe/model/x.cu:12:3}>(T*)"


@pytest.mark.parametrize(
    ("table", "column", "name", "kept"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", LAMBDA, "void run<{lambda(int) at path_1:12:3}>(T*)"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", "triton_/root/a/b_0", "triton_/root/a/b_0"),
        ("NVTX_EVENTS", "textId", "load /home/jdoe/data.bin", "load path_1"),
        ("NVTX_EVENTS", "textId", "/encoder/layer.0/attention/MatMul", "/encoder/layer.0/attention/MatMul"),
        ("NVTX_EVENTS", "textId", f"ask jd@example.org ({private.TOKEN})", "ask email_1 (secret_1)"),
        ("NVTX_EVENTS", "textId", f"login token={private.PASSWORD}", "login secret_1"),
        ("NVTX_EVENTS", "textId", "tokens: 4096, forward/backward", "tokens: 4096, forward/backward"),
        ("ThreadNames", "nameId", "planted_thread", None),
        ("ThreadNames", "nameId", "jdoe_autograd_x", "autograd"),
    ],
)
def test_names_lose_what_is_private_in_them(tmp_path, table, column, name, kept):
    report = unpacked("h200_train_fp32.sqlite", tmp_path)
    events = " WHERE eventType = 59" if table == "NVTX_EVENTS" else ""
    (number,) = rows(report, f"SELECT max({column}) FROM {table}{events}")[0]
    inside(report, "UPDATE StringIds SET value = ? WHERE id = ?", name, number)
    found = rows(scrubbed(report), f"SELECT value FROM StringIds WHERE id = {number}")
    assert found == ([(kept,)] if kept else [])


def test_host_of_the_report_is_cut_out_of_its_ranges(planted, tmp_path):
    report = Path(shutil.copy(planted, tmp_path / "report.sqlite"))
    inside(report, "INSERT INTO StringIds VALUES (900100, ?)", f"rank 0 on {private.HOST}")
    inside(report, "UPDATE NVTX_EVENTS SET textId = 900100 WHERE rowid = 4")
    assert rows(scrubbed(report), "SELECT value FROM StringIds WHERE id = 900100") == [("rank 0 on host_1",)]


def test_own_mark_keeps_known_facts_only(tmp_path):
    report = unpacked("h200_compiled.sqlite", tmp_path)
    facts = {"size": "tiny", "host": private.HOST, "flops": {"forward": 3, "backward": "x"}, "torch": ["2.11"]}
    inside(report, "INSERT INTO StringIds VALUES (900100, ?)", "nvtx-kernels.run " + json.dumps(facts))
    inside(report, "UPDATE NVTX_EVENTS SET textId = 900100 WHERE eventType = 34")
    (text,) = rows(scrubbed(report), "SELECT value FROM StringIds WHERE id = 900100")[0]
    kept = json.loads(text.removeprefix("nvtx-kernels.run "))
    assert kept == {"size": "tiny", "flops": {"forward": 3}, "torch": None}


def test_string_that_is_a_kernel_and_a_range_is_renamed_as_a_range_only(tmp_path):
    report = unpacked("h200_train_fp32.sqlite", tmp_path)
    (kernel, name), *_ = rows(
        report, "SELECT id, value FROM StringIds JOIN CUPTI_ACTIVITY_KIND_KERNEL ON id = demangledName"
    )
    inside(report, "UPDATE NVTX_EVENTS SET textId = ? WHERE rowid = 10", kernel)
    copy = scrubbed(report, "--rename-ranges")
    assert rows(copy, f"SELECT value FROM StringIds WHERE id = {kernel}") == [(name,)]
    renamed = rows(copy, "SELECT value FROM StringIds JOIN NVTX_EVENTS e ON id = textId WHERE e.rowid = 10")
    assert renamed[0][0].startswith("range x")


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


NAMES = """SELECT coalesce(value, text, '') FROM NVTX_EVENTS e LEFT JOIN StringIds ON id = textId
           WHERE eventType IN (59, 60) ORDER BY e.rowid"""


def ranges(report, capsys, operators):
    """Return the ranges of the answer in JSON, by their paths."""
    said = answers(report, capsys, ["--format", "json", "--operators", operators])[1]
    entries = json.loads(said)["ranges"]
    return {tuple(entry["path"]): {key: entry[key] for key in entry.keys() - {"path"}} for entry in entries}


@pytest.mark.parametrize(("name", "operators"), RENAMED)
def test_renamed_ranges_are_counted_as_before(tmp_path, capsys, name, operators):
    report = unpacked(name, tmp_path)
    copy = scrubbed(report, "--rename-ranges")
    old, new = ([without_suffixes(name)[0] for (name,) in rows(path, NAMES)] for path in (report, copy))
    names = dict(zip(old, new, strict=True))
    assert new == [names[name] for name in old]
    assert len(set(new)) == len(set(old))
    counted = ranges(report, capsys, operators)
    renamed = {tuple(names[name] for name in path): entry for path, entry in counted.items()}
    assert renamed == ranges(copy, capsys, operators)
    assert set(names) - set(new)


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
    "no folder": (["{0}/report.sqlite", "-o", "{0}/no/folder/x"], 2, "cannot be written: No such file"),
    "a file for a folder": (["{0}/report.sqlite", "-o", "{0}/report.sqlite/x"], 2, "cannot be written: Not a"),
}


@pytest.mark.parametrize(("arguments", "status", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_command_says_what_is_wrong(tmp_path, capsys, arguments, status, sentence):
    unpacked(OURS[1], tmp_path)
    assert scrub.main([word.format(tmp_path) for word in arguments]) == status
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_output_to_a_device_is_refused_and_the_device_stays(tmp_path, capsys):
    device = tmp_path / "device"
    os.mkfifo(device)
    for target in (device, tmp_path):
        assert scrub.main([str(unpacked(OURS[1], tmp_path)), "-o", str(target)]) == 2
        assert "is no regular file" in capsys.readouterr().err
    assert device.is_fifo()


def test_text_where_a_number_belongs_is_refused(tmp_path, capsys):
    report = unpacked(OURS[1], tmp_path)
    inside(report, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 'secret' WHERE rowid = 3")
    assert scrub.main([str(report), "-o", str(tmp_path / "x")]) == 1
    assert "values in CUPTI_ACTIVITY_KIND_KERNEL that nsys never writes there" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.sqlite"]


@pytest.mark.parametrize("name", [b"caf\xe9 \xff", b"a\x00b", "naïve – \U0001f600".encode(), b""])
def test_names_in_any_encoding_go_along_unharmed(tmp_path, name):
    report = unpacked(OURS[0], tmp_path)
    ((number,),) = rows(report, "SELECT max(textId) FROM NVTX_EVENTS WHERE eventType = 59")
    inside(report, f"UPDATE StringIds SET value = CAST(? AS TEXT) WHERE id = {number}", name)
    inside(report, "UPDATE NVTX_EVENTS SET textId = NULL, text = CAST(? AS TEXT) WHERE rowid = 7", name)
    copy = scrubbed(report)
    assert rows(copy, f"SELECT CAST(value AS BLOB) FROM StringIds WHERE id = {number}") == [(name,)]
    assert rows(copy, "SELECT CAST(text AS BLOB) FROM NVTX_EVENTS WHERE rowid = 7") == [(name,)]
