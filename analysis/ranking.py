"""The answer as pandas frames, for notebooks and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from analysis import report as reports
from analysis.attribution import Rules, attribute
from analysis.report import Report, as_dict
from analysis.summary import summarize
from analysis.trace import Trace


@dataclass(frozen=True)
class Ranking:
    """A `Report` whose tables are frames; their columns are the fields of the row classes in `analysis.report`.

    Times are in nanoseconds over all measured steps, or per step if the ranking was made so.
    """

    report: Report

    @cached_property
    def phases(self) -> pd.DataFrame:
        """One row per phase: phase, kernel_ns, kernels, gemm_ns, gemm_kernels, work_ns."""
        return _frame(self.report.phases)

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """One row per path of ranges, outer before inner: path (a list of names), phase, instances and so on."""
        return _frame(self.report.ranges)

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """One row per path and kernel, longest first: path, phase, kind, kernel, category, count and times."""
        return _frame(self.report.kernels)

    @cached_property
    def totals(self) -> pd.Series[Any]:
        """All work and its parts, ns: the parts sum to work_ns."""
        return pd.Series(as_dict(self.report.totals))

    def _repr_html_(self) -> str:
        """Show a notebook the ranges; the kernels are a frame of their own."""
        return str(self.ranges.assign(path=self.ranges["path"].map(" > ".join)).to_html(max_rows=30))


def ranking(
    trace: Trace, *, include_warm_up: bool = False, per_step: bool = False, rules: Rules | None = None
) -> Ranking:
    """Attribute, add up, and divide by the steps if asked to."""
    report = summarize(attribute(trace, rules), include_warm_up=include_warm_up)
    return Ranking(reports.per_step(report) if per_step else report)


def _frame(rows: tuple[Any, ...]) -> pd.DataFrame:
    return pd.DataFrame([as_dict(row) for row in rows])
