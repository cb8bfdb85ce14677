"""On a CPU, an operator's self time takes the place of a kernel.

An operator is work when PyTorch has a kernel of its own for it: `aten::mm`, `aten::_softmax`,
`aten::copy_`. Views, allocations and operators that only call others (`aten::matmul`, `aten::to`,
`aten::clone`) are not, and neither is their dispatch time; PyTorch's own registrations distinguish them.

Self time is an operator's duration without its child operators, and need not be contiguous. Kernels on
one thread are therefore laid out as on one stream: each starts when its operator starts, or when the
kernel before it ends. Self times are disjoint parts of their outermost operator, so no kernel overlaps
another on its thread or ends after that operator, and the sum of kernels is the time PyTorch worked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

import torch

# Operators with a CPU kernel that only make, shape or mark memory; views are known by their schemas.
ALLOCATIONS = (
    "aten::_efficientzerotensor",
    "aten::_unsafe_view",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_permuted",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::resize_",
    "aten::resize_as_",
    "aten::set_",
)
# Inductor's loops are not registered operators; these words in their names are how it calls them.
FUSED_LOOPS = ("cpp_fused",)


@dataclass(slots=True)
class Operator:
    """One call of an operator on one thread; times in ns on the events' clock."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    children_ns: int = field(default=0, init=False)
    is_work: bool = field(default=False, init=False)
    has_working_child: bool = field(default=False, init=False)
    calls_itself: bool = field(default=False, init=False)

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
    """Yield the work among the operators in order of thread and start, never overlapping on a thread."""
    ordered = sorted(operators, key=lambda operator: (operator.thread, operator.start_ns, -operator.end_ns))
    _nest(ordered)
    free_ns, thread = 0, None
    for operator in ordered:
        if operator.is_work:
            start = operator.start_ns if operator.thread != thread else max(free_ns, operator.start_ns)
            free_ns, thread = start + operator.self_ns, operator.thread
            yield Kernel(operator, start, free_ns)


def _nest(ordered: list[Operator]) -> None:
    """Give each operator its children's time and whether it is work, innermost first."""
    stack: list[Operator] = []
    for operator in ordered:
        while stack and (stack[-1].thread != operator.thread or stack[-1].end_ns <= operator.start_ns):
            _close(stack)
        if stack:
            stack[-1].children_ns += min(operator.end_ns, stack[-1].end_ns) - operator.start_ns
        stack.append(operator)
    while stack:
        _close(stack)


def _close(stack: list[Operator]) -> None:
    operator = stack.pop()
    kind = role(operator.name)
    delegates = operator.calls_itself or (kind == "delegate" and operator.has_working_child)
    operator.is_work = kind != "none" and not delegates
    if stack and (operator.is_work or operator.has_working_child):
        stack[-1].has_working_child = True
        # `aten::sum` without dimensions calls `aten::sum` with all of them: one piece of work.
        stack[-1].calls_itself |= operator.name == stack[-1].name


@cache
def role(name: str) -> str:
    """Return what an operator does: `work`, `delegate` (work unless it calls some) or `none`."""
    if any(word in name for word in FUSED_LOOPS):
        return "work"
    if name in ALLOCATIONS or not _overloads(name) or _is_view(name):
        return "none"
    if _has_kernel(name, "CPU"):
        return "work"
    return "delegate" if _has_kernel(name, "CompositeExplicitAutograd") else "none"


@cache
def _overloads(name: str) -> tuple[str, ...]:
    """Return the registered `name.overload` names of an operator; empty for other names."""
    if "::" not in name or "::engine::" in name:
        return ()
    schemas = torch._C._jit_get_schemas_for_operator(name)
    names = (f"{name}.{schema.overload_name}".rstrip(".") for schema in schemas)
    return tuple(full for full in names if torch._C._dispatch_has_kernel(full))


def _is_view(name: str) -> bool:
    schemas = torch._C._jit_get_schemas_for_operator(name)
    returns = (value for schema in schemas for value in schema.returns)
    return any(value.alias_info is not None and not value.alias_info.is_write for value in returns)


def _has_kernel(name: str, key: str) -> bool:
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for full in _overloads(name))
