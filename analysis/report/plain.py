"""A report as plain data, which JSON can hold, and back: what `--format json` promises and the cache keeps."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from ..trace import Provenance
from . import BusyRow, KernelRow, OutsideRow, PhaseRow, RangeRow, Report, Totals


def as_dict(row: Any) -> dict[str, Any]:
    """Return a row's columns by name; paths become lists."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def as_object(report: Report) -> dict[str, Any]:
    """Return the whole report as JSON can hold it; docs/json.md describes it."""
    return {
        "report": {
            **{name: value for name, value in asdict(report.provenance).items() if name != "gpus"},
            "gpus": list(report.provenance.gpus),
            "steps": report.steps,
            "ranks": report.ranks,
            "step": report.step,
            "phase_names": [list(pair) for pair in report.phase_names],
            "per_step": report.per_step,
            "warm_up_included": report.warm_up_included,
            "unmeasured_ns": report.unmeasured_ns,
            "warm_up_ns": report.warm_up_ns,
            "outside": [as_dict(row) for row in report.outside],
            "notes": list(report.notes),
        },
        "totals": as_dict(report.totals),
        "phases": [as_dict(row) for row in report.phases],
        "ranges": [as_dict(row) for row in report.ranges],
        "kernels": [as_dict(row) for row in report.kernels],
        "busy": [as_dict(row) for row in report.busy],
    }


_ABOUT = ("steps", "ranks", "step", "per_step", "warm_up_included", "unmeasured_ns", "warm_up_ns")


def from_object(value: dict[str, Any]) -> Report:
    """Return the report that `as_object` turned into this.

    Raises KeyError or TypeError where it is something else.
    """
    head = dict(value["report"])
    about = {name: head.pop(name) for name in _ABOUT}
    outside, notes, gpus = head.pop("outside"), head.pop("notes"), head.pop("gpus")
    phase_names = tuple((phase, called) for phase, called in head.pop("phase_names"))
    return Report(
        provenance=Provenance(gpus=tuple(gpus), **head),
        totals=Totals(**value["totals"]),
        phases=tuple(PhaseRow(**row) for row in value["phases"]),
        ranges=tuple(RangeRow(**{**row, "path": tuple(row["path"])}) for row in value["ranges"]),
        kernels=tuple(KernelRow(**{**row, "path": tuple(row["path"])}) for row in value["kernels"]),
        outside=tuple(OutsideRow(**row) for row in outside),
        busy=tuple(BusyRow(**row) for row in value["busy"]),
        notes=tuple(notes),
        phase_names=phase_names,
        **about,
    )
