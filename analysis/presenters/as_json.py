"""JSON: the contract that docs/json.md describes; all times in integer nanoseconds unless per step."""

from __future__ import annotations

import json

from analysis.report import Report, as_object


def present(report: Report) -> str:
    """Write a whole report as one object."""
    return json.dumps(as_object(report), indent=1, ensure_ascii=False) + "\n"
