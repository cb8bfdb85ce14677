"""Reports with memory: two steps by hand, and any report with allocations next to its launches."""

import shutil
import sqlite3
from functools import cache
from itertools import accumulate
from pathlib import Path
from tempfile import mkdtemp

from tests.analysis.making.building import Allocation, Range, build, launched
from tests.analysis.making.nsys_schema import create_statement
from tests.analysis.making.plain_sql import OURS

MB = 1 << 20
BEFORE = 100
#: A step of 100 ns: (at, bytes, block). Block 1 is kept for backward, 2 is not, 3 is a gradient.
STEP = ((15, 4, 1), (25, 2, 2), (28, -2, 2), (60, 3, 3), (65, -4, 1), (85, -3, 3))
RANGES = (("step", 0, 99), ("forward", 10, 40), ("layer", 20, 30), ("backward", 50, 70), ("optimizer", 80, 90))


def two_steps(folder, ranges=RANGES, step=STEP, **rows):
    """Write a recording of two equal steps; figures are MB, and the device held BEFORE of them at first."""
    events = [(at + begin, size, block) for begin in (0, 100) for at, size, block in step]
    totals = accumulate((size for _, size, _ in events), initial=BEFORE)
    next(totals)
    allocations = [
        Allocation(at, size * MB, block, total * MB)
        for (at, size, block), total in zip(events, totals, strict=True)
    ]
    named = [Range(name, start + begin, end + begin) for begin in (0, 100) for name, start, end in ranges]
    return build(folder, ranges=named, allocations=allocations, **launched((12, 13), (112, 113)), **rows)


@cache
def with_memory(report=OURS):
    """Return a copy of a report in which every tenth launch allocates, and the one after it frees."""
    path = Path(shutil.copy(report, mkdtemp()))
    with sqlite3.connect(path) as database:
        calls = database.execute(
            "SELECT start, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId IN "
            "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL) ORDER BY start"
        ).fetchall()
        sizes = [MB, -MB] * (len(calls) // 20)
        totals = accumulate(sizes, initial=0)
        next(totals)
        rows = [(*call, 0, 1, size, total) for call, size, total in zip(calls[::10], sizes, totals, strict=False)]
        database.execute(create_statement("NVTX_KERNELS_ALLOCATIONS", 2025))
        database.executemany("INSERT INTO NVTX_KERNELS_ALLOCATIONS VALUES (?, ?, ?, ?, ?, ?)", rows)
    return path
