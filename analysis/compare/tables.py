"""What changed from one report to another, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from ..document import SHORT, Column, Detail, Document, Row, Table
from ..kernel_names.short import names_by_kernel
from ..report import tree_order
from ..views import headings
from ..views.rows import NOWHERE, common_length, label
from .as_json import as_object
from .changes import Axis, Change, Comparison, Key, changes, notes
from .fusions import GROUPS, grouped
from .rules import Verdict

NUMBERS = (
    Column("a_ns", "A", "ns"),
    Column("b_ns", "B", "ns"),
    Column("delta_ns", "B−A", "ns"),
    Column("change", "%", "share"),
    Column("a_count", "launches A", "count"),
    Column("b_count", "B", "count"),
)
INSIDE = (
    Column("a_inside_ns", "A", "ns"),
    Column("b_inside_ns", "B", "ns"),
    Column("delta_inside_ns", "B−A", "ns"),
    Column("change_inside", "%", "share"),
    Column("a_inside_count", "launches A", "count"),
    Column("b_inside_count", "B", "count"),
    Column("delta_ns", "own B−A", "ns"),
)
#: The spread of each report's steps, as a share of its time; the mark is in all tables.
SPREADS = (Column("a_spread", "±A %", "share"), Column("b_spread", "±B %", "share"))
WITHIN = Column("within_spread", "~", "text")
MARK = "~"
STEPS_DIFFER = " ±: slowest less fastest step, % of the mean."
WITHIN_STEPS = " ~: A and B differ no more than the steps of one of them."
HEADINGS = {
    "phase": "{what} by phase, {{unit}} {scope}",
    "category": "{what} by category, {{unit}} {scope}",
    "range": "{what} by innermost range, {{unit}} {scope}",
    "kernel": "{what} by kernel, {{unit}} {scope}",
    "tree": "{what} inside each range, {{unit}} {scope}",
    "fusion": "{what} that compile fused, saved and lost, {{unit}} {scope}",
}
#: From this change on, B is said to be so many times A.
TIMES_FROM = 10
MULTIPLES = " n×: B is n times A."
STATES = {"new": "only in B", "gone": "only in A"}
FUSED = (
    "% is of A's time. A fusion's kernels do the work of all ranges that it names; what each took is not known. "
    "Next to a fusion, a range of one report is a row; elsewhere it counts in the range around it that both have."
)
AXIS_ORDER: tuple[Axis, ...] = ("phase", "category", "range", "kernel")


def compared(
    comparison: Comparison,
    verdicts: Sequence[Verdict] = (),
    detail: Detail = SHORT,
    *,
    by: Axis | None = None,
) -> Document:
    """Show where two reports differ most; `by` shows only one axis, ranges as a tree."""
    if detail.whole:
        return everything_compared(comparison, verdicts, by=by)
    drawing = _Drawing(comparison, detail)
    axes = (by,) if by else AXIS_ORDER
    tables = [drawing.tree() if by == "range" else drawing.ranked(axis) for axis in axes]
    tables += () if by else drawing.fusions()
    return _document(comparison, (*tables, *rules(verdicts, comparison)))


def fusions(comparison: Comparison, detail: Detail = SHORT) -> tuple[Table, ...]:
    """Return the table of what a compiler fused, saved and lost; none where neither report has a fusion."""
    return _Drawing(comparison, detail).fusions()


def everything_compared(
    comparison: Comparison, verdicts: Sequence[Verdict] = (), *, by: Axis | None = None
) -> Document:
    """Return every row of one axis or of all, for programs: full names, nothing merged, nothing cut."""
    tables = [_whole_axis(comparison, axis) for axis in ((by,) if by else AXIS_ORDER)]
    document = _document(comparison, (*tables, *_whole_rules(verdicts)))
    return replace(document, promised=partial(as_object, comparison, verdicts))


def rules(verdicts: Sequence[Verdict], comparison: Comparison) -> tuple[Table, ...]:
    """Return a table of the rules' verdicts, each with what it was compared with; none without rules."""
    rows: list[Row] = []
    for verdict in verdicts:
        word = "VIOLATED" if verdict.violated else "holds"
        times, change = _times(verdict.change)[:3], _change_text(verdict.change.change)
        rows.append(Row((verdict.rule.text, *times, change, word), strong=verdict.violated))
        only = f", only in {verdict.only_in}" if verdict.only_in else ""
        within = (
            ", within the spread of steps" if verdict.rule.beyond_spread and verdict.change.within_spread else ""
        )
        rows.append(Row((verdict.compared + only + within, *[""] * 5), indent=1))
    violated = sum(verdict.violated for verdict in verdicts)
    title = f"Rules: {violated} of {len(verdicts)} violated, {{unit}} {scope(comparison)}"
    columns = (Column("rule", "rule", "name"), *NUMBERS[:4], Column("verdict", "verdict"))
    return (_with_multiples(Table("rules", title, columns, tuple(rows))),) if rows else ()


