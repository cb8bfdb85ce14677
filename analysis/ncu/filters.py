"""The filter that makes ncu profile the requested kernels: the ranges that were asked for, and functions' names.

A range filter has the syntax of the Nsight Compute CLI manual, "NVTX Filtering" (2025.3): `/*/` stands between
names of ranges that may have others between them, `/` behind a name that stands alone, `domain@` before the first,
and a backslash before any of `@ , [ ] / * +` in a name. Several select what any of them selects.

ncu sees the open push/pop ranges of one NVTX domain: a stack per thread and domain, or one per process and domain
with `--nvtx-push-pop-scope process` (the option's entry). In a process whose threads' ranges cross, that would be
popped out of turn: it is not used there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from ..attribution.nesting import Nesting
from ..attribution.user_ranges import of_titles
from ..kernel_names.parts import split_name
from ..summary.selection import naming_of
from ..trace import PUSH_POP, Bools, Int32s, Ranges, sorted_ranges
from ..vocabulary import is_library_domain, is_operator
from .wanted import Kernels

# More names than this make an unreadable pattern: then all kernels of the ranges are taken.
MOST_KERNEL_NAMES = 12
_QUANTIFIER = re.compile(r"[@,\[\]/*+]")
THREAD, PROCESS = "thread", "process"
# What the syntax of filters cannot hold.
UNUSABLE = frozenset('\\$\n"')
Stack = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """What makes ncu profile the `requested` kernels, with `surplus` others, by the report.

    `kernel_names` is a regular expression over functions' names, as --kernel-name takes it. Of the kernels of
    these names, those before the first that is requested are skipped, and then `count` are taken: -1 for all.
    """

    includes: tuple[str, ...]
    scope: str
    kernel_names: str
    skip: int
    count: int
    requested: int
    surplus: int

    @property
    def exact(self) -> bool:
        """Whether it selects the requested kernels and no others."""
        return not self.surplus

    def options(self) -> list[str]:
        """Return ncu's options."""
        words = ["--nvtx"] if self.includes else []
        words += ["--nvtx-push-pop-scope", PROCESS] if self.scope == PROCESS else []
        words += [word for include in self.includes for word in ("--nvtx-include", include)]
        words += ["--kernel-name", f"regex:{self.kernel_names}"] if self.kernel_names else []
        words += ["--launch-skip", str(self.skip)] if self.skip else []
        return words + (["--launch-count", str(self.count)] if self.count >= 0 else [])


def include(names: Stack, domain: str) -> str:
    """Return the range filter that asks for these ranges of a domain, outer before inner."""
    escaped = [_QUANTIFIER.sub(r"\\\g<0>", name) for name in (domain, *names)]
    prefix = f"{escaped[0]}@" if domain else ""
    return f"{prefix}{'/*/'.join(escaped[1:])}{'/' if len(names) == 1 else ''}"


def is_under(names: Stack, stack: Stack) -> bool:
    """Return whether the names are in the stack, in their order."""
    remaining = iter(stack)
    return all(name in remaining for name in names)


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
    possible = (name for name in names if name and UNUSABLE.isdisjoint(name) and not name.startswith("regex:"))
    usable = frozenset(name for name in possible if not is_operator(name))
    # The default domain has no name.
    numbers: dict[str, list[int]] = defaultdict(list)
    for number in np.unique(trace.ranges.domain).tolist():
        numbers[trace.domains[number].name if 0 <= number < len(trace.domains) else ""].append(number)
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
            of_kernel = _at_launches(kernels, of_process, process[thread])
            domain_stacks.append(Stacks(domain, PROCESS, of_kernel, usable))
    return domain_stacks


