"""A report as plain data, which JSON can hold, and back: what `--format json` promises and the cache keeps."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from . import BusyRow, KernelRow, PhaseRow, RangeRow, Report


def as_dict(row: Any) -> dict[str, Any]:
    """Return a row's columns by name; paths become lists."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


#: The parts of a report that say what it is of, and its tables, in the order in which JSON has them.
ABOUT = (
    "steps",
    "ranks",
    "step",
    "phase_names",
    "per_step",
    "warm_up_included",
    "unmeasured_ns",
    "warm_up_ns",
)
TABLES = {"phases": PhaseRow, "ranges": RangeRow, "kernels": KernelRow, "busy": BusyRow}


def as_object(report: Report) -> dict[str, Any]:
    """Return the whole report as JSON can hold it; docs/json.md describes it."""
    provenance = asdict(report.provenance)
    return {
        "report": {
            **{name: value for name, value in provenance.items() if name not in ("gpus", "attributes")},
            "writes": {},  # as is `split_fused`, of an earlier version
            "gpus": list(report.provenance.gpus),
            **{name: getattr(report, name) for name in ABOUT},
            "split_fused": False,
            "phase_names": [list(pair) for pair in report.phase_names],
            "outside": [as_dict(row) for row in report.outside],
            "notes": list(report.notes),
        },
        "totals": as_dict(report.totals),
        **{name: [as_dict(row) for row in getattr(report, name)] for name in TABLES},
    }
