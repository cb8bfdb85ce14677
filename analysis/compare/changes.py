"""Compare two reports: the time of each by phase, category, range and kernel, and the differences.

Every axis divides the same rows, so the differences along any of them sum to the total difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from .. import report as reports
from ..errors import ReportError
from ..opened import is_per_step
from ..report import KernelRow, Number, Report
from ..report.evidence import HOW, REPETITION
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
#: Launches that both sides have at least of all, where steps that were found by repetition are compared.
COMMON_WORK = 0.75

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
    def on_cpu(self) -> bool:
        """Whether operators on a CPU are compared."""
        return self.a.provenance.unit_of_work == "CPU"

    @property
    def whole(self) -> str:
        """Name what is compared: all of a kind of work."""
        return "all work" if self.all_work else "all operators" if self.on_cpu else "all kernels"

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
        divide, or inside what a compiler fused: its kernels do the work of several ranges.
        """
        fused = {row.path for report in (self.a, self.b) for row in report.ranges if fused_parts(row.path[-1])}
        leaves = frozenset.union(*self.undivided, fused)
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

        It is what `rank` shows of each side: a mean of the recorded steps, or a median of steps without recording.
        B does not differ where mean and median say different things, as one slow step can make a mean of any size.
        Where the CPU decides a side, one recording of it cannot tell a small difference from another day.
        """
        kinds = self.measured("step_ns")
        if not kinds:
            return None
        steps = self.steps
        a_ns, b_ns = (_step_ns(report, side, steps) for report, side in ((self.a, steps.a), (self.b, steps.b)))
        a_steps, b_steps = sum(kind.a_steps for kind in kinds), sum(kind.b_steps for kind in kinds)
        change = Change((), a_ns, b_ns, a_steps, b_steps, judged=noise.worst([kind.verdict for kind in kinds]))
        share = change.change or 0.0
        is_doubtful = bool(steps.limited) and not steps.are_repeated and abs(share) <= noise.LARGE
        if change.judged == "differs":
            goes_along = any(kind.verdict == "differs" and (kind.change or 0) * share > 0 for kind in kinds)
            return change if goes_along and not is_doubtful else replace(change, judged="not known")
        is_same = change.judged == "same" and abs(share) <= noise.SAME_WITHIN
        return change if is_same else replace(change, judged="not known")

    def filed(self, keys: Callable[[KernelRow], Iterable[Key]]) -> dict[Key, Change]:
        """Add up both reports' rows under each of their keys."""
        rows: dict[Key, tuple[list[KernelRow], list[KernelRow]]] = {}
        for side, report in enumerate((self.a, self.b)):
            for row in self.rows(report):
                for key in keys(row):
                    rows.setdefault(key, ([], []))[side].append(row)
        return {key: self.change(key, *of_key) for key, of_key in rows.items()}


def _step_ns(report: Report, side: Side, steps: Steps) -> float:
    """Return how long a step of one side takes, ns: without recording where this is compared."""
    if steps.are_alone:
        return float(np.median(np.concatenate([recording.alone_ns for recording in side])))
    known = np.concatenate([noise.known(recording.step_ns) for recording in side])
    account = report.account
    return account.step_ns if account and account.step_ns is not None else float(known.mean())


def compare(
    a: Report,
    b: Report,
    *,
    basis: Basis = "auto",
    all_work: bool = False,
    sides: tuple[Side, Side] = ((), ()),
) -> Comparison:
    """Make two reports comparable: per step where both have steps of one kind, unless asked otherwise.

    `sides` are the steps of each report's recordings.

    Raises ReportError if one counts a GPU's work and the other a CPU's, or if `basis` is "step" but a
    report has no steps.
    """
    units = a.provenance.unit_of_work, b.provenance.unit_of_work
    if units[0] != units[1]:
        raise ReportError(f"A counts {units[0]} work and B {units[1]} work: their times cannot be compared.")
    per_step = is_per_step((a, b), None if basis == "auto" else basis == "step")
    per_step = per_step and (basis == "step" or not unlike(a, b))
    if per_step:
        a, b = reports.per_step(a), reports.per_step(b)
    spelled_a, spelled_b = reports.in_one_spelling((a, b))
    if not per_step:
        return Comparison(spelled_a, spelled_b, basis, per_step, all_work)
    steps = paired(*(side or _only_step(report) for side, report in zip(sides, (a, b), strict=True)))
    kernels = {old.kernel: new.kernel for old, new in zip(b.kernels, spelled_b.kernels, strict=True)}
    steps = steps.placed(lambda place: (*place[:3], kernels.get(place[3], place[3])), sides="B")
    return Comparison(spelled_a, spelled_b, basis, per_step, all_work, steps)


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
        return (
            f"The steps were found by repetition and do different work: {common:.0%} of the launches are common."
        )
    return ""


def common_work(a: Report, b: Report) -> float:
    """Return the launches of a step that both reports have, as a share of those that either has."""
    counts = [
        Counter({key: row.count for key, row in _by_kernel(report).items()})
        for report in reports.in_one_spelling([reports.per_step(a), reports.per_step(b)])
    ]
    either = (counts[0] | counts[1]).total()
    return (counts[0] & counts[1]).total() / either if either else 1.0


def _by_kernel(report: Report) -> Mapping[str, KernelRow]:
    return {row.kernel: row for row in reports.added(report.kernels, ("kernel",))}


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


def notes(comparison: Comparison) -> Iterator[str]:
    """Return notes on the comparison, followed by the notes of each report."""
    a, b = comparison.a, comparison.b
    if not comparison.per_step and comparison.basis == "auto" and (reason := unlike(a, b)):
        yield f"Not per step: {reason} The totals are compared; --per-step compares the steps as they are."
    elif not comparison.per_step and comparison.basis == "auto":
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
    of_both = set(a.notes) & set(b.notes)
    yield from (f"A and B: {note}" for note in a.notes if note in of_both)
    for name, report in (("A", a), ("B", b)):
        yield from (f"{name}: {note}" for note in report.notes if note not in of_both)


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
