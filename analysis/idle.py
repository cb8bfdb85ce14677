"""When the GPU is idle, whose work it waits for, and whether that work had been launched by then.

A GPU is busy while any kernel, copy, memset or CUDA graph runs on it. A gap ends when the next piece of work
starts; the range that launched that work owns the gap. Of a gap, the part before the launch call returned is time
in which the GPU had nothing to start: it *waits for a launch*. The rest passes inside the GPU or its driver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.phase_spans import Spans
from analysis.trace import Bools, Int32s, Int64s, Trace


@dataclass(frozen=True, slots=True)
class Gaps:
    """Columns by gap, by GPU and then time: the work that ends it, and how much of it waits for its launch."""

    gpu: Int32s
    start_ns: Int64s
    end_ns: Int64s
    next: Int64s  # position in Work
    waiting_ns: Int64s

    def __len__(self) -> int:
        return len(self.next)

    @property
    def duration_ns(self) -> Int64s:
        """How long the GPU was idle, ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Idleness:
    """Columns by span: the time without work inside it, how much of that waits for launches, and the gaps."""

    idle_ns: Int64s
    waiting_ns: Int64s
    gaps: Int64s

    def take(self, rows: Bools) -> Idleness:
        """Return the rows under this mask."""
        return Idleness(self.idle_ns[rows], self.waiting_ns[rows], self.gaps[rows])


def gaps_of(trace: Trace, gpu: Int32s) -> Gaps:
    """Find the gaps between all pieces of work of each GPU; `gpu` has an entry for each piece of work."""
    work = trace.work
    order = np.lexsort((work.end_ns, work.start_ns, gpu))
    parts = [_gaps_of_one(trace, gpu, rows) for rows in np.split(order, _changes(gpu[order]))]
    return Gaps(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _gaps_of_one(trace: Trace, gpu: Int32s, rows: Int64s) -> tuple[Int32s | Int64s, ...]:
    start, reach = trace.work.start_ns[rows], np.maximum.accumulate(trace.work.end_ns[rows])
    late = np.flatnonzero(start[1:] > reach[:-1]) + 1
    next_, begin, end = rows[late], reach[late - 1], start[late]
    launch = trace.work.launch[next_]
    returned = np.where(launch >= 0, trace.launches.end_ns[launch], begin) if len(trace.launches) else begin
    return gpu[next_], begin, end, next_, np.clip(returned, begin, end) - begin


def idleness(spans: Spans, gaps: Gaps) -> Idleness:
    """Add up the gaps inside each span; as spans begin and end with work, no gap crosses their bounds."""
    idle, waiting, count = (np.zeros(len(spans), np.int64) for _ in range(3))
    for gpu in np.unique(spans.gpu).tolist():
        mine, rows = np.flatnonzero(spans.gpu == gpu), np.flatnonzero(gaps.gpu == gpu)
        first = np.searchsorted(gaps.start_ns[rows], spans.start_ns[mine], "left")
        last = np.searchsorted(gaps.end_ns[rows], spans.end_ns[mine], "right")
        for total, values in ((idle, gaps.duration_ns), (waiting, gaps.waiting_ns)):
            until = np.concatenate([[0], np.cumsum(values[rows])])
            total[mine] = until[last] - until[first]
        count[mine] = last - first
    return Idleness(idle, waiting, count)


def inside(spans: Spans, gaps: Gaps) -> Int64s:
    """Return the positions of the gaps that lie in a span."""
    found = np.zeros(len(gaps), np.bool_)
    for gpu in np.unique(spans.gpu).tolist():
        mine, rows = np.flatnonzero(spans.gpu == gpu), np.flatnonzero(gaps.gpu == gpu)
        first = np.searchsorted(gaps.start_ns[rows], spans.start_ns[mine], "left")
        last = np.searchsorted(gaps.end_ns[rows], spans.end_ns[mine], "right")
        steps = np.zeros(len(rows) + 1, np.int64)
        np.add.at(steps, first, 1)
        np.add.at(steps, np.maximum(first, last), -1)
        found[rows] = np.cumsum(steps[:-1]) > 0
    return np.flatnonzero(found)


def launch_lags(trace: Trace, work: Int64s) -> tuple[Int64s, Int64s]:
    """Return which of these pieces of work are the first of their launch, and how long after its call they start.

    The lag is from the start of the launch call to the start of the work on the GPU, ns.
    """
    launched = work[trace.work.launch[work] >= 0]
    order = launched[np.lexsort((trace.work.start_ns[launched], trace.work.launch[launched]))]
    launch = trace.work.launch[order]
    first = order[np.concatenate([[True], launch[1:] != launch[:-1]])] if len(order) else order
    return first, trace.work.start_ns[first] - trace.launches.start_ns[trace.work.launch[first]]


def _changes(values: Int32s) -> Int64s:
    """Return where a sorted column changes."""
    return np.flatnonzero(values[1:] != values[:-1]) + 1
