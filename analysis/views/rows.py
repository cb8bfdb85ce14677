"""What several views need: figures per step, and the shortest distinct paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from os.path import commonprefix
from typing import Any, TypeVar

from ..document import Column, Table
from ..errors import ReportError
from ..measures.agreement import Price
from ..report import KernelRow, Number, Path, Report, quotient
from ..support.units import time_in_digits
from ..vocabulary import PHASES, PhaseNames, phase_matcher
from ..vocabulary.modules import Shown, shown

#: A row of a path and a phase.
Placed = TypeVar("Placed", bound=Any)
#: What is ranked: of a graph launched whole, the report hides the kernels.
RANKED = ("kernel", "graph")
NOWHERE = "(outside all ranges)"


def require_measured(report: Report) -> None:
    """Raise ReportError, with the reason, if nothing is left to show."""
    if not report.kernels:
        work = f"{report.provenance.unit_of_work} work"
        empty = f"The selection contains no {work}. Leave out --range or --phase to see what there is."
        raise ReportError(report.all_warm_up or empty)


def per_step(report: Report, value: Number) -> Number:
    """Divide a sum over the steps that count if figures are per step; whole quotients stay integers."""
    return quotient(value, report.counted_steps) if report.per_step else value


def per_step_of_a_gpu(report: Report, value: Number, gpus: int) -> Number:
    """Divide what one of `gpus` did by its own rank's steps, where figures are per step."""
    ranks = max(report.ranks, 1) if gpus > 1 and report.per_step else 1
    return per_step(report, value * ranks)


def price_notes(report: Report, priced: Mapping[str, Price]) -> list[str]:
    """Report about how much CPU time annotation adds to each phase; empty for a CPU."""
    if not priced or report.provenance.unit_of_work == "CPU":
        return []
    each = "each " if report.per_step else ""
    parts = (f"{time_in_digits(per_step(report, price.ns))} to {each}{name}" for name, price in priced.items())
    return [f"Annotation adds about {', '.join(parts)}; kernel times are unaffected."]


def common_length(paths: Iterable[Path]) -> int:
    """Return how many ranges all paths begin with."""
    return len(commonprefix([path for path in paths if path]))  # noqa: RUF071 - of tuples, not of letters


def label(path: Path, common: int = 0) -> Shown:
    """Write a path without the ranges that all paths begin with, except its last."""
    return shown(path, common) if path else Shown(NOWHERE)


def share(part: Number, total: Number) -> float | None:
    """Return a part as a fraction of the total; None of nothing."""
    return part / total if total else None


def kernels_of(report: Report, phases: Collection[str] = PHASES) -> list[KernelRow]:
    """Return the rows of kernels in some phases, without copies and graphs."""
    return [row for row in report.kernels if row.kind == "kernel" and row.phase in phases]


def time_of(rows: Iterable[KernelRow]) -> Number:
    """Add up the time of rows, ns."""
    return sum(row.total_ns for row in rows)


def count_of(rows: Iterable[KernelRow]) -> Number:
    """Add up the launches of rows."""
    return sum(row.count for row in rows)


def longest_first(rows: Iterable[KernelRow]) -> list[KernelRow]:
    """Sort kernels by their time."""
    return sorted(rows, key=lambda row: (-row.total_ns, row.kernel, row.category, row.phase))


def phases_to_say(rows: Sequence[tuple[Path, str]]) -> list[str]:
    """Return the suffix of each row's name: its phase, if the path has rows in several phases."""
    phases_of = Counter(path for path, _ in dict.fromkeys(rows))
    return [f" ({phase})" if phases_of[path] > 1 else "" for path, phase in rows]


def last_names(rows: Sequence[Placed]) -> list[str]:
    """Return each row's last name, with its phase where the path has rows in several."""
    phases = phases_to_say([(row.path, row.phase) for row in rows])
    return [in_phase(label(row.path[-1:]), phase) for row, phase in zip(rows, phases, strict=True)]


def in_phase(name: Shown, phase: str) -> Shown:
    """Return a name with the suffix that says its phase, if any, which then stands in the class's place."""
    return Shown(f"{name}{phase}") if phase else name


def with_levels(table: Table, names: Iterable[str]) -> Table:
    """Add a column for programs with the sort of each row: its name, such as `step`, or `phase` for a phase."""
    levels = ("phase" if name in PHASES else name for name in names)
    rows = (replace(row, values=(level, *row.values)) for level, row in zip(levels, table.rows, strict=True))
    columns = (Column("level", "level", seen_by="programs"), *table.columns)
    return replace(table, columns=columns, rows=tuple(rows))


def in_tree(rows: Sequence[Placed], size: str, top: int, phase_names: PhaseNames = ()) -> list[Placed]:
    """Return the rows of the largest `size` in a tree, of every phase, and those around them, in order."""
    matches = phase_matcher(phase_names)

    @cache
    def opens_phase(name: str) -> bool:
        phase, part = matches(name)
        return bool(phase) and not part

    def is_outermost_of_phase(path: Path) -> bool:
        return opens_phase(path[-1]) and not any(map(opens_phase, path[:-1]))

    by_size = sorted(range(len(rows)), key=lambda place: (-getattr(rows[place], size), len(rows[place].path)))
    chosen = {*by_size[:top], *(place for place, row in enumerate(rows) if is_outermost_of_phase(row.path))}
    around = {rows[place].path[:depth] for place in chosen for depth in range(1, len(rows[place].path))}
    return [row for place, row in enumerate(rows) if place in chosen or row.path in around]


def depths(rows: Sequence[Placed]) -> list[int]:
    """Return how far each row's path is below the shortest of them."""
    top = min((len(row.path) for row in rows), default=1)
    return [len(row.path) - top for row in rows]


def more(rows: Sequence[object], top: int, noun: str, each: str = "") -> str:
    """Return how many of a noun in the singular a table leaves out, what each is, and how to see them."""
    left_out = len(rows) - top
    plural = "s" if left_out > 1 else ""
    return f" {left_out} more {noun}{plural}{each}: --top {len(rows)}." if left_out > 0 else ""
