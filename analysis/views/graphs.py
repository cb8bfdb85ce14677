"""CUDA graphs that ran whole, counted among the kernels: for reports without the kernels inside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..attribution.causes import Attribution
from ..report import KernelRow, Number, Path, RangeRow, Report, in_tree_order
from ..trace import GRAPH, KERNEL

CATEGORY = "CUDA graph"
#: What is counted then.
COUNTED = "kernels and CUDA graphs"
Sums = dict[tuple[Path, str], tuple[Number, Number]]  # by path and phase: time, launches


def of_graphs(report: Report) -> list[KernelRow]:
    """Return the rows of graphs that ran whole."""
    return [row for row in report.kernels if row.kind == "graph"]


def counted_kinds(report: Report) -> str:
    """Return what is counted: kernels, and graphs if some ran whole."""
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
    first_phase: dict[Path, str] = {}
    for row in report.ranges:
        first_phase.setdefault(row.path, row.phase)
    ranges = {(row.path, row.phase) for row in report.ranges}
    around = ((row.path[:depth], row) for row in graphs for depth in range(1, len(row.path) + 1))
    inside = _sums(
        ((path, row.phase if (path, row.phase) in ranges else first_phase.get(path, "")), row)
        for path, row in around
    )
    alone = _sums(((row.path, row.phase), row) for row in graphs)
    of_phase = _sums((((), row.phase), row) for row in graphs)

    def with_graphs(row: RangeRow) -> RangeRow:
        ns, count = inside.get((row.path, row.phase), (0, 0))
        self_ns, self_count = alone.get((row.path, row.phase), (0, 0))
        return replace(
            row,
            inclusive_ns=row.inclusive_ns + ns,
            kernels=row.kernels + count,
            self_ns=row.self_ns + self_ns,
            self_kernels=row.self_kernels + self_count,
        )

    return replace(
        report,
        kernels=tuple(
            replace(row, kind="kernel", category=CATEGORY) if row.kind == "graph" else row
            for row in report.kernels
        ),
        ranges=in_tree_order(map(with_graphs, report.ranges)),
        phases=tuple(
            replace(row, kernel_ns=row.kernel_ns + ns, kernels=row.kernels + count)
            for row in report.phases
            for ns, count in [of_phase.get(((), row.phase), (0, 0))]
        ),
    )


def counted_work(attribution: Attribution) -> Attribution:
    """Count graphs as kernels where work is added up by its kind."""
    work = attribution.trace.work
    kind = np.where(work.kind == GRAPH, KERNEL, work.kind).astype(work.kind.dtype)
    return replace(attribution, trace=replace(attribution.trace, work=replace(work, kind=kind)))


def _sums(rows: Iterable[tuple[tuple[Path, str], KernelRow]]) -> Sums:
    sums: Sums = {}
    for key, row in rows:
        ns, count = sums.get(key, (0, 0))
        sums[key] = ns + row.total_ns, count + row.count
    return sums
