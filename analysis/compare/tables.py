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
from ..views.rows import NOWHERE, common_length, count_of, label
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
        change = verdict.change
        times = change.a_ns, change.b_ns, change.delta_ns, _change_text(change.change)
        rows.append(Row((verdict.rule.text, *times, word), strong=verdict.violated))
        compared = verdict.compared
        if verdict.only_in:
            compared += f", only in {verdict.only_in}"
        if verdict.rule.beyond_spread and change.verdict == "same":
            compared += ", may be noise"
        rows.append(Row((compared, *[""] * 5), indent=1))
    if not rows:
        return ()
    violated = sum(verdict.violated for verdict in verdicts)
    title = f"Rules: {violated} of {len(verdicts)} violated, {{unit}} {scope(comparison)}"
    columns = (*headed("rule"), *NUMBERS[:4], *headed("verdict"))
    return (_with_multiples(Table("rules", title, columns, tuple(rows))),)


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
    objects = []
    for measure in get_args(Measure):
        for kind in comparison.measured(measure):
            a_launches, b_launches = kind.launches
            objects.append(
                {
                    "measure": measure,
                    "a_launches": a_launches,
                    "b_launches": b_launches,
                    "a_ns": kind.a_ns,
                    "b_ns": kind.b_ns,
                    "delta_ns": kind.b_ns - kind.a_ns,
                    "change": kind.change,
                    "a_steps": kind.a_steps,
                    "b_steps": kind.b_steps,
                    "spread_share": kind.spread,
                    "verdict": kind.verdict,
                }
            )
    return objects


def _whole_rules(verdicts: Sequence[Verdict]) -> tuple[Table, ...]:
    """Return the verdicts for programs: one row each."""
    rows = []
    for verdict in verdicts:
        times = _times(verdict.change, words=False)
        violated = "yes" if verdict.violated else "no"
        rows.append(Row((verdict.rule.text, verdict.compared, *times, violated, verdict.only_in)))
    columns = (Column("rule", "rule"), *headed("compared"), *NUMBERS[:4], *headed("violated", only_in="only in"))
    return (Table("rules", "rules", columns, tuple(rows)),) if rows else ()


def scope(comparison: Comparison) -> str:
    """Return the unit of both sides, such as `per step`."""
    if comparison.per_step:
        return "per step"
    scope_a, scope_b = map(headings.scope, comparison.reports)
    return scope_a if scope_a == scope_b else f"A {scope_a}, B {scope_b}"


def _document(comparison: Comparison, tables: tuple[Table, ...]) -> Document:
    """Describe each report, and once what both have in common, above the tables."""
    facts = [headings.facts(report) for report in comparison.reports]
    common = headings.common([names for _file, *names in facts])
    sides = []
    for name, (file, *others) in zip("AB", facts, strict=True):
        differing = [fact for fact in others if fact not in common]
        sides.append(f"{name}: {' · '.join([file, *differing])}")
    heading = " → ".join(sides)
    if common:
        heading += f" — both: {' · '.join(common)}"
    accounting: list[str] = []
    for name, report in zip("AB", comparison.reports, strict=True):
        if report.totals.outside_ns or report.totals.ambiguous_ns:
            accounting += (f"{name}: {line}" for line in headings.accounting_of(report))
    document = headings.document(comparison.a.provenance, heading, tables, accounting, notes(comparison))
    return replace(document, heading=answer(comparison).sentence, verdict=f"{heading}{_launched(comparison)}")


def _launched(comparison: Comparison) -> str:
    """Return how much of each kind of work a step launches on both sides, which no noise changes."""
    launched = []
    for kind, names in headings.KINDS_OF_WORK.items():
        counts = [count_of(row for row in report.kernels if row.kind == kind) for report in comparison.reports]
        texts = dict.fromkeys(count_text(round(count, 1)) for count in counts)
        if any(counts):
            launched.append(f"{' → '.join(texts)} {names[counts != [1, 1]]}")
    if not launched:
        return ""
    sentence = f". Launched {scope(comparison)}: {', '.join(launched)}."
    return headings.worded(sentence, comparison.a.provenance)


