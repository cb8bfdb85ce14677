"""What share of each phase is GEMM, and what is the rest: the overview's first table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..document import Kind, Row, Table, headed
from ..report import KernelRow, Number, Report, added
from ..support.units import time_text
from ..vocabulary import OTHER
from . import graphs, headings
from .rows import kernels_of, longest_first, share

OUTSIDE_STEPS = "all: with {} of kernels in no phase, outside the measured steps."
#: A category with less than this share of every phase shows 0.0% everywhere.
LEAST_SHOWN = 0.0005
WITHOUT_GRAPHS = "sum: without CUDA graphs launched whole."


def phases(report: Report) -> Table:
    """Pivot kernel time: categories down, phases across, with each phase's shares."""
    kernels = kernels_of(report)
    graph_ns = _by_phase(graphs.of_graphs(report), "total_ns")
    launches, gemms = _by_phase(kernels, "count"), _by_phase(_products(kernels), "count")
    names = [row.phase for row in report.phases if row.phase in {*launches, *graph_ns}]
    several = len(names) != 1
    other_ns = _of_no_phase(report)
    # Where all work of no phase lies outside the measured steps, a column of it says nothing.
    counted_ns = _of_no_phase(report.counted) if report.counted else other_ns
    is_outside = len(names) > 1 and any(other_ns) and not any(counted_ns)
    columns_of = [name for name in names if not (is_outside and name == OTHER)]
    others = [row.category for row in longest_first(added(kernels, ("category",))) if row.category != "gemm"]
    times = {(row.category, row.phase): row.total_ns for row in added(kernels, ("category", "phase"))}

    def time_in(phases: Sequence[str], categories: Sequence[str]) -> Number:
        return sum(sum(times.get((category, phase), 0) for category in categories) for phase in phases)

    def line(text: str, categories: Sequence[str], indent: int = 0) -> Row:
        """Return a row of these categories: each phase's time and share, and those of all phases."""
        cells: list[Number | None] = []
        for some in [*([name] for name in columns_of), *([names] if several else [])]:
            part_ns = time_in(some, categories)
            cells += [part_ns, share(part_ns, time_in(some, ("gemm", *others)))]
        return Row((text, *cells), indent, strong=not indent)

    def figures(text: str, by_phase: Mapping[str, Number], kind: Kind | None = None) -> Row:
        """Return a row without shares: a figure per phase, and their sum where there are several."""
        values = [by_phase.get(name, 0) for name in columns_of]
        values += [sum(by_phase.get(name, 0) for name in names)] if several else []
        return Row((text, *(cell for value in values for cell in (value, ""))), kind=kind)

    rows = [line("GEMM", ["gemm"])]
    rows += [line("all else", others)] if others else []
    of_category = (line(headings.category(category), [category], indent=1) for category in others)
    rows += [row for row in of_category if any((part or 0) >= LEAST_SHOWN for part in row.values[2::2])]
    rows.append(line("sum", ["gemm", *others]))
    rows += [figures("CUDA graphs", graph_ns)] if graph_ns else []
    rows.append(figures(headings.worded("launches", report.provenance), launches, "count"))
    rows.append(figures(headings.worded("GEMM launches", report.provenance), gemms, "count"))
    title = f"{headings.kernel_time(report)} by phase and category, {{unit}} {headings.scope(report)}"
    of_ranges = headings.IN_THOSE_RANGES if headings.is_of_ranges(report) else ""
    of_all = "; in the last column, of all of it." if several else "."
    caption = f"% is of the phase's kernel time{of_ranges}{of_all}"
    caption += f" {WITHOUT_GRAPHS}" if graph_ns else ""
    caption += f" {OUTSIDE_STEPS.format(time_text(sum(other_ns)))}" if is_outside else ""
    columns = headed("category")
    for name in (*columns_of, "all") if several else columns_of:
        columns += headed(**{f"{name}_ns": headings.phase(name), f"{name}_share": "%"})
    return Table("phases", title, columns, tuple(rows), caption)


def _of_no_phase(report: Report) -> list[Number]:
    return [row.total_ns for row in kernels_of(report, (OTHER,))]


def _by_phase(rows: Iterable[KernelRow], figure: str) -> dict[str, Number]:
    return {row.phase: getattr(row, figure) for row in added(rows, ("phase",))}


def _products(rows: Iterable[KernelRow]) -> list[KernelRow]:
    return [row for row in rows if row.gemm_launch]
