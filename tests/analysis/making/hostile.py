"""Files that are no honest reports, one function each, and the command run on them in a process of its own.

The process may take 1 GiB of address space and a minute of processor time; `run` says what it did.
"""

import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.analysis.making import forked
from tests.analysis.making.building import MAIN, Range, alter, build, launched

REPOSITORY = Path(__file__).parents[3]
MEMORY_BYTES, CPU_SECONDS, WALL_SECONDS = 1 << 30, 60, 120
HUGE = 2**63 - 1
KERNELS, LAUNCHES, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
STEP = [Range("step", 0, 1000), Range("layer 0", 5, 900)]


@dataclass(frozen=True)
class Said:
    """What a command said, how it ended, and processor time that it took, s."""

    status: int
    out: str
    err: str
    cpu_s: float = 0.0


def run(*words, module="analysis.kernels", memory=MEMORY_BYTES, under=()):
    """Run a command of ours with bounded memory and time, under another command where one is named."""

    limits = {"RLIMIT_AS": memory, "RLIMIT_CPU": CPU_SECONDS}
    words, how = ("-m", module, *words), {"env": os.environ | {"COLUMNS": "100"}, "timeout": WALL_SECONDS}
    if not under and memory >= MEMORY_BYTES:  # less is not enough for all that is imported already
        done = forked.run(*words, limits=limits, **how)
        return Said(done.returncode, done.stdout, done.stderr, done.cpu_s)

    def limit():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    command = [*under, sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, preexec_fn=limit, **how)
    return Said(done.returncode, done.stdout, done.stderr)


def report(folder, *statements, **rows):
    """Write a small good report, and then run SQL on it."""
    return alter(build(folder, **{"ranges": STEP, **launched((10, 12), (20, 22)), **rows}), *statements)


def many(folder, table, columns, rows):
    """Write a small good report with many more rows of one table."""
    path = report(folder)
    names = [f'"{name}"' for name in columns.split()]
    with closing(sqlite3.connect(path)) as database:
        marks = ", ".join("?" * len(names))
        database.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)
        database.commit()
    return path


def many_ranges(folder, times):
    """Write ranges of these times, each with a name of its own."""
    rows = ((start, end, 59, f"range {number}", MAIN, 0) for number, (start, end) in enumerate(times))
    return many(folder, RANGES, "start end eventType text globalTid domainId", rows)


def nested(folder, depth):
    """Write ranges of which each is inside the one before."""
    return many_ranges(folder, ((n, 10 * depth - n) for n in range(depth)))


def crossing(folder, count):
    """Write ranges of which each begins inside the one before and outlives it."""
    return many_ranges(folder, ((2 * n, 2 * (n + count)) for n in range(count)))


def distinct_ranges(folder, count):
    """Write ranges one after the other."""
    return many_ranges(folder, ((2000 + 2 * n, 2001 + 2 * n) for n in range(count)))


def distinct_kernels(folder, count):
    """Write kernels of which each has a name, and a time, of its own; none has a launch."""
    path = many(folder, "StringIds", "id value", ((10**6 + n, f"kernel_{n}<int>(float*)") for n in range(count)))
    with closing(sqlite3.connect(path)) as database:
        names = [f'"{name}"' for _, name, *_ in database.execute(f"PRAGMA table_info({KERNELS})")]
        changed = {
            '"start"': "1000 + n",
            '"end"': "1001 + n",
            '"demangledName"': "1000000 + n",
            '"correlationId"': "NULL",
        }
        database.execute(
            f"""WITH RECURSIVE counted(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM counted WHERE n < {count - 1})
            INSERT INTO {KERNELS} SELECT {", ".join(changed.get(name, name) for name in names)}
            FROM counted, (SELECT * FROM {KERNELS} LIMIT 1)"""
        )
        database.commit()
    return path


def held(folder, *statements):
    """Write a report that somebody else has open; return it and what closes it."""
    path = report(folder)
    writer = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        writer.execute(statement)
    return path, writer.close


def renamed(path, name):
    """Move a report to another name, given in bytes."""
    return path.rename(Path(os.fsdecode(os.fsencode(path.parent) + b"/" + name)))


def loose(table):
    """Return SQL that makes a table without types and constraints of the same rows."""
    return (
        f"CREATE TABLE copy AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE copy RENAME TO {table}",
    )


def put(table, column, value, where="rowid = 1"):
    """Return SQL that puts a value into a column."""
    return f'UPDATE {table} SET "{column}" = {value} WHERE {where}'
