"""What changed from one report to another, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

from ..document import SHORT, Column, Detail, Document, Row, Table, headed
from ..kernel_names.short import names_by_kernel
from ..report import as_object as report_object
from ..report import tree_order
from ..report.account import IDLE
from ..support import noise
from ..support.text import fit
from ..support.units import count_text
from ..views import headings
from ..views.account import CALLED, OUTSIDE, detail_of
from ..views.rows import NOWHERE, common_length, label
from .accounts import StateChange, states
from .answer import answer
from .changes import Axis, Change, Comparison, Key, changes, notes
from .rules import Verdict
from .sides import Measure

By = Literal["account", "phase", "category", "range", "kernel"]
NUMBERS = headed(a_ns="A", b_ns="B", delta_ns="B−A", change="%", a_count="launches A", b_count="B")
INSIDE = headed(a_inside_ns="A", b_inside_ns="B", delta_inside_ns="B−A", change_inside="%")
INSIDE += headed(a_inside_count="launches A", b_inside_count="B")
WITHIN = headed(within_spread="~")
MARKS: dict[noise.Verdict, str] = {"differs": "", "same": "~", "not known": "?"}
WITHIN_STEPS = {"same": f" ~: equal within {noise.SAME_WITHIN:.0%}.", "not known": " ?: may be noise."}
#: States that changed by less than this share of all changes are one row, and so are those beyond the most.
SMALL, MOST_STATES, LONGEST_PLACE = 0.03, 8, 30
#: What a table of kernel time is of.
OF_AXIS = {"phase": "by phase", "category": "by category", "range": "by innermost range", "kernel": "by kernel"}
OF_TREE = "inside each range"
#: From this change on, a multiple is shown in place of a percentage.
TIMES_FROM = 10
MULTIPLES = " n×: B is n times A."
STATES = {"new": "only in B", "gone": "only in A"}


def compared(
    comparison: Comparison, verdicts: Sequence[Verdict] = (), detail: Detail = SHORT, *, by: By | None = None
) -> Document:
    """Show where two reports differ most; `by` shows only one axis, ranges as a tree.

    Programs get every row, with full names, nothing merged and nothing cut.
    """
    if detail.whole:
        tables = [_whole_axis(comparison, axis) for axis in get_args(Axis) if by in (None, axis)]
        tables += _of_objects("steps", _steps_as_objects(comparison))
        tables += _of_objects("account", account_as_objects(comparison))
        document = _document(comparison, (*tables, *_whole_rules(verdicts)))
        return replace(document, promised=partial(as_object, comparison, verdicts))
    drawing = _Drawing(comparison, detail)
    if by is None:
        tables = [*(drawing.account() or [drawing.ranked("phase")]), drawing.ranked("range")]
    elif by == "account":
        tables = drawing.account()
    else:
        tables = [drawing.tree() if by == "range" else drawing.ranked(by)]
    return _document(comparison, (*tables, *rules(verdicts, comparison)))


def account(comparison: Comparison, detail: Detail = SHORT) -> list[Table]:
    """Return the table of what a step spends more or less time on; none where it is not known of both sides."""
    return _Drawing(comparison, detail).account()


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


def _of_objects(name: str, objects: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return objects of JSON as a table for programs; [] of none."""
    rows = tuple(Row(tuple(_as_cell(value) for value in each.values())) for each in objects)
    return [Table(name, name, headed(*objects[0]), rows)] if objects else []


def _as_cell(value: object) -> object:
    """Return a value of JSON as a cell: a path in one text, yes or no."""
    if isinstance(value, list):
        return label(tuple(value)) if value else ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


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
        for measure in get_args(Measure)
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
    accounting = [
        f"{name}: {line}"
        for name, report in (("A", comparison.a), ("B", comparison.b))
        if report.totals.outside_ns or report.totals.ambiguous_ns
        for line in headings.accounting_of(report)
    ]
    document = headings.document(comparison.a.provenance, heading, tables, accounting, notes(comparison))
    return replace(document, heading=answer(comparison).sentence, verdict=f"{heading}{_launched(comparison)}")


def _launched(comparison: Comparison) -> str:
    """Return how much of each kind of work a step launches on both sides, which no noise changes."""
    launched = []
    for kind, names in headings.KINDS_OF_WORK.items():
        counts = [
            sum(row.count for row in report.kernels if row.kind == kind) for report in (comparison.a, comparison.b)
        ]
        texts = dict.fromkeys(count_text(round(count, 1)) for count in counts)
        if any(counts):
            launched.append(f"{' → '.join(texts)} {names[counts != [1, 1]]}")
    told = f". Launched {scope(comparison)}: {', '.join(launched)}." if launched else ""
    return headings.worded(told, comparison.a.provenance)


