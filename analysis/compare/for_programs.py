"""What changed from one report to another, for programs: the JSON of docs/compare.md, and its rows as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from ..document import Row, Table, headed
from ..report import as_object as report_object
from ..views.rows import label
from .answer import answer
from .change import Change
from .changes import Axis, Comparison, notes
from .rules import Verdict
from .sides import Measure

TIMES = ("a_ns", "b_ns", "delta_ns", "change")
COUNTS = ("a_count", "b_count")
SPREADS = ("a_spread_ns", "b_spread_ns", "within_spread")
#: What JSON has of every change, and of those that are no rule's.
JSON_TIMES = (*TIMES, *SPREADS, "verdict")
JSON_NUMBERS = (*JSON_TIMES, *COUNTS, "state")
#: What the rows of tables have, and those of ranges also of all that lies inside.
IN_TABLES = (*TIMES, *COUNTS, *SPREADS, "state", "verdict")
INSIDE = ("a_inside_ns", "b_inside_ns", "delta_inside_ns", "change_inside", "a_inside_count", "b_inside_count")


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
        "by": {axis: list(_of_axis(comparison, axis)) for axis in get_args(Axis)},
        "rules": _rules(verdicts, JSON_TIMES),
    }


def tables(comparison: Comparison, verdicts: Sequence[Verdict], by: str | None) -> list[Table]:
    """Return every row along each axis, or along one, then steps, account and rules."""
    axes: list[Axis] = [axis for axis in get_args(Axis) if by in (None, axis)]
    others = {"steps": _steps(comparison), "account": account(comparison), "rules": _rules(verdicts, TIMES)}
    return [
        *(_axis_table(comparison, axis) for axis in axes),
        *(_table(name, tuple(rows[0]), rows) for name, rows in others.items() if rows),
    ]


def account(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the rows of the account with their places; times in ns per step, or of all that was recorded."""
    rows = []
    for row in comparison.account:
        kind, detail = row.key
        cause = row.cause
        rows.append(
            {
                "kind": kind,
                "what": detail,
                **row.figures(JSON_TIMES),
                "path": list(cause.path) if cause else [],
                "after": cause.after if cause else "",
                "function": cause.function if cause else "",
            }
        )
    return rows


def _steps(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the measures of whole steps by kind."""
    rows = []
    for measure in get_args(Measure):
        for kind, row in zip(comparison.steps.kinds, comparison.measured(measure), strict=False):
            a_launches, b_launches = kind.launches
            rows.append(
                {
                    "measure": measure,
                    "a_launches": a_launches,
                    "b_launches": b_launches,
                    **row.figures(TIMES),
                    "a_steps": row.a_count,
                    "b_steps": row.b_count,
                    **row.figures(("spread_share", "verdict")),
                }
            )
    return rows


def _of_axis(comparison: Comparison, axis: Axis) -> Iterator[dict[str, Any]]:
    """Yield the changes along an axis; a range's also with the times inside it."""
    for row in comparison.by[axis]:
        if row.inside:
            inside = {"a_inside_ns": row.inside.a_ns, "b_inside_ns": row.inside.b_ns}
            yield {"path": list(row.key), **row.figures(JSON_NUMBERS), **inside}
        else:
            yield _names(axis, row) | row.figures(JSON_NUMBERS)


def _axis_table(comparison: Comparison, axis: Axis) -> Table:
    """Return the changes along an axis as a table."""
    rows = []
    for row in comparison.by[axis]:
        inside = row.inside.figures((*TIMES, *COUNTS)).values() if row.inside else ()
        rows.append(_names(axis, row) | row.figures(IN_TABLES) | dict(zip(INSIDE, inside, strict=False)))
    category = ("category",) if axis == "kernel" else ()
    return _table(f"by_{axis}", (axis, *category, *IN_TABLES, *(INSIDE if axis == "range" else ())), rows)


def _names(axis: Axis, row: Change) -> dict[str, Any]:
    """Return the names of what a row is of; a range's path in one text."""
    key = (label(row.key),) if axis == "range" else row.key
    return dict(zip((axis, "category"), key, strict=False))


def _rules(verdicts: Sequence[Verdict], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rules' verdicts, with these figures of what each was compared with."""
    rows = []
    for verdict in verdicts:
        names = {"rule": verdict.rule.text, "compared": verdict.compared}
        judged = {"violated": verdict.violated, "only_in": verdict.only_in or None}
        rows.append(names | verdict.change.figures(keys) | judged)
    return rows


def _table(name: str, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = tuple(Row(tuple(_cell(row[key]) for key in keys)) for row in rows)
    return Table(name, name.replace("_", " "), headed(*keys), cells)


def _cell(value: object) -> object:
    """Return a value of JSON as a cell: a path in one text, yes or no."""
    if isinstance(value, list):
        return label(tuple(value)) if value else ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
