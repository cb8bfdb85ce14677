"""The default view: which kind of kernel each phase spends its time in, and which ranges, by which kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from analysis.kernel_names import distinct_short_names
from analysis.report import KernelRow, Number, Path, Report
from analysis.tables import PATH_SEPARATOR, Column, Document, Kind, Row, Table
from analysis.units import count_text
from analysis.views import denominators, graphs, provenance, wording
from analysis.views.common import more, require_measured
from analysis.views.range_tree import range_tree
from analysis.vocabulary import OTHER

KERNELS_PER_RANGE = 3
# What is ranked in its range: of a graph launched whole, the report hides the kernels.
LAUNCHED = ("kernel", "graph")
SPLIT = (
    "GEMM launches are of matrix products; GEMM's time is also that of kernels that add up the parts of a split "
    "one (split-K)."
)
BESIDE = "CUDA graphs ran beside the sum, launched whole: their kernels are not in the report."
NO_RANGES = "No range holds any of the work, so there are none to rank."
NO_KERNELS = "There are no kernels in what was asked for, only other work, so there is nothing to rank."
Key = TypeVar("Key")


def overview(report: Report, *, by: str | None = None, top: int = 10, full_names: bool = False) -> Document:
    """Answer the project's question for a whole report; `by` ranks kernels, categories or ranges alone.

    Raises ReportError where nothing is left to rank.
    """
    require_measured(report)
    tables = tuple(table for table in _tables(report, by, top, full_names) if table.rows)
    empty = NO_RANGES if by == "range" else NO_KERNELS
    return wording.answer(report, tables, report.notes if tables else (empty, *report.notes))


def _tables(report: Report, by: str | None, top: int, full_names: bool) -> tuple[Table, ...]:
    if by == "kernel":
        return (kernels(report, top, full_names),)
    if by == "category":
        return (categories(report),)
    if by == "range":
        return (range_tree(report, top),)
    return (phases(report), ranges_with_kernels(report, top, full_names))


def phases(report: Report) -> Table:
    """Pivot kernel time: categories down, phases across, with each phase's shares."""
    kernels = _kernels(report)
    whole_graphs = _sums((row.phase, row.total_ns) for row in graphs.of_graphs(report))
    filled = {row.phase for row in kernels} | set(whole_graphs)
    names = [row.phase for row in report.phases if row.phase in filled]
    time = _sums(((row.phase, row.category), row.total_ns) for row in kernels)
    launches = _sums((row.phase, row.count) for row in kernels)
    gemms = _sums((row.phase, row.count) for row in kernels if row.gemm_launch)
    whole = _sums((phase, value) for (phase, _), value in time.items())
    by_category = _sums((category, value) for (_, category), value in time.items())
    others = [category for category, _ in _ranked(by_category) if category != "gemm"]

    def line(label: str, chosen: Sequence[str], indent: int = 0) -> Row:
        cells: list[Number | None] = []
        for phase in names:
            value = sum(time.get((phase, category), 0) for category in chosen)
            cells += [value, _share(value, whole.get(phase, 0))]
        value = sum(by_category.get(category, 0) for category in chosen)
        together = [value, _share(value, sum(whole.values()))] if len(names) != 1 else []
        return Row((label, *cells, *together), indent, strong=not indent)

    rows = (
        line("GEMM", ["gemm"]),
        line("all else", others),
        *(line(category, [category], indent=1) for category in others),
        line("sum", list(by_category)),
        *([_without_shares("CUDA graphs", [whole_graphs.get(name, 0) for name in names])] if whole_graphs else []),
        *(
            _without_shares(wording.worded(what, report.provenance), [of.get(name, 0) for name in names], "count")
            for what, of in (("launches", launches), ("GEMM launches", gemms))
        ),
    )
    title = f"{provenance.kernel_time(report)} by phase and category, {{unit}} {provenance.scope(report)}"
    asked = denominators.IN_THOSE_RANGES if denominators.is_of_ranges(report) else ""
    caption = f"% is of the phase's kernel time{asked}" + (
        "; in the last column, of all of it." if len(names) != 1 else "."
    )
    caption += "".join(f" {text}" for text, holds in ((SPLIT, _splits(kernels)), (BESIDE, whole_graphs)) if holds)
    return Table("phases", title, _phase_columns(names), rows, caption)


def _phase_columns(names: Sequence[str]) -> tuple[Column, ...]:
    pairs = [
        (Column(f"{name}_ns", name, "ns"), Column(f"{name}_share", "%", "share"))
        for name in (names if len(names) == 1 else (*names, "all"))
    ]
    return (Column("category", "category", "text"), *(column for pair in pairs for column in pair))


def _without_shares(label: str, figures: Sequence[Number], kind: Kind | None = None) -> Row:
    """Return a row of figures: one per phase, and their sum where there are several."""
    shown = figures if len(figures) == 1 else (*figures, sum(figures))
    return Row((label, *(cell for figure in shown for cell in (figure, ""))), kind=kind)


def ranges_with_kernels(report: Report, top: int, full_names: bool) -> Table:
    """Rank the paths by the time of the kernels launched directly in them, and name those kernels."""
    inside: dict[tuple[Path, str], list[KernelRow]] = defaultdict(list)
    for row in (row for row in report.kernels if row.kind in LAUNCHED):
        inside[row.path, row.phase].append(row)
    ranked = sorted(inside.items(), key=lambda item: -_time(item[1]))
    whole = sum(_time(rows) for rows in inside.values())
    shown = [row for _, rows in ranked[:top] for row in _longest(rows)]
    short = _names([row.kernel for row in shown], full_names)
    rows: list[Row] = []
    for (path, _), kernels in ranked[:top]:
        rows.append(
            Row(
                (_label(path, report), _time(kernels), _share(_time(kernels), whole), _count(kernels)), strong=True
            )
        )
        rows += [
            Row((short[row.kernel], row.total_ns, _share(row.total_ns, whole), row.count), indent=1)
            for row in _longest(kernels)
        ]
    title = f"Ranges by the time of the {graphs.counted_kinds(report)} launched directly in them, {{unit}}"
    return Table(
        "ranges",
        f"{title} {provenance.scope(report)}",
        _ranked_columns("range and its longest kernels"),
        tuple(rows),
        _cut(ranked, top, "range", denominators.with_graphs(report)),
    )