class _Drawing:
    """Draws the axes of one comparison as text."""

    def __init__(self, comparison: Comparison, detail: Detail) -> None:
        self.comparison, self.detail = comparison, detail
        self.naming = comparison.naming(every_index=detail.every_index)
        a = comparison.a
        self.what = f"All {headings.work(a)}" if comparison.all_work else headings.kernel_time(a)

    def account(self) -> list[Table]:
        """Show what a step spends more or less time on, the largest changes first, which add up; [] if unknown."""
        changes = states(self.comparison)
        if not changes:
            return []
        of_all = sum(abs(row.change.delta_ns) for row in changes)
        large = [row for row in changes if abs(row.change.delta_ns) >= SMALL * of_all][:MOST_STATES] or changes
        small, has_marks = changes[len(large) :], self.comparison.steps.are_known
        rows = [Row((*self.state(row), *_times(row.change), *self.mark(row.change), _place(row))) for row in large]
        nothing = ("",) * (has_marks + 1)
        if small:
            names = ("", f"{len(small)} others") if len(small) > 1 else self.state(small[0])
            rows.append(Row((*names, *_times(_added(row.change for row in small)), *nothing)))
        whole, recorded = ("a step", "step") if self.comparison.per_step else ("all", "time")
        rows.append(Row((whole, "", *_times(_added(row.change for row in changes)), *nothing), strong=True))
        columns = (
            *headed(kind="", what=""),
            *NUMBERS[:4],
            *(WITHIN if has_marks else ()),
            *headed(place="most in"),
        )
        caption = "% is of A's time." + (_legend(row.change for row in large) if has_marks else "")
        title = f"Where the recorded {recorded} changed, {{unit}}"
        return [_with_multiples(Table("account", title, columns, tuple(rows), caption))]

    def state(self, row: StateChange) -> tuple[str, str]:
        """Return the name of a state in two columns."""
        kind = row.state[0]
        called = OUTSIDE if self.comparison.on_cpu and kind == IDLE else CALLED[kind]
        return called, detail_of(row.state)

    def ranked(self, axis: Axis) -> Table:
        """Rank one axis by the size of the difference; what is cut and the total are rows too."""
        changed = [row for row in changes(self.comparison, axis, self.naming) if row.a_count or row.b_count]
        top = self.detail.top if axis in ("range", "kernel") else len(changed)
        top_rows, cut = changed[:top], changed[top:]
        names = self.names(axis, changed, top_rows)
        rows = [Row((names(row.key), *_numbers(row), *self.mark(row))) for row in top_rows]
        if cut:
            more = f"… {len(cut)} more: --top {len(changed)}"
            rows.append(Row((more, *_numbers(_added(cut)), *self.mark(Change(())))))
        total = self.comparison.total()
        rows.append(Row((self.comparison.whole, *_numbers(total), *self.mark(total)), strong=True))
        columns = (Column(axis, axis, "name"), *NUMBERS)
        states = [row.state for row in changed]
        only = ", ".join(f"{states.count(state)} {words}" for state, words in STATES.items() if state in states)
        caption = "% is of A's time." + (f" {only}." if only else "")
        if self.comparison.steps.are_known:
            columns += WITHIN
            caption += _legend([*top_rows, total])
        return self.table(axis, OF_AXIS[axis], columns, rows, caption)

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


def _place(row: StateChange) -> str:
    """Return where most of some idle time is."""
    return fit(row.cause.function or label(row.cause.path, 1), LONGEST_PLACE) if row.cause else ""


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
        "account": account_as_objects(comparison),
        "notes": list(notes(comparison)),
        "total": numbers(comparison.total()),
        "by": {axis: [of_axis(axis, row) for row in changes(comparison, axis)] for axis in get_args(Axis)},
        "rules": rules,
    }


def account_as_objects(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the rows of the account with their places; times in ns per step, or of all that was recorded."""
    rows = []
    for row in states(comparison):
        kind, detail = row.state
        place = {
            "path": list(row.cause.path) if row.cause else [],
            "after": row.cause.after if row.cause else "",
            "function": row.cause.function if row.cause else "",
        }
        rows.append(
            {"kind": kind, "what": detail, **{key: getattr(row.change, key) for key in JSON_TIMES}, **place}
        )
    return rows
