"""What changed from one report to another, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from ..document import SHORT, Column, Detail, Document, Row, Table, headed
from ..kernel_names.short import names_by_kernel
from ..report import as_object as report_object
from ..report import tree_order
from ..support import noise
from ..support.units import count_text, counted
from ..views import headings
from ..views.rows import NOWHERE, common_length, label
from .answer import answer
from .changes import Axis, Change, Comparison, Group, Key, changes, grouped, notes
from .rules import Verdict
from .sides import Measure

NUMBERS = headed(a_ns="A", b_ns="B", delta_ns="B−A", change="%", a_count="launches A", b_count="B")
INSIDE = headed(a_inside_ns="A", b_inside_ns="B", delta_inside_ns="B−A", change_inside="%")
INSIDE += headed(a_inside_count="launches A", b_inside_count="B")
#: The spread of each report's steps, as a share of its time; the mark is in all tables.
SPREADS, WITHIN = headed(a_spread="±A %", b_spread="±B %"), headed(within_spread="~")
MARKS: dict[noise.Verdict, str] = {"differs": "", "same": "~", "not known": "?"}
STEPS_DIFFER = " ±: how much steps vary."
WITHIN_STEPS = {"same": " ~: may be noise.", "not known": " ?: not known."}
#: What is measured of whole steps, as screens call it; the last is what the tables below divide.
MEASURES: dict[Measure, str] = {"step_ns": "step time", "span_ns": "GPU span", "work_ns": ""}
WORDS: dict[noise.Verdict, str] = {"differs": "differs", "same": "no change", "not known": "not known"}
#: What a table of kernel time is of.
OF_AXIS = {"phase": "by phase", "category": "by category", "range": "by innermost range", "kernel": "by kernel"}
OF_TREE, OF_FUSIONS = "inside each range", "that compile fused, saved and lost"
GROUPS: dict[Group, str] = {
    "fused": "fused: the work of several ranges",
    "saved": "saved: shorter in B",
    "lost": "lost: longer in B",
    "unchanged": "unchanged",
}
#: From this change on, a multiple is shown in place of a percentage.
TIMES_FROM = 10
MULTIPLES = " n×: B is n times A."
STATES = {"new": "only in B", "gone": "only in A"}
FUSED = "% is of A's time. A fusion does the work of all ranges that it names."


def compared(
    comparison: Comparison, verdicts: Sequence[Verdict] = (), detail: Detail = SHORT, *, by: Axis | None = None
) -> Document:
    """Show where two reports differ most; `by` shows only one axis, ranges as a tree.

    Programs get every row, with full names, nothing merged and nothing cut.
    """
    if detail.whole:
        axes = [_whole_axis(comparison, axis) for axis in ((by,) if by else get_args(Axis))]
        document = _document(comparison, (*axes, *_whole_steps(comparison), *_whole_rules(verdicts)))
        return replace(document, promised=partial(as_object, comparison, verdicts))
    drawing = _Drawing(comparison, detail)
    if by == "range":
        tables = [drawing.tree()]
    elif by:
        tables = [drawing.ranked(by)]
    else:
        tables = [*steps(comparison), *map(drawing.ranked, get_args(Axis)), *drawing.fusions()]
    return _document(comparison, (*tables, *rules(verdicts, comparison)))


def fusions(comparison: Comparison, detail: Detail = SHORT) -> tuple[Table, ...]:
    """Return the table of what a compiler fused, saved and lost; none where neither report has a fusion."""
    return _Drawing(comparison, detail).fusions()


def rules(verdicts: Sequence[Verdict], comparison: Comparison) -> tuple[Table, ...]:
    """Return a table of the rules' verdicts, each with what it was compared with; none without rules."""
    rows: list[Row] = []
    for verdict in verdicts:
        word = "VIOLATED" if verdict.violated else "holds"
        times, change = _times(verdict.change)[:3], _change_text(verdict.change.change)
        rows.append(Row((verdict.rule.text, *times, change, word), strong=verdict.violated))
        of_what = verdict.compared + (f", only in {verdict.only_in}" if verdict.only_in else "")
        if verdict.rule.beyond_spread and verdict.change.verdict == "same":
            of_what += ", may be noise"
        rows.append(Row((of_what, *[""] * 5), indent=1))
    violated = sum(verdict.violated for verdict in verdicts)
    title = f"Rules: {violated} of {len(verdicts)} violated, {{unit}} {scope(comparison)}"
    columns = (*headed("rule"), *NUMBERS[:4], *headed("verdict"))
    return (_with_multiples(Table("rules", title, columns, tuple(rows))),) if rows else ()


