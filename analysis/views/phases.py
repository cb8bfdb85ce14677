"""What share of each phase is GEMM, and what is the rest: the overview's first table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..document import Row, Table, headed
from ..report import KernelRow, Number, Report, added
from ..support.units import time_text
from ..vocabulary import OTHER
from . import graphs, headings
from .rows import kernels_of, longest_first, share, time_of

OUTSIDE_STEPS = "all: with {} of kernels in no phase, outside the measured steps."
#: A category with less than this share of every phase shows 0.0% everywhere.
LEAST_SHOWN = 0.0005
WITHOUT_GRAPHS = "sum: without CUDA graphs launched whole."


def phases(report: Report) -> Table:
    """Pivot kernel time: categories down, phases across, with each phase's shares."""
    kernels = kernels_of(report)
    graph_ns = _by_phase(graphs.of_graphs(report), "total_ns")
    launches = _by_phase(kernels, "count")
    gemm_launches = _by_phase((row for row in kernels if row.gemm_launch), "count")
    names = [row.phase for row in report.phases if row.phase in {*launches, *graph_ns}]
    outside_ns = _outside_steps_ns(report) if len(names) > 1 else 0
    # Which phases each column adds up.
    groups = {name: [name] for name in names if not (outside_ns and name == OTHER)}
    if len(names) != 1:
        groups["all"] = names
    rows = _of_categories(kernels, list(groups.values()))
    figures = {"launches": launches, "GEMM launches": gemm_launches}
    if graph_ns:
        figures = {"CUDA graphs": graph_ns, **figures}
    for text, by_phase in figures.items():
        cells: list[object] = [headings.worded(text, report.provenance)]
        for group in groups.values():
            cells += [sum(by_phase.get(phase, 0) for phase in group), ""]
        rows.append(Row(tuple(cells), kind=None if by_phase is graph_ns else "count"))
    title = f"{headings.kernel_time(report)} by phase and category, {{unit}} {headings.scope(report)}"
    of_ranges = headings.IN_THOSE_RANGES if headings.is_of_ranges(report) else ""
    of_all = "; in the last column, of all of it." if "all" in groups else "."
    caption = f"% is of the phase's kernel time{of_ranges}{of_all}"
    if graph_ns:
        caption += f" {WITHOUT_GRAPHS}"
    if outside_ns:
        caption += f" {OUTSIDE_STEPS.format(time_text(outside_ns))}"
    columns = headed("category")
    for name in groups:
        columns += headed(**{f"{name}_ns": headings.phase(name), f"{name}_share": "%"})
    return Table("phases", title, columns, tuple(rows), caption)


def _of_categories(kernels: Sequence[KernelRow], groups: Sequence[Sequence[str]]) -> list[Row]:
    """Return the rows of GEMMs, all else, its categories and all: time and share in each group of phases."""
    times = {(row.category, row.phase): row.total_ns for row in added(kernels, ("category", "phase"))}
    ranked = longest_first(added(kernels, ("category",)))
    others = [row.category for row in ranked if row.category != "gemm"]
    every_category = ["gemm", *others]

    def time_in(phases: Sequence[str], categories: Sequence[str]) -> Number:
        time_ns: Number = 0
        for phase in phases:
            time_ns += sum(times.get((category, phase), 0) for category in categories)
        return time_ns

    def line(text: str, categories: Sequence[str], *, is_part: bool = False) -> Row:
        cells: list[object] = [text]
        for phases in groups:
            part_ns = time_in(phases, categories)
            cells += [part_ns, share(part_ns, time_in(phases, every_category))]
        return Row(tuple(cells), indent=int(is_part), strong=not is_part)

    rows = [line("GEMM", ["gemm"])]
    if others:
        rows.append(line("all else", others))
    for category in others:
        row = line(headings.category(category), [category], is_part=True)
        if any((part or 0) >= LEAST_SHOWN for part in row.values[2::2]):
            rows.append(row)
    return [*rows, line("sum", every_category)]


def _outside_steps_ns(report: Report) -> Number:
    """Return the time in no phase where all of it lies outside the measured steps, else 0."""
    in_steps = report.counted or report
    is_outside = not time_of(kernels_of(in_steps, (OTHER,)))
    return time_of(kernels_of(report, (OTHER,))) if is_outside else 0


def _by_phase(rows: Iterable[KernelRow], figure: str) -> dict[str, Number]:
    return {row.phase: getattr(row, figure) for row in added(rows, ("phase",))}