def _whole_rules(verdicts: Sequence[Verdict]) -> tuple[Table, ...]:
    """Return the verdicts for programs: one row each."""
    columns = (
        Column("rule", "rule"),
        Column("compared", "compared"),
        *NUMBERS[:4],
        Column("violated", "violated"),
        Column("only_in", "only in"),
    )
    rows = [
        Row((v.rule.text, v.compared, *_times(v.change, words=False), "yes" if v.violated else "no", v.only_in))
        for v in verdicts
    ]
    return (Table("rules", "rules", columns, tuple(rows)),) if rows else ()


def scope(comparison: Comparison) -> str:
    """Return the unit of both sides, such as `per step`."""
    a, b = comparison.a, comparison.b
    if comparison.per_step and a.steps != b.steps:
        return f"per step, mean of A's {a.steps} and B's {b.steps}"
    scope_a, scope_b = headings.scope(a), headings.scope(b)
    return scope_a if scope_a == scope_b else f"A {scope_a}, B {scope_b}"


def heading(comparison: Comparison) -> str:
    """Describe each report, and once what both have in common."""
    a, b = (headings.facts(report) for report in (comparison.a, comparison.b))
    common = headings.common([a[1:], b[1:]])
    sides = [" · ".join([facts[0], *(fact for fact in facts[1:] if fact not in common)]) for facts in (a, b)]
    return f"A: {sides[0]} → B: {sides[1]}" + (f" — both: {' · '.join(common)}" if common else "")


def _document(comparison: Comparison, tables: tuple[Table, ...]) -> Document:
    accounting = [
        f"{name}: {line}"
        for name, report in (("A", comparison.a), ("B", comparison.b))
        for line in headings.accounting_of(report)
    ]
    return headings.document(comparison.a.provenance, heading(comparison), tables, accounting, notes(comparison))


class _Drawing:
    """Draws the axes of one comparison as text."""

    def __init__(self, comparison: Comparison, detail: Detail) -> None:
        self.comparison, self.detail = comparison, detail
        self.naming = comparison.naming(every_index=detail.every_index)
        a = comparison.a
        self.what = f"All {headings.work(a)}" if comparison.all_work else headings.kernel_time(a)

    def ranked(self, axis: Axis) -> Table:
        """Rank one axis by the size of the difference; what is cut and the total are rows too."""
        changed = [row for row in changes(self.comparison, axis, self.naming) if row.a_count or row.b_count]
        top = self.detail.top if axis in ("range", "kernel") else len(changed)
        top_rows, cut = changed[:top], changed[top:]
        names = self.names(axis, changed, top_rows)
        spread = self.spread if axis in ("phase", "category") else self.mark
        rows = [Row((names(row.key), *_numbers(row), *spread(row))) for row in top_rows]
        if cut:
            rows.append(
                Row((f"… {len(cut)} more: --top {len(changed)}", *_numbers(_added(cut)), *spread(Change(()))))
            )
        total = self.comparison.total()
        rows.append(Row((self.comparison.whole, *_numbers(total), *spread(total)), strong=True))
        columns = (Column(axis, axis, "name"), *NUMBERS, *self.spread_columns(axis))
        differ = STEPS_DIFFER * (len(columns) > len(NUMBERS) + 2) + WITHIN_STEPS * (
            len(columns) > len(NUMBERS) + 1
        )
        return self.table(axis, columns, rows, _caption(changed) + differ)

    def spread_columns(self, axis: Axis) -> tuple[Column, ...]:
        """Return the columns of `spread` or `mark`: none where neither report has two steps."""
        columns = [column for column, times in zip(SPREADS, self.comparison.times, strict=True) if times]
        return (*(columns if axis in ("phase", "category") else ()), WITHIN) if columns else ()

    def spread(self, row: Change) -> tuple[object, ...]:
        """Return how far the steps of each report that has several differ, and the mark."""
        sides = ((row.a_spread_ns, row.a_ns), (row.b_spread_ns, row.b_ns))
        shares = (
            None if spread is None or not mean_ns else spread / mean_ns
            for (spread, mean_ns), times in zip(sides, self.comparison.times, strict=True)
            if times
        )
        return (*shares, *self.mark(row))

    def mark(self, row: Change) -> tuple[object, ...]:
        """Return the mark of a change that is within the spread of the steps."""
        return (MARK if row.within_spread else "",) if any(self.comparison.times) else ()

    def tree(self) -> Table:
        """Show all ranges as a tree, with what was launched at any depth and the part launched directly."""
        changed = changes(self.comparison, "range", self.naming)
        order = tree_order((row.key, (max(row.a_inside_ns, row.b_inside_ns),)) for row in changed)
        inside = sorted((row for row in changed if row.key), key=lambda row: order(row.key))
        lines = [(row.key[-1], row, len(row.key) - 1) for row in inside]
        lines += [(NOWHERE, row, 0) for row in changed if not row.key]
        rows = [
            Row((name, *_inside(row, words=True), *self.mark(row.inside)), indent=indent)
            for name, row, indent in lines
        ]
        total = self.comparison.total()
        total_cells = (self.comparison.whole, *_inside(total, words=True), *self.mark(total.inside))
        rows.append(Row(total_cells, strong=True))
        caption = "% is of A's time. `own` is of what is launched in no inner range, and sums to the total."
        columns = (Column("range", "range", "name"), *INSIDE, *self.spread_columns("range"))
        caption += WITHIN_STEPS * any(self.comparison.times)
        return self.table("range", columns, rows, caption, heading="tree")

    def fusions(self) -> tuple[Table, ...]:
        """Show what a compiler fused, saved and lost, with each group's sum; no table where nothing is fused."""
        groups = grouped(self.comparison, self.naming)
        if not groups:
            return ()
        common = common_length(row.key for changed in groups.values() for row in changed)
        rows: list[Row] = []
        for group, changed in groups.items():
            rows.append(Row((GROUPS[group], *_numbers(_added(changed))), strong=True))
            top_rows = changed[: self.detail.top] if group != "unchanged" else []
            rows += [Row((label(row.key, common), *_numbers(row)), indent=1) for row in top_rows]
            if top_rows and (cut := changed[len(top_rows) :]):
                rows.append(Row((f"… {len(cut)} more: --top {len(changed)}", *_numbers(_added(cut))), indent=1))
        rows.append(Row((self.comparison.whole, *_numbers(self.comparison.total())), strong=True))
        return (self.table("fusion", (Column("range", "range", "name"), *NUMBERS), rows, FUSED),)

    def table(
        self,
        axis: Axis | Literal["fusion"],
        columns: tuple[Column, ...],
        rows: list[Row],
        caption: str,
        heading: str = "",
    ) -> Table:
        """Put a table together."""
        title = HEADINGS[heading or axis].format(what=self.what, scope=scope(self.comparison))
        return _with_multiples(Table(f"by_{axis}", title, columns, tuple(rows), caption))

    def names(self, axis: Axis, changed: Sequence[Change], top_rows: Sequence[Change]) -> Callable[[Key], str]:
        """Return the displayed names of an axis's items."""
        if axis == "kernel":
            short = names_by_kernel((row.key[0] for row in top_rows), self.detail.full_names)
            return lambda key: short[key[0]]
        if axis == "range":
            common = common_length(row.key for row in changed)
            return lambda key: label(key, common)
        return lambda key: headings.category(key[0])


