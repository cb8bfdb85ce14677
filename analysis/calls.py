"""The CUDA API calls that caused GPU work: what attribution places among the ranges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.trace import GRAPH, KERNEL, Bools, Int32s, Int64s, Trace


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that caused work, each once: positions in `Launches`, their columns, whether a kernel came of it."""

    row: Int64s
    thread: Int32s
    start_ns: Int64s
    end_ns: Int64s
    launches_kernel: Bools

    def __len__(self) -> int:
        return len(self.row)


def working_calls(trace: Trace) -> Calls:
    """Collect the calls that caused work."""
    launch, launches = trace.work.launch, trace.launches
    kernel = (trace.work.kind == KERNEL) | (trace.work.kind == GRAPH)
    row = np.flatnonzero(_marked(launch, len(launches)))
    return Calls(
        row=row,
        thread=launches.thread[row],
        start_ns=launches.start_ns[row],
        end_ns=launches.end_ns[row],
        launches_kernel=_marked(launch[kernel], len(launches))[row],
    )


def _marked(rows: Int32s, count: int) -> Bools:
    """Mark the rows that occur; -1 is none."""
    marked = np.zeros(count, np.bool_)
    marked[rows[rows >= 0]] = True
    return marked
