"""Everything on a page, of bounded size however many kernels the reports hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.attribution import Attribution
from analysis.errors import ReportError
from analysis.kernel_names import fit
from analysis.page_parts.differences import differences
from analysis.page_parts.facts import LONGEST_FACT, facts, scope
from analysis.page_parts.icicle import icicle
from analysis.page_parts.kernel_rows import kernel_rows
from analysis.page_parts.phases import phases
from analysis.page_parts.steps import steps
from analysis.report import Report
from analysis.selection import with_indices_collapsed
from analysis.units import time_unit
from analysis.views import graphs


@dataclass(frozen=True, slots=True)
class Contents:
    """A page: one dictionary of plain data per report, and per report after the first its differences to it.

    `on_cpu` says that all reports are of a CPU, whose operators are called.
    """

    title: str
    reports: tuple[dict[str, Any], ...]
    differences: tuple[dict[str, Any], ...]
    on_cpu: bool = False


def contents(answers: Sequence[tuple[Attribution, Report]]) -> Contents:
    """Put together the page of one or more reports (not yet divided by their steps)."""
    reports = [report for _, report in answers]
    return Contents(
        title=" and ".join(dict.fromkeys(fit(report.provenance.file, LONGEST_FACT) for report in reports)),
        reports=tuple(_report(attribution, report) for attribution, report in answers),
        differences=tuple(_differences(reports[0], report) for report in reports[1:]),
        on_cpu=all(report.provenance.unit_of_work == "CPU" for report in reports),
    )


def _report(attribution: Attribution, report: Report) -> dict[str, Any]:
    """Draw one report; graphs that ran whole count among the kernels that they hide."""
    counted = graphs.counted(report)
    together = with_indices_collapsed(counted)
    per = report.steps or 1
    whole = sum(row.kernel_ns for row in counted.phases)
    unit = time_unit([time / per for time in (whole, *(row.inclusive_ns for row in together.ranges))])
    icicles = {"together": icicle(together)}
    if len(together.ranges) < len(report.ranges):
        icicles["apart"] = icicle(counted)
    if counted is not report:
        attribution = graphs.counted_work(attribution)
    return {
        "scope": scope(report),
        "per": per,
        "unit": {"ns": unit.ns, "name": unit.name, "decimals": unit.decimals},
        "facts": facts(report),
        "phases": phases(counted),
        "icicles": icicles,
        "kernels": kernel_rows(together),
        "steps": steps(attribution, report),
    }


def _differences(a: Report, b: Report) -> dict[str, Any]:
    """Compare two reports; two that cannot be compared say why instead."""
    try:
        return differences(a, b)
    except ReportError as error:
        return {"refused": str(error)}
