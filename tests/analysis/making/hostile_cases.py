"""Every kind of bad file that the command is run on: what is written, how it ends, what it says."""

import subprocess

from tests.analysis.making import hostile
from tests.analysis.making.hostile import HUGE, KERNELS, LAUNCHES, RANGES, loose, put, report

RIGHT = "20 ns = 20 ns (100.0%) launched in ranges of the same thread."
OUTSIDE = "20 ns (100.0%) outside all ranges"
LOWEST, FAR, EPOCH = -(2**63), 2**62 + 1, 1_795_173_292_279_457_769
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"


def sized(folder, size):
    path = report(folder)
    path.write_bytes(path.read_bytes()[:size])
    return path


def written(folder, data):
    (folder / "report.sqlite").write_bytes(data)
    return folder / "report.sqlite"


def overwritten(folder, at, data):
    path = report(folder)
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    return path


def stretched(folder, size):
    path = report(folder)
    with path.open("r+b") as file:
        file.truncate(size)
    return path


def fifo(folder):
    subprocess.run(["mkfifo", folder / "report.sqlite"], check=True)
    return folder / "report.sqlite"


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
    "empty": (lambda d: sized(d, 0), 1, "is empty: its recording or export did not finish"),
    "cut in the header": (lambda d: sized(d, 60), 1, "is damaged: "),
    "cut in a page": (lambda d: sized(d, 5000), 1, "is truncated after 5,000 of"),
    "zeroed": (lambda d: written(d, bytes(9000)), 1, "begins with zeros"),
    "zeroed header": (lambda d: overwritten(d, 0, bytes(100)), 1, "is not a report that can be read"),
    "zeroed page": (lambda d: overwritten(d, 100, bytes(3000)), 1, "is damaged: "),
    "Git LFS pointer": (lambda d: written(d, LFS_POINTER), 1, "is a Git LFS pointer"),
    "random bytes": (hostile.noise, 1, "is not a report that can be read"),
    "folder": (lambda d: d, 2, "contains no reports"),
    "pipe without a writer": (fifo, 1, "is not a regular file"),
    "claims 8 TiB": (lambda d: overwritten(d, 28, b"\x7f\xff\xff\xff"), 1, "is truncated after"),
    "sparse terabyte": (lambda d: stretched(d, 1 << 40), 0, RIGHT),
    "name of no file": (lambda d: hostile.renamed(report(d), b"caf\xe9 ?mode=rwc&x#%41.sqlite"), 0, RIGHT),
    "nested 100,000 deep": (lambda d: hostile.nested(d, 100_000), 1, "nest more than 1000 deep"),
    "crossing 100,000 times": (lambda d: hostile.crossing(d, 100_000), 1, "More than 200 ranges cross"),
}
TABLES = {
    "another program's": (("DROP TABLE StringIds",), 1, "not one that `nsys export` wrote"),
    "row ids at both ends": (
        (put(KERNELS, "rowid", LOWEST), put(KERNELS, "rowid", HUGE, "rowid = 2")), 0, RIGHT,
    ),
    "column called rowid": ((f"ALTER TABLE {KERNELS} ADD COLUMN rowid TEXT DEFAULT 'x'",), 0, RIGHT),
    "endless view": (endless_view(KERNELS), 1, "2 CUDA API calls but no kernel"),
    "endless strings": (endless_view("StringIds"), 1, "not one that `nsys export` wrote"),
    "virtual table": (
        ("DROP TABLE StringIds", "CREATE VIRTUAL TABLE StringIds USING fts5(id, value)"), 1,
        "has a virtual table, 'StringIds', as no export does",
    ),
    "computed column": (computed_text(), 1, "computes columns, as no export does"),
    "5,000 tables": (("BEGIN", *(f"CREATE TABLE t{n} (a, b, c)" for n in range(5000))), 0, RIGHT),
    "missing column": ((f"ALTER TABLE {KERNELS} DROP COLUMN demangledName",), 1, "has no column demangledName"),
}  # fmt: skip
VALUES = {
    "text for a time": ((put(KERNELS, "start", "'soon'"),), 1, "it has text for a start"),
    "fraction for a time": ((put(KERNELS, "start", "1.5"),), 1, "not an integer"),
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
    "absurd sequence number": ((all_of(RANGES, "text", f"'aten::mm, seq = {'9' * 40}'"),), 0, RIGHT),
    "absurd grid": (
        (all_of(KERNELS, "gridX", HUGE), all_of(KERNELS, "gridY", HUGE), all_of(KERNELS, "gridZ", 4)), 1,
        "'grid' contains a value that is not an integer",
    ),
}  # fmt: skip
CASES = {**FILES, **TABLES, **VALUES}


def written_case(case, folder):
    """Write a case; return its path, the exit status to expect, and what must be said."""
    content, status, expected = CASES[case]
    return (content(folder) if callable(content) else report(folder, *content)), status, expected
