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
    inside, own = _inside(report, graphs), _sums(((row.path, row.phase), row) for row in graphs)
    of_phase = _sums((((), row.phase), row) for row in graphs)
    return replace(
        report,
        kernels=tuple(_as_kernel(row) for row in report.kernels),
        ranges=in_tree_order(_with_graphs(row, inside, own) for row in report.ranges),
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


def _as_kernel(row: KernelRow) -> KernelRow:
    return replace(row, kind="kernel", category=CATEGORY) if row.kind == "graph" else row


def _with_graphs(row: RangeRow, inside: Sums, own: Sums) -> RangeRow:
    ns, count = inside.get((row.path, row.phase), (0, 0))
    own_ns, own_count = own.get((row.path, row.phase), (0, 0))
    return replace(
        row,
        inclusive_ns=row.inclusive_ns + ns,
        kernels=row.kernels + count,
        self_ns=row.self_ns + own_ns,
        self_kernels=row.self_kernels + own_count,
    )


def _inside(report: Report, graphs: list[KernelRow]) -> Sums:
    """Add graphs up in every range around them; of a path in several phases, in the one of theirs."""
    first: dict[Path, str] = {}
    for row in report.ranges:
        first.setdefault(row.path, row.phase)
    known = {(row.path, row.phase) for row in report.ranges}
    around = ((row.path[:depth], row) for row in graphs for depth in range(1, len(row.path) + 1))
    return _sums(
        ((path, row.phase if (path, row.phase) in known else first.get(path, "")), row) for path, row in around
    )


def _sums(rows: Iterable[tuple[tuple[Path, str], KernelRow]]) -> Sums:
    sums: Sums = {}
    for key, row in rows:
        ns, count = sums.get(key, (0, 0))
        sums[key] = ns + row.total_ns, count + row.count
    return sums