def _whole_axis(comparison: Comparison, axis: Axis) -> Table:
    """Return all of an axis with keys in full."""
    keys = (Column(axis, axis, "name"), *((Column("category", "category"),) if axis == "kernel" else ()))
    figures = (
        *NUMBERS,
        Column("a_spread_ns", "spread A", "ns"),
        Column("b_spread_ns", "spread B", "ns"),
        Column("within_spread", "within spread"),
        Column("state", "state"),
    )
    inside = axis == "range"
    rows = [
        Row(
            (
                *((label(row.key),) if axis == "range" else row.key),
                *_numbers(row, words=False),
                row.a_spread_ns,
                row.b_spread_ns,
                {True: "yes", False: "no", None: None}[row.within_spread],
                row.state,
                *(_inside(row)[:-1] if inside else ()),
            )
        )
        for row in changes(comparison, axis)
    ]
    return Table(f"by_{axis}", f"by {axis}", (*keys, *figures, *(INSIDE[:-1] if inside else ())), tuple(rows))


def _numbers(row: Change, *, words: bool = True) -> tuple[object, ...]:
    return (*_times(row, words=words), row.a_count, row.b_count)


def _times(row: Change, *, words: bool = True) -> tuple[object, ...]:
    change = row.state or _change_text(row.change) if words else row.change
    return row.a_ns, row.b_ns, row.delta_ns, change


def _change_text(change: float | None) -> float | str | None:
    """Write a large increase as a multiple of A instead of a long percentage."""
    return change if change is None or change < TIMES_FROM else f"{round(change + 1):,}×"


def _with_multiples(table: Table) -> Table:
    """Explain multiples if there are any."""
    places = [place for place, column in enumerate(table.columns) if column.kind == "share"]
    some = any(str(row.values[place]).endswith("×") for row in table.rows for place in places)
    return replace(table, caption=f"{table.caption}{MULTIPLES}".strip()) if some else table


def _inside(row: Change, *, words: bool = False) -> tuple[object, ...]:
    return (*_numbers(row.inside, words=words), row.delta_ns)


def _added(rows: Iterable[Change]) -> Change:
    rows = list(rows)
    sums = [sum(getattr(row, name) for row in rows) for name in ("a_ns", "b_ns", "a_count", "b_count")]
    return Change((), *sums)


def _caption(changed: Sequence[Change]) -> str:
    states = [row.state for row in changed]
    counts = [f"{states.count(state)} {words}" for state, words in STATES.items() if state in states]
    return "% is of A's time." + (f" {', '.join(counts)}." if counts else "")