def steps(comparison: Comparison) -> tuple[Table, ...]:
    """Return a table of whole steps: medians of each kind of steps by measure; none where steps are not known."""
    rows: list[Row] = []
    for measure, name in MEASURES.items():
        kinds = comparison.measured(measure)
        name = name.replace("GPU", comparison.a.provenance.unit_of_work) or comparison.whole
        for kind in kinds:
            launches = f", {_launches(kind.launches)}" if len(kinds) > 1 else ""
            numbers = kind.a_ns, kind.b_ns, kind.b_ns - kind.a_ns, _change_text(kind.change)
            rows.append(
                Row((name + launches, *numbers, kind.a_steps, kind.b_steps, kind.spread, WORDS[kind.verdict]))
            )
    if not rows:
        return ()
    columns = (*headed("measure"), *NUMBERS[:4], *headed(a_steps="steps A", b_steps="B", spread_share="±%"))
    caption = "±: how much steps vary, on the side that varies more."
    return (
        Table("steps", "Whole steps, medians in {unit}", (*columns, *headed("verdict")), tuple(rows), caption),
    )


def _launches(of_sides: tuple[float, float]) -> str:
    """Name a kind of steps by what each of it launches."""
    *first, last = dict.fromkeys(of_sides)
    return " and ".join([*map(count_text, first), counted(last, "launch", "launches")])


def _whole_steps(comparison: Comparison) -> tuple[Table, ...]:
    """Return the measures of whole steps for programs."""
    rows = _steps_as_objects(comparison)
    if not rows:
        return ()
    columns = headed(*rows[0])
    return (Table("steps", "steps", columns, tuple(Row(tuple(row.values())) for row in rows)),)


