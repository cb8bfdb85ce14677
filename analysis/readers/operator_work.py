"""On a CPU, an operator's self time takes the place of a kernel, as in our recordings.

An operator is work where PyTorch has a kernel of its own for it (`cpu_operators`). Self time is its duration
without its child operators, and need not be contiguous: a thread's kernels are laid out as on one stream, each
starting when its operator starts, or when the kernel before it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..trace import Int32s, Int64s
from .operator_table import DELEGATES, NOTHING, role


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
    """The operators that are open at a moment, and the self time of those that turned out to be work."""

    self_ns: dict[int, int] = field(default_factory=dict)
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


def operator_work(thread: Int32s, start_ns: Int64s, end_ns: Int64s, names: Sequence[str]) -> OperatorWork:
    """Find the work among operators, given by their threads, times and names."""
    order = np.lexsort((-end_ns, start_ns, thread))
    nest = _Nest()
    for row, on, start, end in zip(*_lists(order, thread[order], start_ns[order], end_ns[order]), strict=True):
        nest.open(_Open(row, names[row], on, end, end - start), start)
    while nest.stack:
        nest.close()
    working = order[[row in nest.self_ns for row in order.tolist()]] if len(order) else order
    length = np.array([nest.self_ns[row] for row in working.tolist()], np.int64)
    return _laid_out(working, thread[working], start_ns[working], length)


def _laid_out(row: Int64s, thread: Int32s, start_ns: Int64s, length_ns: Int64s) -> OperatorWork:
    """Move each kernel back until the one before it on its thread has ended."""
    end = np.empty_like(start_ns)
    free, last = 0, -1
    for at, (on, start, length) in enumerate(zip(*_lists(thread, start_ns, length_ns), strict=True)):
        free = (start if on != last else max(free, start)) + length
        end[at], last = free, on
    return OperatorWork(row, end - length_ns, end)


def _lists(*columns: Int32s | Int64s) -> tuple[list[int], ...]:
    return tuple(column.tolist() for column in columns)
