"""(a): how long forward and backward take, on the CPU's clock and on the GPU."""

from __future__ import annotations

from functools import partial

from analysis.agreement import PhaseTimes
from analysis.question_parts.answered import Answered
from analysis.question_parts.sweep import Answer, Sweep, answer_by_phase, no_kernels
from analysis.tables import Column, Table
from analysis.views.common import per_step
from analysis.vocabulary import BACKWARD, FORWARD

CAPTION = (
    "ranges: the phase's outermost ranges. kernel time: the sum of their kernels' times. {span}: from the first "
    "start to the last end of their work. CPU range: their own durations, which is what a timer around them sees. "
    "% is of the CPU range."
)
LATE = (
    "The {unit} worked on after {phase} ranges had closed: their CPU range is no measure of it. Synchronize "
    "before the range closes, or read the {unit} span."
)


def answer(sweep: Sweep) -> Answer:
    """Show kernel time, GPU span and CPU range of forward and backward."""
    found = answer_by_phase(sweep, _missing, partial(_table, sweep))
    late = [
        (name, LATE.format(phase=phase, unit=sweep.unit))
        for phase in (FORWARD, BACKWARD)
        for name, report in sweep.named
        if (times := _times(report, phase)) and times.late
    ]
    return Answer(found.tables, (*found.lacks, *late))


def _table(sweep: Sweep, phase: str) -> Table:
    columns = (
        Column("ranges", "ranges", "count"), Column("kernel_ns", "kernel time", "ns"),
        Column("kernel_share", "%", "share"), Column("span_ns", sweep.span, "ns"),
        Column("span_share", "%", "share"), Column("cpu_ns", "CPU range", "ns"),
    )  # fmt: skip
    title = f"(a) {phase}: kernel time, {sweep.span} and CPU range, {{unit}} {sweep.scope}"
    return sweep.table(f"a_{phase}", title, columns, partial(_cells, phase), CAPTION.format(span=sweep.span))


def _cells(phase: str, report: Answered) -> tuple[object, ...] | None:
    times = _times(report, phase)
    if times is None:
        return None
    ranges, kernel_ns, span_ns, cpu_ns = (
        per_step(report, value) for value in (times.ranges, times.kernel_ns, times.span_ns, times.cpu_ns)
    )
    return ranges, kernel_ns, times.kernel_share, span_ns, times.span_share, cpu_ns


def _times(report: Answered, phase: str) -> PhaseTimes | None:
    return next((times for times in report.times if times.name == phase), None)


def _missing(report: Answered, phase: str) -> str:
    if _times(report, phase):
        return ""
    return no_kernels(report, phase) or f"No range opens {phase}: its kernels are known by their thread alone."
