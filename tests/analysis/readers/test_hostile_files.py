"""Whatever a file holds, the command answers right or says one sentence, in bounded time and memory.

Every file is written for real and read by the command in a process of its own (see `hostile.run`).
"""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from nvtx_kernels.analysis import kernels

from tests.analysis.making import hostile
from tests.analysis.making.building import Dialect, Range, build, launched
from tests.analysis.making.hostile import KERNELS, report
from tests.analysis.making.hostile_cases import CASES, RIGHT, written_case


def content(path):
    """Return what tells whether a file was written: its bytes, or for a huge one its size and times."""
    found = path.stat()
    return path.read_bytes() if path.is_file() and found.st_size < 1 << 30 else (found.st_size, found.st_mtime_ns)


# Each takes over three seconds.
LONG = ("nested 100,000 deep", "crossing 100,000 times", "5,000 tables")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in LONG else []) for case in CASES]
)
def test_the_answer_is_right_or_one_sentence(tmp_path, case):
    path, status, expected = written_case(case, tmp_path)
    before = content(path)
    said = hostile.run(path)
    assert said.status == status, said.err
    assert expected in (said.err if status else said.out).replace("\n", " ")
    assert "Traceback" not in said.err
    assert (said.err.startswith("error: ") and said.err.count("\n") == 1) if status else not said.err
    assert content(path) == before
    assert [entry for entry in tmp_path.iterdir() if entry != path] == []


ALTERED = f'UPDATE {KERNELS} SET "end" = "end" + 5'
MANY = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 999) SELECT x, zeroblob(999) FROM n"
)
SPILLED = ["PRAGMA cache_size = 1", "BEGIN", ALTERED, f"CREATE TABLE t AS {MANY}", "UPDATE t SET x = x + 1"]
# Statements of the writer, the exit status of the reader, and what it says.
WRITERS = {
    "exclusive lock": (["BEGIN EXCLUSIVE"], 1, "is being written by another program. Wait until it is written."),
    "unfinished change": (["BEGIN EXCLUSIVE", ALTERED], 1, "is being written by another program."),
    "half on disk": (SPILLED, 1, "report.sqlite-journal is next to it."),
    "write-ahead log": (["PRAGMA journal_mode = WAL", ALTERED], 1, "report.sqlite-wal next to it has changes"),
    "reader": (["BEGIN", f"SELECT * FROM {KERNELS}"], 0, RIGHT),
    "finished change": (["PRAGMA journal_mode = PERSIST", f"DELETE FROM {KERNELS} WHERE rowid > 9"], 0, RIGHT),
}  # fmt: skip


@pytest.mark.parametrize(("statements", "status", "expected"), WRITERS.values(), ids=WRITERS.keys())
def test_report_that_somebody_has_open_is_read_whole_or_not_at_all(tmp_path, statements, status, expected):
    path, close = hostile.held(tmp_path, *statements)
    try:
        said = hostile.run(path)
    finally:
        close()
    assert said.status == status
    assert expected in (said.err if status else said.out).replace("\n", " ")


WRITER = f"""
import itertools, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA synchronous = OFF")
print("writing", flush=True)
for length in itertools.count(1):
    database.execute('UPDATE {KERNELS} SET "end" = start + ?', (length % 1000,))
"""


@pytest.mark.slow
def test_report_that_is_changed_all_the_time_is_never_half_old(tmp_path):
    count, read = 30_000, 0
    path = hostile.distinct_kernels(tmp_path, count)
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        for _ in range(6):
            said = hostile.run(path, "--format", "json")
            read += said.status == 0
            assert (
                (said.err == "" and json.loads(said.out)["totals"]["kernel_ns"] % (count + 2) == 0)
                if said.status == 0
                else re.search("written|changed", said.err)
            )
        writer.kill()
    assert read < 6


def may_not_override():
    """Return what takes root's right to read everything away, or skip."""
    if os.geteuid():
        return ()
    if not shutil.which("setpriv"):
        pytest.skip("root may read everything, and there is no setpriv to take that away")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--")


