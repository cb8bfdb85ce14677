"""JSON: the contract that docs/json.md describes; all times in integer nanoseconds unless per step."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from analysis.report import Report, as_dict


def present(report: Report) -> str:
    """Write a whole report as one object."""
    return json.dumps(as_object(report), indent=1, ensure_ascii=False) + "\n"


def as_object(report: Report) -> dict[str, Any]:
    """Return the object that is written: report, totals, phases, ranges, kernels."""
    return {
        "report": {
            **asdict(report.provenance),
            "gpus": list(report.provenance.gpus),
            "steps": report.steps,
            "per_step": report.per_step,
            "warm_up_included": report.warm_up_included,
            "outside": [as_dict(row) for row in report.outside],
            "notes": list(report.notes),
        },
        "totals": as_dict(report.totals),
        "phases": [as_dict(row) for row in report.phases],
        "ranges": [as_dict(row) for row in report.ranges],
        "kernels": [as_dict(row) for row in report.kernels],
    }
