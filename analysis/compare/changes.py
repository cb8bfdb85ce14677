"""Compare two reports: the time of each by phase, category, range and kernel, and the differences.

Every axis divides the same rows, so the differences along any of them sum to the total difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from .. import report as reports
from ..errors import ReportError
from ..measures.steps import StepTimes
from ..report import KernelRow, Number, Report
from ..summary.selection import naming_of, renamed
from ..vocabulary import PHASES, some_of
from ..vocabulary.modules import Naming
from .spread import spread_ns

Axis = Literal["phase", "category", "range", "kernel"]
Basis = Literal["auto", "step", "total"]
Key = tuple[str, ...]

# What a kernel row is filed under along each axis.
AXES: dict[Axis, Callable[[KernelRow], Key]] = {
    "phase": lambda row: (row.phase,),
    "category": lambda row: (row.category,),
    "range": lambda row: row.path,
    "kernel": lambda row: (row.kernel, row.category),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing in both reports, ns and launches; in a range, what was launched directly in it.

    `inside` is what was launched in a range at any depth; on other axes it is empty. The spreads are by how much
    the slowest step of a report exceeds its fastest, None where it has fewer than two.
    """

    key: Key
    a_ns: Number = 0
    b_ns: Number = 0
    a_count: Number = 0
    b_count: Number = 0
    a_inside_ns: Number = 0
    b_inside_ns: Number = 0
    a_inside_count: Number = 0
    b_inside_count: Number = 0
    a_spread_ns: int | None = field(default=None, kw_only=True)
    b_spread_ns: int | None = field(default=None, kw_only=True)
    a_inside_spread_ns: int | None = field(default=None, kw_only=True)
    b_inside_spread_ns: int | None = field(default=None, kw_only=True)

    @property
    def delta_ns(self) -> Number:
        """How much longer it took in B, ns."""
        return self.b_ns - self.a_ns

    @property
    def change(self) -> float | None:
        """The difference as a fraction of A's time; None where A has none."""
        return self.delta_ns / self.a_ns if self.a_ns else None

    @property
    def within_spread(self) -> bool | None:
        """Whether B differs from A no more than the steps of A, or those of B, differ among themselves."""
        spreads = [spread for spread in (self.a_spread_ns, self.b_spread_ns) if spread is not None]
        return abs(self.delta_ns) <= max(spreads) if spreads and self.a_count and self.b_count else None

    @property
    def inside(self) -> Change:
        """The same of what was launched in a range at any depth."""
        return Change(
            self.key,
            self.a_inside_ns,
            self.b_inside_ns,
            self.a_inside_count,
            self.b_inside_count,
            a_spread_ns=self.a_inside_spread_ns,
            b_spread_ns=self.b_inside_spread_ns,
        )

    @property
    def state(self) -> str:
        """`new` for what only B has, `gone` for what only A has, otherwise empty."""
        in_a, in_b = self.a_count or self.a_inside_count, self.b_count or self.b_inside_count
        return ("" if in_a else "new") if in_b else "gone"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two comparable reports: both per step, or both as recorded; kernels only, or all work."""

    a: Report
    b: Report
    basis: Basis
    per_step: bool
    all_work: bool = False
    times: tuple[StepTimes, StepTimes] = field(default=({}, {}), repr=False)

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
    def uneven(self) -> bool:
        """Whether totals are compared by default because only one report has steps."""
        return self.basis == "auto" and bool(self.a.steps) != bool(self.b.steps)

    @property
    def undivided(self) -> tuple[frozenset[Key], frozenset[Key]]:
        """The ranges of both reports that only A divides further, and those that only B does."""
        paths = [{row.path for row in report.ranges} for report in (self.a, self.b)]
        divided = [{path[:-1] for path in of_report} for of_report in paths]
        common = paths[0] & paths[1]
        return frozenset(common & divided[0] - divided[1]), frozenset(common & divided[1] - divided[0])

    def in_common_ranges(self, report: Report) -> Report:
        """Return one of the reports with its work in the deepest ranges that both reports have."""
        leaves = frozenset.union(*self.undivided)
        if not leaves:
            return report
        return replace(report, kernels=tuple(replace(row, path=_cut(row.path, leaves)) for row in report.kernels))

    def total(self) -> Change:
        """Return everything compared, as one change."""
        everything = filed(self.rows(self.a), self.rows(self.b), lambda _: (), inside=True).get((), Change(()))
        a_spread, b_spread = self.spreads(self.rows(self.a), self.rows(self.b))
        return replace(
            everything,
            a_spread_ns=a_spread,
            b_spread_ns=b_spread,
            a_inside_spread_ns=a_spread,
            b_inside_spread_ns=b_spread,
        )

    def spreads(self, a: Iterable[KernelRow], b: Iterable[KernelRow]) -> tuple[int | None, int | None]:
        """Return the spread over steps of some rows of each report."""
        return spread_ns(self.times[0], a), spread_ns(self.times[1], b)


def compare(
    a: Report,
    b: Report,
    *,
    basis: Basis = "auto",
    all_work: bool = False,
    times: tuple[StepTimes, StepTimes] = ({}, {}),
) -> Comparison:
    """Make two reports comparable: per step where both have steps, unless asked otherwise.

    `times` are those of each report's steps.

    Raises ReportError if one counts a GPU's work and the other a CPU's, or if `basis` is "step" but a
    report has no steps.
    """
    units = a.provenance.unit_of_work, b.provenance.unit_of_work
    if units[0] != units[1]:
        raise ReportError(f"A counts {units[0]} work and B {units[1]} work: their times cannot be compared.")
    per_step = basis == "step" or (basis == "auto" and bool(a.steps and b.steps))
    if per_step:
        a, b = reports.per_step(a), reports.per_step(b)
    spelled_a, spelled_b = reports.in_one_spelling((a, b))
    if not per_step:
        return Comparison(spelled_a, spelled_b, basis, per_step, all_work)
    kernels = {old.kernel: new.kernel for old, new in zip(b.kernels, spelled_b.kernels, strict=True)}
    times_b = {(*place, kernels.get(kernel, kernel)): ns for (*place, kernel), ns in times[1].items()}
    return Comparison(spelled_a, spelled_b, basis, per_step, all_work, (times[0], times_b))  # type: ignore[arg-type]


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
    a, b = comparison.a, comparison.b
    if axis == "range":
        a, b = comparison.in_common_ranges(a), comparison.in_common_ranges(b)
        a, b = renamed(a, naming), renamed(b, naming)
    by_key = filed(comparison.rows(a), comparison.rows(b), AXES[axis], inside=axis == "range")
    if any(comparison.times):
        by_key = _with_spreads(comparison, axis, naming, by_key)
    if axis == "phase":
        return [by_key[phase,] for phase in PHASES if (phase,) in by_key]
    return by_size(by_key)


def _with_spreads(
    comparison: Comparison, axis: Axis, naming: Naming, by_key: Mapping[Key, Change]
) -> dict[Key, Change]:
    """Add to each change by how much the steps of each report differ in it."""
    leaves = frozenset.union(*comparison.undivided) if axis == "range" else frozenset()
    direct: tuple[dict[Key, list[KernelRow]], ...] = ({}, {})
    inside: tuple[dict[Key, list[KernelRow]], ...] = ({}, {})
    for side, report in enumerate((comparison.a, comparison.b)):
        for row in comparison.rows(report):
            key = naming(_cut(row.path, leaves)) if axis == "range" else AXES[axis](row)
            direct[side].setdefault(key, []).append(row)
            for depth in range(1, len(key) + 1) if axis == "range" else ():
                inside[side].setdefault(key[:depth], []).append(row)
    with_spreads = {}
    for key, change in by_key.items():
        spreads = comparison.spreads(*(rows.get(key, []) for rows in direct))
        inner = comparison.spreads(*(rows.get(key, direct[side].get(key, [])) for side, rows in enumerate(inside)))
        with_spreads[key] = replace(
            change,
            a_spread_ns=spreads[0],
            b_spread_ns=spreads[1],
            a_inside_spread_ns=inner[0],
            b_inside_spread_ns=inner[1],
        )
    return with_spreads


def notes(comparison: Comparison) -> Iterator[str]:
    """Return notes on the comparison, followed by the notes of each report."""
    a, b = comparison.a, comparison.b
    if not comparison.per_step and comparison.basis == "auto":
        missing = [name for name, report in (("A", a), ("B", b)) if not report.steps]
        have = f"{' and '.join(missing)} ha{'s' if len(missing) == 1 else 've'}"
        yield (
            f"Not per step: {have} no measured step ranges. The totals are compared: A {_over(a)}, B {_over(b)}."
        )
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
    if a.warm_up_included != b.warm_up_included:
        yield "Warm-up is counted in one of the reports only."
    yield from (f"{name}: {note}" for name, report in (("A", a), ("B", b)) for note in report.notes)


def _cut(path: Key, leaves: Collection[Key]) -> Key:
    """Return a path down to the first undivided range."""
    return next((path[:depth] for depth in range(1, len(path)) if path[:depth] in leaves), path)


def by_size(by_key: Mapping[Key, Change]) -> list[Change]:
    """Sort changes by the size of their difference, the largest first."""
    return sorted(
        by_key.values(),
        key=lambda change: (-abs(change.delta_ns), -max(change.a_ns, change.b_ns), change.key),
    )


def filed(
    a: Iterable[KernelRow], b: Iterable[KernelRow], key: Callable[[KernelRow], Key], inside: bool = False
) -> dict[Key, Change]:
    """Add up both reports' rows under the same keys; `inside` adds a range's rows to all ranges around it too."""
    sums: dict[Key, list[Number]] = {}
    for side, rows in enumerate((a, b)):
        for row in rows:
            where = key(row)
            _add(sums, where, row, side)
            for around in ([where[:depth] for depth in range(1, len(where) + 1)] or [where]) if inside else ():
                _add(sums, around, row, side + 4)
    return {where: Change(where, *values) for where, values in sums.items()}


def _add(sums: dict[Key, list[Number]], key: Key, row: KernelRow, place: int) -> None:
    values = sums.setdefault(key, [0] * 8)
    values[place] += row.total_ns
    values[place + 2] += row.count


def _over(report: Report) -> str:
    return f"over {report.steps} step{'s' if report.steps > 1 else ''}" if report.steps else "total"
