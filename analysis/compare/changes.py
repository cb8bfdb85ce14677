"""Compare two reports: the time of each by phase, category, range and kernel, and the differences.

Every axis divides the same rows, so the differences along any of them sum to the total difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path as FilePath
from typing import Literal, get_args

import numpy as np

from .. import report as reports
from ..errors import ReportError
from ..opened import is_per_step
from ..report import KernelRow, Path, Report
from ..report.account import Account, State
from ..report.evidence import HOW, REPETITION
from ..summary.selection import naming_of
from ..support import noise
from ..views import headings
from ..views.rows import count_of, time_of
from ..vocabulary import PHASES, fused_parts, some_of
from ..vocabulary.modules import Naming
from . import sides as steps_of_sides
from .accounts import cause_of, states_ns
from .change import Change, Key, by_size
from .sides import Figure, Measure, Side, Steps, only_step, paired, place, spelled

Axis = Literal["phase", "category", "range", "kernel"]
TO_SEE_KERNELS = "Compare --all-work, or record with `nsys profile --cuda-graph-trace=node`"
#: Launches that both sides have at least of all, where steps that were found by repetition are compared.
COMMON_WORK = 0.75

# What a kernel row is filed under along each axis but that of ranges.
AXES: dict[Axis, Callable[[KernelRow], Key]] = {
    "phase": lambda row: (row.phase,),
    "category": lambda row: (row.category,),
    "kernel": lambda row: (row.kernel, row.category),
}


@dataclass(frozen=True)
class Comparison:
    """Two comparable reports: both per step, or both as recorded; kernels only, or all work.

    `asked_per_step` is what was asked for, None where the reports decide. `unlike` is a sentence on how the steps
    of both differ in kind; empty where they do not.
    """

    a: Report
    b: Report
    asked_per_step: bool | None
    per_step: bool
    unlike: str = ""
    all_work: bool = False
    steps: Steps = field(default_factory=Steps)

    @property
    def reports(self) -> tuple[Report, Report]:
        """A and B."""
        return self.a, self.b

    def rows(self, report: Report) -> list[KernelRow]:
        """Return the rows of one of the reports that are compared."""
        return [row for row in report.kernels if self.all_work or row.kind == "kernel"]

    def naming(self, *, every_index: bool = False) -> Naming:
        """Return how screens name the ranges of both reports."""
        return naming_of(self.a, self.b, every_index=every_index)

    @property
    def on_cpu(self) -> bool:
        """Whether operators on a CPU are compared."""
        return self.a.provenance.unit_of_work == "CPU"

    @property
    def whole(self) -> str:
        """Name what is compared: all of a kind of work."""
        if self.all_work:
            return "all work"
        return "all operators" if self.on_cpu else "all kernels"

    @property
    def hides_kernels(self) -> bool:
        """Whether kernels are compared although a report hides some of them inside CUDA graphs."""
        graphs = any(row.kind == "graph" for report in self.reports for row in report.kernels)
        return graphs and not self.all_work

    @property
    def undivided(self) -> tuple[frozenset[Key], frozenset[Key]]:
        """The ranges of both reports that only A divides further, and those that only B does."""
        paths_a, paths_b = ({row.path for row in report.ranges} for report in self.reports)
        divided_a, divided_b = ({path[:-1] for path in paths} for paths in (paths_a, paths_b))
        common = paths_a & paths_b
        return frozenset(common & divided_a - divided_b), frozenset(common & divided_b - divided_a)

    def path_in_both(self, naming: Naming) -> Callable[[Path], Path]:
        """Return where work in a range counts: in the deepest range that both reports have, under its name.

        Work in ranges that only one of them has stays there, but for those inside a range that the other does not
        divide, or inside what a compiler fused: its kernels do the work of several ranges.
        """
        fused = {row.path for report in self.reports for row in report.ranges if fused_parts(row.path[-1])}
        leaves = frozenset.union(*self.undivided, fused)

        @cache
        def named(path: Path) -> Path:
            depths = range(1, len(path))
            return naming(next((path[:depth] for depth in depths if path[:depth] in leaves), path))

        return named

    def change(self, key: Key, rows_a: Sequence[KernelRow], rows_b: Sequence[KernelRow]) -> Change:
        """Return the change from some rows of A to some of B."""
        counts = count_of(rows_a), count_of(rows_b)
        change = Change(key, time_of(rows_a), time_of(rows_b), *counts)
        return self.steps.judged(change, _work((*rows_a, *rows_b)))

    @cached_property
    def total(self) -> Change:
        """Everything compared, as one change."""
        return self.change((), self.rows(self.a), self.rows(self.b))

    @cached_property
    def by(self) -> dict[Axis, list[Change]]:
        """What changed along each axis, with the names of the reports."""
        return {axis: changes(self, axis) for axis in get_args(Axis)}

    @cached_property
    def account(self) -> list[Change]:
        """What changed in each state of a GPU, the largest changes first; [] if the accounts are not of the same.

        The times add up to the step time as `rank` shows it.
        """
        changes = []
        for state in dict.fromkeys(chain(*self.states_ns)):
            change = self.of_states([state])
            more = self.accounts[change.b_ns > change.a_ns]
            changes.append(replace(change, key=state, cause=cause_of(more, state)))
        return by_size(changes)

    def of_states(self, states: Collection[State]) -> Change:
        """Return the change of the time in some states together, in the steps that count."""
        a_ns, b_ns = (float(sum(of_side.get(state, 0) for state in states)) for of_side in self.states_ns)
        return self.steps.judged(Change((), a_ns, b_ns, 1, 1), lambda recording: recording.time_in(states))

    @cached_property
    def states_ns(self) -> list[dict[State, Fraction]]:
        """The time in each state on both sides, ns."""
        return list(map(states_ns, self.accounts))

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Both accounts, of a step or both of all that was recorded; () where one lacks its parts."""
        a, b = self.a.account, self.b.account
        if a is None or b is None or not (a.gpus and b.gpus):
            return ()
        return (a, b) if self.per_step == a.has_steps == b.has_steps else ()

    def measured(self, measure: Measure) -> list[Change]:
        """Return a measure of whole steps for each kind of them, or their launches; [] where a side lacks it."""
        if measure == "step_ns":
            return self.steps.measured(self.steps.step_times)
        rows = chain.from_iterable(map(self.rows, self.reports))
        figure = _work(rows) if measure == "work_ns" else attrgetter(measure)
        return self.steps.measured(self.steps.by_kind(figure))

    @cached_property
    def step_time(self) -> Change | None:
        """The step time as one change, its counts those of the steps; None where a side lacks it.

        It is what `rank` shows of each side: a mean of the recorded steps, or a median of steps without recording.
        B does not differ where mean and median say different things, as one slow step can make a mean of any size.
        Where the CPU decides a side, one recording of it cannot tell a small difference from another day.
        """
        kinds = self.measured("step_ns")
        if not kinds:
            return None
        a_ns, b_ns = map(self._step_ns, self.steps.sides)
        counts = sum(kind.a_count for kind in kinds), sum(kind.b_count for kind in kinds)
        change = Change((), a_ns, b_ns, *counts, judged=noise.worst([kind.judged for kind in kinds]))
        share = change.change or 0.0
        if change.judged == "differs":
            goes_along = any(kind.judged == "differs" and (kind.change or 0) * share > 0 for kind in kinds)
            is_sure = goes_along and not self.is_doubtful(change)
        else:
            is_sure = change.judged == "same" and abs(share) <= noise.SAME_WITHIN
        return change if is_sure else replace(change, judged="not known")

    def is_doubtful(self, change: Change) -> bool:
        """Return whether one recording a side cannot tell: the CPU decides a small change, or signs differ."""
        if self.steps.are_repeated:
            return False
        is_small = abs(change.change or 0) <= noise.LARGE
        return (is_small and bool(self.steps.limited)) or self.is_opposite(change)

    def is_opposite(self, change: Change) -> bool:
        """Return whether steps timed without recording and recorded ones differ in opposite directions."""
        return self.steps.are_alone and self.account_delta_ns * change.delta_ns < 0

    @property
    def account_delta_ns(self) -> float:
        """How much longer a step of B takes by the accounts, ns; 0 if these are not of the same."""
        return float(sum(row.delta_ns for row in self.account))

    def _step_ns(self, side: Side) -> float:
        """Return how long a step of one side takes, ns: without recording where this is compared."""
        if self.steps.are_alone:
            return float(np.median(np.concatenate([recording.alone_ns for recording in side])))
        return float(np.concatenate([noise.known(recording.step_ns) for recording in side]).mean())

    def filed(self, keys: Callable[[KernelRow], Iterable[Key]]) -> dict[Key, Change]:
        """Add up both reports' rows under each of their keys."""
        rows: dict[Key, tuple[list[KernelRow], list[KernelRow]]] = {}
        for side, report in enumerate(self.reports):
            for row in self.rows(report):
                for key in keys(row):
                    rows.setdefault(key, ([], []))[side].append(row)
        return {key: self.change(key, *of_key) for key, of_key in rows.items()}


