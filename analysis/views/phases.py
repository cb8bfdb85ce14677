"""What share of each phase is GEMM, and what is the rest: the overview's first table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..document import Column, Document, Kind, Row, Table
from ..report import KernelRow, Number, Report, added
from ..support.units import time_text
from ..vocabulary import OTHER
from . import graphs, headings
from .registry import Subject
from .rows import count_of, longest_first, require_measured, share

BEYOND = "all: with {time} of kernels of no phase, outside the measured steps."
#: A category with less than this share of every phase shows 0.0% everywhere.
LEAST_SHOWN = 0.0005
BESIDE = "The sum excludes CUDA graphs launched whole: their kernels are not in the report."


def view(subject: Subject) -> Document:
    """Show kernel time by phase and category."""
    report = subject.report
    require_measured(report)
    table = by_phase(report) if subject.detail.whole else phases(report)
    return headings.answer(report, [table], report.notes)


def phases(report: Report) -> Table:
    """Pivot kernel time: categories down, phases across, with each phase's shares."""
    kernels = kernels_of(report)
    graph_ns = _by_phase(graphs.of_graphs(report), "total_ns")
    launches, gemms = _by_phase(kernels, "count"), _by_phase(_products(kernels), "count")
    names = [row.phase for row in report.phases if row.phase in {*launches, *graph_ns}]
    several = len(names) != 1
    outside_steps = OTHER if len(names) > 1 and _is_beyond_steps(report) else ""
    columns_of = [name for name in names if name != outside_steps]
    ranked = longest_first(added(kernels, ("category",)))
    others = [row.category for row in ranked if row.category != "gemm"]
    times = {(row.category, row.phase): row.total_ns for row in added(kernels, ("category", "phase"))}

    def time_in(phase: str, categories: Sequence[str]) -> Number:
        return sum(times.get((category, phase), 0) for category in categories)

    def line(text: str, categories: Sequence[str], indent: int = 0) -> Row:
        """Return a row of these categories: each phase's time and share, and those of all phases."""
        everything = ("gemm", *others)
        pairs = [(time_in(name, categories), time_in(name, everything)) for name in columns_of]
        if several:
            sums = [sum(time_in(name, some) for name in names) for some in (categories, everything)]
            pairs.append((sums[0], sums[1]))
        cells = (cell for part_ns, total_ns in pairs for cell in (part_ns, share(part_ns, total_ns)))
        return Row((text, *cells), indent, strong=not indent)

    def figures(text: str, by_phase: Mapping[str, Number], kind: Kind | None = None) -> Row:
        """Return a row without shares: a figure per phase, and their sum where there are several."""
        values = [by_phase.get(name, 0) for name in columns_of]
        values += [sum(by_phase.get(name, 0) for name in names)] if several else []
        return Row((text, *(cell for value in values for cell in (value, ""))), kind=kind)

    rows = [line("GEMM", ["gemm"])]
    rows += [line("all else", others)] if others else []
    rows += [row for category in others if _is_seen(row := line(category, [category], indent=1))]
    rows.append(line("sum", ["gemm", *others]))
    rows += [figures("CUDA graphs", graph_ns)] if graph_ns else []
    rows.append(figures(headings.worded("launches", report.provenance), launches, "count"))
    rows.append(figures(headings.worded("GEMM launches", report.provenance), gemms, "count"))
    title = f"{headings.kernel_time(report)} by phase and category, {{unit}} {headings.scope(report)}"
    of_ranges = headings.IN_THOSE_RANGES if headings.is_of_ranges(report) else ""
    caption = (
        f"% is of the phase's kernel time{of_ranges}{'; in the last column, of all of it.' if several else '.'}"
    )
    caption += f" {BESIDE}" if graph_ns else ""
    caption += f" {BEYOND.format(time=time_text(sum(_in(report, outside_steps))))}" if outside_steps else ""
    column_names = (*columns_of, "all") if several else columns_of
    columns = [Column("category", "category", "text")]
    for name in column_names:
        columns += [Column(f"{name}_ns", name, "ns"), Column(f"{name}_share", "%", "share")]
    return Table("phases", title, tuple(columns), tuple(rows), caption)


def _is_beyond_steps(report: Report) -> bool:
    """Return whether all work of no phase lies outside the measured steps, where a column of it says nothing."""
    inside = report.measured
    return inside is not None and not any(_in(inside, OTHER)) and any(_in(report, OTHER))


def _in(report: Report, phase: str) -> list[Number]:
    """Return the times of a phase's kernels."""
    return [row.total_ns for row in kernels_of(report) if row.phase == phase]


def _is_seen(row: Row) -> bool:
    """Return whether a category has a share that its percentages show."""
    return any(part is not None and part >= LEAST_SHOWN for part in row.values[2::2])


def _by_phase(rows: Iterable[KernelRow], figure: str) -> dict[str, Number]:
    return {row.phase: getattr(row, figure) for row in added(rows, ("phase",))}


def kernels_of(report: Report) -> list[KernelRow]:
    """Return the rows of kernels, without copies and graphs."""
    return [row for row in report.kernels if row.kind == "kernel"]


def _products(rows: Iterable[KernelRow]) -> list[KernelRow]:
    return [row for row in rows if row.gemm_launch]


def by_phase(report: Report) -> Table:
    """Return a row per phase, and per phase and category, longest first; `share` is of the phase's kernel time."""
    columns = (
        Column("level", "level"),
        Column("phase", "phase"),
        Column("category", "category"),
        Column("kernel_ns", "kernel_ns", "ns"),
        Column("share", "share", "share"),
        Column("kernels", "kernels", "count"),
        Column("gemm_kernels", "gemm_kernels", "count"),
        Column("graph_ns", "graph_ns", "ns"),
    )
    rows: list[tuple[object, ...]] = []
    for phase in (row.phase for row in report.phases):
        inside = [row for row in report.kernels if row.phase == phase]
        kernels = [row for row in inside if row.kind == "kernel"]
        kernel_ns, graph_ns = (
            sum(row.total_ns for row in inside if row.kind == kind) for kind in ("kernel", "graph")
        )
        if not (kernels or graph_ns):
            continue
        counts = count_of(kernels), count_of(_products(kernels))
        rows.append(("phase", phase, "", kernel_ns, 1.0 if kernel_ns else None, *counts, graph_ns))
        for category in longest_first(added(kernels, ("category",))):
            of_category = [row for row in kernels if row.category == category.category]
            figures = (category.total_ns, share(category.total_ns, kernel_ns))
            counts = count_of(of_category), count_of(_products(of_category))
            rows.append(("category", phase, category.category, *figures, *counts, None))
    title = f"Kernel time by phase and category, {{unit}} {headings.scope(report)}"
    return Table("phases", title, columns, tuple(map(Row, rows)))
