"""Read a profile, attribute every piece of GPU work to the ranges that caused it, and rank the kernels.

>>> import analysis
>>> trace = analysis.read("report.sqlite")
>>> analysis.rank(trace).kernels  # a pandas frame
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.attribution import Rules
    from analysis.ranking import Ranking
    from analysis.trace import Trace

__all__ = ["rank", "read"]


def read(path: Path | str) -> Trace:
    """Read a report: an nsys export, a .nsys-rep, a recording of ours, or a PyTorch profiler trace.

    Raises analysis.errors.NotAReport, whose text says what the file is and what to do.
    """
    from analysis.readers import read as read_report  # deferred: `--help` needs no reader

    return read_report(path)


def rank(
    trace: Trace, *, include_warm_up: bool = False, per_step: bool = False, rules: Rules | None = None
) -> Ranking:
    """Attribute the work of a trace to its ranges and rank it.

    Raises analysis.errors.ReportError where `per_step` is asked of a report without step ranges.
    """
    from analysis.ranking import ranking  # deferred: it imports pandas

    return ranking(trace, include_warm_up=include_warm_up, per_step=per_step, rules=rules)
