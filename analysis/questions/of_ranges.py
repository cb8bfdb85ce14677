"""The questions of ranges: (a) how long forward and backward take, (e) softmax against attention's GEMMs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median

from ..document import Table, headed
from ..measures.agreement import PhaseTimes
from ..measures.attention_parts import MATMULS, SOFTMAX, Part, fused_of
from ..support.units import digits_text, time_in_digits
from ..views import agreement, attention
from ..vocabulary import BACKWARD, FORWARD, OTHER
from . import timed
from .sweep import Answer, Answered, Cells, Sweep, by_phase, lacking, led, no_kernels

# (a): how long forward and backward take, on the CPU's clock and on the GPU.

#: The columns of the view of agreement that the table has.
TIMES = ("ranges", "kernel_ns", "kernel_share", "span_ns", "span_share", "cpu_ns")
TIMES_CAPTION = "CPU range: what a timer around the phase sees. % is of it."
TIMED_CAPTION = "median, min, max: of n steps without a profiler, with the same settings. % is of the median."
LATE = (
    "The {unit} worked on after {phase} ranges had closed, so their CPU range does not measure it. Read the "
    "{unit} span, or synchronize before the range closes."
)


def times(sweep: Sweep) -> Answer:
    """Show kernel time, GPU span and CPU range of forward and backward, also against times without a profiler."""

    def missing(report: Answered, phase: str) -> str:
        known = "by autograd's numbers" if phase == FORWARD else "by their thread"
        unopened = f"No range opens {phase}: its kernels are known {known} alone."
        return "" if _times(report, phase) else no_kernels(report, phase) or unopened

    def cells(phase: str, report: Answered) -> Cells:
        phase_times = _times(report, phase)
        return agreement.cells(report, phase_times) if phase_times else {}

    def table(phase: str) -> Table:
        columns = {column.key: column for column in agreement.columns(sweep.span)}
        title = f"(a) {phase}: kernel time, {sweep.span} and CPU range, {{unit}} {sweep.scope}"
        caption = TIMES_CAPTION.format(span=sweep.span)
        return sweep.table(
            f"a_{phase}", title, [columns[key] for key in TIMES], partial(cells, phase), caption, phase
        )

    def late(report: Answered, phase: str) -> str:
        phase_times = _times(report, phase)
        return LATE.format(phase=phase, unit=sweep.unit) if phase_times and phase_times.late else ""

    def missing_run(report: Answered, phase: str) -> str:
        if not _times(report, phase) or timed.of_run(report.provenance.run, sweep.timed, phase):
            return ""
        return f"No run without a profiler has the settings and the GPU of this {phase}."

    sentences = []
    for phase in (FORWARD, BACKWARD):
        if sweep.alone and (of_phase := cells(phase, sweep.alone)):
            # A recording of a CPU has one clock, so the work's span on it says nothing new.
            span = f"{time_in_digits(of_phase['span_ns'])} on the GPU's, and" if sweep.unit == "GPU" else "and"
            sentences.append(
                f"{phase} takes {time_in_digits(of_phase['cpu_ns'])}{sweep.each} on the CPU's clock, {span} has "
                f"{time_in_digits(of_phase['kernel_ns'])} of kernel time"
            )
    answer = by_phase(sweep, missing, table)
    against = by_phase(sweep, missing_run, partial(_against_timed, sweep)) if sweep.timed else Answer(())
    lead = f"{'; '.join(sentences)}." if sentences else ""
    lacks = (*answer.lacks, *lacking(sweep, late, (FORWARD, BACKWARD)), *against.lacks)
    return Answer((*led(lead, answer.tables), *against.tables), lacks)


def _times(report: Answered, phase: str) -> PhaseTimes | None:
    return next((times for times in report.times if times.name == phase and times.ranges), None)


def _against_timed(sweep: Sweep, phase: str) -> Table:
    """Compare the times of one range of a phase to its wall time without a profiler."""

    def cells(report: Answered) -> Cells:
        phase_times, timed_ns = _times(report, phase), timed.of_run(report.provenance.run, sweep.timed, phase)
        if phase_times is None or not timed_ns:
            return {}
        median_ns, of_one_ns = median(timed_ns), phase_times.of_one_ns
        return {
            "n": len(timed_ns),
            "timed_ns": median_ns,
            "timed_min_ns": min(timed_ns),
            "timed_max_ns": max(timed_ns),
            **of_one_ns,
            **{key.replace("_ns", "_share"): time_ns / median_ns for key, time_ns in of_one_ns.items()},
        }

    columns = headed("n", timed_ns="median", timed_min_ns="min", timed_max_ns="max")
    columns += headed(kernel_ns="kernel time", kernel_share="%", span_ns=sweep.span, span_share="%")
    columns += headed(cpu_ns="CPU range", cpu_share="%")
    title = f"(a) {phase} against its wall time without a profiler, {{unit}} for each of its ranges"
    return sweep.table(f"a_{phase}_timed", title, columns, cells, TIMED_CAPTION, phase)


# (e): softmax against the matrix products of attention, in time and in FLOPs.

SOFTMAX_CAPTION = "GEMMs: the matrix products of the scores and of the final matmul."


def softmax(sweep: Sweep) -> Answer:
    """Show softmax against the GEMMs of scores and final matmul, and both ratios.

    Phases in which any report has a part are in it; what a report lacks of one is a dash.
    """
    compared = {
        part.phase for report in sweep.counted for part in report.parts if part.name in (SOFTMAX, *MATMULS)
    }
    drawn = [phase for phase in (FORWARD, BACKWARD, OTHER) if phase in compared]
    tables = led(_softmax_sentence(sweep), [_softmax_table(sweep, phase) for phase in drawn])
    phases = (FORWARD, BACKWARD) if drawn else ()
    expected = [phase for phase in phases if not all(no_kernels(report, phase) for report in sweep.counted)]
    lacks = list(lacking(sweep, _no_parts, expected or [FORWARD]))
    for name, report in sweep.named:
        lacks += ((name, reason) for reason in attention.why_no_flops(report, report.parts))
    return Answer(tables, tuple(lacks))


def _softmax_sentence(sweep: Sweep) -> str:
    """Hold softmax against the GEMMs, in time and in FLOPs, in the first phase that has both."""
    if sweep.alone is None:
        return ""
    for phase in (FORWARD, BACKWARD, OTHER):
        if values := attention.ratio(_parts(sweep.alone, phase)):
            to_gemms, flops = values["softmax_to_gemms"], values["flops_ratio"]
            factor = f"{digits_text(to_gemms, 3)} times the" if to_gemms else "against"
            that_do = f", which do {digits_text(flops, 3)} times its FLOPs" if flops else ""
            where = "Outside all phases" if phase == OTHER else f"In {phase}"
            return (
                f"{where}, softmax takes {time_in_digits(values['softmax_ns'])}{sweep.each}, {factor} "
                f"{time_in_digits(values['gemm_ns'])} of attention's GEMMs{that_do}."
            )
    return ""


def _parts(report: Answered, phase: str) -> Mapping[str, Part]:
    return {part.name: part for part in report.parts if part.phase == phase}


def _no_parts(report: Answered, phase: str) -> str:
    """Return the reason that a phase's softmax cannot be compared with its GEMMs, or "" if it can."""
    parts = _parts(report, phase)
    if attention.ratio(parts):
        return ""
    if not report.parts:
        unnamed = attention.ELSEWHERE if report.names_attention else attention.NONE
        return attention.IS_FUSED if fused_of(report) else unnamed
    *absent, last = (name for name in (SOFTMAX, *MATMULS) if name not in parts)
    names = f"{', '.join(absent)} or {last}" if absent else last
    return no_kernels(report, phase) or attention.no_work(phase, f"a range of {names}")


def _softmax_table(sweep: Sweep, phase: str) -> Table:
    def cells(report: Answered) -> Cells:
        parts = _parts(report, phase)
        gemms = zip(("scores_gemm_ns", "final_gemm_ns"), MATMULS, strict=True)
        values = {key: parts[name].gemm_ns for key, name in gemms if name in parts} | attention.ratio(parts)
        return values | ({"softmax_ns": parts[SOFTMAX].kernel_ns} if SOFTMAX in parts else {})

    ratios = [attention.ratio(_parts(report, phase)) for report in sweep.counted]
    has_flops = any(of_report.get("flops_ratio") is not None for of_report in ratios)
    columns = headed(softmax_ns="softmax", scores_gemm_ns="scores GEMMs", final_gemm_ns="final GEMMs")
    columns += headed(gemm_ns="both GEMMs", softmax_to_gemms="softmax / GEMMs")
    columns += headed(flops_ratio="FLOPs GEMMs / softmax") if has_flops else ()
    where = "no phase" if phase == OTHER else phase
    title = f"(e) {where}: softmax against attention's GEMMs, {{unit}} {sweep.scope}"
    return sweep.table(f"e_{phase}", title, columns, cells, SOFTMAX_CAPTION, phase)
