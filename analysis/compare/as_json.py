"""JSON of a comparison, one format: the contract that docs/compare.md describes; times in nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from ..report import plain
from .changes import Axis, Change, Comparison, changes, notes
from .rules import Verdict


def as_object(comparison: Comparison, verdicts: Sequence[Verdict] = ()) -> dict[str, Any]:
    """Return both reports' heads, the total, every row along every axis, and the rules' verdicts."""
    return {
        "a": plain.as_object(comparison.a)["report"],
        "b": plain.as_object(comparison.b)["report"],
        "compared": "work" if comparison.all_work else "kernels",
        "per_step": comparison.per_step,
        "notes": list(notes(comparison)),
        "total": _numbers(comparison.total()),
        "by": {axis: [_row(axis, row) for row in changes(comparison, axis)] for axis in get_args(Axis)},
        "rules": [_verdict(verdict) for verdict in verdicts],
    }


def _row(axis: Axis, row: Change) -> dict[str, Any]:
    if axis == "range":
        inside = {"a_inside_ns": row.a_inside_ns, "b_inside_ns": row.b_inside_ns}
        return {"path": list(row.key), **_numbers(row), **inside}
    return {**dict(zip((axis, "category"), row.key, strict=False)), **_numbers(row)}


def _numbers(row: Change) -> dict[str, Any]:
    return _times(row) | {"a_count": row.a_count, "b_count": row.b_count, "state": row.state}


def _times(row: Change) -> dict[str, Any]:
    return {
        "a_ns": row.a_ns,
        "b_ns": row.b_ns,
        "delta_ns": row.delta_ns,
        "change": row.change,
        "a_spread_ns": row.a_spread_ns,
        "b_spread_ns": row.b_spread_ns,
        "within_spread": row.within_spread,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "rule": verdict.rule.text,
        "compared": verdict.compared,
        **_times(verdict.change),
        "violated": verdict.violated,
        "only_in": verdict.only_in or None,
    }
