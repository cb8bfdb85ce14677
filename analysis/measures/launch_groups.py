"""Explain a kernel's launches by the innermost range that launched them and by the size of the grid.

A kernel is launched a number of times in a range, and a range occurs a number of times per step: `61 = 5·12 + 1`
means that five ranges of each of 12 layers launch it once, and one range outside the layers does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Instances, Paths
from ..readers.columns import Interner
from ..report import Path, Report
from ..support.small_numbers import each_row, grouped_rows, summed
from ..trace import KERNEL, Int64s
from ..vocabulary import PHASES
from .spans import Extents

STEP = "step"


@dataclass(frozen=True, slots=True)
class Group:
    """Launches of one kernel from one path with one grid; `places` counts the ranges that launched it there.

    `blocks` is 0 if unknown. The path is empty, and `places` 0, outside all ranges.
    """

    path: Path
    blocks: int
    launches: int
    places: int
    total_ns: int


@dataclass(frozen=True, slots=True)
class Term:
    """Groups whose ranges occur equally often: `each` launches in each of `places` ranges.

    Where launches are not spread evenly, `places` is 1 and `each` their number.
    """

    each: int
    places: int
    groups: tuple[Group, ...]

    @property
    def launches(self) -> int:
        """The number of launches in the group."""
        return self.each * self.places

    @property
    def text(self) -> str:
        """The term of the sum."""
        return f"{self.each}·{self.places}" if self.places > 1 else f"{self.each:,}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One kernel in one phase: its launches in each of `units` steps (or ranges of the phase), as a sum of terms.

    `unit` is STEP or the name of the phase. It is empty, and the terms are those of all launches, if launches
    differ between units, some are outside of all units, or the report has no units. Figures of groups are over all
    units.
    """

    kernel: str
    phase: str
    unit: str
    units: int
    terms: tuple[Term, ...]

    @property
    def launches(self) -> int:
        """How many launches there are in each unit."""
        return sum(term.launches for term in self.terms)

    @property
    def sum(self) -> str:
        """The number of launches and what it is made of, such as `61 = 5·12 + 1`."""
        return " = ".join(filter(None, (f"{self.launches:,}", self.formula)))

    @property
    def formula(self) -> str:
        """The sum, such as `5·12 + 1`; empty where it says no more than the number of launches."""
        text = " + ".join(term.text for term in self.terms)
        return "" if text in (f"{self.launches:,}", f"1·{self.launches}") else text


class LaunchGroups:
    """Groups the launches of an attribution's kernels."""

    def __init__(self, attribution: Attribution, *, include_warm_up: bool = False) -> None:
        self._attribution = attribution
        self._paths = Paths(attribution)
        self._places = Instances(attribution)
        self._extents = Extents(attribution, include_warm_up=include_warm_up)

    def explain(self, kernel: str, phase: str, *, report: Report, naming: Callable[[Path], Path]) -> Explanation:
        """Explain a kernel's launches in a phase: those that a report has, by range, named by `naming`."""
        paths = {row.path for row in report.kernels if (row.kernel, row.phase) == (kernel, phase)}
        attribution = self._attribution
        counted = self._extents.kept
        of_node = self._paths.of_node
        work = attribution.trace.work
        is_kernel = np.array([name == kernel for name in attribution.trace.names], np.bool_)
        allowed = np.array([path in paths for path in self._paths.paths], np.bool_)
        chosen = (work.kind[counted] == KERNEL) & is_kernel[work.name_id[counted]]
        chosen &= attribution.phase[counted] == PHASES.index(phase)
        rows = counted[chosen & allowed[of_node[attribution.node[counted]]]]
        groups = self._groups(rows, naming)
        for unit, number in ((STEP, len(PHASES)), (phase, PHASES.index(phase))):
            units = self._extents.count(number)
            inside = units and bool(self._extents.inside(number)[rows].all())
            if inside and not any(group.launches % units for group in groups):
                return Explanation(kernel, phase, unit, units, _terms(groups, units))
        return Explanation(kernel, phase, "", 1, _terms(groups, 1))

    def _groups(self, rows: Int64s, naming: Callable[[Path], Path]) -> list[Group]:
        """Group rows by the name of their path and their grid."""
        work = self._attribution.trace.work
        node = self._attribution.node[rows]
        number = Interner[Path]()
        names = [number(naming(path)) for path in self._paths.paths]
        name = np.array(names, np.int64)[self._paths.of_node[node]]
        key, group = grouped_rows(name, work.grid[rows])
        inside = node >= 0
        named = list(number)
        (group_of_place, _), _ = grouped_rows(group[inside], self._places.of_node[node[inside]])
        launches, places = (np.bincount(column, minlength=len(key[0])) for column in (group, group_of_place))
        figures = launches, places, summed(group, work.duration_ns[rows], len(key[0]))
        columns = each_row(*key, *figures)
        return [Group(named[path], *of_group) for path, *of_group in columns]


def _terms(groups: Sequence[Group], units: int) -> tuple[Term, ...]:
    """Add groups whose ranges occur equally often in a unit; the most frequent first, uneven ones last."""
    even: dict[int, list[Group]] = defaultdict(list)
    for group in groups:
        is_even = group.places and not group.places % units and not group.launches % group.places
        even[group.places // units if is_even else 0].append(group)
    terms = []
    for places in sorted(even, reverse=True):
        members = sorted(even[places], key=lambda group: (-group.launches, group.path, group.blocks))
        launches = sum(group.launches for group in members) // units
        terms.append(Term(launches // max(places, 1), max(places, 1), tuple(members)))
    return tuple(terms)
