"""CUDA graphs that ran whole, counted among the kernels: for reports without the kernels inside them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from ..attribution.causes import Attribution
from ..report import KernelRow, Path, PhaseRow, RangeRow, Report, in_tree_order
from ..trace import GRAPH, KERNEL
from .rows import count_of, time_of

CATEGORY = "CUDA graph"
#: What is counted then.
COUNTED = "kernels and CUDA graphs"


def of_graphs(report: Report) -> list[KernelRow]:
    """Return the rows of graphs that ran whole."""
    return [row for row in report.kernels if row.kind == "graph"]


def counted_kinds(report: Report) -> str:
    """Return the word for the counted work: kernels, and graphs if some ran whole."""
    return COUNTED if of_graphs(report) else "kernels"


def counted_time(report: Report) -> str:
    """Name the time that is counted: of graphs too, where some ran whole."""
    return "kernel and CUDA graph time" if of_graphs(report) else "kernel time"


def counted(report: Report) -> Report:
    """Count graphs as kernels, in every figure of kernels but the totals; without graphs all stays as it is."""
    graphs = of_graphs(report)
    if not graphs:
        return report
    # In every range around them; of a path in several phases, in the one of theirs.
    first_phase = {row.path: row.phase for row in reversed(report.ranges)}
    ranges = {(row.path, row.phase) for row in report.ranges}
    inside: dict[tuple[Path, str], list[KernelRow]] = defaultdict(list)
    for row in graphs:
        for path in (row.path[:depth] for depth in range(1, len(row.path) + 1)):
            inside[path, row.phase if (path, row.phase) in ranges else first_phase.get(path, "")].append(row)

    def with_graphs(row: RangeRow) -> RangeRow:
        of_range = inside[row.path, row.phase]
        directly = [graph for graph in of_range if (graph.path, graph.phase) == (row.path, row.phase)]
        return replace(
            row,
            inclusive_ns=row.inclusive_ns + time_of(of_range),
            kernels=row.kernels + count_of(of_range),
            self_ns=row.self_ns + time_of(directly),
            self_kernels=row.self_kernels + count_of(directly),
        )

    def with_phase(row: PhaseRow) -> PhaseRow:
        of_phase = [graph for graph in graphs if graph.phase == row.phase]
        return replace(row, kernel_ns=row.kernel_ns + time_of(of_phase), kernels=row.kernels + count_of(of_phase))

    kernels = (
        replace(row, kind="kernel", category=CATEGORY) if row.kind == "graph" else row for row in report.kernels
    )
    return replace(
        report,
        kernels=tuple(kernels),
        ranges=in_tree_order(map(with_graphs, report.ranges)),
        phases=tuple(map(with_phase, report.phases)),
    )


def counted_work(attribution: Attribution) -> Attribution:
    """Count graphs as kernels where work is added up by its kind."""
    work = attribution.trace.work
    kind = np.where(work.kind == GRAPH, KERNEL, work.kind).astype(work.kind.dtype)
    return replace(attribution, trace=replace(attribution.trace, work=replace(work, kind=kind)))
