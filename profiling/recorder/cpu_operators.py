"""On a CPU, an operator's self time takes the place of a kernel.

Self time is an operator's duration without its child operators, so that all of them sum to the time of the
outermost operators; it need not be contiguous. Kernels on one thread are therefore laid out as on one stream:
each starts when its operator starts, or when the kernel before it ends. Self times are disjoint parts of their
outermost operator, so no kernel overlaps another on its thread or ends after that operator.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Operator:
    """One call of an operator on one thread, by an `event` of PyTorch's; times in ns on the events' clock."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    event: Any = None
    children_ns: int = field(default=0, init=False)

    @property
    def self_ns(self) -> int:
        """Return the time that no child operator accounts for."""
        return max(0, self.end_ns - self.start_ns - self.children_ns)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The work of one operator, placed on its thread's stream."""

    operator: Operator
    start_ns: int
    end_ns: int


def kernels(operators: Iterable[Operator]) -> Iterator[Kernel]:
    """Yield the operators' self times in order of thread and start, never overlapping on a thread."""
    ordered = sorted(operators, key=lambda operator: (operator.thread, operator.start_ns, -operator.end_ns))
    stack: list[Operator] = []
    for operator in ordered:
        while stack and (stack[-1].thread != operator.thread or stack[-1].end_ns <= operator.start_ns):
            stack.pop()
        if stack:
            stack[-1].children_ns += min(operator.end_ns, stack[-1].end_ns) - operator.start_ns
        stack.append(operator)
    free_ns, thread = 0, None
    for operator in ordered:
        if operator.self_ns:
            start = operator.start_ns if operator.thread != thread else max(free_ns, operator.start_ns)
            free_ns, thread = start + operator.self_ns, operator.thread
            yield Kernel(operator, start, free_ns)