def _work(rows: Iterable[KernelRow]) -> Figure:
    """Return the figure of a recording that is the time of these rows in each step."""
    places = set(map(place, rows))
    return lambda recording: recording.time_of(places)


def compare(
    a: Report,
    b: Report,
    *,
    per_step: bool | None = None,
    all_work: bool = False,
    sides: tuple[Side, Side] = ((), ()),
) -> Comparison:
    """Make two reports comparable: per step where both have steps of one kind, unless asked otherwise.

    `sides` are the steps of each report's recordings.

    Raises ReportError if one counts a GPU's work and the other a CPU's, or if `per_step` is asked for and
    a report has no steps.
    """
    unit_a, unit_b = a.provenance.unit_of_work, b.provenance.unit_of_work
    if unit_a != unit_b:
        raise ReportError(f"A counts {unit_a} work and B {unit_b} work: their times cannot be compared.")
    difference = unlike(a, b)
    is_of_steps = is_per_step((a, b), per_step) and bool(per_step or not difference)
    if is_of_steps:
        a, b = reports.per_step(a), reports.per_step(b)
    spelled_a, spelled_b = reports.in_one_spelling((a, b))
    steps = Steps()
    if is_of_steps:
        side_a, side_b = (side or only_step(report) for side, report in zip(sides, (a, b), strict=True))
        steps = paired((side_a, spelled(side_b, b, spelled_b)))
    return Comparison(spelled_a, spelled_b, per_step, is_of_steps, difference, all_work, steps)


