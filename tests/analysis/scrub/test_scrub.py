"""A shared copy answers as its report does, and holds nothing else of it."""

import os
import re
import sqlite3
from contextlib import closing

import pytest
from nvtx_kernels.analysis import compare, doctor, join, page, scrub, timeline, view
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.views.registry import VIEWS

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


def test_copy_of_payloads_has_the_figures_alone(tmp_path):
    report = with_green_contexts(tmp_path)
    copy = scrubbed(report)
    messages, of_copy = read(report).messages, read(copy).messages
    assert max(messages.root_or_peer) == 2
    for field in ("launch", "ranks", "sent_bytes", "received_bytes", "root_or_peer"):
        assert getattr(messages, field).tolist() == getattr(of_copy, field).tolist() != []
    assert read(copy).notes == read(report).notes
    held = copy.read_bytes()
    assert [private for private in (b"doe", b"GPU-0", f"{COMMUNICATOR:x}".encode()) if private in held] == []


def test_copy_of_a_planted_report_answers_alike_and_holds_nothing_planted(planted, copy_of_planted, capsys):
    held = copy_of_planted.read_bytes()
    assert [value for value in private.VALUES if value.encode() in held] == []
    assert all(value.encode() in planted.read_bytes() for value in private.VALUES)
    for options in ANSWERS:
        assert answers(copy_of_planted, capsys, options) == answers(planted, capsys, options)


def test_check_lists_what_a_copy_lacks(planted, capsys):
    listed = scrub.possibly_private(planted)
    assert private.LISTED - listed.keys() == set()
    assert scrub.main([str(planted), "--check"]) == scrub.WOULD_LEAK
    assert "META_DATA_CAPTURE" in capsys.readouterr().out


def test_check_of_kept_names_finds_nothing_if_they_are_kept_again(tmp_path):
    report = unpacked(OURS[1], tmp_path)
    last = "(SELECT max(textId) FROM NVTX_EVENTS WHERE eventType = 59)"
    inside(report, f"UPDATE StringIds SET value = 'Jdoes Layer 3' WHERE id = {last}")
    copy = scrubbed(report, "--keep", "Jdoes *")
    assert rows(copy, "SELECT count(*) FROM names WHERE value = 'Jdoes Layer 3'") == [(1,)]
    assert [scrub.main([str(copy), "--check", *keep]) for keep in ([], ["--keep", "Jdoes *"])] == [3, 0]


BESIDES = {
    "a table": "CREATE TABLE mine (value)",
    "a column": "ALTER TABLE names ADD COLUMN mine",
    "a view": "CREATE VIEW mine AS SELECT 'secret'",
    "a key": "INSERT INTO trace VALUES (999, 'mine', '1')",
    "another version": "PRAGMA user_version = 7",
}


@pytest.mark.parametrize("besides", BESIDES.values(), ids=BESIDES.keys())
def test_check_finds_whatever_else_is_in_a_copy(tmp_path, capsys, besides):
    copy = scrubbed(unpacked(OURS[1], tmp_path))
    inside(copy, besides)
    assert scrub.main([str(copy), "--check"]) == scrub.WOULD_LEAK
    assert "(bytes that this version does not write)" in capsys.readouterr().out


def test_check_finds_rows_that_were_deleted(tmp_path):
    copy = scrubbed(unpacked(OURS[1], tmp_path))
    with closing(sqlite3.connect(copy)) as connection:
        private.delete_a_table_of(connection, private.TOKEN)
    assert scrub.main([str(copy), "--check"]) == scrub.WOULD_LEAK
    (tmp_path / "again").mkdir()
    assert private.TOKEN.encode() not in scrubbed(copy).read_bytes()


def test_a_copy_is_the_same_bytes_each_time(tmp_path):
    report = unpacked(OURS[1], tmp_path)
    copies = [scrubbed(report).read_bytes() for _ in range(2)]
    assert copies[0] == copies[1]


def test_a_joined_report_hides_the_words_of_its_surroundings_too(tmp_path):
    report = unpacked(OURS[1], tmp_path)
    private.add_variables(report, USER="forward", HOME="/home/softmax", API_TOKEN="Hunter")
    assert join.main([str(report), "-o", str(tmp_path / "joined.sqlite")]) == 0
    assert read(tmp_path / "joined.sqlite").surroundings == {"forward", "softmax"}
    assert rows(scrubbed(tmp_path / "joined.sqlite"), "SELECT value FROM trace WHERE what = 'surroundings'") == [
        ("[]",)
    ]


def test_times_that_are_dates_count_from_the_first(tmp_path, capsys):
    report, epoch = unpacked("h200_train_fp32.sqlite", tmp_path), 1_795_173_292_279_457_769
    activities = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET"))
    for table in ("NVTX_EVENTS", *activities):
        inside(report, f'UPDATE {table} SET start = start + {epoch}, "end" = "end" + {epoch}')
    copy = scrubbed(report)
    starts = "SELECT start_ns FROM ranges UNION SELECT start_ns FROM launches"
    assert rows(copy, f"SELECT min(start_ns) FROM ({starts})") == [(0,)]
    assert answers(copy, capsys, ANSWERS[0]) == answers(report, capsys, ANSWERS[0])


def test_output_in_the_reports_place_is_refused(tmp_path, capsys):
    report, link = unpacked(OURS[1], tmp_path), tmp_path / "link.sqlite"
    before = report.read_bytes()
    link.symlink_to(report)
    os.link(report, tmp_path / "hard.sqlite")
    for target in (report, link, tmp_path / "hard.sqlite"):
        assert scrub.main([str(report), "-o", str(target)]) == 2
        assert "is a report to read; write the answer to another file." in capsys.readouterr().err
    assert report.read_bytes() == before


WRONG = {
    "no report": (["{0}/missing.sqlite", "-o", "{0}/x"], 1, "does not exist"),
    "no report to check": (["{0}/missing.sqlite", "--check"], 1, "does not exist"),
    "nsys's own file": (["{0}/run.nsys-rep", "-o", "{0}/x"], 1, "nsys export --type sqlite"),
    "a trace for a copy": (
        ["{0}/report.sqlite", "-o", "{0}/x.json.gz"],
        2,
        "A saved report is an SQLite file: -o x.sqlite",
    ),
    "another JSON file": (["{0}/other.json", "--check"], 1, "is not a trace of PyTorch's profiler"),
    "no folder": (["{0}/report.sqlite", "-o", "{0}/no/folder/x"], 2, "cannot be written: No such file"),
    "a file for a folder": (["{0}/report.sqlite", "-o", "{0}/report.sqlite/x"], 2, "cannot be written: Not a"),
}


@pytest.mark.parametrize(("arguments", "status", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_command_says_what_is_wrong(tmp_path, capsys, monkeypatch, arguments, status, sentence):
    monkeypatch.setenv("PATH", str(tmp_path))
    unpacked(OURS[1], tmp_path)
    (tmp_path / "run.nsys-rep").write_bytes(b"nsys")
    (tmp_path / "other.json").write_text("{}")
    assert scrub.main([word.format(tmp_path) for word in arguments]) == status
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert sentence in said
    assert said.count("\n") == 1
