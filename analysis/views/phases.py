"""What share of each phase is GEMM, and what is the rest: the overview's first table by itself."""

from __future__ import annotations

from analysis.tables import Document
from analysis.views import wording
from analysis.views.common import require_measured
from analysis.views.everything import by_phase
from analysis.views.overview import phases
from analysis.views.registry import Subject


def view(subject: Subject) -> Document:
    """Show kernel time by phase and category."""
    report = subject.report
    require_measured(report)
    table = by_phase(report) if subject.whole else phases(report)
    return wording.answer(report, [table], report.notes)