def unlike(a: Report, b: Report) -> str:
    """Return a sentence on how a step of A and one of B differ in kind; empty where they do not.

    Named steps are what their program calls a step. Steps that were found by repetition must do the same work.
    """
    accounts = [report.account for report in (a, b) if report.account and report.account.has_steps]
    if len(accounts) < 2:
        return ""
    (by_a, per_a), (by_b, per_b) = ((account.steps_by, account.per) for account in accounts)
    if by_a != by_b or per_a != per_b:
        of_a, of_b = (f" ({per})" if by_a == by_b else "" for per in (per_a, per_b))
        ways = f"A's are known {HOW[by_a]}{of_a}, B's {HOW[by_b]}{of_b}"
        return f"A has steps of one kind and B of another: {ways}."
    if by_a == REPETITION and (common := common_work(a, b)) < COMMON_WORK:
        return f"Steps found by repetition do different work: {common:.0%} of their launches are common."
    return ""


def common_work(a: Report, b: Report) -> float:
    """Return the launches of a step that both reports have, as a share of those that either has."""
    counts = []
    for report in reports.in_one_spelling([reports.per_step(a), reports.per_step(b)]):
        by_kernel = reports.added(report.kernels, ("kernel",))
        counts.append(Counter({row.kernel: row.count for row in by_kernel}))
    either = (counts[0] | counts[1]).total()
    return (counts[0] & counts[1]).total() / either if either else 1.0


def named_apart(reports: Sequence[Report], paths: Sequence[FilePath]) -> list[Report]:
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
        return by_size(_by_range(comparison, comparison.path_in_both(naming)))
    by_key = comparison.filed(lambda row: [AXES[axis](row)])
    if axis == "phase":
        return [by_key[phase,] for phase in PHASES if (phase,) in by_key]
    return by_size(by_key.values())


def _by_range(comparison: Comparison, named: Callable[[Path], Path]) -> Iterator[Change]:
    """Yield what changed directly in each range, with what did inside it at any depth."""
    directly = comparison.filed(lambda row: [named(row.path)])
    inside = comparison.filed(lambda row: _around(named(row.path)))
    for path, change in inside.items():
        own = directly.get(path) or comparison.change(path, (), ())
        yield replace(own, inside=change)


def _around(path: Path) -> list[Path]:
    """Return a path and those around it, the outermost first; of work outside all ranges, its empty one."""
    return [path[:depth] for depth in range(1, len(path) + 1)] or [path]


def notes(comparison: Comparison) -> Iterator[str]:
    """Return notes on the comparison, followed by the notes of each report."""
    a, b = comparison.reports
    if comparison.per_step and comparison.unlike:
        yield comparison.unlike
    elif not comparison.per_step and comparison.asked_per_step is None:
        yield from _not_per_step(comparison)
    if comparison.hides_kernels:
        yield (
            "A report counts CUDA graphs whole, without their kernels, so the difference in kernel time is not "
            f"the difference in work. {TO_SEE_KERNELS}."
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
    of_both = set(a.notes) & set(b.notes)
    yield from (f"A and B: {note}" for note in a.notes if note in of_both)
    for name, report in zip("AB", comparison.reports, strict=True):
        yield from (f"{name}: {note}" for note in report.notes if note not in of_both)


def _not_per_step(comparison: Comparison) -> Iterator[str]:
    """Yield why totals are compared, and not steps."""
    if comparison.unlike:
        remedy = "The totals are compared; --per-step compares the steps as they are."
        yield f"Not per step: {comparison.unlike} {remedy}"
        return
    without = [report for report in comparison.reports if not report.has_work_in_steps]
    have = "A and B have" if len(without) > 1 else f"{'AB'[without[0] is comparison.b]} has"
    lacks = "work in measured steps" if any(report.steps for report in without) else "measured step ranges"
    scope_a, scope_b = map(headings.scope, comparison.reports)
    yield f"Not per step: {have} no {lacks}. The totals are compared: A {scope_a}, B {scope_b}."
    yield from dict.fromkeys(filter(None, (report.no_steps for report in comparison.reports)))
