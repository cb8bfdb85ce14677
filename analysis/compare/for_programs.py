"""What changed from one report to another, for programs: the JSON of docs/compare.md, and its rows as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, get_args

from ..document import Row, Table, headed
from ..report import as_object as report_object
from ..views.rows import label
from .answer import answer
from .changes import Axis, Comparison, notes
from .rules import Verdict
from .sides import Measure

MEASURES: tuple[Measure, ...] = ("step_ns", "span_ns", "work_ns")
TIMES = ("a_ns", "b_ns", "delta_ns", "change")
COUNTS = ("a_count", "b_count")
SPREADS = ("a_spread_ns", "b_spread_ns", "within_spread")
#: What JSON has of every change, and of those that are no rule's.
JSON_TIMES = (*TIMES, *SPREADS, "verdict")
JSON_NUMBERS = (*JSON_TIMES, *COUNTS, "state")
#: What the rows of tables have, and those of ranges also of all that lies inside.
IN_TABLES = (*TIMES, *COUNTS, *SPREADS, "state", "verdict")
INSIDE = ("a_inside_ns", "b_inside_ns", "delta_inside_ns", "change_inside", "a_inside_count", "b_inside_count")
#: What JSON has of a row along an axis.
IN_JSON = ("phase", "path", "kernel", "category", *JSON_NUMBERS, *INSIDE[:2])
#: Where most of some idle time is.
PLACES = ("path", "after", "function")


Rows: TypeAlias = list[dict[str, Any]]


def as_object(comparison: Comparison, verdicts: Sequence[Verdict] = ()) -> dict[str, Any]:
    """Return both reports' heads, the total, every row along every axis, and the rules' verdicts.

    This is the JSON that docs/compare.md describes; times in nanoseconds.
    """
    return {
        "a": report_object(comparison.a)["report"],
        "b": report_object(comparison.b)["report"],
        "compared": "work" if comparison.all_work else "kernels",
        "per_step": comparison.per_step,
        "answer": answer(comparison).as_object(),
        "recordings": [max(len(side), 1) for side in comparison.steps.sides],
        "steps": _steps(comparison),
        "account": account(comparison),
        "notes": list(notes(comparison)),
        "total": comparison.total.figures(JSON_NUMBERS),
        "by": {axis: list(map(_in_json, _of_axis(comparison, axis))) for axis in get_args(Axis)},
        "rules": _rules(verdicts, JSON_TIMES),
    }


def tables(comparison: Comparison, verdicts: Sequence[Verdict], by: str | None) -> list[Table]:
    """Return every row along each axis, or along one, then steps, account and rules."""
    more = {"kernel": ("category", *IN_TABLES), "range": (*IN_TABLES, *INSIDE)}
    axes: list[Axis] = [axis for axis in get_args(Axis) if by in (None, axis)]
    keys = {axis: (axis, *more.get(axis, IN_TABLES)) for axis in axes}
    tables = [_table(f"by_{axis}", keys[axis], _of_axis(comparison, axis)) for axis in axes]
    others = {"steps": _steps(comparison), "account": account(comparison), "rules": _rules(verdicts, TIMES)}
    return [*tables, *(_table(name, tuple(rows[0]), rows) for name, rows in others.items() if rows)]


def _in_json(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in IN_JSON if key in row}


def account(comparison: Comparison) -> Rows:
    """Return the rows of the account with their places; times in ns per step, or of all that was recorded."""
    rows = []
    for row in comparison.account:
        names = dict(zip(("kind", "what"), row.key, strict=True))
        places = {name: getattr(row.cause, name, "") for name in PLACES}
        rows.append(names | row.figures(JSON_TIMES) | places | {"path": list(places["path"])})
    return rows


def _steps(comparison: Comparison) -> Rows:
    """Return the measures of whole steps by kind."""
    rows = []
    for measure in MEASURES:
        for row, launches in zip(comparison.measured(measure), comparison.measured("launches"), strict=False):
            names = {"measure": measure, "a_launches": launches.a_ns, "b_launches": launches.b_ns}
            steps = {"a_steps": row.a_count, "b_steps": row.b_count}
            rows.append(names | row.figures(TIMES) | steps | row.figures(("spread_share", "verdict")))
    return rows


def _of_axis(comparison: Comparison, axis: Axis) -> Rows:
    """Return the changes along an axis; a range's also with its path and the figures of all that lies inside."""
    rows = []
    for row in comparison.by[axis]:
        if row.inside:
            inside = dict(zip(INSIDE, row.inside.figures((*TIMES, *COUNTS)).values(), strict=True))
            names = {"range": label(row.key), "path": list(row.key)} | inside
        else:
            names = dict(zip((axis, "category"), row.key, strict=False))
        rows.append(names | row.figures(IN_TABLES))
    return rows


def _rules(verdicts: Sequence[Verdict], keys: Sequence[str]) -> Rows:
    """Return the rules' verdicts, with these figures of what each was compared with."""
    rows = []
    for verdict in verdicts:
        names = {"rule": verdict.rule.text, "compared": verdict.compared}
        judged = {"violated": verdict.violated, "only_in": verdict.only_in or None}
        rows.append(names | verdict.change.figures(keys) | judged)
    return rows


def _table(name: str, keys: Sequence[str], rows: Rows) -> Table:
    cells = tuple(Row(tuple(_cell(row[key]) for key in keys)) for row in rows)
    return Table(name, name.replace("_", " "), headed(*keys), cells)


def _cell(value: object) -> object:
    """Return a value of JSON as a cell: a path in one text, yes or no."""
    if isinstance(value, list):
        return label(tuple(value)) if value else ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
