"""The ranges as a tree, with the time of the kernels inside."""

from __future__ import annotations

from analysis.report import Number, RangeRow, Report
from analysis.tables import Column, Row, Table
from analysis.views import denominators, graphs, provenance
from analysis.views.common import in_tree, more


def range_tree(report: Report, top: int) -> Table:
    """Show the longest ranges and those around them, siblings by the time of all kernels (and graphs) inside."""
    tree = graphs.counted(report)
    found = [row for row in tree.ranges if row.inclusive_ns or row.inclusive_work_ns]
    shown = [found[at] for at in in_tree([(row.path, row.inclusive_ns) for row in found], top)]
    whole = sum(row.self_ns for row in tree.ranges)
    time = "kernel time" if tree is report else "time"
    columns = (
        Column("range", "range", "name"), Column("inclusive_ns", time, "ns"), Column("share", "%", "share"),
        Column("self_ns", "own", "ns"), Column("kernels", "launches", "count"),
        Column("instances", "times", "count"), Column("span_ns", provenance.span(report), "ns"),
        Column("cpu_ns", "CPU range", "ns"),
    )  # fmt: skip
    title = f"Ranges: all {graphs.counted_kinds(report)} inside, and those in no inner range (own), {{unit}}"
    rows = tuple(_branch(row, whole) for row in shown)
    caption = _caption(report, shown) + more(found, len(shown), "range")
    return Table("ranges", f"{title} {provenance.scope(report)}", columns, rows, caption)


def _caption(report: Report, shown: list[RangeRow]) -> str:
    linked = f" {provenance.LINKED}" if any(row.span_ns is None for row in shown) else ""
    return (
        f"% is of {denominators.with_graphs(report)}. {provenance.span(report)}: from the first start to the last "
        f"end of a range's work, added over its instances. CPU range: its own duration.{linked}"
    )


def _branch(row: RangeRow, whole: Number) -> Row:
    share = row.inclusive_ns / whole if whole else None
    figures = (row.inclusive_ns, share, row.self_ns, row.kernels, row.instances, row.span_ns, row.cpu_ns)
    return Row((row.path[-1], *figures), indent=len(row.path) - 1)