def test_file_that_may_not_be_read_is_refused(tmp_path):
    path = report(tmp_path)
    path.chmod(0)
    said = hostile.run(path, under=may_not_override())
    assert (said.status, said.err) == (1, f"error: {path} cannot be read: Permission denied.\n")


def test_report_in_a_read_only_folder_is_read(tmp_path):
    path = report(tmp_path)
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    said = hostile.run(path, under=may_not_override())
    tmp_path.chmod(0o755)
    assert said.status == 0
    assert RIGHT in said.out.replace("\n", " ")


@pytest.mark.parametrize("build_many", [hostile.distinct_kernels, hostile.distinct_ranges])
@pytest.mark.slow
def test_a_hundred_thousand_names_take_little_memory(tmp_path, build_many):
    said = hostile.run(build_many(tmp_path, 100_000), "--format", "csv", memory=768 << 20)
    assert (said.status, said.err) == (0, "")
    assert len(list(csv.DictReader(io.StringIO(said.out)))) > 0


@pytest.mark.slow
@pytest.mark.parametrize("build_many", [hostile.distinct_kernels, hostile.distinct_ranges])
def test_two_million_names_are_answered_or_refused(tmp_path, build_many):
    said = hostile.run(build_many(tmp_path, 2_000_000))
    assert said.status == 0 or (said.status, said.err) == (1, "error: not enough memory for this report.\n")


NAMES = {
    "escape sequences": "\x1b[31mred\x1b]0;title\x07\x9b31m\x08end",
    "Rich markup": "[bold red]x[/] [link=http://a]b[/link] [/nope] \\[x",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "formula": "=cmd|'/C calc'!A0",
    "formula after a tab": "\t=1+1",
    "pipes": "a|b`c`*d*\\|",
    "LaTeX": "\\input{/etc/passwd} $x$ % & # _ {",
    "Typst": '#read("/etc/passwd") $x$ "quoted" \\" @ref <label>',
    "right to left": "\u202eabc\u2066\u200b\ufeff",
    "lines": "a\"b'c,d;e\nf",
    "NUL": "a\x00b",
    "nothing": "",
    "many characters": "x" * 200_000,  # more than a field of CSV may have by itself
    "many brackets": "<" * 200_000,
    "many accents": "a" + "\u0301" * 100_000,
}
NAMELESS = "(kernel without a name, string 1001)"
PEOPLES = ("table", "markdown", "latex", "typst")
HARMLESS = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]*")


def with_name(folder, name):
    """Write a report whose inner range and kernels bear a name."""
    rows = launched((10, 12), (20, 22), name=name)
    return build(folder, Dialect(), ranges=[Range("step", 0, 1000), Range(name, 5, 900)], **rows)


def answered(path, capsys, *options):
    capsys.readouterr()
    assert kernels.main([str(path), *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("format_", PEOPLES)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_stay_text_for_people(tmp_path, capsys, name, format_):
    said = answered(with_name(tmp_path, name), capsys, "--format", format_, "--full-names", "--every-index")
    assert HARMLESS.fullmatch(said)
    assert "<script>" not in said or format_ in ("table", "typst")
    assert "\\input{" not in said or format_ in ("table", "markdown", "typst")
    assert RIGHT in " ".join(said.split()).replace("\\", "") or format_ == "typst"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_stay_whole_for_programs(tmp_path, capsys, name):
    csv.field_size_limit(1 << 30)
    path = with_name(tmp_path, name)
    found = json.loads(answered(path, capsys, "--format", "json"))["kernels"]
    assert {kernel["path"][-1] for kernel in found} == {name}
    assert {kernel["kernel"] for kernel in found} == {name or NAMELESS}
    rows = list(csv.reader(io.StringIO(answered(path, capsys, "--format", "csv"), newline="")))
    assert len({len(row) for row in rows}) == 1
    assert not [cell for row in rows[1:] for cell in row if cell.lstrip()[:1] in ("=", "@")]
