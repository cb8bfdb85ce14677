"""Compare two reports: the time of each by phase, category, range and kernel, and the differences.

Every axis divides the same rows, so the differences along any of them sum to the total difference; so do those of
what a compiler fused, saved and lost, where a fusion is a row of its own, for its kernels do the work of several
ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from .. import report as reports
from ..errors import ReportError
from ..opened import is_per_step
from ..report import KernelRow, Number, Report
from ..report.evidence import HOW
from ..summary.selection import naming_of, renamed
from ..support import noise
from ..views.rows import count_of, time_of
from ..vocabulary import PHASES, fused_parts, some_of
from ..vocabulary.modules import Naming
from . import sides as steps_of_sides
from .sides import NO_STEPS, Measure, Measured, Recording, Side, Steps, paired, place, single_step

Axis = Literal["phase", "category", "range", "kernel"]
Basis = Literal["auto", "step", "total"]
Key = tuple[str, ...]
Group = Literal["fused", "saved", "lost", "unchanged"]

# What a kernel row is filed under along each axis but that of ranges.
AXES: dict[Axis, Callable[[KernelRow], Key]] = {
    "phase": lambda row: (row.phase,),
    "category": lambda row: (row.category,),
    "kernel": lambda row: (row.kernel, row.category),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing in both reports, ns and launches; in a range, what was launched directly in it.

    `inside` is what was launched in a range at any depth, None on other axes. The spreads are by how much the
    slowest step of a report exceeds its fastest, None where it has fewer than two. `judged` says whether the steps
    of B differ from those of A (docs/compare.md, "When B differs").
    """

    key: Key
    a_ns: Number = 0
    b_ns: Number = 0
    a_count: Number = 0
    b_count: Number = 0
    a_spread_ns: int | None = None
    b_spread_ns: int | None = None
    judged: noise.Verdict = "not known"
    inside: Change | None = None

    @property
    def delta_ns(self) -> Number:
        """How much longer it took in B, ns."""
        return self.b_ns - self.a_ns

    @property
    def change(self) -> float | None:
        """The difference as a fraction of A's time; None where A has none."""
        return self.delta_ns / self.a_ns if self.a_ns else None

    @property
    def verdict(self) -> noise.Verdict:
        """Whether B differs; what only one of the reports has does."""
        return "differs" if self.state else self.judged

    @property
    def within_spread(self) -> bool | None:
        """Whether the steps cannot tell B from A; None where that is not known, or only one of them has it."""
        known = {"same": True, "differs": False, "not known": None}
        return known[self.judged] if self.a_count and self.b_count else None

    @property
    def state(self) -> str:
        """`new` for what only B has, `gone` for what only A has, otherwise empty."""
        counted = self.inside or self
        return ("" if counted.a_count else "new") if counted.b_count else "gone"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two comparable reports: both per step, or both as recorded; kernels only, or all work."""

    a: Report
    b: Report
    basis: Basis
    per_step: bool
    all_work: bool = False
    steps: Steps = NO_STEPS

    def rows(self, report: Report) -> list[KernelRow]:
        """Return the rows of one of the reports that are compared."""
        return [row for row in report.kernels if self.all_work or row.kind == "kernel"]

    def naming(self, *, every_index: bool = False) -> Naming:
        """Return how screens name the ranges of both reports."""
        return naming_of(self.a, self.b, every_index=every_index)

    @property
    def whole(self) -> str:
        """Name what is compared: all of a kind of work."""
        operators = self.a.provenance.unit_of_work == "CPU"
        return "all work" if self.all_work else "all operators" if operators else "all kernels"

    @property
    def hides_kernels(self) -> bool:
        """Whether kernels are compared although a report hides some of them inside CUDA graphs."""
        graphs = any(row.kind == "graph" for report in (self.a, self.b) for row in report.kernels)
        return graphs and not self.all_work

    @property
    def undivided(self) -> tuple[frozenset[Key], frozenset[Key]]:
        """The ranges of both reports that only A divides further, and those that only B does."""
        paths = [{row.path for row in report.ranges} for report in (self.a, self.b)]
        divided = [{path[:-1] for path in of_report} for of_report in paths]
        common = paths[0] & paths[1]
        return frozenset(common & divided[0] - divided[1]), frozenset(common & divided[1] - divided[0])

    def in_ranges(self, naming: Naming) -> Comparison:
        """Return the comparison with all work in named ranges, the deepest that both reports have.

        Work in ranges that only one of them has stays there, but for those inside a range that the other does not
        divide.
        """
        leaves = frozenset.union(*self.undivided)
        reports = []
        for report in (self.a, self.b):
            kernels = (replace(row, path=_cut(row.path, leaves)) for row in report.kernels)
            reports.append(renamed(replace(report, kernels=tuple(kernels)) if leaves else report, naming))
        return replace(
            self,
            a=reports[0],
            b=reports[1],
            steps=self.steps.placed(lambda place: (naming(_cut(place[0], leaves)), *place[1:])),
        )

    def change(self, key: Key, *sides: Sequence[KernelRow]) -> Change:
        """Return the change from some rows of A to some of B."""
        (a_ns, b_ns), (a_count, b_count) = map(time_of, sides), map(count_of, sides)
        places = [{place(row) for row in rows} for rows in sides]
        judged, spreads_ns = self.steps.of_places(*places)
        return Change(key, a_ns, b_ns, a_count, b_count, *spreads_ns, judged)

    def total(self) -> Change:
        """Return everything compared, as one change."""
        return self.change((), self.rows(self.a), self.rows(self.b))

    def measured(self, measure: Measure) -> list[Measured]:
        """Return a measure of whole steps by kind of steps; [] where a side lacks it."""
        places = [[place(row) for row in self.rows(report)] for report in (self.a, self.b)]
        return self.steps.measured(measure, places)

    def step_time(self) -> Change | None:
        """Return the step time as one change, its counts those of the steps; None where a side lacks it.

        Of several kinds of steps it is the mean of their medians, by how often both sides have them. Where
        the CPU decides a side, one recording of it cannot tell a small difference from another day.
        """
        change, steps = joined(self.measured("step_ns")), self.steps
        is_doubtful = bool(steps.limited) and not steps.are_repeated
        if change and is_doubtful and change.judged == "differs" and abs(change.change or 0) <= noise.LARGE:
            return replace(change, judged="not known")
        return change

    def filed(self, keys: Callable[[KernelRow], Iterable[Key]]) -> dict[Key, Change]:
        """Add up both reports' rows under each of their keys."""
        rows: dict[Key, tuple[list[KernelRow], list[KernelRow]]] = {}
        for side, report in enumerate((self.a, self.b)):
            for row in self.rows(report):
                for key in keys(row):
                    rows.setdefault(key, ([], []))[side].append(row)
        return {key: self.change(key, *of_key) for key, of_key in rows.items()}


