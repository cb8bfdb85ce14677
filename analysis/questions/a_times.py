"""(a): how long forward and backward take, on the CPU's clock and on the GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..document import Column, Table
from ..measures.agreement import PhaseTimes
from ..support.units import time_text
from ..views.agreement import CPU_RANGE, KERNEL_TIME, RANGES, SHARE, SPAN, cells, columns
from ..vocabulary import BACKWARD, FORWARD
from .figures import Answered
from .sweep import Answer, Sweep, answer_by_phase, led, no_kernels
from .timed import of_run

CAPTION = f"{RANGES} {KERNEL_TIME} {SPAN} {CPU_RANGE} {SHARE}"
#: The columns of the view of agreement that are shown.
KEYS = ("ranges", "kernel_ns", "kernel_share", "span_ns", "span_share", "cpu_ns")
BESIDE = (
    "mean, std: of n steps without a profiler, synchronized; the newest run with the same settings and GPU, and "
    "the most warm-up. % is of that mean."
)
LATE = (
    "The {unit} worked on after {phase} ranges had closed: their CPU range does not measure it. Synchronize "
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
    timed = Answer(())
    if sweep.timed:
        timed = answer_by_phase(sweep, partial(_untimed, sweep), partial(_beside, sweep))
    return Answer((*led(_sentence(sweep), found.tables), *timed.tables), (*found.lacks, *late, *timed.lacks))


def _sentence(sweep: Sweep) -> str:
    """Report how long forward and backward take on both clocks."""
    report = sweep.alone
    of = [(phase, found) for phase in (FORWARD, BACKWARD) if report and (found := _cells(phase, report))]
    said = [
        f"{phase} takes {time_text(cpu)}{sweep.each} on the CPU's clock, {time_text(span)} on the "
        f"{sweep.unit}'s, and has {time_text(kernel)} of kernel time"
        for phase, (_, kernel, _, span, _, cpu) in of
    ]
    return f"(a) {'; '.join(said)}." if said else ""


def _table(sweep: Sweep, phase: str) -> Table:
    known = {column.key: column for column in columns(sweep.span)}
    title = f"(a) {phase}: kernel time, {sweep.span} and CPU range, {{unit}} {sweep.scope}"
    drawn, caption = [known[key] for key in KEYS], CAPTION.format(span=sweep.span)
    return sweep.table(f"a_{phase}", title, drawn, partial(_cells, phase), caption, phase)


def _cells(phase: str, report: Answered) -> tuple[Any, ...] | None:
    times = _times(report, phase)
    return tuple(map(cells(report, times).get, KEYS)) if times else None


def _beside(sweep: Sweep, phase: str) -> Table:
    """Hold the times of one range of a phase against its wall time without a profiler."""
    shown = (
        Column("n", "n", "count"), Column("timed_ns", "mean", "ns"), Column("timed_std_share", "std %", "share"),
        Column("kernel_ns", "kernel time", "ns"), Column("kernel_share", "%", "share"),
        Column("span_ns", sweep.span, "ns"), Column("span_share", "%", "share"),
        Column("cpu_ns", "CPU range", "ns"), Column("cpu_share", "%", "share"),
    )  # fmt: skip
    title = f"(a) {phase} against its wall time without a profiler, {{unit}} for each of its ranges"
    return sweep.table(f"a_{phase}_timed", title, shown, partial(_beside_cells, sweep, phase), BESIDE, phase)


def _beside_cells(sweep: Sweep, phase: str, report: Answered) -> tuple[object, ...] | None:
    times, found = _times(report, phase), of_run(report.provenance.run, sweep.timed, phase)
    if times is None or found is None:
        return None
    each = [time / times.ranges for time in (times.kernel_ns, times.span_ns, times.cpu_ns or 0)]
    return found.n, found.mean_ns, found.std_share, *(cell for ns in each for cell in (ns, ns / found.mean_ns))


def _untimed(sweep: Sweep, report: Answered, phase: str) -> str:
    if not _times(report, phase) or of_run(report.provenance.run, sweep.timed, phase):
        return ""
    return f"No run without a profiler has the settings and the GPU of this {phase}."


def _times(report: Answered, phase: str) -> PhaseTimes | None:
    return next((times for times in report.times if times.name == phase and times.ranges), None)


def _missing(report: Answered, phase: str) -> str:
    if _times(report, phase):
        return ""
    return no_kernels(report, phase) or f"No range opens {phase}: its kernels are known by their thread alone."
