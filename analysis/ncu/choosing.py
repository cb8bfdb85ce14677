"""The filter for the wanted kernels: by ranges where these tell them apart, else the nearest one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..attribution.user_ranges import of_titles
from ..kernel_names.parts import split_name
from ..report import Path
from .filters import Expression, Groups, cover, selected
from .stacks import PROCESS, THREAD, Stack, Stacks, stacks
from .wanted import Kernels

# More names than this make an unreadable pattern: then all kernels of the ranges are taken.
MOST_KERNEL_NAMES = 12


@dataclass(frozen=True, slots=True)
class Filter:
    """What makes ncu profile the wanted kernels, and how close it comes, by the report.

    Of the `wanted` kernels it misses `missing`, and it selects `surplus` others.
    """

    includes: tuple[str, ...]
    scope: str
    kernel_names: str  # a regular expression over functions' names, as ncu's --kernel-name takes it
    skip: int  # kernels of these names before the first that is wanted, and how many to take: -1 for all
    count: int
    wanted: int
    missing: int
    surplus: int

    @property
    def exact(self) -> bool:
        """Whether it selects the wanted kernels and no others."""
        return not self.missing and not self.surplus

    def options(self) -> list[str]:
        """Return ncu's options."""
        words = ["--nvtx"] if self.includes else []
        words += ["--nvtx-push-pop-scope", PROCESS] if self.scope == PROCESS else []
        words += [word for one in self.includes for word in ("--nvtx-include", one)]
        words += ["--kernel-name", f"regex:{self.kernel_names}"] if self.kernel_names else []
        words += ["--launch-skip", str(self.skip)] if self.skip else []
        return words + (["--launch-count", str(self.count)] if self.count >= 0 else [])


def choose(kernels: Kernels) -> Filter:
    """Return the filter that comes closest to the wanted kernels; of equal ones the shortest, by thread first."""
    guard = _guard(kernels)
    tried = [_by_ranges(kernels, seen, guard) for seen in stacks(kernels)]
    best = min(tried, key=lambda pair: pair[0], default=None)
    if best is None or best[1].missing:
        return _by_names(kernels)
    found = best[1]
    return found if found.exact and not _asks_for_names(kernels) else _with_names(kernels, found, best[2])


_Tried = tuple[tuple[int, ...], Filter, list[bool]]


def _by_ranges(kernels: Kernels, seen: Stacks, guard: str) -> _Tried:
    groups = _groups(kernels, seen, guard)
    found = cover(groups)
    wanted = int(kernels.wanted.sum())
    missing, surplus = wanted - selected(found, groups.wanted), selected(found, groups.others)
    unguarded = bool(guard) and not all(guard in one.names for one in found)
    words = sum(len(one.names) for one in found)
    cost = (missing, surplus, int(unguarded), len(found), int(seen.scope != THREAD), words)
    includes = tuple(one.text(seen.domain) for one in found)
    taken = _taken(seen, found)
    return cost, Filter(includes, seen.scope, "", 0, -1, wanted, missing, surplus), taken


def _taken(seen: Stacks, found: Sequence[Expression]) -> list[bool]:
    of_stack: dict[Stack, bool] = {
        stack: any(one.matches(stack) for one in found) for stack in set(seen.of_kernel)
    }
    return [of_stack[stack] for stack in seen.of_kernel]


def _groups(kernels: Kernels, seen: Stacks, guard: str) -> Groups:
    wanted: Counter[Stack] = Counter()
    others: Counter[Stack] = Counter()
    for stack, is_wanted, named in zip(seen.of_kernel, kernels.wanted, kernels.named, strict=True):
        if is_wanted:
            wanted[stack] += 1
        elif named:
            others[stack] += 1
    in_all = all(guard in stack for stack in wanted)
    return Groups(wanted, others, seen.usable, guard if in_all else "", kernels.asked.named)


def _guard(kernels: Kernels) -> str:
    """Return the range that is around the steps of all wanted kernels: what runs outside it was not measured."""
    attribution = kernels.attribution
    names, ranges = attribution.trace.names, attribution.ranges
    steps = {names[one] for one in ranges.name_id[of_titles(attribution.facts.measured, ranges)].tolist()}
    paths = {path for path, wanted in zip(kernels.paths(), kernels.wanted, strict=True) if wanted}
    around = {_around_step(path, steps) for path in paths}
    return around.pop() if len(around) == 1 else ""


def _around_step(path: Path, steps: set[str]) -> str:
    return path[0] if path and path[0] not in steps and any(name in steps for name in path) else ""


def _asks_for_names(kernels: Kernels) -> bool:
    return not bool(kernels.named.all())


def function_name(name: str) -> str:
    """Return what ncu calls a kernel's function by default: without its scope, arguments and parameters."""
    return split_name(name)[0].rsplit("::", 1)[-1]


def _pattern(functions: Iterable[str]) -> str:
    found = sorted(map(re.escape, set(functions)))
    return f"^({'|'.join(found)})$" if len(found) <= MOST_KERNEL_NAMES else ""


def _functions(kernels: Kernels) -> list[str]:
    of_name = {name: function_name(name) for name in {kernels.name(row) for row in kernels.rows.tolist()}}
    return [of_name[kernels.name(row)] for row in kernels.rows.tolist()]


def _with_names(kernels: Kernels, found: Filter, taken: Sequence[bool]) -> Filter:
    """Narrow a filter by the functions of the wanted kernels."""
    functions = _functions(kernels)
    wanted = {one for one, is_wanted in zip(functions, kernels.wanted, strict=True) if is_wanted}
    pattern = _pattern(wanted)
    left = [
        is_taken and not is_wanted and (one in wanted or not pattern)
        for one, is_wanted, is_taken in zip(functions, kernels.wanted, taken, strict=True)
    ]
    return Filter(found.includes, found.scope, pattern, 0, -1, found.wanted, 0, sum(left))


def _by_names(kernels: Kernels) -> Filter:
    """Return a filter by functions and their launches' numbers, where no range is open at some wanted launch."""
    functions = _functions(kernels)
    wanted = {one for one, is_wanted in zip(functions, kernels.wanted, strict=True) if is_wanted}
    pattern = _pattern(wanted)
    matching = [
        bool(is_wanted)
        for one, is_wanted in zip(functions, kernels.wanted, strict=True)
        if one in wanted or not pattern
    ]
    first, last = matching.index(True), len(matching) - 1 - matching[::-1].index(True)
    taken = matching[first : last + 1]
    whole = first == 0 and last == len(matching) - 1
    surplus = len(taken) - sum(taken)
    return Filter((), THREAD, pattern, first, -1 if whole else len(taken), sum(taken), 0, surplus)