def joined(kinds: Sequence[Measured]) -> Change | None:
    """Return a measure of all kinds of steps as one change; None of no kinds."""
    if not kinds:
        return None
    weights = [kind.weight for kind in kinds]
    a_ns, b_ns = (
        sum(getattr(kind, name) * weight for kind, weight in zip(kinds, weights, strict=True)) / sum(weights)
        for name in ("a_ns", "b_ns")
    )
    a_steps, b_steps = (sum(getattr(kind, name) for kind in kinds) for name in ("a_steps", "b_steps"))
    verdict = noise.worst([kind.verdict for kind in kinds])
    return Change((), a_ns, b_ns, a_steps, b_steps, judged=verdict)


def compare(
    a: Report,
    b: Report,
    *,
    basis: Basis = "auto",
    all_work: bool = False,
    sides: tuple[Side, Side] = ((), ()),
) -> Comparison:
    """Make two reports comparable: per step where both have steps, unless asked otherwise.

    `sides` are the steps of each report's recordings.

    Raises ReportError if one counts a GPU's work and the other a CPU's, or if `basis` is "step" but a
    report has no steps.
    """
    units = a.provenance.unit_of_work, b.provenance.unit_of_work
    if units[0] != units[1]:
        raise ReportError(f"A counts {units[0]} work and B {units[1]} work: their times cannot be compared.")
    per_step = is_per_step((a, b), None if basis == "auto" else basis == "step")
    if per_step:
        a, b = reports.per_step(a), reports.per_step(b)
    spelled_a, spelled_b = reports.in_one_spelling((a, b))
    if not per_step:
        return Comparison(spelled_a, spelled_b, basis, per_step, all_work)
    steps = paired(*(side or _only_step(report) for side, report in zip(sides, (a, b), strict=True)))
    kernels = {old.kernel: new.kernel for old, new in zip(b.kernels, spelled_b.kernels, strict=True)}
    steps = steps.placed(lambda place: (*place[:3], kernels.get(place[3], place[3])), sides="B")
    return Comparison(spelled_a, spelled_b, basis, per_step, all_work, steps)


def _only_step(report: Report) -> Side:
    """Return the step of a report that has one; () for any other, whose steps are not known."""
    if report.counted_steps != 1:
        return ()
    times = single_step(report)
    launches = sum(row.count for row in report.kernels if row.kind == "kernel")
    nothing = np.full(1, np.nan)
    return (Recording(times, np.array([launches], np.int64), nothing, nothing),)


def named_apart(reports: Sequence[Report], paths: Sequence[Path]) -> list[Report]:
    """Return the reports; two different files of the same name are shown with their full paths."""
    names = [report.provenance.file for report in reports]
    if len(set(names)) == len(set(paths)):
        return list(reports)
    return [
        replace(report, provenance=replace(report.provenance, file=str(path)))
        for report, path in zip(reports, paths, strict=True)
    ]


