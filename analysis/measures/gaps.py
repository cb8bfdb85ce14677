"""The gaps of a GPU: times in which none of its work runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace import Columns, Int32s, Int64s, Trace


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


def gaps_of(trace: Trace, gpu: Int32s, some: Int64s | None = None) -> Gaps:
    """Find the gaps between all pieces of work of each GPU, or some; `gpu` has an entry for each piece of work."""
    work, gaps = trace.work, []
    rows = np.arange(len(work)) if some is None else some
    order = rows[np.lexsort((work.end_ns[rows], work.start_ns[rows], gpu[rows]))]
    for rows in np.split(order, np.flatnonzero(np.diff(gpu[order])) + 1):
        start, reach = work.start_ns[rows], np.maximum.accumulate(work.end_ns[rows])
        late = np.flatnonzero(start[1:] > reach[:-1]) + 1
        ending, begin, end = rows[late], reach[late - 1], start[late]
        launch = work.launch[ending]
        returned = np.where(launch >= 0, trace.launches.end_ns[launch], begin) if len(trace.launches) else begin
        gaps.append(Gaps(gpu[ending], begin, end, ending, np.clip(returned, begin, end) - begin))
    return Gaps.joined(gaps)