def _crosses(ranges: Ranges) -> bool:
    """Return whether two ranges of one process overlap without one being inside the other."""
    open_ends: list[int] = []
    last_process = -1
    columns = (ranges.thread.tolist(), ranges.start_ns.tolist(), ranges.end_ns.tolist())
    for process, start, end in zip(*columns, strict=True):
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
    nodes = nesting.containing(trace.launches.take(launch).on(owner)).tolist()
    stack_of: dict[int, Stack] = {-1: ()}
    for node in set(nodes):
        names, ancestor = [], node
        while ancestor >= 0:
            names.append(trace.names[ranges.name_id[nesting.forest.range[ancestor]]])
            ancestor = int(nesting.forest.parent[ancestor])
        stack_of[node] = tuple(reversed(names))
    return [stack_of[node] for node in nodes]


def choose(kernels: Kernels) -> Filter:
    """Return the filter that comes closest to the requested kernels; of equal ones the shortest, by thread first.

    Where ranges tell too little, the functions' names narrow it; where a requested launch is in none of them,
    kernels are taken by name and order.
    """
    guard, requested = _guard(kernels), kernels.requested
    naming = naming_of(kernels.attribution.trace, every_index=True)
    # No filter is as good as one that misses a kernel.
    best: tuple[tuple[int, ...], Stacks | None, list[Stack], Bools] = (1,), None, [], requested
    for seen in stacks(kernels):
        name_chains: dict[Stack, None] = {}
        for number in np.flatnonzero(requested).tolist():
            names = {guard, *kernels.request.named(kernels.paths[number], naming)} & seen.usable
            name_chains[tuple(dict.fromkeys(name for name in seen.of_kernel[number] if name in names))] = None
        # Names that are among those of another filter, in their order, select all that the other selects.
        filters = [names for names in name_chains if names]
        filters = [names for names in filters if not any(is_under(a, names) for a in filters if a != names)]
        of_stack = {stack: any(is_under(names, stack) for names in filters) for stack in set(seen.of_kernel)}
        selected = np.array([of_stack[stack] for stack in seen.of_kernel], np.bool_)
        missing = int((requested & ~selected).sum())
        surplus = int((selected & kernels.named & ~requested).sum())
        unguarded = bool(guard) and not all(guard in names for names in filters)
        cost = (missing, surplus, unguarded, len(filters), seen.scope != THREAD)
        best = min(best, (cost, seen, filters, selected), key=itemgetter(0))
    (missing, *_), nearest, filters, selected = best
    functions = np.array([function_name(kernels.name(row)) for row in kernels.rows.tolist()], np.str_)
    is_exact = not missing and np.array_equal(selected, requested)
    patterns = sorted(map(re.escape, set(functions[requested].tolist())))
    pattern = "" if is_exact or len(patterns) > MOST_KERNEL_NAMES else f"^({'|'.join(patterns)})$"
    matching = np.isin(functions, functions[requested]) if pattern else np.ones(len(requested), np.bool_)
    count = int(requested.sum())
    if nearest is not None and not missing:
        includes = tuple(include(names, nearest.domain) for names in filters)
        surplus = int((selected & matching & ~requested).sum())
        return Filter(includes, nearest.scope, pattern, 0, -1, count, surplus)
    in_order = requested[matching]
    first, last = int(np.argmax(in_order)), len(in_order) - int(np.argmax(in_order[::-1]))
    takes_all = first == 0 and last == len(in_order)
    return Filter((), THREAD, pattern, first, -1 if takes_all else last - first, count, last - first - count)


def _guard(kernels: Kernels) -> str:
    """Return the range around the steps of all requested kernels, outside which nothing was measured, or empty."""
    attribution = kernels.attribution
    names, ranges = attribution.trace.names, attribution.ranges
    steps = {names[title] for title in ranges.name_id[of_titles(attribution.facts.measured, ranges)].tolist()}
    requested_paths = {kernels.paths[row] for row in np.flatnonzero(kernels.requested)}
    around = {
        path[0] if path and path[0] not in steps and not steps.isdisjoint(path) else "" for path in requested_paths
    }
    return around.pop() if len(around) == 1 else ""


def function_name(name: str) -> str:
    """Return ncu's default name of a kernel's function: without its scope, arguments and parameters."""
    return split_name(name)[0].rsplit("::", 1)[-1]