def changes(comparison: Comparison, axis: Axis, naming: Naming = tuple) -> list[Change]:
    """Compare along one axis, largest differences first; phases in their own order.

    Work in ranges that only one report has, inside a range that the other does not divide, counts for that range.
    Ranges to which `naming` gives one name are merged.
    """
    if axis == "range":
        comparison = comparison.in_ranges(naming)
        by_key = comparison.filed(lambda row: [row.path])
        inside = comparison.filed(lambda row: [row.path[: n + 1] for n in range(max(len(row.path), 1))])
        by_key = {
            key: replace(by_key.get(key) or comparison.change(key, (), ()), inside=change)
            for key, change in inside.items()
        }
    else:
        by_key = comparison.filed(lambda row: [AXES[axis](row)])
    if axis == "phase":
        return [by_key[phase,] for phase in PHASES if (phase,) in by_key]
    return by_size(by_key)


def grouped(comparison: Comparison, naming: Naming) -> dict[Group, list[Change]]:
    """Return the differences by what a compiler did, the largest first; {} where neither report has a fusion.

    Ranges to which `naming` gives one name are taken together.
    """
    paths = [{naming(row.path) for row in report.ranges} for report in (comparison.a, comparison.b)]
    fusions = {path for of_report in paths for path in of_report if fused_parts(path[-1])}
    if not fusions:
        return {}
    common, places = paths[0] & paths[1], {path[:-1] for path in fusions}

    groups: dict[Group, list[Change]] = {group: [] for group in get_args(Group)}
    for change in by_size(comparison.filed(lambda row: [_row_of(naming(row.path), fusions, common, places)])):
        if change.key and fused_parts(change.key[-1]):
            groups["fused"].append(change)
        else:
            groups["saved" if change.delta_ns < 0 else "lost" if change.delta_ns else "unchanged"].append(change)
    return {group: changes for group, changes in groups.items() if changes}


def _row_of(path: Key, fusions: Collection[Key], common: Collection[Key], places: Collection[Key]) -> Key:
    """Return the fusion that a path is or leads into, else the deepest range that stands for it in both reports.

    A range next to a fusion stands for itself although one report lacks it: the fusion may be all there is of it.
    """
    depths = range(len(path), 0, -1)
    around: Iterable[Key] = [path[:depth] for depth in depths]
    fusion = next((outer for outer in around if outer in fusions), None)
    return fusion or next((outer for outer in around if outer in common or outer[:-1] in places), ())


def notes(comparison: Comparison) -> Iterator[str]:
    """Return notes on the comparison, followed by the notes of each report."""
    a, b = comparison.a, comparison.b
    if not comparison.per_step and comparison.basis == "auto":
        missing = [name for name, report in (("A", a), ("B", b)) if not report.has_work_in_steps]
        have = f"{' and '.join(missing)} ha{'s' if len(missing) == 1 else 've'}"
        some_empty = any(report.steps and not report.has_work_in_steps for report in (a, b))
        lacks = "work in measured steps" if some_empty else "measured step ranges"
        yield (f"Not per step: {have} no {lacks}. The totals are compared: A {_over(a)}, B {_over(b)}.")
        yield from dict.fromkeys(report.no_steps for report in (a, b) if report.no_steps)
    known = [report.account.evidence.by for report in (a, b) if report.account and report.account.has_steps]
    if comparison.per_step and len(set(known)) > 1:
        yield f"Steps of A are known {HOW[known[0]]}, those of B {HOW[known[1]]}: are they the same?"
    if comparison.hides_kernels:
        yield (
            "A report counts CUDA graphs whole, without their kernels, so the difference in kernel time is not "
            "the difference in work. Compare --all-work, or record with `nsys profile --cuda-graph-trace=node`."
        )
    for name, other, ranges in zip("AB", "BA", comparison.undivided, strict=True):
        if ranges:
            some = some_of((path[-1] for path in sorted(ranges)), most=4)
            yield (
                f"Only {name} has ranges inside {some}; their work is compared there, in the deepest ranges "
                f"that {other} has too."
            )
    yield from steps_of_sides.notes(comparison.steps)
    if a.warm_up_included != b.warm_up_included:
        yield "Warm-up is counted in one of the reports only."
    yield from (f"{name}: {note}" for name, report in (("A", a), ("B", b)) for note in report.notes)


def _cut(path: Key, leaves: Collection[Key]) -> Key:
    """Return a path down to the first undivided range."""
    return next((path[:depth] for depth in range(1, len(path)) if path[:depth] in leaves), path)


def by_size(by_key: Mapping[Key, Change]) -> list[Change]:
    """Sort changes by the size of their difference, the largest first."""
    return sorted(
        by_key.values(), key=lambda change: (-abs(change.delta_ns), -max(change.a_ns, change.b_ns), change.key)
    )


def _over(report: Report) -> str:
    return f"over {report.steps} step{'s' if report.steps > 1 else ''}" if report.steps else "total"
