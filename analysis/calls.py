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
    row = np.unique(launch[launch >= 0]).astype(np.int64)
    with_kernel = launch[np.isin(trace.work.kind, (KERNEL, GRAPH)) & (launch >= 0)]
    return Calls(
        row=row,
        thread=launches.thread[row],
        start_ns=launches.start_ns[row],
        end_ns=launches.end_ns[row],
        launches_kernel=np.isin(row, with_kernel),
    )
