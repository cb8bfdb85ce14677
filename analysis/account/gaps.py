"""The gaps of a GPU: times in which none of its work runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..support.small_numbers import distinct
from ..trace import Columns, Int32s, Int64s, Trace, Work
from .intervals import Intervals


@dataclass(frozen=True, slots=True)
class Gaps(Columns):
    """Columns by gap, by GPU and then time; `next` is the work that ends it, a position in Work."""

    gpu: Int32s
    start_ns: Int64s
    end_ns: Int64s
    next: Int64s

    @property
    def duration_ns(self) -> Int64s:
        """How long the GPU was idle, ns."""
        return self.end_ns - self.start_ns


def gaps_of(trace: Trace, gpu_of_work: Int32s, some: Int64s | None = None) -> Gaps:
    """Return the gaps between the pieces of work of each GPU, all or some of them (positions in Work)."""
    rows = np.arange(len(trace.work)) if some is None else some
    gpu = gpu_of_work[rows]
    gaps = [gaps_between(trace.work, rows[gpu == number], number) for number in distinct(gpu).tolist()]
    nothing = np.empty(0, np.int64)
    return Gaps.joined(gaps or [Gaps(nothing.astype(np.int32), nothing, nothing, nothing)])


def gaps_between(work: Work, rows: Int64s, gpu: int, since_ns: int | None = None) -> Gaps:
    """Return the gaps between some work of one GPU, and with `since_ns` also the one from then to its begin."""
    start_ns = work.start_ns[rows]
    if (start_ns[1:] < start_ns[:-1]).any():
        order = np.argsort(start_ns, kind="stable")
        rows = rows[order]
        start_ns = start_ns[order]
    begin = start_ns[:1] if since_ns is None else np.minimum(start_ns[:1], since_ns)
    reach_ns = np.concatenate([begin, np.maximum.accumulate(work.end_ns[rows])[:-1]])[: len(rows)]
    late = np.flatnonzero(start_ns > reach_ns)
    return Gaps(np.full(len(late), gpu, np.int32), reach_ns[late], start_ns[late], rows[late])


def within(gaps: Gaps, times: Intervals) -> Gaps:
    """Return the gaps that share time with some intervals."""
    behind = np.searchsorted(times.start_ns, gaps.end_ns, "left")
    return gaps.take(np.searchsorted(times.end_ns, gaps.start_ns, "right") < behind)
