"""The default view: which kind of kernel each phase spends its time in, and which ranges, by which kernels."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..document import SHORT, Column, Detail, Document, Row, Table
from ..kernel_names.short import names_by_kernel
from ..report import KernelRow, Path, Report, added
from ..summary.selection import naming_for, renamed
from ..vocabulary import OTHER
from . import graphs, headings, verdict
from .every_row import everything
from .phases import BESIDE, kernels_of, phases
from .rows import (
    RANKED,
    common_length,
    count_of,
    in_phase,
    in_tree,
    label,
    last_names,
    longest_first,
    more,
    phases_to_say,
    require_measured,
    share,
    time_of,
)

KERNELS_PER_RANGE = 3
NO_RANGES = "No range contains any of the work, so there is nothing to rank."
NO_KERNELS = "The selection contains no kernels, only other work, so there is nothing to rank."


def overview(report: Report, detail: Detail = SHORT, *, by: str | None = None) -> Document:
    """Answer the project's question for a whole report; `by` ranks kernels, categories or ranges alone.

    Raises ReportError where nothing is left to rank.
    """
    if detail.whole:
        return everything(report, by=by)
    require_measured(report)
    report = renamed(report, naming_for(detail, report))
    if by == "kernel":
        tables = [kernels(report, detail)]
    elif by == "category":
        tables = [categories(report)]
    elif by == "range":
        tables = [range_tree(report, detail.top)]
    else:
        tables = [phases(report), ranges_with_kernels(report, detail)]
    has_kernels = any(row.kind in RANKED for row in report.kernels)
    tables = [table for table in tables if table.rows and (has_kernels or by == "range")]
    empty = NO_RANGES if by == "range" else NO_KERNELS
    answer = headings.answer(report, tables, report.notes if tables else (empty, *report.notes))
    return replace(answer, verdict="" if by else verdict.verdict(report))


def ranges_with_kernels(report: Report, detail: Detail) -> Table:
    """Rank the paths by the time of the kernels launched in them and in no inner one, and name those kernels."""
    inside: dict[tuple[Path, str], list[KernelRow]] = defaultdict(list)
    for kernel in report.kernels:
        if kernel.kind in RANKED:
            inside[kernel.path, kernel.phase].append(kernel)
    ranked = sorted(inside.items(), key=lambda item: -time_of(item[1]))
    total_ns = sum(time_of(range_kernels) for range_kernels in inside.values())
    top = ranked[: detail.ranges]
    longest = {key: longest_first(range_kernels)[:KERNELS_PER_RANGE] for key, range_kernels in top}
    names = [kernel.kernel for range_kernels in longest.values() for kernel in range_kernels]
    short_names = names_by_kernel(names, detail.full_names)
    common = common_length(row.path for row in report.ranges if row.self_ns)
    rows: list[Row] = []
    for (key, range_kernels), phase in zip(top, phases_to_say(list(longest)), strict=True):
        time_ns = time_of(range_kernels)
        cells = (time_ns, share(time_ns, total_ns), count_of(range_kernels))
        rows.append(Row((in_phase(label(key[0], common), phase), *cells), strong=True))
        for kernel in longest[key]:
            cells = (kernel.total_ns, share(kernel.total_ns, total_ns), kernel.count)
            rows.append(Row((short_names[kernel.kernel], *cells), indent=1))
    each = "each launch" if graphs.of_graphs(report) else "each kernel"
    title = (
        f"Ranges with the most cumulative {graphs.counted_time(report)}, {each} in its innermost range, {{unit}} "
        f"{headings.scope(report)}"
    )
    caption = f"% is of {headings.with_graphs(report)}.{more(ranked, detail.ranges, 'range')}"
    return Table("ranges", title, _ranked_columns("range and its top kernels"), tuple(rows), caption)


def kernels(report: Report, detail: Detail) -> Table:
    """Rank the kernels, wherever they were launched."""
    rows = kernels_of(graphs.counted(report))
    ranked, total_ns = longest_first(added(rows, ("kernel", "category", "phase"))), time_of(rows)
    short_names = names_by_kernel([row.kernel for row in ranked[: detail.top]], detail.full_names)
    phases = dict.fromkeys(row.phase for row in rows)
    with_phase = len(phases) > 1
    lines = []
    for row in ranked[: detail.top]:
        place = (headings.category(row.category), *([row.phase] if with_phase else []))
        figures = (row.total_ns, share(row.total_ns, total_ns), row.count, row.total_ns / row.count)
        lines.append(Row((short_names[row.kernel], *place, *figures)))
    columns = (
        Column("kernel", "kernel", "name"),
        Column("category", "category"),
        *([Column("phase", "phase")] if with_phase else []),
        Column("total_ns", "total", "ns"),
        Column("share", "%", "share"),
        Column("count", "launches", "count"),
        Column("mean_ns", "mean", "ns", own_unit=True),
    )
    only_phase = f" in {next(iter(phases))}" if len(phases) == 1 and OTHER not in phases else ""
    kinds = graphs.counted_kinds(report)
    title = f"{kinds[0].upper()}{kinds[1:]}{only_phase} by cumulative time, {{unit}} {headings.scope(report)}"
    each = (", one per kernel and phase",) if with_phase else ()
    cut = more(ranked, detail.top, "row" if each else "kernel", *each)
    return Table("kernels", title, columns, tuple(lines), f"% is of {headings.with_graphs(report)}.{cut}")


def categories(report: Report) -> Table:
    """Rank the categories."""
    rows, graph_rows = kernels_of(report), graphs.of_graphs(report)
    total_ns = time_of(rows)
    lines = [
        Row((headings.category(row.category), row.total_ns, share(row.total_ns, total_ns), row.count))
        for row in longest_first(added(rows, ("category",)))
    ]
    caption = f"% is of {headings.kernels(report)}."
    if graph_rows:
        lines.append(Row(("CUDA graphs", time_of(graph_rows), "", count_of(graph_rows))))
        caption += f" {BESIDE}"
    title = f"Categories of kernels by cumulative time, {{unit}} {headings.scope(report)}"
    return Table("categories", title, _ranked_columns("category"), tuple(lines), caption)


def _ranked_columns(heading: str) -> tuple[Column, ...]:
    return (
        Column("name", heading, "name"),
        Column("kernel_ns", "time", "ns"),
        Column("share", "%", "share"),
        Column("count", "launches", "count"),
    )


def range_tree(report: Report, top: int) -> Table:
    """Show the longest ranges and those around them, siblings by the time of all kernels (and graphs) inside."""
    tree, span = graphs.counted(report), headings.span(report)
    with_work = [row for row in tree.ranges if row.inclusive_ns or row.inclusive_work_ns]
    chosen = in_tree(with_work, "inclusive_ns", top, report.phase_names)
    total_ns = sum(row.self_ns for row in tree.ranges)
    columns = (
        Column("range", "range", "name"),
        Column("inclusive_ns", "kernel time" if tree is report else "time", "ns"),
        Column("share", "%", "share"),
        Column("self_ns", "own", "ns"),
        Column("kernels", "launches", "count"),
        Column("instances", "times", "count"),
        Column("span_ns", span, "ns"),
        Column("cpu_ns", "CPU range", "ns"),
    )
    rows = []
    for name, row in zip(last_names(chosen), chosen, strict=True):
        figures = (row.self_ns, row.kernels, row.instances, row.span_ns, row.cpu_ns)
        cells = (name, row.inclusive_ns, share(row.inclusive_ns, total_ns), *figures)
        rows.append(Row(cells, indent=len(row.path) - 1))
    title = f"Ranges: all {graphs.counted_kinds(report)} inside, and those in no inner range (own), {{unit}}"
    linked = f" {headings.LINKED}" if any(row.span_ns is None for row in chosen) else ""
    caption = (
        f"% is of {headings.with_graphs(report)}. {span}: from the first start to the last end of a range's work, "
        f"added over its instances. CPU range: its own duration.{linked}{more(with_work, len(chosen), 'range')}"
    )
    return Table("ranges", f"{title} {headings.scope(report)}", columns, tuple(rows), caption)
