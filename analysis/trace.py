"""The shape in the middle: what a report holds, whichever file it came from.

All times are int64 nanoseconds on one clock. Columns are numpy arrays of equal length; a row's position
is its id within the trace, so `Work.launch` and `Launches.thread` are positions in the other tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from analysis.provenance import Provenance

Int64s: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]
Bools: TypeAlias = NDArray[np.bool_]

KINDS = ("kernel", "memcpy", "memset", "graph")
KERNEL, MEMCPY, MEMSET, GRAPH = range(len(KINDS))

PUSH_POP, START_END = 0, 1


@dataclass(frozen=True, slots=True)
class Work:
    """What the GPU did, one row per kernel, copy, memset or whole CUDA graph launch."""

    start_ns: Int64s
    end_ns: Int64s
    kind: NDArray[np.uint8]  # position in KINDS
    name_id: Int32s  # position in Trace.names: demangled kernel name, or the copy's direction
    device_id: Int32s
    stream_id: Int64s
    process: Int32s  # position in Trace.processes
    launch: Int32s  # position in Launches; -1 where the report has no launch row
    grid: Int32s  # blocks in the grid; 0 where unknown

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int64s:
        """How long each piece of work ran, ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Launches:
    """CUDA API calls, runtime and driver alike; those that caused work are pointed at by `Work.launch`."""

    start_ns: Int64s
    end_ns: Int64s
    thread: Int32s  # position in Trace.threads

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Ranges:
    """NVTX ranges, sorted by (thread, start, longest first, order in the file): outer before inner."""

    start_ns: Int64s
    end_ns: Int64s
    thread: Int32s  # position in Trace.threads
    name_id: Int32s  # position in Trace.names, without PyTorch's `, seq = …` suffixes
    domain: Int32s  # position in Trace.domains
    seq: Int64s  # autograd's sequence number; -1 where the name has none
    style: NDArray[np.uint8]  # PUSH_POP or START_END
    open_ended: Bools  # never closed: taken to end with the capture

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: NDArray[Any]) -> Ranges:
        """Return the ranges at these positions, or under this mask."""
        return Ranges(*(getattr(self, name)[rows] for name in Ranges.__slots__))

    def followed_by(self, other: Ranges) -> Ranges:
        """Return these ranges and then the others; no longer sorted."""
        return Ranges(*(np.concatenate([getattr(self, n), getattr(other, n)]) for n in Ranges.__slots__))


@dataclass(frozen=True, slots=True)
class Thread:
    """One CPU thread; `name` is empty where the report does not say."""

    process: int
    thread_id: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """One profiled process."""

    process_id: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Domain:
    """An NVTX domain of one process; the default domain has no name."""

    process: int
    domain_id: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A report in memory; `notes` are sentences about what the reader had to decide."""

    work: Work
    launches: Launches
    ranges: Ranges
    names: list[str]
    threads: list[Thread]
    processes: list[Process]
    domains: list[Domain]
    provenance: Provenance
    notes: tuple[str, ...] = ()


def empty_ranges() -> Ranges:
    """Return a table of no ranges."""
    i64, i32 = np.empty(0, np.int64), np.empty(0, np.int32)
    return Ranges(i64, i64, i32, i32, i32, i64, np.empty(0, np.uint8), np.empty(0, np.bool_))


def sorted_ranges(ranges: Ranges) -> Ranges:
    """Sort ranges as `Ranges` promises; free if they are so already."""
    order = range_order(ranges.thread, ranges.start_ns, ranges.end_ns)
    return ranges if order is None else ranges.take(order)


def range_order(thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> Int64s | None:
    """Return the order of ranges by (thread, start, longest first, order in the file); None if they have it."""
    same, later = thread[1:] == thread[:-1], start_ns[1:] > start_ns[:-1]
    tied = (start_ns[1:] == start_ns[:-1]) & (end_ns[1:] <= end_ns[:-1])
    if ((thread[1:] > thread[:-1]) | (same & (later | tied))).all():
        return None
    if (later | tied).all() and thread.max() < 2**15:
        # Events mostly come in the order of their starts; then a radix sort by thread is all that is needed.
        return np.argsort(thread.astype(np.int16), kind="stable")
    return np.lexsort((-end_ns, start_ns, thread))
