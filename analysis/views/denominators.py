"""Of what the shares of a ranking are."""

from __future__ import annotations

from math import isclose

from analysis.report import Report
from analysis.views import graphs
from analysis.vocabulary import OTHER

#: What --range leaves of a denominator.
IN_THOSE_RANGES = " in the ranges asked for"


def kernels(report: Report, time: str = "kernel time") -> str:
    """Say of what the shares are: of all phases or the one there is, and there of all ranges or some."""
    alone = len(report.phases) == 1 and report.phases[0].phase != OTHER
    whole = f"the {report.phases[0].phase} phase's {time}" if alone else f"all {time}"
    return whole + IN_THOSE_RANGES if is_of_ranges(report) else whole


def with_graphs(report: Report) -> str:
    """Say of what the shares are where graphs that ran whole count too."""
    return kernels(report, graphs.counted_time(report))


def is_of_ranges(report: Report) -> bool:
    """Tell whether the work is that of some ranges only; the phases stay those of the whole report."""
    return not isclose(sum(row.total_ns for row in report.kernels), sum(row.work_ns for row in report.phases))
