"""Compare two reports: the time of each by phase, category, range and kernel, and the differences.

Every axis divides the same rows, so the differences along any of them sum to the total difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .. import report as reports
from ..errors import ReportError
from ..report import KernelRow, Number, Report
from ..summary.collapsing import naming_of
from ..summary.selection import with_indices_collapsed
from ..vocabulary import PHASES, some_of

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

    `inside` is what was launched in a range at any depth; on other axes it is empty.
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

    @property
    def delta_ns(self) -> Number:
        """How much longer it took in B, ns."""
        return self.b_ns - self.a_ns

    @property
    def change(self) -> float | None:
        """The difference as a fraction of A's time; None where A has none."""
        return self.delta_ns / self.a_ns if self.a_ns else None

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

    def rows(self, report: Report) -> list[KernelRow]:
        """Return the rows of one of the reports that are compared."""
        return [row for row in report.kernels if self.all_work or row.kind == "kernel"]

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
        divided = [{path[:-1] for path in of} for of in paths]
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
        return filed(self.rows(self.a), self.rows(self.b), lambda _: (), inside=True).get((), Change(()))


def compare(a: Report, b: Report, *, basis: Basis = "auto", all_work: bool = False) -> Comparison:
    """Make two reports comparable: per step where both have steps, unless asked otherwise.

    Raises ReportError if one counts a GPU's work and the other a CPU's, or if `basis` is "step" but a
    report has no steps.
    """
    units = a.provenance.unit_of_work, b.provenance.unit_of_work
    if units[0] != units[1]:
        raise ReportError(f"A counts {units[0]} work and B {units[1]} work: their times cannot be compared.")
    per_step = basis == "step" or (basis == "auto" and bool(a.steps and b.steps))
    if per_step:
        a, b = reports.per_step(a), reports.per_step(b)
    a, b = reports.in_one_spelling((a, b))
    return Comparison(a, b, basis, per_step, all_work)


def named_apart(reports: Sequence[Report], paths: Sequence[Path]) -> list[Report]:
    """Return the reports; two different files of the same name are shown with their full paths."""
    names = [report.provenance.file for report in reports]
    if len(set(names)) == len(set(paths)):
        return list(reports)
    return [
        replace(report, provenance=replace(report.provenance, file=str(path)))
        for report, path in zip(reports, paths, strict=True)
    ]


def changes(comparison: Comparison, axis: Axis, *, collapse: bool = False) -> list[Change]:
    """Compare along one axis, largest differences first; phases in their own order.

    Work in ranges that only one report has, inside a range that the other does not divide, counts for that range.
    With `collapse`, ranges that differ only in an index are merged.
    """
    a, b = comparison.a, comparison.b
    if axis == "range":
        a, b = comparison.in_common_ranges(a), comparison.in_common_ranges(b)
    if collapse and axis == "range":
        naming = naming_of(a, b)
        a, b = with_indices_collapsed(a, naming), with_indices_collapsed(b, naming)
    found = filed(comparison.rows(a), comparison.rows(b), AXES[axis], inside=axis == "range")
    if axis == "phase":
        return [found[phase,] for phase in PHASES if (phase,) in found]
    return by_size(found)


def notes(comparison: Comparison) -> Iterator[str]:
    """Return notes on the comparison, followed by the notes of each report."""
    a, b = comparison.a, comparison.b
    if not comparison.per_step and comparison.basis == "auto":
        yield f"Not per step: {_without_steps(a, b)}. The totals are compared: A {_over(a)}, B {_over(b)}."
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


def by_size(found: Mapping[Key, Change]) -> list[Change]:
    """Sort changes by the size of their difference, the largest first."""
    return sorted(found.values(), key=_size)


def _size(change: Change) -> tuple[Number, Number, Key]:
    return -abs(change.delta_ns), -max(change.a_ns, change.b_ns), change.key


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


def _without_steps(a: Report, b: Report) -> str:
    missing = [name for name, report in (("A", a), ("B", b)) if not report.steps]
    return f"{' and '.join(missing)} ha{'s' if len(missing) == 1 else 've'} no measured step ranges"


def _over(report: Report) -> str:
    return f"over {report.steps} step{'s' if report.steps > 1 else ''}" if report.steps else "total"
