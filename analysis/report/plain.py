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


#: The parts of a report that say what it is of, and its tables, in the order in which JSON has them.
ABOUT = (
    "steps", "ranks", "step", "phase_names", "per_step", "warm_up_included", "unmeasured_ns", "warm_up_ns",
    "split_fused",
)  # fmt: skip
TABLES = {"phases": PhaseRow, "ranges": RangeRow, "kernels": KernelRow, "busy": BusyRow}


def as_object(report: Report) -> dict[str, Any]:
    """Return the whole report as JSON can hold it; docs/json.md describes it."""
    provenance = asdict(report.provenance)
    return {
        "report": {
            **{name: value for name, value in provenance.items() if name != "gpus"},
            "gpus": list(report.provenance.gpus),
            **{name: getattr(report, name) for name in ABOUT},
            "phase_names": [list(pair) for pair in report.phase_names],
            "outside": [as_dict(row) for row in report.outside],
            "notes": list(report.notes),
        },
        "totals": as_dict(report.totals),
        **{name: [as_dict(row) for row in getattr(report, name)] for name in TABLES},
    }


def from_object(value: dict[str, Any]) -> Report:
    """Return the report that `as_object` turned into this.

    Raises KeyError or TypeError where it is something else.
    """
    head = dict(value["report"])
    about = {name: head.pop(name) for name in ABOUT}
    about["phase_names"] = tuple((phase, called) for phase, called in about["phase_names"])
    tables: dict[str, Any] = {name: _rows(kind, value[name]) for name, kind in TABLES.items()}
    outside, notes, gpus = head.pop("outside"), head.pop("notes"), head.pop("gpus")
    counted = tuple(head.pop("counted"))
    return Report(
        provenance=Provenance(gpus=tuple(gpus), counted=counted, **head),
        totals=Totals(**value["totals"]),
        outside=_rows(OutsideRow, outside),
        notes=tuple(notes),
        **tables,
        **about,
    )


def _rows(kind: type[Any], rows: list[Any]) -> tuple[Any, ...]:
    """Return rows of a kind, their paths as the tuples they were."""
    return tuple(kind(**({**row, "path": tuple(row["path"])} if "path" in row else row)) for row in rows)
