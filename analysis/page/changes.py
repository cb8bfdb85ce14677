"""What changed from one report to another, along every axis."""

from __future__ import annotations

from typing import Any, get_args

from ..compare.changes import Axis, Change, Comparison, changes, compare, notes
from ..compare.tables import fusions, scope
from ..report import Report
from ..support.text import fit
from ..support.units import count_text, share_text, time_text
from ..views import headings
from ..views.headings import category, worded
from ..views.rows import label
from ..vocabulary import OTHER
from .icicle import LONGEST_KERNEL, LONGEST_RANGE, common_path, kernel_texts
from .sections import as_table

MAX_ROWS = 400


def differences(a: Report, b: Report) -> dict[str, Any]:
    """Return both totals as texts, and the largest differences along each axis with the sum of the others."""
    comparison = compare(a, b)
    total = comparison.total()
    return {
        "lead": _lead(comparison),
        "fused": [as_table(table) for table in fusions(comparison)],
        "measured": headings.kernel_time(a),
        "scope": scope(comparison),
        "figures": _figures(total, worded("launches", a.provenance)),
        "notes": [fit(note, LONGEST_KERNEL) for note in notes(comparison)],
        "total": _numbers(total),
        "by": {axis: _axis(comparison, axis) for axis in get_args(Axis)},
    }


def _lead(comparison: Comparison) -> str:
    """Describe what changed in the step, and which phase and category changed most."""
    total = comparison.total()
    scope_text = "A step" if comparison.per_step else "All of it"
    a, b = time_text(total.a_ns), time_text(total.b_ns)
    if not total.delta_ns:
        return f"{scope_text} takes as long in B as in A: {a}."
    change = "" if total.change is None else f", {_signed(share_text(total.change), total.delta_ns)}"
    difference = f"{_signed(time_text(total.delta_ns), total.delta_ns)}{change}"
    most = [
        f"by {axis} {category(row.key[0])} ({_signed(time_text(row.delta_ns), row.delta_ns)})"
        for axis in ("phase", "category")
        for row in [max(changes(comparison, axis), key=lambda row: abs(row.delta_ns))]
        if row.delta_ns and row.key[0] != OTHER
    ]
    parts = f" Most changed {' and '.join(most)}." if most else ""
    return f"{scope_text} takes {b} in B and {a} in A: {difference}.{parts}"


def _signed(text: str, value: float) -> str:
    """Write a difference with its sign."""
    return f"+{text}" if value > 0 else text.replace("-", "−")


def _axis(comparison: Comparison, axis: Axis) -> dict[str, Any]:
    rows = [row for row in changes(comparison, axis, comparison.naming()) if row.a_count or row.b_count]
    drawn_rows, left_out = rows[:MAX_ROWS], rows[MAX_ROWS:]
    names = _texts(axis, drawn_rows)
    return {
        "rows": [
            {"name": name, "detail": detail, **_numbers(row)}
            for (name, detail), row in zip(names, drawn_rows, strict=True)
        ],
        "left_out": {"rows": len(left_out), "delta_ns": sum(row.delta_ns for row in left_out)},
    }


def _texts(axis: Axis, rows: list[Change]) -> list[tuple[str, str]]:
    """Return each row's name, and all of it where that is longer."""
    if axis == "kernel":
        texts = kernel_texts(row.key[0] for row in rows)
        return [texts[row.key[0]] for row in rows]
    if axis == "range":
        above = len(common_path([row.key for row in rows if row.key]))
        return [(fit(label(row.key, above), LONGEST_RANGE), fit(label(row.key), LONGEST_KERNEL)) for row in rows]
    return [(category(row.key[0]), "") for row in rows]


def _numbers(row: Change) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("a_ns", "b_ns", "a_count", "b_count", "state")}


def _figures(total: Change, launches: str) -> list[tuple[str, str, str]]:
    change = "" if total.change is None else f"{_signed(share_text(total.change), total.change)} of A"
    return [
        ("A", time_text(total.a_ns), f"{count_text(round(total.a_count, 1))} {launches}"),
        ("B", time_text(total.b_ns), f"{count_text(round(total.b_count, 1))} {launches}"),
        ("B − A", _signed(time_text(total.delta_ns), total.delta_ns), change),
    ]
