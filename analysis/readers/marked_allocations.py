"""Allocations that a report of nsys holds as marks, as profiling/recorder/allocation_marks.py writes them."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..trace import Allocations, Int64s

MEMORY_MARK = "nvtx-kernels memory: "
COLUMNS = 6
#: More than this no program allocates in a report that nsys can hold; it bounds what damaged data can ask for.
MOST_EVENTS = 8_000_000
MOST_PARTS = 100_000


class MarkedAllocations:
    """What the marks of one process say, a mark at a time."""

    def __init__(self) -> None:
        self._data: dict[int, str] = {}
        self._parts = 0
        self._clocks: list[tuple[int, int]] = []  # the report's time and the program's, ns

    def add(self, said: Mapping[str, Any], at_ns: int) -> None:
        """Take a mark that the report has at a time; what annotation does not write is ignored."""
        now, part, parts, data = (said.get(name) for name in ("now_ns", "part", "parts", "data"))
        if not (_is_count(now, 2**62) and _is_count(parts, MOST_PARTS) and _is_count(part, MOST_PARTS)):
            return
        self._clocks.append((at_ns, now))
        if parts and isinstance(data, str):
            self._parts = parts
            self._data[part] = data

    def columns(self) -> Int64s | None:
        """Return the columns with times on the report's clock, int64 (6, events); None where there are none.

        Raises ValueError where parts are missing or damaged.
        """
        if not self._parts:
            return None
        if sorted(self._data) != list(range(self._parts)):
            raise ValueError(f"{len(self._data)} of {self._parts} parts are here")
        table = _decoded("".join(self._data[part] for part in range(self._parts)))
        table[0] = self._on_clock(np.cumsum(table[0]))
        return table

    def _on_clock(self, times: Int64s) -> Int64s:
        """Convert the program's times; a mark is sent a little before the report has it, so the least delay holds.

        The clocks may drift, so the first and the last marks each give one.
        """
        clocks = sorted(self._clocks)
        middle = (clocks[0][0] + clocks[-1][0]) // 2
        halves = [[one for one in clocks if (one[0] > middle) == late] for late in (False, True)]
        chosen = [min(half, key=lambda one: one[0] - one[1]) for half in halves if half]
        began = chosen[0][1]
        known = np.array([theirs - began for _, theirs in chosen], np.float64)
        delays = np.array([ours - theirs - (chosen[0][0] - began) for ours, theirs in chosen], np.float64)
        drift = np.interp((times - began).astype(np.float64), known, delays)
        return times + (chosen[0][0] - began) + np.rint(drift).astype(np.int64)


def allocations(
    marked: Mapping[int, MarkedAllocations], thread: Callable[[int, int], int]
) -> tuple[Allocations | None, list[str]]:
    """Return the allocations of all processes, in the order of time, and what could not be read.

    `thread` numbers the thread of a process, both as the report numbers processes and the system threads.
    """
    found, notes = [], []
    for process, one in marked.items():
        try:
            table = one.columns()
        except ValueError as error:
            notes.append(f"The memory marks of a process cannot be read and are left out: {error}.")
            continue
        if table is not None:
            found.append(_of_process(process, table, thread))
    if not found:
        return None, notes
    whole = Allocations.joined(found)
    return whole.take(np.argsort(whole.at_ns, kind="stable")), notes


def _of_process(process: int, table: Int64s, thread: Callable[[int, int], int]) -> Allocations:
    at, tid, device, block, size, total = table
    numbers = {one: thread(process, one) if one >= 0 else -1 for one in np.unique(tid).tolist()}
    return Allocations(
        at_ns=at,
        thread=np.array([numbers[one] for one in tid.tolist()], np.int32),
        device_id=device.astype(np.int32),
        process=np.full(len(at), process, np.int32),
        block=block,
        bytes=size,
        total_bytes=total,
    )


def _decoded(text: str) -> NDArray[np.int64]:
    most = MOST_EVENTS * COLUMNS * 8
    try:
        unpacking = zlib.decompressobj()
        raw = unpacking.decompress(base64.b64decode(text, validate=True), most)
    except (ValueError, zlib.error) as error:
        raise ValueError("their data is damaged") from error
    if unpacking.unconsumed_tail or not unpacking.eof or len(raw) % (COLUMNS * 8):
        raise ValueError("their data is damaged")
    return np.frombuffer(raw, "<i8").reshape(COLUMNS, -1).astype(np.int64)


def _is_count(value: object, below: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
