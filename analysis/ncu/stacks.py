"""What ncu sees at a launch: the open push/pop ranges of one NVTX domain, of the launching thread or its process.

ncu keeps them as a stack per thread and domain, or with `--nvtx-push-pop-scope process` as one per process and
domain (Nsight Compute CLI manual, "NVTX Filtering" and the option's entry). In a process whose threads' ranges
cross, the second stack would be popped out of turn: it is not used there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..attribution.nesting import Nesting
from ..trace import PUSH_POP, Int32s, Ranges, sorted_ranges
from ..vocabulary import is_library_domain, is_operator
from .wanted import Kernels

THREAD, PROCESS = "thread", "process"
# What the syntax of filters cannot hold.
UNUSABLE = frozenset('\\$\n"')
Stack = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stack of names at each kernel's launch, outermost first, in one domain and scope.

    `usable` are the names that are in NVTX as they are here, and that a filter can hold.
    """

    domain: str
    scope: str
    of_kernel: list[Stack]
    usable: frozenset[str]


def stacks(kernels: Kernels) -> list[Stacks]:
    """Return the stacks of every domain of the user's, by thread, and by process where that is well defined."""
    trace = kernels.attribution.trace
    names = {trace.names[name_id] for name_id in np.unique(trace.ranges.name_id).tolist()} - trace.shortened
    usable = frozenset(
        name
        for name in names
        if name and not is_operator(name) and UNUSABLE.isdisjoint(name) and not name.startswith("regex:")
    )
    # The default domain has no name.
    numbers: dict[str, list[int]] = {}
    for number in np.unique(trace.ranges.domain).tolist():
        name = trace.domains[number].name if 0 <= number < len(trace.domains) else ""
        numbers.setdefault(name, []).append(number)
    process, launch = trace.process_of_thread(), trace.work.launch[kernels.rows]
    thread = trace.launches.thread[launch]
    domain_stacks = []
    for domain, domain_numbers in numbers.items():
        if is_library_domain(domain):
            continue
        is_of_domain = np.isin(trace.ranges.domain, domain_numbers) & (trace.ranges.style == PUSH_POP)
        ranges = trace.ranges.take(is_of_domain)
        domain_stacks.append(Stacks(domain, THREAD, _at_launches(kernels, ranges, thread), usable))
        of_process = sorted_ranges(replace(ranges, thread=process[ranges.thread]))
        if not _crosses(of_process):
            domain_stacks.append(
                Stacks(domain, PROCESS, _at_launches(kernels, of_process, process[thread]), usable)
            )
    return domain_stacks


def _crosses(ranges: Ranges) -> bool:
    """Return whether two ranges of one process overlap without one being inside the other."""
    open_ends: list[int] = []
    last_process = -1
    for process, start, end in zip(
        ranges.thread.tolist(), ranges.start_ns.tolist(), ranges.end_ns.tolist(), strict=True
    ):
        if process != last_process:
            open_ends, last_process = [], process
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            return True
        open_ends.append(end)
    return False


def _at_launches(kernels: Kernels, ranges: Ranges, owner: Int32s) -> list[Stack]:
    """Return the names of the ranges that are open at each kernel's launch, on its thread or in its process."""
    trace, nesting = kernels.attribution.trace, Nesting(ranges)
    launch = trace.work.launch[kernels.rows]
    nodes = nesting.containing(owner, trace.launches.start_ns[launch], trace.launches.end_ns[launch]).tolist()
    stack_of: dict[int, Stack] = {-1: ()}
    for node in set(nodes):
        names, ancestor = [], node
        while ancestor >= 0:
            names.append(trace.names[ranges.name_id[nesting.forest.range[ancestor]]])
            ancestor = int(nesting.forest.parent[ancestor])
        stack_of[node] = tuple(reversed(names))
    return [stack_of[node] for node in nodes]
