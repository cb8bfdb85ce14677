"""Everything on a page, of bounded size however many kernels the reports hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from statistics import fmean, median, stdev
from typing import Any

from ..attribution.causes import Attribution
from ..attribution.steps import in_measured_steps
from ..document import Detail
from ..errors import ReportError
from ..measures.counts import counts_of
from ..measures.gpu_peaks import Peak, peak_for
from ..measures.steps import RangeSteps, ranges_of
from ..report import Number, Report, added, per_step
from ..summary.selection import naming_of, renamed
from ..support.text import fit
from ..support.units import count_text, share_text, time_text, time_unit
from ..views import graphs, headings
from ..views.headings import worded
from ..views.registry import Subject
from ..views.verdict import verdict
from ..vocabulary import OTHER, step_matcher
from .changes import differences
from .icicle import icicle, kernel_rows, path_texts
from .roofline import counted_rows, roofline
from .sections import sections
from .strip import memory_curve, strip

#: How much of the views is on a page.
DETAIL = Detail(top=10)


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


def _report(attribution: Attribution, whole_report: Report) -> dict[str, Any]:
    """Draw one report; graphs that ran whole count among the kernels that they hide."""
    attribution, report = _counted(attribution, whole_report)
    drawn_report = per_step(whole_report) if report.steps else whole_report
    subject = Subject(drawn_report, attribution, DETAIL)
    counted_ranges = counted_rows(subject)
    parts, look = sections(subject, counted_ranges)
    counted = graphs.counted(report)
    together = renamed(counted)
    per = report.steps or 1
    total_ns = sum(row.kernel_ns for row in counted.phases)
    unit = time_unit([time / per for time in (total_ns, *(row.inclusive_ns for row in together.ranges))])
    icicles = {"together": icicle(together)}
    if len(together.ranges) < len(report.ranges):
        icicles["apart"] = icicle(renamed(counted, naming_of(counted, every_index=True)))
    with_graphs = attribution if counted is report else graphs.counted_work(attribution)
    return {
        "verdict": verdict(drawn_report),
        "look": look,
        "sections": parts,
        "roofline": roofline(counted_ranges, _peak(report)),
        "scope": scope(report),
        "per": per,
        "unit": {"ns": unit.ns, "name": unit.name, "decimals": unit.decimals},
        "facts": facts(report, _accounting(whole_report)),
        "phases": phases(counted),
        "icicles": icicles,
        "strip": strip(attribution, include_warm_up=report.warm_up_included),
        "memory": memory_curve(attribution, include_warm_up=report.warm_up_included),
        "kernels": kernel_rows(together),
        "steps": steps(with_graphs, report),
    }


def _peak(report: Report) -> Peak | None:
    counts = counts_of(report)
    return peak_for(report.provenance.gpus, counts.peaks if counts else {})


def _counted(attribution: Attribution, report: Report) -> tuple[Attribution, Report]:
    """Keep the work in measured steps, of which figures per step are means; all of it where steps hold none."""
    measured = report.measured or report
    if not (report.steps and measured.kernels):
        return attribution, replace(report, steps=0)
    return in_measured_steps(attribution, include_warm_up=report.warm_up_included), measured


def _differences(a: Report, b: Report) -> dict[str, Any]:
    """Compare two reports; two that cannot be compared say why instead."""
    try:
        return differences(a, b)
    except ReportError as error:
        return {"refused": str(error), "lead": "", "fused": []}


LONGEST_FACT = 200


def facts(report: Report, accounting: Sequence[str]) -> dict[str, Any]:
    """Return heading, provenance, accounting and the figures at the top as texts, and the work's parts in ns."""
    return {
        "heading": [fit(part, LONGEST_FACT) for part in headings.facts(report)],
        "measured": _measured(report),
        "time": worded(graphs.counted_time(report), report.provenance),
        "span": headings.span(report),
        "provenance": [(name, fit(str(value), LONGEST_FACT)) for name, value in _provenance(report)],
        "accounting": [worded(line, report.provenance) for line in accounting],
        "parts": [
            (worded(label, report.provenance), getattr(report.totals, key))
            for key, label in headings.PARTS
            if getattr(report.totals, key)
        ],
        "figures": _figures(report),
        "notes": [fit(note, 5 * LONGEST_FACT) for note in report.notes],
    }


def _measured(report: Report) -> str:
    """Name what is measured, as headings do."""
    time = graphs.counted_time(report)
    return f"{time[0].upper()}{time[1:]}" if graphs.of_graphs(report) else headings.kernel_time(report)


def _accounting(report: Report) -> tuple[str, ...]:
    """Return where the work went, per step where the page's figures are."""
    in_steps = report.steps and (report.measured or report).kernels
    return headings.accounting_per_step(report) if in_steps else headings.accounting_of(report)


def scope(report: Report) -> str:
    """Return over what the page's figures are counted: they are means per step where there are steps."""
    return (
        f"per step, mean of {report.steps}" if report.steps > 1 else "in the one step" if report.steps else "total"
    )


