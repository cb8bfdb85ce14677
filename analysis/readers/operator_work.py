"""On a CPU, an operator's self time takes the place of a kernel, as in our recordings.

Self time is an operator's duration without its child operators, so that all of them sum to the time of the
outermost operators. It need not be contiguous: a thread's kernels are laid out as on one stream, each starting
when its operator starts, or when the kernel before it ends.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from ..trace import Int32s, Int64s

# As lists of Python's integers, all of a trace's columns would take more memory than the trace.
ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """The operators with self time, in order of thread and start: each one's row, and when its kernel ran, ns."""

    row: Int64s
    start_ns: Int64s
    end_ns: Int64s


def operator_work(thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> OperatorWork:
    """Find the work among operators, given by their threads and times."""
    order = np.lexsort((-end_ns, start_ns, thread))
    # By position in this order; those of the operators that are open are not final.
    self_ns = array("q", (end_ns - start_ns)[order].tobytes())
    open_rows: list[tuple[int, int]] = []  # of one thread, with their ends, outer before inner
    open_thread = -1
    for first in range(0, len(order), ROWS_AT_ONCE):
        rows = order[first : first + ROWS_AT_ONCE]
        columns = (thread[rows].tolist(), start_ns[rows].tolist(), end_ns[rows].tolist())
        for position, (on_thread, start, end) in enumerate(zip(*columns, strict=True), first):
            if on_thread != open_thread:
                open_thread = on_thread
                open_rows.clear()
            while open_rows and open_rows[-1][1] <= start:
                open_rows.pop()
            if open_rows:
                parent, parent_end = open_rows[-1]
                self_ns[parent] -= min(end, parent_end) - start
            open_rows.append((position, end))
    self_time = np.maximum(np.frombuffer(self_ns, np.int64), 0) if len(order) else np.empty(0, np.int64)
    working = np.flatnonzero(self_time)
    rows, length = order[working], self_time[working]
    end = _ends_in_turn(thread[rows], start_ns[rows], length)
    return OperatorWork(rows, end - length, end)


def _ends_in_turn(thread: Int32s, start_ns: Int64s, length_ns: Int64s) -> Int64s:
    """Return when each kernel ends that starts no sooner than the one before it on its thread has ended."""
    elapsed = np.cumsum(length_ns)
    latest = start_ns - (elapsed - length_ns)  # how much later than without any pause
    for rows in np.split(latest, np.flatnonzero(thread[1:] != thread[:-1]) + 1):
        np.maximum.accumulate(rows, out=rows)
    return latest + elapsed
