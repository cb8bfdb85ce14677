"""Allocations: of the recorder's table, of nsys's, or of marks in a report of nsys.

The marks are as profiling/recorder/allocation_marks.py writes them.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping

import numpy as np

from ..support.small_numbers import looked_up
from ..trace import Allocations, Int64s, Launches
from .columns import Columns
from .launches import RowsById
from .marks import MemoryMark

#: nsys's memoryOperationType of a deallocation (ENUM_CUDA_DEV_MEM_EVENT_OPER).
FREED = 1

#: No device has so much memory (2**50 B = 1 PiB): what says so is damaged, and its sums might not fit in 64 bits.
TOO_MUCH = 1 << 50
DAMAGED = "The report's allocations are left out: some are of more than 1 PiB, so it is damaged."


def plausible(allocated: Allocations | None, notes: list[str]) -> Allocations | None:
    """Return allocations in the order of time; None, with a note, if a size or total is not less than TOO_MUCH."""
    sizes = (allocated.bytes, allocated.total_bytes) if allocated else ()
    if any(int(size.min(initial=0)) <= -TOO_MUCH or int(size.max(initial=0)) >= TOO_MUCH for size in sizes):
        notes.append(DAMAGED)
        return None
    if allocated:
        return allocated.take(np.argsort(allocated.at_ns, kind="stable"))
    return None


def allocations(
    table: Columns,
    thread_number: Callable[[int], int],
    process_number: Callable[[int], int],
    calls: tuple[Launches, RowsById],
) -> Allocations:
    """Return the table's allocations; the thread of those without one is that of the call with their id."""
    process = table.codes["process"].numbered(lambda global_id: process_number(global_id >> 24))
    thread = table.codes["thread"].numbered(lambda tid: thread_number(tid) if tid else -1)
    column = table.numbers
    launches, keys = calls
    caller = looked_up(launches.thread, keys.find(process, column["correlation"]), -1)
    return Allocations(
        at_ns=column["start"],
        thread=np.where(thread < 0, caller, thread).astype(np.int32),
        device_id=column["device"].astype(np.int32),
        process=process,
        block=column["block"],
        bytes=np.where(column["operation"] == FREED, -column["bytes"], column["bytes"]),
        total_bytes=column["total"],
    )


COLUMNS = 6
#: More than this no program allocates in a report that nsys can hold; it bounds what damaged data can ask for.
MOST_EVENTS = 8_000_000


class MarkedAllocations:
    """What the marks of one process say, a mark at a time."""

    def __init__(self) -> None:
        self._data: dict[int, str] = {}
        self._parts = 0
        self._clocks: list[tuple[int, int]] = []  # the report's time and the program's, ns

    def add(self, mark: MemoryMark, at_ns: int) -> None:
        """Take a mark that the report has at a time."""
        self._clocks.append((at_ns, mark.now_ns))
        if mark.parts:
            self._parts = mark.parts
            self._data[mark.part] = mark.data

    def columns(self) -> Int64s | None:
        """Return the columns with times on the report's clock, int64 (6, events); None without events.

        Raises ValueError if parts are missing or damaged.
        """
        if not self._parts:
            return None
        if sorted(self._data) != list(range(self._parts)):
            raise ValueError(f"{len(self._data)} of {self._parts} parts are here")
        packed = "".join(self._data[part] for part in range(self._parts))
        unpacking = zlib.decompressobj()
        try:
            raw = unpacking.decompress(base64.b64decode(packed, validate=True), MOST_EVENTS * COLUMNS * 8)
        except (ValueError, zlib.error) as error:
            raise ValueError("their data is damaged") from error
        if unpacking.unconsumed_tail or not unpacking.eof or len(raw) % (COLUMNS * 8):
            raise ValueError("their data is damaged")
        table = np.frombuffer(raw, "<i8").reshape(COLUMNS, -1).astype(np.int64)
        table[0] = self._on_clock(np.cumsum(table[0]))
        return table

    def _on_clock(self, times: Int64s) -> Int64s:
        """Convert the program's times; a mark is sent a little before the report has it, so the least delay holds.

        The clocks may drift, so the first and the last marks each give one.
        """
        clocks = sorted(self._clocks)
        middle = (clocks[0][0] + clocks[-1][0]) // 2
        early = [clock for clock in clocks if clock[0] <= middle]
        late = [clock for clock in clocks if clock[0] > middle]
        halves = [half for half in (early, late) if half]
        (first_report, first_program), *second = (min(half, key=lambda c: c[0] - c[1]) for half in halves)
        offset = first_report - first_program
        drift = np.zeros(len(times))
        for report, program in second:
            ends = np.array([0, program - first_program], np.float64)
            drift = np.interp((times - first_program).astype(np.float64), ends, [0.0, report - program - offset])
        return times + offset + np.rint(drift).astype(np.int64)


def marked(
    marks: Mapping[int, MarkedAllocations], thread_number: Callable[[int, int], int]
) -> tuple[Allocations | None, list[str]]:
    """Return the allocations of all processes, and what could not be read.

    `thread_number` numbers the thread of a process, both as the report numbers processes and the system threads.
    """
    tables = []
    notes = []
    for process, of_process in marks.items():
        try:
            table = of_process.columns()
        except ValueError as error:
            notes.append(f"The memory marks of a process cannot be read and are left out: {error}.")
            continue
        if table is None:
            continue
        at_ns, thread_id, device, block, size, total = table
        numbers = {tid: thread_number(process, tid) if tid >= 0 else -1 for tid in np.unique(thread_id).tolist()}
        tables.append(
            Allocations(
                at_ns=at_ns,
                thread=np.array([numbers[tid] for tid in thread_id.tolist()], np.int32),
                device_id=device.astype(np.int32),
                process=np.full(len(at_ns), process, np.int32),
                block=block,
                bytes=size,
                total_bytes=total,
            )
        )
    return Allocations.joined(tables) if tables else None, notes