def kernels(report: Report, top: int, full_names: bool) -> Table:
    """Rank the kernels, wherever they were launched."""
    rows = _kernels(graphs.counted(report))
    total = _sums(((row.kernel, row.category, row.phase), row.total_ns) for row in rows)
    count = _sums(((row.kernel, row.category, row.phase), row.count) for row in rows)
    ranked, whole = _ranked(total), sum(total.values())
    short = _names([key[0] for key, _ in ranked[:top]], full_names)
    phases = dict.fromkeys(row.phase for row in rows)
    shown = tuple(
        Row((short[name], wording.category(category), *([phase] if len(phases) > 1 else []), time,
             _share(time, whole), count[name, category, phase], time / count[name, category, phase]))
        for (name, category, phase), time in ranked[:top]
    )  # fmt: skip
    columns = (
        Column("kernel", "kernel", "name"), Column("category", "category"),
        *([Column("phase", "phase")] if len(phases) > 1 else []), Column("total_ns", "total", "ns"),
        Column("share", "%", "share"), Column("count", "launches", "count"),
        Column("mean_ns", "mean", "ns", own_unit=True),
    )  # fmt: skip
    only = f" in {next(iter(phases))}" if len(phases) == 1 and OTHER not in phases else ""
    what = graphs.counted_kinds(report)
    title = f"{what[0].upper()}{what[1:]}{only} by total time, {{unit}} {provenance.scope(report)}"
    each = (", one per kernel and phase",) if len(phases) > 1 else ()
    cut = more(ranked, top, "row" if each else "kernel", *each)
    return Table("kernels", title, columns, shown, f"% is of {denominators.with_graphs(report)}.{cut}")


def categories(report: Report) -> Table:
    """Rank the categories."""
    total = _sums((row.category, row.total_ns) for row in _kernels(report))
    count = _sums((row.category, row.count) for row in _kernels(report))
    whole, beside = sum(total.values()), graphs.of_graphs(report)
    rows = [Row((wording.category(name), time, _share(time, whole), count[name])) for name, time in _ranked(total)]
    rows += [Row(("CUDA graphs", _time(beside), "", _count(beside)))] if beside else []
    title = f"Categories of kernels by total time, {{unit}} {provenance.scope(report)}"
    caption = (
        f"% is of {denominators.kernels(report)}." + _apart(_kernels(report)) + (f" {BESIDE}" if beside else "")
    )
    return Table("categories", title, _ranked_columns("category"), tuple(rows), caption)


def _ranked_columns(what: str) -> tuple[Column, ...]:
    return (
        Column("name", what, "name"), Column("kernel_ns", "time", "ns"), Column("share", "%", "share"),
        Column("count", "launches", "count"),
    )  # fmt: skip


def _label(path: Path, report: Report) -> str:
    """Name a path without the ranges that all paths begin with."""
    common = _common_prefix([row.path for row in report.ranges if row.self_ns])
    shown = path[min(len(common), len(path) - 1) :] if path else ("(outside all ranges)",)
    return PATH_SEPARATOR.join(shown)


def _common_prefix(paths: Sequence[Path]) -> Path:
    first, last = (min(paths), max(paths)) if paths else ((), ())
    length = next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    return first[:length]


def _names(names: Sequence[str], full: bool) -> dict[str, str]:
    distinct = list(dict.fromkeys(names))
    return dict(zip(distinct, distinct if full else distinct_short_names(distinct), strict=True))


def _kernels(report: Report) -> list[KernelRow]:
    return [row for row in report.kernels if row.kind == "kernel"]


def _longest(rows: Iterable[KernelRow]) -> list[KernelRow]:
    return sorted(rows, key=lambda row: -row.total_ns)[:KERNELS_PER_RANGE]


def _time(rows: Iterable[KernelRow]) -> Number:
    return sum(row.total_ns for row in rows)


def _count(rows: Iterable[KernelRow]) -> Number:
    return sum(row.count for row in rows)


def _sums(pairs: Iterable[tuple[Key, Number]]) -> dict[Key, Number]:
    sums: dict[Key, Number] = {}
    for key, value in pairs:
        sums[key] = sums.get(key, 0) + value
    return sums


def _ranked(sums: dict[Key, Number]) -> list[tuple[Key, Number]]:
    return sorted(sums.items(), key=lambda item: -item[1])


def _share(part: Number, whole: Number) -> float | None:
    return part / whole if whole else None


def _splits(rows: Iterable[KernelRow]) -> list[KernelRow]:
    """Return the kernels that only add up the parts of matrix products."""
    return [row for row in rows if row.category == "gemm" and not row.gemm_launch]


def _apart(rows: Sequence[KernelRow]) -> str:
    """Tell launches of matrix products from those of the kernels that add up their parts."""
    products, splits = _count(row for row in rows if row.gemm_launch), _count(_splits(rows))
    told = (
        f" GEMM: {count_text(products)} launches of matrix products, {count_text(splits)} of kernels that add up"
    )
    return f"{told} the parts of split ones (split-K)." if splits else ""


def _cut(ranked: Sequence[object], top: int, what: str, whole: str) -> str:
    return f"% is of {whole}.{more(ranked, top, what)}"