class _Drawing:
    """Draws the axes of one comparison as text."""

    def __init__(self, comparison: Comparison, detail: Detail) -> None:
        self.comparison = comparison
        self.detail = detail
        self.naming = comparison.naming(every_index=detail.every_index)
        self.has_marks = comparison.steps.are_known
        self.what = headings.kernel_time(comparison.a)
        if comparison.all_work:
            self.what = f"All {headings.work(comparison.a)}"

    def account(self) -> list[Table]:
        """Show what a step spends more or less time on, the largest changes first, which add up; [] if unknown."""
        changes = states(self.comparison)
        if not changes:
            return []
        all_ns = sum(abs(row.change.delta_ns) for row in changes)
        large = [row for row in changes if abs(row.change.delta_ns) >= SMALL * all_ns]
        top_rows = large[:MOST_STATES] or changes
        cut = changes[len(top_rows) :]
        lines = [(self.state(row), row.change, _place(row)) for row in top_rows]
        if cut:
            names = ("", f"{len(cut)} others") if len(cut) > 1 else self.state(cut[0])
            lines.append((names, _added(row.change for row in cut), ""))
        step, recorded = ("a step", "step") if self.comparison.per_step else ("all", "time")
        lines.append(((step, ""), _added(row.change for row in changes), ""))
        rows = [Row((*names, *_times(row), *self.mark(row), place)) for names, row, place in lines]
        rows[-1] = replace(rows[-1], strong=True)
        columns = (*headed(kind="", what=""), *NUMBERS[:4], *self.within, *headed(place="most in"))
        caption = f"% is of A's time.{self.legend(row.change for row in top_rows)}"
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
        top_rows = changed[:top]
        cut = changed[top:]
        names = self.names(axis, changed, top_rows)
        lines: list[tuple[str, Change]] = [(names(row.key), row) for row in top_rows]
        if cut:
            lines.append((f"… {len(cut)} more: --top {len(changed)}", _added(cut)))
        total = self.comparison.total()
        lines.append((self.comparison.whole, total))
        rows = [Row((name, *_numbers(row), *self.mark(row))) for name, row in lines]
        rows[-1] = replace(rows[-1], strong=True)
        columns = (Column(axis, axis, "name"), *NUMBERS, *self.within)
        states = [row.state for row in changed]
        only = ", ".join(f"{states.count(state)} {words}" for state, words in STATES.items() if state in states)
        caption = "% is of A's time."
        if only:
            caption += f" {only}."
        caption += self.legend([*top_rows, total])
        return self.table(axis, OF_AXIS[axis], columns, rows, caption)

    @property
    def within(self) -> tuple[Column, ...]:
        """The column of marks, where steps can tell."""
        return WITHIN if self.has_marks else ()

    def mark(self, row: Change) -> tuple[object, ...]:
        """Return the mark of a change that may be noise."""
        return (MARKS[row.verdict],) if self.has_marks else ()

    def legend(self, rows: Iterable[Change]) -> str:
        """Explain the marks that rows have."""
        verdicts = {row.verdict for row in rows} if self.has_marks else set()
        return "".join(text for verdict, text in WITHIN_STEPS.items() if verdict in verdicts)

    def tree(self) -> Table:
        """Show all ranges as a tree, with what was launched at any depth and the part launched directly."""
        changed = changes(self.comparison, "range", self.naming)
        sizes = []
        for row in changed:
            inside = row.inside or row
            sizes.append((row.key, (max(inside.a_ns, inside.b_ns),)))
        order = tree_order(sizes)
        in_ranges = sorted((row for row in changed if row.key), key=lambda row: order(row.key))
        lines = [(row.key[-1], row, len(row.key) - 1) for row in in_ranges]
        lines += [(NOWHERE, row, 0) for row in changed if not row.key]
        lines.append((self.comparison.whole, self.comparison.total(), 0))
        rows = []
        for name, row, indent in lines:
            inside = row.inside or row
            rows.append(Row((name, *_numbers(inside), row.delta_ns, *self.mark(inside)), indent))
        rows[-1] = replace(rows[-1], strong=True)
        columns = (*headed("range"), *INSIDE, *headed(delta_ns="own B−A"), *self.within)
        caption = "% is of A's time. own: in no inner range, which sums to the total."
        caption += self.legend(row.inside or row for row in changed)
        return self.table("range", OF_TREE, columns, rows, caption)

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


def _whole_axis(comparison: Comparison, axis: Axis) -> Table:
    """Return all of an axis with keys in full."""
    columns = (Column(axis, axis, "name"), *(headed("category") if axis == "kernel" else ()), *NUMBERS)
    columns += headed(a_spread_ns="spread A", b_spread_ns="spread B", within_spread="within spread", state="state")
    columns += headed("verdict")
    columns += INSIDE if axis == "range" else ()
    within = {True: "yes", False: "no", None: None}
    rows = []
    for row in changes(comparison, axis):
        key = (label(row.key),) if axis == "range" else row.key
        spreads = row.a_spread_ns, row.b_spread_ns, within[row.within_spread]
        inside = _numbers(row.inside, words=False) if row.inside else ()
        rows.append(Row((*key, *_numbers(row, words=False), *spreads, row.state, row.verdict, *inside)))
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
    """Add up changes; whether a sum is noise is not asked."""
    rows = list(rows)
    sums = {name: sum(getattr(row, name) for row in rows) for name in ("a_ns", "b_ns", "a_count", "b_count")}
    return Change((), **sums, judged="differs")


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
        names: dict[str, Any] = dict(zip((axis, "category"), row.key, strict=False))
        return {**names, **numbers(row)}

    by_axis: dict[str, list[dict[str, Any]]] = {}
    for axis in get_args(Axis):
        by_axis[axis] = [of_axis(axis, row) for row in changes(comparison, axis)]
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
        "by": by_axis,
        "rules": rules,
    }


def account_as_objects(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the rows of the account with their places; times in ns per step, or of all that was recorded."""
    rows = []
    for row in states(comparison):
        kind, detail = row.state
        cause = row.cause
        rows.append(
            {
                "kind": kind,
                "what": detail,
                **{key: getattr(row.change, key) for key in JSON_TIMES},
                "path": list(cause.path) if cause else [],
                "after": cause.after if cause else "",
                "function": cause.function if cause else "",
            }
        )
    return rows
