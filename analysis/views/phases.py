"""What share of each phase is GEMM, and what is the rest: the overview's first table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    whole_graphs = _by_phase(graphs.of_graphs(report), "total_ns")
    launches, gemms = _by_phase(kernels, "count"), _by_phase(_products(kernels), "count")
    names = [row.phase for row in report.phases if row.phase in {*launches, *whole_graphs}]
    beyond = OTHER if len(names) > 1 and _is_beyond_steps(report) else ""
    others = [row.category for row in longest_first(added(kernels, ("category",))) if row.category != "gemm"]
    time = {(row.category, row.phase): row.total_ns for row in added(kernels, ("category", "phase"))}
    whole = [sum(time.get((category, name), 0) for category in ("gemm", *others)) for name in names]

    def line(label: str, chosen: Sequence[str], indent: int = 0) -> Row:
        times = [sum(time.get((category, name), 0) for category in chosen) for name in names]
        pairs = [*zip(times, whole, strict=True), *([(sum(times), sum(whole))] if len(names) != 1 else [])]
        kept = (pair for name, pair in zip((*names, ""), pairs, strict=False) if not beyond or name != beyond)
        cells = (cell for part, all_ in kept for cell in (part, share(part, all_)))
        return Row((label, *cells), indent, strong=not indent)

    def figures(label: str, of: Mapping[str, Number], kind: Kind | None = None) -> Row:
        """Return a row without shares: a figure per phase, and their sum where there are several."""
        shown = [of.get(name, 0) for name in names if name != beyond]
        every = shown if len(names) == 1 else [*shown, sum(of.get(name, 0) for name in names)]
        return Row((label, *(cell for figure in every for cell in (figure, ""))), kind=kind)

    rows = (
        line("GEMM", ["gemm"]),
        *([line("all else", others)] if others else []),
        *(row for category in others if _is_seen(row := line(category, [category], indent=1))),
        line("sum", ["gemm", *others]),
        *([figures("CUDA graphs", whole_graphs)] if whole_graphs else []),
        *(
            figures(headings.worded(what, report.provenance), of, "count")
            for what, of in (("launches", launches), ("GEMM launches", gemms))
        ),
    )
    title = f"{headings.kernel_time(report)} by phase and category, {{unit}} {headings.scope(report)}"
    asked = headings.IN_THOSE_RANGES if headings.is_of_ranges(report) else ""
    caption = f"% is of the phase's kernel time{asked}" + (
        "; in the last column, of all of it." if len(names) != 1 else "."
    )
    caption += f" {BESIDE}" if whole_graphs else ""
    caption += f" {BEYOND.format(time=time_text(sum(_in(report, beyond))))}" if beyond else ""
    return Table(
        "phases", title, _columns([name for name in names if name != beyond], len(names) != 1), rows, caption
    )


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


def _columns(names: Sequence[str], with_all: bool) -> tuple[Column, ...]:
    pairs = [
        (Column(f"{name}_ns", name, "ns"), Column(f"{name}_share", "%", "share"))
        for name in ((*names, "all") if with_all else names)
    ]
    return (Column("category", "category", "text"), *(column for pair in pairs for column in pair))


def _by_phase(rows: Iterable[KernelRow], figure: str) -> dict[str, Number]:
    return {row.phase: getattr(row, figure) for row in added(rows, ("phase",))}


def kernels_of(report: Report) -> list[KernelRow]:
    """Return the rows of kernels, without copies and graphs."""
    return [row for row in report.kernels if row.kind == "kernel"]


def _products(rows: Iterable[KernelRow]) -> list[KernelRow]:
    return [row for row in rows if row.gemm_launch]


def by_phase(report: Report) -> Table:
    """Return a row per phase, and per phase and category; `share` is of the phase's kernel time."""
    columns = (
        Column("level", "level"), Column("phase", "phase"), Column("category", "category"),
        Column("kernel_ns", "kernel_ns", "ns"), Column("share", "share", "share"),
        Column("kernels", "kernels", "count"), Column("gemm_kernels", "gemm_kernels", "count"),
        Column("graph_ns", "graph_ns", "ns"),
    )  # fmt: skip
    rows = [row for phase in report.phases for row in _phase(phase.phase, report)]
    title = f"Kernel time by phase and category, {{unit}} {headings.scope(report)}"
    return Table("phases", title, columns, tuple(map(Row, rows)))


def _phase(phase: str, report: Report) -> Iterator[tuple[object, ...]]:
    """Yield the rows of one phase: the whole, and its categories, longest first."""
    inside = [row for row in report.kernels if row.phase == phase]
    kernels = [row for row in inside if row.kind == "kernel"]
    whole, whole_graphs = (sum(row.total_ns for row in inside if row.kind == kind) for kind in ("kernel", "graph"))
    if not (kernels or whole_graphs):
        return
    yield "phase", phase, "", whole, 1.0 if whole else None, *_counts(kernels), whole_graphs
    for category in longest_first(added(kernels, ("category",))):
        of = [row for row in kernels if row.category == category.category]
        part = share(category.total_ns, whole)
        yield "category", phase, category.category, category.total_ns, part, *_counts(of), None


def _counts(rows: list[KernelRow]) -> tuple[Number, Number]:
    """Return how many launches there are, and how many of them are matrix products."""
    return count_of(rows), count_of(_products(rows))
