"""The answer in two or three sentences: where a step's time goes, how busy the GPU is, and what waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..report import BusyRow, Number, Report
from ..support.units import count_text, time_text
from ..vocabulary import OTHER, PHASES
from . import graphs, headings

#: What is measured in addition to phases, and its name in a sentence.
WHOLE = {"step": "the step", "all work": "the time"}
#: What is said of phases by what bounds them: of one, and of several.
BOUNDS = {
    "launch-bound": ("waits for launches", "wait for launches"),
    "copy-bound": ("is busy with copies", "are busy with copies"),
    "communication-bound": ("is busy with communication", "are busy with communication"),
}
NO_PHASE = "work in no phase"


def verdict(report: Report) -> str:
    """Return the sentences; empty if no kernel ran."""
    counted = graphs.counted(report)
    whole = sum(row.total_ns for row in counted.kernels if row.kind == "kernel")
    if not whole:
        return ""
    sentences = [_time(report, counted, whole), *([] if headings.is_of_ranges(report) else _busy(report))]
    return headings.worded(" ".join(sentences), report.provenance)


def commands(report: Report, target: str) -> tuple[str, ...]:
    """Return the commands to run next on a report, whose path and options are `target`."""
    waits = any(row.verdict == "launch-bound" for row in report.busy)
    view = "balance" if waits else "steps" if report.steps > 1 else "phases"
    return (f"nvtx-kernels view {view} {target}", f"nvtx-kernels page {target} -o page.html")


def _time(report: Report, counted: Report, whole: Number) -> str:
    """Return how long everything takes, and its parts."""
    times = {
        phase: sum(row.total_ns for row in counted.kernels if (row.phase, row.kind) == (phase, "kernel"))
        for phase in PHASES
    }
    present = sorted((phase for phase in PHASES if times[phase]), key=lambda phase: -times[phase])
    shares = ", ".join(f"{_called(phase)} {_percent(times[phase], whole)}" for phase in present)
    parts = "; ".join([shares, _gemm(report, whole)] if len(present) > 1 else [_gemm(report, whole)])
    return f"{_opening(report, f'{time_text(whole)} of {_what(report)}', present)}: {parts}."


def _opening(report: Report, time: str, present: Sequence[str]) -> str:
    """Return what takes the time, and what that counts."""
    alone = present[0] if len(present) == 1 and present[0] != OTHER else ""
    step = "a rank's step" if report.ranks > 1 else "a step"
    scope = headings.scope(report)
    over = f" in {step}" if report.per_step else "" if scope == "total" else f" {scope}"
    if headings.is_of_ranges(report):
        return f"The ranges asked for take {time}{over}"
    if report.per_step and (not report.busy or _wholes(report)):
        return f"{step.capitalize()} takes {time}{f', all of it in {alone}' if alone else ''}"
    return f"{alone.capitalize()} takes {time}{over}" if alone else f"The report contains {time}{over}"


def _what(report: Report) -> str:
    if report.provenance.unit_of_work == "CPU":
        return "operators' own CPU time"
    return graphs.counted_time(report)


def _gemm(report: Report, whole: Number) -> str:
    """Return the share of GEMM, or that graphs hide it."""
    if hidden := sum(row.total_ns for row in graphs.of_graphs(report)):
        return f"{_percent(hidden, whole)} is in CUDA graphs launched whole, whose kernels are not in the report"
    gemm = sum(row.total_ns for row in report.kernels if row.category == "gemm")
    return f"{_percent(gemm, whole) if gemm else 'none'} is GEMM"


def _busy(report: Report) -> Iterator[str]:
    """Return how busy the GPU is, and what bounds each phase that the GPU does not."""
    rows = _wholes(report) or report.busy
    if not rows:
        return
    gpus = "The GPUs are" if max(row.gpus for row in rows) > 1 else "The GPU is"
    shares = ", ".join(f"{_percent(row.busy_ns, row.span_ns)} of {_whole(row)}" for row in rows)
    phases = [row for row in report.busy if row not in rows] or rows
    bound = [said for verdict in BOUNDS if (said := _bound(verdict, phases))]
    yield f"{gpus} busy {shares} (first start to last end of its work){'; ' if bound else ''}{', '.join(bound)}."


def _wholes(report: Report) -> list[BusyRow]:
    return [row for row in report.busy if row.phase in WHOLE]


def _bound(verdict: str, phases: Sequence[BusyRow]) -> str:
    """Return which phases one thing bounds, and their numbers of kernels; empty if it bounds none."""
    rows = [row for row in phases if row.verdict == verdict]
    if not rows:
        return ""
    *most, last = ("the GPU" if row.phase in WHOLE else _called(row.phase) for row in rows)
    names = f"{', '.join(most)} and {last}" if most else last
    return f"{names} {BOUNDS[verdict][len(rows) > 1]} ({count_text(sum(row.kernels for row in rows))} kernels)"


def _whole(row: BusyRow) -> str:
    return WHOLE.get(row.phase, _called(row.phase))


def _called(phase: str) -> str:
    return NO_PHASE if phase == OTHER else phase


def _percent(part: Number, whole: Number) -> str:
    """Return a share as a percentage; only 0 is shown as 0%, and only 1 as 100%."""
    share = part / whole if whole else 0
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"
