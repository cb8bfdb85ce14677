"""The answer in two or three sentences: where a step's time goes, how busy the GPU is, and what waits."""

from __future__ import annotations

from ..report import BusyRow, Number, Report
from ..support.units import count_text, time_text
from ..vocabulary import OTHER, PHASES, step_matcher
from . import graphs, headings
from .rows import kernels_of, time_of

#: What is measured in addition to phases, and its name in a sentence.
WHOLE = {"step": "the step", "all work": "the time"}
#: What is said of phases by what bounds them: of one, and of several.
BOUNDS = {
    "launch-bound": ("waits for launches", "wait for launches"),
    "copy-bound": ("is busy with copies", "are busy with copies"),
    "communication-bound": ("is busy with communication", "are busy with communication"),
}
NO_PHASE = "work in no phase"
#: The share of the work, or of a phase's, from which the answer begins with what lies in no step.
MUCH_OUTSIDE = 0.1


def verdict(report: Report) -> str:
    """Return the sentences; empty if no kernel ran."""
    counted = graphs.counted(report)
    kernel_ns = time_of(kernels_of(counted))
    if not kernel_ns:
        return ""
    # What lies in no step is said first, where figures per step would tell a part as the whole.
    outside = [
        f"{time_text(outside_ns)} of {time_text(total_ns)} of {phase or 'all work'}"
        for phase, outside_ns, total_ns in report.unaccounted
        if report.per_step and outside_ns > MUCH_OUTSIDE * total_ns
    ]
    sentences = [f"In no step, and in none of these figures: {', '.join(outside)}."] if outside else []
    sentences.append(_time(report, counted, kernel_ns))
    unknown = headings.share_of_other(report)
    if unknown > headings.MUCH_OTHER:
        sentences.append(f"{_percent(unknown, 1)} is in kernels of no known category (other).")
    sentences += [] if headings.is_of_ranges(report) else [_busy(report)]
    return headings.worded(" ".join(filter(None, sentences)), report.provenance)


def next_view(report: Report) -> str:
    """Return the name of the view to ask for next."""
    if any(row.verdict == "launch-bound" for row in report.busy):
        return "balance"
    return "steps" if report.steps > 1 else "phases"


def commands(report: Report, target: str) -> tuple[str, ...]:
    """Return the commands to run next on a report, whose path and options are `target`."""
    return (f"nvtx-kernels view {next_view(report)} {target}", f"nvtx-kernels page {target} -o page.html")


def _time(report: Report, counted: Report, kernel_ns: Number) -> str:
    """Return how long everything takes, what that counts, and its parts."""
    kernels = kernels_of(counted)
    times = {phase: time_of(row for row in kernels if row.phase == phase) for phase in PHASES}
    phases = sorted((phase for phase in PHASES if times[phase]), key=lambda phase: -times[phase])
    parts = [", ".join(f"{_called(phase)} {_percent(times[phase], kernel_ns)}" for phase in phases)]
    if graph_ns := time_of(graphs.of_graphs(report)):
        in_graphs = _percent(graph_ns, kernel_ns)
        gemm = f"{in_graphs} is in CUDA graphs launched whole, whose kernels are not in the report"
    else:
        gemm_ns = time_of(row for row in report.kernels if row.category == "gemm")
        none = "none is known to be" if headings.share_of_other(report) > headings.MUCH_OTHER else "none is"
        gemm = f"{_percent(gemm_ns, kernel_ns)} is GEMM" if gemm_ns else f"{none} GEMM"
    shares = "; ".join([*parts, gemm] if len(phases) > 1 else [gemm])
    on_cpu = report.provenance.unit_of_work == "CPU"
    counted_time = "operators' own CPU time" if on_cpu else graphs.counted_time(report)
    time = f"{time_text(kernel_ns)} of {counted_time}"
    only_phase = phases[0] if len(phases) == 1 and phases[0] != OTHER else ""
    step, scope = "a rank's step" if report.ranks > 1 else "a step", headings.scope(report)
    over = f" in {step}" if report.per_step else "" if scope == "total" else f" {scope}"
    if headings.is_of_ranges(report):
        return f"The ranges asked for take {time}{over}: {shares}."
    if report.per_step and (not report.busy or _of_everything(report)):
        all_in = f", all of it in {only_phase}" if only_phase else ""
        if on_cpu and (wall_ns := _step_ns(report)):
            own = f"its operators' own CPU time is {time_text(kernel_ns)}, {_percent(kernel_ns, wall_ns)} of that"
            return f"{step.capitalize()} takes {time_text(wall_ns)}; {own}{all_in}: {shares}."
        return f"{step.capitalize()} takes {time}{all_in}: {shares}."
    takes = f"{only_phase.capitalize()} takes" if only_phase else "The report contains"
    if not report.per_step and max((row.gpus for row in report.busy), default=1) > 1:
        takes = "The GPUs together have"
        over = f"{f' of {only_phase}' if only_phase else ''}{over}"
    return f"{takes} {time}{over}: {shares}."


def _step_ns(report: Report) -> Number:
    """Return how long a step takes on the CPU; 0 where the report has no ranges of steps."""
    matches = step_matcher(report.step)

    def is_step(name: str) -> bool:
        return matches(name.replace("*", "0"))

    steps = (row for row in report.ranges if is_step(row.path[-1]) and not any(map(is_step, row.path[:-1])))
    return sum(row.cpu_ns or 0 for row in steps)


def _busy(report: Report) -> str:
    """Return how busy the GPU is, and what bounds each phase that the GPU does not; empty for a CPU."""
    rows = _of_everything(report) or report.busy
    if not rows:
        return ""
    gpus = "The GPUs are" if max(row.gpus for row in rows) > 1 else "The GPU is"
    shares = ", ".join(
        f"{_percent(row.busy_ns, row.span_ns)} of {WHOLE.get(row.phase, _called(row.phase))}" for row in rows
    )
    phases = [row for row in report.busy if row not in rows] or rows
    bounds = []
    for bound, (waits, wait) in BOUNDS.items():
        bounded = [row for row in phases if row.verdict == bound]
        if bounded:
            *most, last = ("the GPU" if row.phase in WHOLE else _called(row.phase) for row in bounded)
            names = f"{', '.join(most)} and {last}" if most else last
            kernels = sum(row.kernels for row in bounded)
            counted_kernels = f" ({count_text(kernels)} kernels)" if kernels else ""
            bounds.append(f"{names} {wait if most else waits}{counted_kernels}")
    waiting = f"; {', '.join(bounds)}" if bounds else ""
    return f"{gpus} busy {shares} (first start to last end of its work){waiting}."


def _of_everything(report: Report) -> list[BusyRow]:
    return [row for row in report.busy if row.phase in WHOLE]


def _called(phase: str) -> str:
    return NO_PHASE if phase == OTHER else phase


def _percent(part: Number, total: Number) -> str:
    """Return a share as a percentage; only 0 is shown as 0%, and only 1 as 100%."""
    share = part / total if total else 0
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"
