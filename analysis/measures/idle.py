"""When the GPU is idle, which work it waits for, and whether that work had been launched by then.

A GPU is busy while any kernel, copy, memset or CUDA graph runs on it. A gap ends when the next piece of work
starts; the range that launched that work owns the gap. Of a gap, the part before the launch call returned is time
in which the GPU had nothing to start: it *waits for a launch*. The rest passes inside the GPU or its driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..support.small_numbers import distinct
from ..trace import Columns, Int32s, Int64s, Trace
from .spans import Spans


@dataclass(frozen=True, slots=True)
class Gaps(Columns):
    """Columns by gap, by GPU and then time: the work that ends it, and how much of it waits for its launch."""

    gpu: Int32s
    start_ns: Int64s
    end_ns: Int64s
    next: Int64s  # position in Work
    waiting_ns: Int64s

    @property
    def duration_ns(self) -> Int64s:
        """How long the GPU was idle, ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Idleness(Columns):
    """Columns by span: the time without work inside it, how much of that waits for launches, and the gaps."""

    idle_ns: Int64s
    waiting_ns: Int64s
    gaps: Int64s


def gaps_of(trace: Trace, gpu: Int32s) -> Gaps:
    """Find the gaps between all pieces of work of each GPU; `gpu` has an entry for each piece of work."""
    work = trace.work
    order = np.lexsort((work.end_ns, work.start_ns, gpu))
    next_gpu = np.flatnonzero(np.diff(gpu[order])) + 1
    return Gaps.joined([_gaps_of_one(trace, gpu, rows) for rows in np.split(order, next_gpu)])


def _gaps_of_one(trace: Trace, gpu: Int32s, rows: Int64s) -> Gaps:
    start, reach = trace.work.start_ns[rows], np.maximum.accumulate(trace.work.end_ns[rows])
    late = np.flatnonzero(start[1:] > reach[:-1]) + 1
    next_, begin, end = rows[late], reach[late - 1], start[late]
    launch = trace.work.launch[next_]
    returned = np.where(launch >= 0, trace.launches.end_ns[launch], begin) if len(trace.launches) else begin
    return Gaps(gpu[next_], begin, end, next_, np.clip(returned, begin, end) - begin)


def idleness(spans: Spans, gaps: Gaps) -> Idleness:
    """Add up the gaps inside each span; as spans begin and end with work, no gap crosses their bounds."""
    idle, waiting, count = (np.zeros(len(spans), np.int64) for _ in range(3))
    for of_gpu, rows, first, last in _by_gpu(spans, gaps):
        for total, values in ((idle, gaps.duration_ns), (waiting, gaps.waiting_ns)):
            until = np.concatenate([[0], np.cumsum(values[rows])])
            total[of_gpu] = until[last] - until[first]
        count[of_gpu] = last - first
    return Idleness(idle, waiting, count)


def _by_gpu(spans: Spans, gaps: Gaps) -> Iterator[tuple[Int64s, Int64s, Int64s, Int64s]]:
    """Yield each GPU's spans and gaps, and of these the first in each span and the first after it."""
    for gpu in distinct(spans.gpu).tolist():
        of_gpu, rows = np.flatnonzero(spans.gpu == gpu), np.flatnonzero(gaps.gpu == gpu)
        first = np.searchsorted(gaps.start_ns[rows], spans.start_ns[of_gpu], "left")
        yield of_gpu, rows, first, np.searchsorted(gaps.end_ns[rows], spans.end_ns[of_gpu], "right")


def inside(spans: Spans, gaps: Gaps) -> Int64s:
    """Return the positions of the gaps that lie in a span."""
    in_span = np.zeros(len(gaps), np.bool_)
    for _, rows, first, last in _by_gpu(spans, gaps):
        steps = np.zeros(len(rows) + 1, np.int64)
        np.add.at(steps, first, 1)
        np.add.at(steps, np.maximum(first, last), -1)
        in_span[rows] = np.cumsum(steps[:-1]) > 0
    return np.flatnonzero(in_span)


def launch_lags(trace: Trace, work: Int64s) -> tuple[Int64s, Int64s]:
    """Return which of these pieces of work are the first of their launch, and how long after its call they start.

    The lag is from the start of the launch call to the start of the work on the GPU, ns.
    """
    launched = work[trace.work.launch[work] >= 0]
    launch, start = trace.work.launch[launched], trace.work.start_ns[launched]
    earliest = np.full(len(trace.launches), 2**63 - 1)
    np.minimum.at(earliest, launch, start)
    among = np.flatnonzero(start == earliest[launch])[::-1]
    first = np.full(len(trace.launches), -1)
    first[launch[among]] = launched[among]  # of equal starts, the first is written last
    first = first[first >= 0]
    return first, trace.work.start_ns[first] - trace.launches.start_ns[trace.work.launch[first]]
