"""The default view: which kind of kernel each phase spends its time in, and which ranges, by which kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, TypeAlias

from ..document import SHORT, Column, Detail, Document, Row, Table, headed
from ..errors import ReportError
from ..kernel_names.short import names_by_kernel
from ..measures.fix_list import Fixes
from ..readers import STACKS
from ..report import KernelRow, Number, RangeRow, Report, added, as_object
from ..summary.selection import naming_for, renamed
from ..support.text import capitalized
from ..trace import Line
from ..vocabulary import OTHER, PATH_SEPARATOR, is_function
from . import account, graphs, headings, verdict
from .fix import as_object as fixes_as_object
from .fix import first, without_changes
from .kernels import RANKING, ranges_with_kernels
from .modules import slowest
from .phases import WITHOUT_GRAPHS, phases
from .rows import (
    RANKED,
    count_of,
    in_tree,
    kernels_of,
    last_names,
    longest_first,
    more,
    require_measured,
    share,
    time_of,
)

#: Returns a report whose kernels are named by lines, and the lines by these names.
ByLine: TypeAlias = Callable[[], tuple[Report, Mapping[str, Line]]]
OF_DEF = " Lines: of `def`."
IN_NO_FUNCTION = "(in no function)"
#: How many lines the first screen has at most, and that of several ranks.
LINES, LINES_OF_RANKS = 25, 30
NO_RANGES = "No range contains any of the work, so there is nothing to rank."
NO_KERNELS = "The selection contains no kernels, only other work, so there is nothing to rank."


def overview(
    report: Report,
    detail: Detail = SHORT,
    *,
    by: str | None = None,
    found: Fixes | None = None,
    with_kernels: bool = False,
    by_line: ByLine | None = None,
) -> Document:
    """Answer the project's question for a whole report; `by` ranks kernels, categories, ranges, … alone.

    `found` is what to change first, if that is known; `with_kernels` adds the kernels of each phase and range.
    `by_line` returns the report with its kernels named by lines, and those lines by their names; it is needed to
    rank by line, and for JSON. Raises ReportError where nothing is left to rank.
    """
    if detail.whole:
        return everything(report, by=by, found=found, by_line=by_line)
    require_measured(report)
    if by == "function":
        return replace(headings.answer(report, [functions(report, detail)], report.notes), verdict="")
    if by == "line" and by_line is not None:
        table = lines(by_line()[0], detail)
        return replace(headings.answer(report, [table], report.notes), verdict="")
    named = naming_for(detail, report)
    report = renamed(report, named)
    if by == "kernel":
        tables = [kernels(report, detail)]
    elif by == "category":
        tables = [categories(report)]
    elif by == "range":
        tables = [range_tree(report, detail.top)]
    else:
        ranked = [phases(report), ranges_with_kernels(report, detail)] if with_kernels else [slowest(report)]
        tables = [*account.tables(report), *first(found, named), *ranked]
    has_kernels = any(row.kind in RANKED for row in report.kernels)
    tables = [table for table in tables if table.rows and (has_kernels or by == "range")]
    empty = NO_RANGES if by == "range" else NO_KERNELS
    notes = report.notes if tables else (empty, *report.notes)
    is_short = not (by or with_kernels)
    answer = headings.answer(report, tables, notes, accounting=headings.unplaced(report) if is_short else None)
    if is_short:
        most = LINES_OF_RANKS if report.ranks > 1 else LINES
        answer = replace(answer, heading=headings.in_short(report), lines=most)
    return replace(answer, verdict="" if by else _answer(report, found))


def _answer(report: Report, found: Fixes | None) -> str:
    """Return the answer in sentences, the last of which says that there is nothing to fix first; "" of nothing."""
    answer = verdict.verdict(report)
    return answer + without_changes(found, is_idle=verdict.is_idle(report)) if answer else ""


def kernels(report: Report, detail: Detail) -> Table:
    """Rank the kernels, wherever they were launched."""
    rows = kernels_of(graphs.counted(report))
    ranked = longest_first(added(rows, ("kernel", "category", "phase")))
    total_ns = time_of(rows)
    short_names = names_by_kernel([row.kernel for row in ranked[: detail.top]], detail.full_names)
    phases = dict.fromkeys(row.phase for row in rows)
    with_phase = len(phases) > 1
    lines = []
    for row in ranked[: detail.top]:
        names = [short_names[row.kernel], headings.category(row.category)]
        if with_phase:
            names.append(headings.phase(row.phase))
        lines.append(Row((*names, *_figures(row, total_ns), row.total_ns / row.count)))
    columns = (
        *headed("kernel", "category", *["phase"] * with_phase),
        *headed(total_ns="total", share="%", count="launches"),
        Column("mean_ns", "mean", "ns", own_unit=True),
    )
    only_phase = f" in {next(iter(phases))}" if len(phases) == 1 and OTHER not in phases else ""
    kinds = graphs.counted_kinds(report)
    title = f"{capitalized(kinds)}{only_phase} by total time, {{unit}} {headings.scope(report)}"
    cut = more(ranked, detail.top, "row" if with_phase else "kernel")
    caption = f"% is of {headings.kernels(report, graphs.counted_time(report))}.{cut}"
    return Table("kernels", title, columns, tuple(lines), caption)


def functions(report: Report, detail: Detail) -> Table:
    """Rank the innermost Python functions around the launches of kernels, backward by the function of its forward.

    Raises ReportError for a report without Python functions.
    """
    title = "Python functions by the time of their own kernels"
    return _of_code(report, detail, "function", _of_functions(report), title, OF_DEF)


def _figures(row: KernelRow, total_ns: Number) -> tuple[Number, float | None, Number]:
    """Return the time of a row, its share of all, and its launches."""
    return row.total_ns, share(row.total_ns, total_ns), row.count


def lines(report: Report, detail: Detail) -> Table:
    """Rank the lines that kernels are named for by the time of these, backward by the line of its forward."""
    caption = " In backward: the line of the forward that it is of." + OF_DEF * report.provenance.is_of_pytorch
    title = "Lines by the time of the kernels that they launch"
    return _of_code(report, detail, "line", _of_lines(report), title, caption)


def _of_code(
    report: Report, detail: Detail, noun: str, rows: Sequence[KernelRow], title: str, notes: str
) -> Table:
    """Rank rows whose kernels are named for functions or lines."""
    total_ns, ranked = time_of(rows), longest_first(rows)
    cells = [(row.kernel, headings.phase(row.phase), *_figures(row, total_ns)) for row in ranked[: detail.top]]
    columns = Column(noun, noun, "name"), *headed("phase", total_ns="time", share="%", count="launches")
    caption = f"% is of {headings.kernels(report)}.{notes}{more(ranked, detail.top, 'row')}"
    scope = f"{{unit}} {headings.scope(report)}"
    return Table(f"{noun}s", f"{title}, {scope}", columns, tuple(map(Row, cells)), caption)


def _of_lines(report: Report) -> list[KernelRow]:
    named = (replace(row, category="", path=()) for row in kernels_of(report))
    return list(added(named, ("kernel", "phase")))


def _of_functions(report: Report) -> list[KernelRow]:
    """Add up kernels by the innermost function of their paths, in the place of their names, and by phase."""
    rows = []
    for row in kernels_of(report):
        names = [name for name in row.path if is_function(name)]
        rows.append(replace(row, kernel=names[-1] if names else IN_NO_FUNCTION, category="", path=()))
    if all(row.kernel == IN_NO_FUNCTION for row in rows):
        raise ReportError(f"No kernel was launched in a Python function. {STACKS}")
    return list(added(rows, ("kernel", "phase")))


def categories(report: Report) -> Table:
    """Rank the categories."""
    rows = kernels_of(report)
    total_ns = time_of(rows)
    ranked = longest_first(added(rows, ("category",)))
    lines = [Row((headings.category(row.category), *_figures(row, total_ns))) for row in ranked]
    caption = f"% is of {headings.kernels(report)}."
    if graph_rows := graphs.of_graphs(report):
        lines.append(Row(("CUDA graphs", time_of(graph_rows), "", count_of(graph_rows))))
        caption += f" {WITHOUT_GRAPHS}"
    title = f"Categories of kernels by total time, {{unit}} {headings.scope(report)}"
    return Table("categories", title, headed(name="category", **RANKING), tuple(lines), caption)


def range_tree(report: Report, top: int) -> Table:
    """Show the longest ranges and those around them, siblings by the time of all kernels (and graphs) inside."""
    tree = graphs.counted(report)
    with_work = [row for row in tree.ranges if row.inclusive_ns or row.inclusive_work_ns]
    chosen = in_tree(with_work, "inclusive_ns", top, report.phase_names)
    total_ns = sum(row.self_ns for row in tree.ranges)
    time = "kernel time" if tree is report else "time"
    columns = headed("range", inclusive_ns=time, share="%", self_ns="own", kernels="launches")
    columns += headed(instances="times", span_ns=headings.span(report), cpu_ns="CPU range")
    rows = []
    for name, row in zip(last_names(chosen), chosen, strict=True):
        cells = (
            name,
            row.inclusive_ns,
            share(row.inclusive_ns, total_ns),
            row.self_ns,
            row.kernels,
            row.instances,
            row.span_ns,
            row.cpu_ns,
        )
        rows.append(Row(cells, indent=len(row.path) - 1))
    title = f"Ranges, with all {graphs.counted_kinds(report)} inside, {{unit}}"
    linked = f" {headings.LINKED}" if any(row.span_ns is None for row in chosen) else ""
    caption = f"% is of {headings.kernels(report, graphs.counted_time(report))}. own: in no inner range.{linked}"
    caption += more(with_work, len(chosen), "range")
    return Table("ranges", f"{title} {headings.scope(report)}", columns, tuple(rows), caption)


def everything(
    report: Report, *, by: str | None = None, found: Fixes | None = None, by_line: ByLine | None = None
) -> Document:
    """Return the kernels of every path (the default), or rank kernels or categories by phase, or all ranges.

    Programs get all rows with full names, nothing merged and nothing cut.
    """
    if by == "range":
        table = _every_row("ranges", RangeRow, report.ranges)
    elif by == "category":  # graphs launched whole are one of their own
        table = _ranking(report, "categories", ("category", "kind", "phase"), ())
    elif by == "function":
        table = _functions_of(report)
    elif by == "line" and by_line is not None:
        table = _lines_of(*by_line())
    elif by == "kernel":  # and graphs launched whole, wherever they were launched
        extremes = ("mean_ns", "min_ns", "max_ns")
        table = _ranking(report, "kernels", ("kernel", "category", "kind", "phase"), extremes)
    else:
        table = _every_row("kernels", KernelRow, report.kernels)

    def promised() -> Mapping[str, Any]:
        """Return the JSON object that docs/json.md promises."""
        objects = as_object(report)
        if found:
            objects |= fixes_as_object(found)
        if by_line:
            objects |= {"lines": lines_as_objects(*by_line())}
        return objects

    accounting = headings.accounting_of(report)
    return Document(headings.heading(report), (table,), accounting, report.notes, promised)


def _every_row(key: str, kind: type[RangeRow | KernelRow], rows: Sequence[RangeRow | KernelRow]) -> Table:
    names = [field.name for field in fields(kind)]  # the path comes first
    figures = attrgetter(*names[1:])
    lines = (Row((PATH_SEPARATOR.join(row.path), *figures(row))) for row in rows)
    return Table(key, key, headed(*names), tuple(lines))


def _functions_of(report: Report) -> Table:
    total_ns = time_of(kernels_of(report))
    ranked = longest_first(_of_functions(report))
    rows = tuple(Row((row.kernel, row.phase, *_figures(row, total_ns))) for row in ranked)
    return Table("functions", "functions", headed("function", "phase", "total_ns", "share", "count"), rows)


def lines_as_objects(report: Report, called: Mapping[str, Line]) -> list[dict[str, Any]]:
    """Return `lines` of JSON: the kernels of each line and phase, those with the most time first."""
    objects = []
    for row in longest_first(_of_lines(report)):
        line = called.get(row.kernel, Line("", 0, ""))
        objects.append(line._asdict() | {"phase": row.phase, "total_ns": row.total_ns, "count": row.count})
    return objects


def _lines_of(report: Report, called: Mapping[str, Line]) -> Table:
    rows = lines_as_objects(report, called)
    total_ns = sum(row["total_ns"] for row in rows)
    lines = tuple(Row((*row.values(), share(row["total_ns"], total_ns))) for row in rows)
    columns = headed("file", "line", "function", "phase", "total_ns", "count", "share")
    return Table("lines", "lines", columns, lines)


def _ranking(report: Report, key: str, keys: tuple[str, ...], extremes: tuple[str, ...]) -> Table:
    """Add up what is ranked, longest first; `share` is of all kernel time, which excludes graphs."""
    ranked = longest_first(added((row for row in report.kernels if row.kind in RANKED), keys))
    total_ns = time_of(row for row in ranked if row.kind == "kernel")
    names = (*keys, "total_ns", "share", "count", *extremes)
    rows = []
    for row in ranked:
        figures = {name: getattr(row, name, None) for name in names}
        figures["mean_ns"] = row.total_ns / row.count
        if row.kind == "kernel":
            figures["share"] = share(row.total_ns, total_ns)
        rows.append(Row(tuple(figures[name] for name in names)))
    return Table(key, key, headed(*names), tuple(rows))
