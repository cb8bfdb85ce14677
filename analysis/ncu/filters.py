"""The filter that makes ncu profile the requested kernels: the ranges that were asked for, and functions' names.

A range filter has the syntax of the Nsight Compute CLI manual, "NVTX Filtering" (2025.3): `/*/` stands between
names of ranges that may have others between them, `/` behind a name that stands alone, `domain@` before the first,
and a backslash before any of `@ , [ ] / * +` in a name. Several select what any of them selects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..attribution.user_ranges import of_titles
from ..kernel_names.parts import split_name
from ..summary.selection import naming_of
from ..trace import Bools
from .stacks import PROCESS, THREAD, Stack, Stacks, stacks
from .wanted import Kernels

# More names than this make an unreadable pattern: then all kernels of the ranges are taken.
MOST_KERNEL_NAMES = 12
_QUANTIFIER = re.compile(r"[@,\[\]/*+]")


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


def choose(kernels: Kernels) -> Filter:
    """Return the filter that comes closest to the requested kernels; of equal ones the shortest, by thread first.

    Where ranges tell too little, the functions' names narrow it; where a requested launch is in none of them,
    kernels are taken by name and order.
    """
    guard, paths = _guard(kernels), kernels.paths()
    naming = naming_of(kernels.attribution.trace, every_index=True)
    best_cost: tuple[int, ...] | None = None
    best: tuple[Stacks | None, list[Stack], Bools] = None, [], kernels.requested
    for seen in stacks(kernels):
        name_chains: dict[Stack, None] = {}
        for path, stack, is_requested in zip(paths, seen.of_kernel, kernels.requested.tolist(), strict=True):
            if is_requested:
                names = {guard, *kernels.request.named(path, naming)} & seen.usable
                name_chains[tuple(dict.fromkeys(name for name in stack if name in names))] = None
        # Names that are among those of another filter, in their order, select all that the other selects.
        filters = [names for names in name_chains if names]
        filters = [names for names in filters if not any(is_under(a, names) for a in filters if a != names)]
        of_stack = {stack: any(is_under(names, stack) for names in filters) for stack in set(seen.of_kernel)}
        selected = np.array([of_stack[stack] for stack in seen.of_kernel], np.bool_)
        missing = int((kernels.requested & ~selected).sum())
        surplus = int((selected & kernels.named & ~kernels.requested).sum())
        unguarded = bool(guard) and not all(guard in names for names in filters)
        cost = (missing, surplus, unguarded, len(filters), seen.scope != THREAD)
        if best_cost is None or cost < best_cost:
            best_cost, best = cost, (seen, filters, selected)
    nearest, filters, selected = best
    requested, is_complete = kernels.requested, best_cost is not None and not best_cost[0]
    functions = np.array([function_name(kernels.name(row)) for row in kernels.rows.tolist()], np.str_)
    is_exact = is_complete and np.array_equal(selected, requested)
    patterns = sorted(map(re.escape, set(functions[requested].tolist())))
    pattern = "" if is_exact or len(patterns) > MOST_KERNEL_NAMES else f"^({'|'.join(patterns)})$"
    matching = np.isin(functions, functions[requested]) if pattern else np.ones(len(requested), np.bool_)
    count = int(requested.sum())
    if nearest is not None and is_complete:
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
    requested_paths = {
        path for path, is_requested in zip(kernels.paths(), kernels.requested, strict=True) if is_requested
    }
    around = {
        path[0] if path and path[0] not in steps and not steps.isdisjoint(path) else "" for path in requested_paths
    }
    return around.pop() if len(around) == 1 else ""


def function_name(name: str) -> str:
    """Return what ncu calls a kernel's function by default: without its scope, arguments and parameters."""
    return split_name(name)[0].rsplit("::", 1)[-1]
