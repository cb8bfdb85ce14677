"""Times that no GPU can have: a stream's kernels run one after another, as they were launched."""

from __future__ import annotations

import numpy as np

from ..support.small_numbers import looked_up
from ..support.units import counted, time_text
from ..trace import KERNEL, Int64s, Trace, Work

#: By how much the ends of two kernels of a stream may be out of order, ns: of more, a time is wrong.
LEAST_NS = 10_000


def of_times(trace: Trace) -> str:
    """Return a note on kernels that end after the next of their stream has, as PyTorch's profiler can write them.

    Empty if there are none. Kernels of graphs, which share a call, run at once on what is told as one stream.
    """
    if not trace.provenance.is_of_pytorch or trace.provenance.unit_of_work != "GPU":
        return ""
    rows, beyond_ns = _beyond_the_next(trace.work)
    if not len(rows):
        return ""
    longest = rows[beyond_ns.argmax()]
    name = trace.names[trace.work.name_id[longest]][:40]
    ends = counted(len(rows), "kernel ends", "kernels end")
    by = f"by up to {time_text(int(beyond_ns.max()))} ({name})"
    wrong = "that cannot be, and figures with them are wrong"
    return f"{ends} after the next one of their stream does, {by}: {wrong}"


def _beyond_the_next(work: Work) -> tuple[Int64s, Int64s]:
    """Return the kernels that outlast the next of their stream, and by how much, ns; of calls with one kernel."""
    launched = np.bincount(work.launch[work.launch >= 0], minlength=1)
    is_alone = (work.launch >= 0) & (looked_up(launched, work.launch, 0) == 1)
    rows = np.flatnonzero(is_alone & (work.kind == KERNEL))
    stream = (work.process[rows], work.device_id[rows], work.stream_id[rows])
    order = np.lexsort((work.start_ns[rows], *stream))
    rows = rows[order]
    is_same = np.logical_and.reduce([np.diff(part[order]) == 0 for part in stream])
    beyond_ns = -np.diff(work.end_ns[rows])
    wrong = np.flatnonzero(is_same & (beyond_ns > LEAST_NS))
    return rows[wrong], beyond_ns[wrong]