def _steps_as_objects(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the measures of whole steps by kind, with raw values."""
    return [
        {
            "measure": measure,
            "a_launches": kind.launches[0],
            "b_launches": kind.launches[1],
            "a_ns": kind.a_ns,
            "b_ns": kind.b_ns,
            "delta_ns": kind.b_ns - kind.a_ns,
            "change": kind.change,
            "a_steps": kind.a_steps,
            "b_steps": kind.b_steps,
            "spread_share": kind.spread,
            "verdict": kind.verdict,
        }
        for measure in MEASURES
        for kind in comparison.measured(measure)
    ]


def _whole_rules(verdicts: Sequence[Verdict]) -> tuple[Table, ...]:
    """Return the verdicts for programs: one row each."""
    columns = (Column("rule", "rule"), *headed("compared"), *NUMBERS[:4], *headed("violated", only_in="only in"))
    rows = [
        Row((v.rule.text, v.compared, *_times(v.change, words=False), "yes" if v.violated else "no", v.only_in))
        for v in verdicts
    ]
    return (Table("rules", "rules", columns, tuple(rows)),) if rows else ()


def scope(comparison: Comparison) -> str:
    """Return the unit of both sides, such as `per step`."""
    a, b = comparison.a, comparison.b
    if comparison.per_step:
        return "per step"
    scope_a, scope_b = headings.scope(a), headings.scope(b)
    return scope_a if scope_a == scope_b else f"A {scope_a}, B {scope_b}"


def _document(comparison: Comparison, tables: tuple[Table, ...]) -> Document:
    """Describe each report, and once what both have in common, above the tables."""
    a, b = (headings.facts(report) for report in (comparison.a, comparison.b))
    common = headings.common([a[1:], b[1:]])
    sides = [" · ".join([facts[0], *(fact for fact in facts[1:] if fact not in common)]) for facts in (a, b)]
    heading = f"A: {sides[0]} → B: {sides[1]}" + (f" — both: {' · '.join(common)}" if common else "")
    accounting = [f"A: {line}" for line in headings.accounting_of(comparison.a)]
    accounting += [f"B: {line}" for line in headings.accounting_of(comparison.b)]
    document = headings.document(comparison.a.provenance, heading, tables, accounting, notes(comparison))
    return replace(document, heading=answer(comparison).sentence, verdict=heading)


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
            more = f"… {len(cut)} more: --top {len(changed)}"
            rows.append(Row((more, *_numbers(_added(cut)), *spread(Change(())))))
        total = self.comparison.total()
        rows.append(Row((self.comparison.whole, *_numbers(total), *spread(total)), strong=True))
        columns = (Column(axis, axis, "name"), *NUMBERS)
        states = [row.state for row in changed]
        only = ", ".join(f"{states.count(state)} {words}" for state, words in STATES.items() if state in states)
        caption = "% is of A's time." + (f" {only}." if only else "")
        if self.comparison.steps.are_known:
            spreads = self.spreads() if axis in ("phase", "category") else []
            columns += (*spreads, *WITHIN)
            caption += (STEPS_DIFFER if spreads else "") + _legend([*top_rows, total])
        return self.table(axis, OF_AXIS[axis], columns, rows, caption)

    def spreads(self) -> list[Column]:
        """Return the columns of the sides that have several steps."""
        several = (self.comparison.a.steps > 1, self.comparison.b.steps > 1)
        return [column for column, is_known in zip(SPREADS, several, strict=True) if is_known]

    def spread(self, row: Change) -> tuple[object, ...]:
        """Return how far the steps of each report that has several differ, and the mark."""
        if not self.comparison.steps.are_known:
            return ()
        sides = {"a_spread": (row.a_spread_ns, row.a_ns), "b_spread": (row.b_spread_ns, row.b_ns)}
        shares = (
            None if spread is None or not mean_ns else spread / mean_ns
            for spread, mean_ns in (sides[column.key] for column in self.spreads())
        )
        return (*shares, *self.mark(row))

    def mark(self, row: Change) -> tuple[object, ...]:
        """Return the mark of a change that may be noise; none of a row that adds up others."""
        is_one = row.a_count or row.b_count
        return (MARKS[row.verdict] if is_one else "",) if self.comparison.steps.are_known else ()

    def tree(self) -> Table:
        """Show all ranges as a tree, with what was launched at any depth and the part launched directly."""
        changed = changes(self.comparison, "range", self.naming)
        order = tree_order((row.key, (max(i.a_ns, i.b_ns),)) for row in changed for i in [row.inside or row])
        inside = sorted((row for row in changed if row.key), key=lambda row: order(row.key))
        lines = [(row.key[-1], row, len(row.key) - 1) for row in inside]
        lines += [(NOWHERE, row, 0) for row in changed if not row.key]
        lines.append((self.comparison.whole, self.comparison.total(), 0))
        rows = [
            Row((name, *_numbers(row.inside or row), row.delta_ns, *self.mark(row.inside or row)), indent=indent)
            for name, row, indent in lines
        ]
        rows[-1] = replace(rows[-1], strong=True)
        has_marks = self.comparison.steps.are_known
        caption = "% is of A's time. own: in no inner range, which sums to the total."
        columns = (*headed("range"), *INSIDE, *headed(delta_ns="own B−A"), *(WITHIN if has_marks else ()))
        legend = _legend([row.inside or row for row in changed]) if has_marks else ""
        return self.table("range", OF_TREE, columns, rows, caption + legend)

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
        return (self.table("fusion", OF_FUSIONS, (*headed("range"), *NUMBERS), rows, FUSED),)

    def table(self, key: str, of_what: str, columns: tuple[Column, ...], rows: list[Row], caption: str) -> Table:
        """Put a table together."""
        title = f"{self.what} {of_what}, {{unit}} {scope(self.comparison)}"
        return _with_multiples(Table(f"by_{key}", title, columns, tuple(rows), caption))

    def names(self, axis: Axis, changed: Sequence[Change], top_rows: Sequence[Change]) -> Callable[[Key], str]:
        """Return the displayed names of an axis's items."""
        if axis == "kernel":
            short = names_by_kernel((row.key[0] for row in top_rows), self.detail.full_names)
            return lambda key: short[key[0]]
        if axis == "range":
            common = common_length(row.key for row in changed)
            return lambda key: label(key, common)
        return lambda key: headings.category(key[0])


def _legend(rows: Iterable[Change]) -> str:
    """Explain the marks that rows have."""
    verdicts = {row.verdict for row in rows}
    return "".join(text for verdict, text in WITHIN_STEPS.items() if verdict in verdicts)


def _whole_axis(comparison: Comparison, axis: Axis) -> Table:
    """Return all of an axis with keys in full."""
    columns = (Column(axis, axis, "name"), *(headed("category") if axis == "kernel" else ()), *NUMBERS)
    columns += headed(a_spread_ns="spread A", b_spread_ns="spread B", within_spread="within spread", state="state")
    columns += headed("verdict")
    columns += INSIDE if axis == "range" else ()
    rows = []
    for row in changes(comparison, axis):
        key = (label(row.key),) if axis == "range" else row.key
        within = {True: "yes", False: "no", None: None}[row.within_spread]
        spreads = (row.a_spread_ns, row.b_spread_ns, within, row.state, row.verdict)
        inside = _numbers(row.inside, words=False) if row.inside else ()
        rows.append(Row((*key, *_numbers(row, words=False), *spreads, *inside)))
    return Table(f"by_{axis}", f"by {axis}", columns, tuple(rows))


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


def _added(rows: Iterable[Change]) -> Change:
    rows = list(rows)
    sums = [sum(getattr(row, name) for row in rows) for name in ("a_ns", "b_ns", "a_count", "b_count")]
    return Change((), *sums)


#: What JSON has of every change, and of those that are no rule's.
JSON_TIMES = ("a_ns", "b_ns", "delta_ns", "change", "a_spread_ns", "b_spread_ns", "within_spread", "verdict")
JSON_NUMBERS = (*JSON_TIMES, "a_count", "b_count", "state")


def as_object(comparison: Comparison, verdicts: Sequence[Verdict] = ()) -> dict[str, Any]:
    """Return both reports' heads, the total, every row along every axis, and the rules' verdicts.

    This is the JSON that docs/compare.md describes; times in nanoseconds.
    """

    def numbers(row: Change, keys: Sequence[str] = JSON_NUMBERS) -> dict[str, Any]:
        return {key: getattr(row, key) for key in keys}

    def of_axis(axis: Axis, row: Change) -> dict[str, Any]:
        if row.inside:
            inside = {"a_inside_ns": row.inside.a_ns, "b_inside_ns": row.inside.b_ns}
            return {"path": list(row.key), **numbers(row), **inside}
        return {**dict(zip((axis, "category"), row.key, strict=False)), **numbers(row)}

    rules = [
        {"rule": verdict.rule.text, "compared": verdict.compared}
        | numbers(verdict.change, JSON_TIMES)
        | {"violated": verdict.violated, "only_in": verdict.only_in or None}
        for verdict in verdicts
    ]
    return {
        "a": report_object(comparison.a)["report"],
        "b": report_object(comparison.b)["report"],
        "compared": "work" if comparison.all_work else "kernels",
        "per_step": comparison.per_step,
        "answer": answer(comparison).as_object(),
        "recordings": [max(len(comparison.steps.a), 1), max(len(comparison.steps.b), 1)],
        "steps": _steps_as_objects(comparison),
        "notes": list(notes(comparison)),
        "total": numbers(comparison.total()),
        "by": {axis: [of_axis(axis, row) for row in changes(comparison, axis)] for axis in get_args(Axis)},
        "rules": rules,
    }
