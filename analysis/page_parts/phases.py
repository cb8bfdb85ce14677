"""Kernel time by phase and category."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from analysis.report import Number, Report
from analysis.views import wording


def phases(report: Report) -> dict[str, Any]:
    """Return the phases, the categories (longest first), and ns and launches by category and phase."""
    names = [row.phase for row in report.phases if row.kernels]
    ns: defaultdict[tuple[str, str], Number] = defaultdict(int)
    count: defaultdict[tuple[str, str], Number] = defaultdict(int)
    whole: defaultdict[str, Number] = defaultdict(int)
    for row in report.kernels:
        if row.kind == "kernel":
            ns[row.category, row.phase] += row.total_ns
            count[row.category, row.phase] += row.count
            whole[row.category] += row.total_ns
    categories = sorted(whole, key=lambda category: -whole[category])
    return {
        "phases": names,
        "categories": [wording.category(category) for category in categories],
        "ns": [[ns[category, phase] for phase in names] for category in categories],
        "count": [[count[category, phase] for phase in names] for category in categories],
    }
