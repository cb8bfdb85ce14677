"""What ncu sees at a launch: the open push/pop ranges of one NVTX domain, of the launching thread or its process.

ncu keeps them as a stack per thread and domain, or with `--nvtx-push-pop-scope process` as one per process and
domain (Nsight Compute CLI manual, "NVTX Filtering" and the option's entry). In a process whose threads' ranges
cross, the second stack would be popped out of turn: it is not used there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..attribution.nesting import Nesting
from ..trace import PUSH_POP, Int32s, Ranges, Trace, sorted_ranges
from ..vocabulary import is_library_domain, is_operator
from .wanted import Kernels

THREAD, PROCESS = "thread", "process"
Stack = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stack of names at each kernel's launch, outermost first, in one domain and scope.

    `usable` are the names that an expression may hold as they are.
    """

    domain: str
    scope: str
    of_kernel: list[Stack]
    usable: frozenset[str]


def stacks(kernels: Kernels) -> list[Stacks]:
    """Return the stacks of every domain of the user's, by thread, and by process where that is well defined."""
    trace, found = kernels.attribution.trace, []
    for domain in _domains(trace):
        ranges, usable = _of_domain(trace, domain), _usable(trace)
        found.append(Stacks(domain, THREAD, _at_launches(kernels, ranges, by_process=False), usable))
        of_process = _by_process(trace, ranges)
        if not _crosses(of_process):
            found.append(Stacks(domain, PROCESS, _at_launches(kernels, of_process, by_process=True), usable))
    return found


def _domains(trace: Trace) -> list[str]:
    """List the names of the domains with ranges that are not a library's; the default domain's is empty."""
    used = np.unique(trace.ranges.domain).tolist()
    return [name for name in dict.fromkeys(_domain(trace, one) for one in used) if not is_library_domain(name)]


def _domain(trace: Trace, number: int) -> str:
    return trace.domains[number].name if 0 <= number < len(trace.domains) else ""


def _of_domain(trace: Trace, domain: str) -> Ranges:
    ranges = trace.ranges
    numbers = [number for number in np.unique(ranges.domain).tolist() if _domain(trace, number) == domain]
    return ranges.take(np.isin(ranges.domain, numbers) & (ranges.style == PUSH_POP))


def _usable(trace: Trace) -> frozenset[str]:
    """Return the names that are in NVTX as they are here, and that the syntax of filters can hold."""
    names = {trace.names[one] for one in np.unique(trace.ranges.name_id).tolist()} - trace.shortened
    return frozenset(
        name
        for name in names
        if name and not is_operator(name) and not set(name) & set('\\$\n"') and not name.startswith("regex:")
    )


def _by_process(trace: Trace, ranges: Ranges) -> Ranges:
    return sorted_ranges(replace(ranges, thread=trace.process_of_thread()[ranges.thread]))


def _crosses(ranges: Ranges) -> bool:
    """Return whether two ranges of one process overlap without one being inside the other."""
    open_ends: list[int] = []
    before = -1
    for process, start, end in zip(
        ranges.thread.tolist(), ranges.start_ns.tolist(), ranges.end_ns.tolist(), strict=True
    ):
        if process != before:
            open_ends, before = [], process
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            return True
        open_ends.append(end)
    return False


def _at_launches(kernels: Kernels, ranges: Ranges, *, by_process: bool) -> list[Stack]:
    trace = kernels.attribution.trace
    nesting, launch = Nesting(ranges), trace.work.launch[kernels.rows]
    where = trace.launches.thread[launch]
    if by_process:
        where = trace.process_of_thread()[where]
    start = trace.launches.start_ns[launch]
    node = nesting.containing(where, start, trace.launches.end_ns[launch])
    named = _names_of(nesting, ranges, trace, np.unique(node).astype(np.int32))
    return [named[one] for one in node.tolist()]


def _names_of(nesting: Nesting, ranges: Ranges, trace: Trace, nodes: Int32s) -> dict[int, Stack]:
    """Return the names of the ranges from the outermost to each of some nodes."""
    forest = nesting.forest
    found: dict[int, Stack] = {-1: ()}
    for node in nodes.tolist():
        names, at = [], node
        while at >= 0:
            names.append(trace.names[ranges.name_id[forest.range[at]]])
            at = int(forest.parent[at])
        found[node] = tuple(reversed(names))
    return found