def _provenance(report: Report) -> list[tuple[str, object]]:
    source = report.provenance
    facts = [
        ("File", source.file),
        ("GPU", ", ".join(source.gpus)),
        ("Recorded by", source.tool),
        ("Export schema", source.schema),
        ("Unit of work", source.unit_of_work),
        ("Measured steps", report.steps or "none"),
        ("Warm-up", "counted" if report.warm_up_included else "left out"),
        *((f"Run: {key.replace('_', ' ')}", value) for key, value in source.run.items() if not _of_ranges(value)),
    ]
    return [(name, value) for name, value in facts if value not in ("", None, "unknown")]


def _of_ranges(value: object) -> bool:
    """Return whether a run says this of each of its ranges: too much for a list of facts."""
    return isinstance(value, Mapping)


def _figures(report: Report) -> list[tuple[str, str, str]]:
    """Return (label, figure, what it is of) of the whole and of each phase."""
    per = report.steps or 1
    kernels = [row for row in graphs.counted(report).phases if row.kernels]
    total_ns, gemm = sum(row.kernel_ns for row in kernels), sum(row.gemm_ns for row in kernels)
    launches = sum(row.kernels for row in kernels)
    work_name = "kernel and graph" if graphs.of_graphs(report) else "kernel"
    return [
        (_measured(report), time_text(total_ns / per), scope(report)),
        *((row.phase, time_text(row.kernel_ns / per), _of(row.kernel_ns, total_ns)) for row in kernels),
        ("GEMM", share_text(gemm / total_ns if total_ns else 0), f"{time_text(gemm / per)}"),
        (worded(f"{work_name} launches", report.provenance), count_text(round(launches / per, 1)), scope(report)),
    ]


def _of(part: Number, total: Number) -> str:
    return f"{share_text(part / total if total else 0)} of it"


def phases(report: Report) -> dict[str, Any]:
    """Return the phases, the categories (longest first), and ns and launches by category and phase."""
    names = [row.phase for row in report.phases if row.kernels]
    kernels = [row for row in report.kernels if row.kind == "kernel"]
    cells = {(row.category, row.phase): row for row in added(kernels, ("category", "phase"))}
    ranked = sorted(added(kernels, ("category",)), key=lambda row: -row.total_ns)
    categories = [row.category for row in ranked]
    return {
        "phases": names,
        "categories": [headings.category(category) for category in categories],
        **{
            key: [[getattr(cells.get((category, phase)), name, 0) for phase in names] for category in categories]
            for key, name in (("ns", "total_ns"), ("count", "count"))
        },
    }


MAX_RANGES, MAX_VALUES = 150, 30_000


def steps(attribution: Attribution, report: Report) -> dict[str, Any]:
    """Return per range the median, bounds and spread over the steps, and its time in each of them.

    The ranges with the most kernel time come first; `left_out` says how many are not here. Kernel time and GPU
    span of single steps are given for as many ranges as `MAX_VALUES` allows; a null is a step without the range.
    """
    if not report.steps:
        return {"count": 0, "ranges": [], "left_out": 0}
    range_steps = ranges_of(attribution, naming_of(report), include_warm_up=report.warm_up_included)
    ranked = sorted(range_steps, key=lambda range_: -sum(range_.kernel_ns))
    with_values, is_step = MAX_VALUES // report.steps, step_matcher(report.step)
    return {
        "count": report.steps,
        "ranges": [
            _range(range_, report.steps if place < with_values else 0, is_step)
            for place, range_ in enumerate(ranked[:MAX_RANGES])
        ],
        "left_out": max(0, len(ranked) - MAX_RANGES),
    }


def _range(range_steps: RangeSteps, count: int, is_step: Callable[[str], bool]) -> dict[str, Any]:
    """Return a range's statistics, and its times in each of the first `count` steps; a step is called so."""
    stands_for = range_steps.phase == OTHER and is_step(range_steps.path[-1].replace("*", "0"))
    has_span = not any(map(isnan, range_steps.span_ns))
    return {
        "path": path_texts(range_steps.path),
        "phase": "step" if stands_for else range_steps.phase,
        "steps": len(range_steps.steps),
        "slowest": range_steps.slowest,
        "kernel": _statistics(range_steps.kernel_ns),
        "span": _statistics(range_steps.span_ns) if has_span else None,
        "kernel_ns": _in_steps(range_steps, range_steps.kernel_ns, count),
        "span_ns": _in_steps(range_steps, range_steps.span_ns, count),
    }


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """Return median, bounds, mean and sample standard deviation, ns."""
    std = stdev(values) if len(values) > 1 else 0.0
    return {"median": median(values), "min": min(values), "max": max(values), "mean": fmean(values), "std": std}


def _in_steps(range_steps: RangeSteps, values: Sequence[float], count: int) -> list[float | None] | None:
    time_of_step = {step: value for step, value in zip(range_steps.steps, values, strict=True) if not isnan(value)}
    return [time_of_step.get(step) for step in range(count)] or None
