"""Whatever a file holds, the command answers right or says one sentence, in bounded time and memory.

Every file is written for real. Where it could take all memory or time, or its name be said wrongly, the command
reads it in a process of its own (see `hostile.run`).
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
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.safety import LONGEST_NAME

from tests.analysis.making import checks, hostile
from tests.analysis.making.building import Dialect, Range, build, launched
from tests.analysis.making.hostile import HUGE, KERNELS, LAUNCHES, RANGES, Said, loose, put, report

RIGHT = "20 ns (61%) computing, 13 ns (39%) idle."
NO_STEP = "The recorded work takes 20 ns: 20 ns (100%) computing."
OUTSIDE = "None of the 20 ns of GPU work is in a range."
LOWEST, FAR, EPOCH = -(2**63), 2**62 + 1, 1_795_173_292_279_457_769


def resized(folder, size):
    path = report(folder)
    os.truncate(path, size)
    return path


def overwritten(folder, at, data):
    path = report(folder)
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    return path


def endless_view(table):
    """Return SQL that puts a view without an end in place of a table."""
    return (
        f"ALTER TABLE {table} RENAME TO theirs",
        f"""CREATE VIEW {table} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
        SELECT theirs.* FROM n, theirs""",
    )


def computed_text():
    """Return SQL that gives ranges a name of 400 MB that is worked out for every row."""
    columns = 'start, "end", eventType, globalTid, domainId, textId'
    return (
        f"ALTER TABLE {RANGES} RENAME TO old",
        f"CREATE TABLE {RANGES} ({columns}, text TEXT AS (hex(zeroblob(200000000))) VIRTUAL)",
        f"INSERT INTO {RANGES} SELECT {columns} FROM old",
    )


def moved(by):
    """Return SQL that makes all times that much later."""
    return tuple(
        f'UPDATE {table} SET start = start + {by}, "end" = "end" + {by}' for table in (KERNELS, LAUNCHES, RANGES)
    )


def all_of(table, column, value):
    """Return SQL that puts a value into every row."""
    return put(table, column, value, "1")


# What is written into a folder, or done to a good report; the exit status; what the answer or the sentence holds.
FILES = {
    "cut in the header": (lambda d: resized(d, 60), 1, "is damaged: "),
    "cut in a page": (lambda d: resized(d, 5000), 1, "is truncated after 5,000 of"),
    "zeroed header": (lambda d: overwritten(d, 0, bytes(100)), 1, "is not a report that can be read"),
    "zeroed page": (lambda d: overwritten(d, 100, bytes(3000)), 1, "is damaged: "),
    "claims 8 TiB": (lambda d: overwritten(d, 28, b"\x7f\xff\xff\xff"), 1, "is truncated after"),
    "sparse terabyte": (lambda d: resized(d, 1 << 40), 0, RIGHT),
    "name of no file": (lambda d: hostile.renamed(report(d), b"caf\xe9 ?mode=rwc&x#%41.sqlite"), 0, RIGHT),
    "nested 100,000 deep": (lambda d: hostile.nested(d, 100_000), 1, "nest more than 1000 deep"),
    "crossing 100,000 times": (lambda d: hostile.crossing(d, 100_000), 1, "More than 200 ranges cross"),
}
TABLES = {
    "row ids at both ends": (
        (put(KERNELS, "rowid", LOWEST), put(KERNELS, "rowid", HUGE, "rowid = 2")), 0, RIGHT,
    ),
    "column called rowid": ((f"ALTER TABLE {KERNELS} ADD COLUMN rowid TEXT DEFAULT 'x'",), 0, RIGHT),
    "endless view": (endless_view(KERNELS), 1, "2 CUDA API calls but no kernel"),
    "endless strings": (endless_view("StringIds"), 1, "not one that `nsys export` wrote"),
    "virtual table": (
        ("DROP TABLE StringIds", "CREATE VIRTUAL TABLE StringIds USING fts5(id, value)"), 1,
        "has a virtual table, 'StringIds', as no report does",
    ),
    "computed column": (computed_text(), 1, "computes columns, as no report does"),
    "5,000 tables": (("BEGIN", *(f"CREATE TABLE t{n} (a, b, c)" for n in range(5000))), 0, RIGHT),
}  # fmt: skip
VALUES = {
    "text for a time": ((put(KERNELS, "start", "'soon'"),), 1, "it has text for a start"),
    "fraction for a time": ((put(KERNELS, "start", "1.5"),), 1, "not an integer"),
    "text for a correlation id": ((put(KERNELS, "correlationId", "'x'"),), 1, "it has text for a"),
    "bytes for a time": ((put(KERNELS, "start", "x'0aff'"),), 1, "it has bytes for a start"),
    "bytes for a name": ((all_of("StringIds", "value", "x'00ff'"),), 0, RIGHT),
    "number for a name": ((*loose("StringIds"), all_of("StringIds", "value", "17")), 0, RIGHT),
    "no time of a kernel": ((*loose(KERNELS), put(KERNELS, "start", "NULL")), 1, "'start' has 1 missing"),
    "no time of a call": ((*loose(LAUNCHES), put(LAUNCHES, "end", "NULL")), 1, "'end' has 1 missing"),
    "no start of a range": ((*loose(RANGES), put(RANGES, "start", "NULL")), 1, "'start' has 1 missing"),
    "no end of a range": ((put(RANGES, "end", "NULL"),), 0, RIGHT),
    "no name of a kernel": ((*loose(KERNELS), all_of(KERNELS, "demangledName", "NULL")), 0, RIGHT),
    "no string": ((*loose("StringIds"), all_of("StringIds", "value", "NULL")), 0, RIGHT),
    "no process": ((all_of(KERNELS, "globalPid", "NULL"),), 0, OUTSIDE),
    "negative times": (moved(-(10**15)), 0, RIGHT),
    "times from 1970": (moved(EPOCH), 0, RIGHT),
    "kernel without an end": ((put(KERNELS, "end", HUGE),), 1, "times of GPU work beyond any capture"),
    "kernel since ever": ((put(KERNELS, "start", LOWEST),), 1, "times of GPU work beyond any capture"),
    "kernel for a year": ((put(KERNELS, "end", 2**55),), 1, "times of GPU work beyond any capture"),
    "call beyond time": ((put(LAUNCHES, "start", -FAR),), 1, "times of CUDA API calls beyond any"),
    "range over all time": (
        (put(RANGES, "start", LOWEST), put(RANGES, "end", HUGE)), 1, "times of ranges beyond any",
    ),
    "kernel backwards": ((put(KERNELS, "end", "start - 5"),), 0, "1 kernel rows end before they start"),
    "range backwards": ((put(RANGES, "end", "start - 5"),), 0, "1 ranges end before they start"),
    "call backwards": ((all_of(LAUNCHES, "end", "start - 5"),), 0, RIGHT),
    "absurd correlation": (
        (all_of(KERNELS, "correlationId", HUGE), all_of(LAUNCHES, "correlationId", HUGE)), 0, OUTSIDE,
    ),
    "absurd thread": ((all_of(LAUNCHES, "globalTid", LOWEST),), 0, OUTSIDE),
    "absurd domain": ((all_of(RANGES, "domainId", LOWEST),), 0, RIGHT),
    "absurd string id": ((put(RANGES, "textId", HUGE),), 0, RIGHT),
    "absurd sequence number": ((all_of(RANGES, "text", f"'aten::mm, seq = {'9' * 40}'"),), 0, NO_STEP),
    "absurd grid": (
        (all_of(KERNELS, "gridX", HUGE), all_of(KERNELS, "gridY", HUGE), all_of(KERNELS, "gridZ", 4)), 1,
        "'grid' contains a value that is not an integer",
    ),
}  # fmt: skip
CASES = {**FILES, **TABLES, **VALUES}


def content(path):
    """Return what tells whether a file was written: its bytes, or for a huge one its size and times."""
    found = path.stat()
    return path.read_bytes() if path.is_file() and found.st_size < 1 << 30 else (found.st_size, found.st_mtime_ns)


# Each takes over three seconds.
LONG = ("nested 100,000 deep", "crossing 100,000 times", "5,000 tables")
IN_A_PROCESS = {
    *LONG, "claims 8 TiB", "sparse terabyte", "name of no file", "endless view", "endless strings",
    "virtual table", "computed column",
}  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in LONG)) for case in CASES])
def test_the_answer_is_right_or_one_sentence(tmp_path, case):
    written, status, expected = CASES[case]
    path = written(tmp_path) if callable(written) else report(tmp_path, *written)
    before = content(path)
    said = Said(*checks.said(kernels, str(path))) if case not in IN_A_PROCESS else hostile.run(path)
    assert said.status == status, said.err
    text = " ".join((said.err if status else said.out).split())
    assert expected in text
    assert (OUTSIDE in text) == (expected == OUTSIDE)
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
def test_half_a_million_names_are_answered_or_refused(tmp_path, build_many):
    said = hostile.run(build_many(tmp_path, 500_000), memory=hostile.MEMORY_BYTES // 2)
    assert said.status == 0 or (said.status, said.err) == (1, "error: not enough memory for this report.\n")


NAMES = {
    "escape sequences": "\x1b[31mred\x1b]0;title\x07\x9b31m\x08end",
    "Rich markup": "[bold red]x[/] [link=http://a]b[/link] [/nope] \\[x",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "formula": "=cmd|'/C calc'!A0",
    "formula after a tab": "\t=1+1",
    "pipes": "a|b`c`*d*\\|",
    "LaTeX": "\\input{/etc/passwd} $x$ % & # _ {",
    "right to left": "\u202eabc\u2066\u200b\ufeff",
    "lines": "a\"b'c,d;e\nf",
    "NUL": "a\x00b",
    "nothing": "",
    "many characters": "x" * 200_000,  # more than a field of CSV may have by itself
    "many brackets": "<" * 200_000,
    "many accents": "a" + "\u0301" * 100_000,
}
NAMELESS = "(kernel without a name, string 1001)"
PEOPLES = ("table", "markdown", "latex")
HARMLESS = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]*")


def with_name(folder, name):
    """Write a report whose inner range and kernels bear a name."""
    rows = launched((10, 12), (20, 22), name=name)
    return build(folder, Dialect(), ranges=[Range("step", 0, 1000), Range(name, 5, 900)], **rows)


def answered(path, capsys, *options):
    assert kernels.main([str(path), *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("format_", PEOPLES)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_stay_text_for_people(tmp_path, capsys, name, format_):
    said = answered(with_name(tmp_path, name), capsys, "--format", format_, "--full-names", "--every-index")
    assert HARMLESS.fullmatch(said)
    assert "<script>" not in said or format_ == "table"
    assert "\\input{" not in said or format_ in ("table", "markdown")
    assert RIGHT in " ".join(said.split()).replace("\\", "")


def test_of_endless_names_the_middle_is_left_out_and_different_ones_stay_different(tmp_path):
    ends = "x" * LONGEST_NAME
    ranges = [Range(f"{ends}{middle}{ends}", start, start + 10) for middle, start in (("a", 0), ("b", 100))]
    trace = read(
        build(tmp_path, Dialect(), ranges=ranges, **launched((2, 20), (102, 120), name=ends + "y" + ends))
    )
    assert len(set(trace.names)) == len(trace.names)
    assert max(map(len, trace.names)) < LONGEST_NAME
    assert f"Of names with more than {LONGEST_NAME:,} characters (3), the middle is left out." in trace.notes


@pytest.fixture
def long_fields():
    """Have csv read fields of any length: the limit is one for the whole process."""
    before = csv.field_size_limit(1 << 30)
    yield
    csv.field_size_limit(before)


@pytest.mark.usefixtures("long_fields")
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_stay_whole_for_programs(tmp_path, capsys, name):
    path = with_name(tmp_path, name)
    found = json.loads(answered(path, capsys, "--format", "json"))["kernels"]
    assert {kernel["path"][-1] for kernel in found} == {name}
    assert {kernel["kernel"] for kernel in found} == {name or NAMELESS}
    rows = list(csv.reader(io.StringIO(answered(path, capsys, "--format", "csv"), newline="")))
    assert len({len(row) for row in rows}) == 1
    assert not [cell for row in rows[1:] for cell in row if cell.lstrip()[:1] in ("=", "@")]
