"""The default view: which kind of kernel each phase spends its time in, and which ranges, by which kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..document import SHORT, Column, Detail, Document, Row, Table
from ..kernel_names.short import names_by_kernel
from ..report import KernelRow, Number, Path, RangeRow, Report, added
from ..summary.selection import with_indices_collapsed
from ..vocabulary import OTHER
from . import graphs, headings, verdict
from .every_row import everything
from .phases import BESIDE, kernels_of, phases
from .rows import (
    RANKED,
    common_length,
    count_of,
    in_tree,
    label,
    last_names,
    longest_first,
    more,
    phases_to_say,
    require_measured,
    share,
    time_of,
)  # fmt: skip

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
    report = report if detail.every_index else with_indices_collapsed(report)
    tables = tuple(table for table in _tables(report, by, detail) if table.rows)
    empty = NO_RANGES if by == "range" else NO_KERNELS
    answer = headings.answer(report, tables, report.notes if tables else (empty, *report.notes))
    return replace(answer, verdict="" if by else verdict.verdict(report))


def _tables(report: Report, by: str | None, detail: Detail) -> tuple[Table, ...]:
    if by == "kernel":
        return (kernels(report, detail),)
    if by == "category":
        return (categories(report),)
    if by == "range":
        return (range_tree(report, detail.top),)
    return (phases(report), ranges_with_kernels(report, detail))


def ranges_with_kernels(report: Report, detail: Detail) -> Table:
    """Rank the paths by the time of the kernels launched in them and in no inner one, and name those kernels."""
    inside: dict[tuple[Path, str], list[KernelRow]] = defaultdict(list)
    for row in (row for row in report.kernels if row.kind in RANKED):
        inside[row.path, row.phase].append(row)
    ranked = sorted(inside.items(), key=lambda item: -time_of(item[1]))
    whole = sum(time_of(rows) for rows in inside.values())
    shown = [row for _, rows in ranked[: detail.ranges] for row in _longest(rows)]
    short = names_by_kernel([row.kernel for row in shown], detail.full_names)
    common = common_length(row.path for row in report.ranges if row.self_ns)
    rows: list[Row] = []
    said = phases_to_say([key for key, _ in ranked[: detail.ranges]])
    for (path, _), kernels in ranked[: detail.ranges]:
        name = label(path, common) + said.pop(0)
        rows.append(Row((name, time_of(kernels), share(time_of(kernels), whole), count_of(kernels)), strong=True))
        rows += [
            Row((short[row.kernel], row.total_ns, share(row.total_ns, whole), row.count), indent=1)
            for row in _longest(kernels)
        ]
    each = "each launch" if graphs.of_graphs(report) else "each kernel"
    title = (
        f"Ranges with the most cumulative {graphs.counted_time(report)}, {each} in its innermost range, {{unit}}"
    )
    return Table(
        "ranges",
        f"{title} {headings.scope(report)}",
        _ranked_columns("range and its top kernels"),
        tuple(rows),
        _cut(ranked, detail.ranges, "range", headings.with_graphs(report)),
    )


def kernels(report: Report, detail: Detail) -> Table:
    """Rank the kernels, wherever they were launched."""
    rows = kernels_of(graphs.counted(report))
    ranked, whole = longest_first(added(rows, ("kernel", "category", "phase"))), time_of(rows)
    short = names_by_kernel([row.kernel for row in ranked[: detail.top]], detail.full_names)
    phases = dict.fromkeys(row.phase for row in rows)
    shown = tuple(
        Row((short[row.kernel], headings.category(row.category), *([row.phase] if len(phases) > 1 else []),
             row.total_ns, share(row.total_ns, whole), row.count, row.total_ns / row.count))
        for row in ranked[: detail.top]
    )  # fmt: skip
    columns = (
        Column("kernel", "kernel", "name"), Column("category", "category"),
        *([Column("phase", "phase")] if len(phases) > 1 else []), Column("total_ns", "total", "ns"),
        Column("share", "%", "share"), Column("count", "launches", "count"),
        Column("mean_ns", "mean", "ns", own_unit=True),
    )  # fmt: skip
    only = f" in {next(iter(phases))}" if len(phases) == 1 and OTHER not in phases else ""
    what = graphs.counted_kinds(report)
    title = f"{what[0].upper()}{what[1:]}{only} by cumulative time, {{unit}} {headings.scope(report)}"
    each = (", one per kernel and phase",) if len(phases) > 1 else ()
    cut = more(ranked, detail.top, "row" if each else "kernel", *each)
    return Table("kernels", title, columns, shown, f"% is of {headings.with_graphs(report)}.{cut}")


def categories(report: Report) -> Table:
    """Rank the categories."""
    rows, beside = kernels_of(report), graphs.of_graphs(report)
    whole = time_of(rows)
    lines = [
        Row((headings.category(row.category), row.total_ns, share(row.total_ns, whole), row.count))
        for row in longest_first(added(rows, ("category",)))
    ]
    lines += [Row(("CUDA graphs", time_of(beside), "", count_of(beside)))] if beside else []
    title = f"Categories of kernels by cumulative time, {{unit}} {headings.scope(report)}"
    caption = f"% is of {headings.kernels(report)}." + (f" {BESIDE}" if beside else "")
    return Table("categories", title, _ranked_columns("category"), tuple(lines), caption)


def _ranked_columns(what: str) -> tuple[Column, ...]:
    return (
        Column("name", what, "name"), Column("kernel_ns", "time", "ns"), Column("share", "%", "share"),
        Column("count", "launches", "count"),
    )  # fmt: skip


def _longest(rows: Iterable[KernelRow]) -> list[KernelRow]:
    return longest_first(rows)[:KERNELS_PER_RANGE]


def _cut(ranked: Sequence[object], top: int, what: str, whole: str) -> str:
    return f"% is of {whole}.{more(ranked, top, what)}"


def range_tree(report: Report, top: int) -> Table:
    """Show the longest ranges and those around them, siblings by the time of all kernels (and graphs) inside."""
    tree = graphs.counted(report)
    found = [row for row in tree.ranges if row.inclusive_ns or row.inclusive_work_ns]
    shown = in_tree(found, "inclusive_ns", top, report.phase_names)
    whole = sum(row.self_ns for row in tree.ranges)
    columns = (
        Column("range", "range", "name"),
        Column("inclusive_ns", "kernel time" if tree is report else "time", "ns"), Column("share", "%", "share"),
        *(SPLIT_FIGURES if report.split_fused else _figures(report)),
    )  # fmt: skip
    title = f"Ranges: all {graphs.counted_kinds(report)} inside, and those in no inner range (own), {{unit}}"
    keys = [column.key for column in columns[3:]]
    rows = tuple(_branch(name, row, whole, keys) for name, row in zip(last_names(shown), shown, strict=True))
    caption = _caption(report, shown) + more(found, len(shown), "range")
    return Table("ranges", f"{title} {headings.scope(report)}", columns, rows, caption)


SPLIT_FIGURES = (
    Column("estimated_ns", "of it est.", "ns"), Column("self_ns", "own", "ns"),
    Column("estimated_self_ns", "of it est.", "ns"), Column("kernels", "launches", "count"),
)  # fmt: skip
ESTIMATED = (
    "est.: estimated, the time of fused kernels split by the bytes that each part writes. Launches are not split."
)


def _figures(report: Report) -> tuple[Column, ...]:
    return (
        Column("self_ns", "own", "ns"), Column("kernels", "launches", "count"),
        Column("instances", "times", "count"), Column("span_ns", headings.span(report), "ns"),
        Column("cpu_ns", "CPU range", "ns"),
    )  # fmt: skip


def _caption(report: Report, shown: list[RangeRow]) -> str:
    if report.split_fused:
        return f"% is of {headings.with_graphs(report)}. {ESTIMATED}"
    linked = f" {headings.LINKED}" if any(row.span_ns is None for row in shown) else ""
    return (
        f"% is of {headings.with_graphs(report)}. {headings.span(report)}: from the first start to the last "
        f"end of a range's work, added over its instances. CPU range: its own duration.{linked}"
    )


def _branch(name: str, row: RangeRow, whole: Number, keys: Sequence[str]) -> Row:
    figures = (getattr(row, key) for key in keys)
    return Row((name, row.inclusive_ns, share(row.inclusive_ns, whole), *figures), indent=len(row.path) - 1)
