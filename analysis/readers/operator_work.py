"""On a CPU, an operator's self time takes the place of a kernel, as in our recordings.

An operator is work where PyTorch has a kernel of its own for it (`cpu_operators`). Self time is its duration
without its child operators, and need not be contiguous: a thread's kernels are laid out as on one stream, each
starting when its operator starts, or when the kernel before it ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..trace import Int32s, Int64s
from .operator_table import DELEGATES, NOTHING, role

# As lists of Python's integers, all of a trace's columns would take more memory than the trace.
ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """The work among the operators, in order of thread and start: each one's row, and when its kernel ran, ns."""

    row: Int64s
    start_ns: Int64s
    end_ns: Int64s


@dataclass(slots=True)
class _Open:
    """An operator whose end has not come yet."""

    row: int
    name: str
    thread: int
    end_ns: int
    self_ns: int
    has_working_child: bool = False
    calls_itself: bool = False


@dataclass(slots=True)
class _Nest:
    """The operators that are open at a moment, and each one's self time, -1 unless it turned out to be work."""

    self_ns: array[int]
    stack: list[_Open] = field(default_factory=list)

    def open(self, operator: _Open, start_ns: int) -> None:
        """Close what has ended, and take the operator's time out of its parent's."""
        while self.stack and (self.stack[-1].thread != operator.thread or self.stack[-1].end_ns <= start_ns):
            self.close()
        if self.stack:
            self.stack[-1].self_ns -= min(operator.end_ns, self.stack[-1].end_ns) - start_ns
        self.stack.append(operator)

    def close(self) -> None:
        """Decide whether the innermost operator is work, now that its children are known."""
        operator = self.stack.pop()
        kind = role(operator.name)
        delegates = operator.calls_itself or (kind == DELEGATES and operator.has_working_child)
        is_work = kind != NOTHING and not delegates
        if is_work:
            self.self_ns[operator.row] = max(0, operator.self_ns)
        if self.stack and (is_work or operator.has_working_child):
            self.stack[-1].has_working_child = True
            # `aten::sum` without dimensions calls `aten::sum` with all of them: one piece of work.
            self.stack[-1].calls_itself |= operator.name == self.stack[-1].name


def operator_work(
    thread: Int32s, start_ns: Int64s, end_ns: Int64s, name_id: Int32s, names: Sequence[str]
) -> OperatorWork:
    """Find the work among operators, given by their threads, times and names' positions in `names`."""
    order = np.lexsort((-end_ns, start_ns, thread))
    nest = _Nest(array("q", [-1]) * len(order))
    for row, on, start, end, name in _rows(order, thread, start_ns, end_ns, name_id):
        nest.open(_Open(row, names[name], on, end, end - start), start)
    while nest.stack:
        nest.close()
    self_ns = np.frombuffer(nest.self_ns, np.int64) if len(order) else np.empty(0, np.int64)
    working = order[self_ns[order] >= 0]
    return _laid_out(working, thread, start_ns, self_ns)


def _laid_out(rows: Int64s, thread: Int32s, start_ns: Int64s, length_ns: Int64s) -> OperatorWork:
    """Move each kernel back until the one before it on its thread has ended."""
    ends = array("q")
    free, last = 0, -1
    for _, on, start, length in _rows(rows, thread, start_ns, length_ns):
        free = (start if on != last else max(free, start)) + length
        ends.append(free)
        last = on
    end = np.array(ends, np.int64)
    return OperatorWork(rows, end - length_ns[rows], end)


def _rows(order: Int64s, *columns: Int32s | Int64s) -> Iterator[tuple[int, ...]]:
    """Yield each row's position and its values, made into Python's integers some thousands at a time."""
    for first in range(0, len(order), ROWS_AT_ONCE):
        rows = order[first : first + ROWS_AT_ONCE]
        yield from zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True)
