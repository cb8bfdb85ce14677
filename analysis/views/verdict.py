"""The answer in two or three sentences: how long a step takes, what the GPU does in it, and what waits."""

from __future__ import annotations

from collections.abc import Iterator

from ..report import BusyRow, Number, Report
from ..report.recording import NO_MARK, Recording
from ..report.step_time import StepTime
from ..support.units import counted, time_in_digits
from ..vocabulary import OTHER, PHASES
from . import graphs, headings, idle_words
from .rows import count_of, kernels_of, time_of

NO_PHASE = headings.phase(OTHER)
#: Why to look at a view next.
REASONS = {"steps": "how much steps differ, and where", "phases": "what each phase does"}
#: What is measured in addition to phases, and its name in a sentence.
WHOLE = {"step": "the step", "all work": "the time"}
#: The work that keeps the GPU busy in a bound phase, and the sentences for one phase and for several.
WITH = {"copy-bound": "copies", "communication-bound": "communication"}
BOUNDS = {bound: (f"is busy with {work}", f"are busy with {work}") for bound, work in WITH.items()}
UNRECORDED_GPU = "The GPU's work was not recorded: what follows is CPU time."
#: The share of the work, or of a phase's, from which the answer says what lies in no step.
MUCH_OUTSIDE = 0.1
#: And the share of a step that the GPU is idle before its work, or that was taken out, from which it says so.
MUCH_BETWEEN = MUCH_TAKEN_OUT = 0.1


def verdict(report: Report) -> str:
    """Return the sentences; empty if no kernel ran."""
    with_graphs = graphs.counted(report)
    kernel_ns = time_of(kernels_of(with_graphs))
    if not kernel_ns:
        return _without_kernels(report)
    time = report.step_time if _is_whole(report) else None
    sentences = [UNRECORDED_GPU] if report.provenance.gpu_operator else []
    sentences += [_step(report, time)] if time else []
    left_out = _left_out(report)
    told = _time(report, with_graphs, kernel_ns, time)
    generation = [*_generation(report, time)] if time else []
    # "of it" would be of what the sentence before names.
    told = told.replace(" of it (", " of the step (", 1) if left_out or generation else told
    sentences += [*generation, *left_out, told]
    unknown = headings.share_of_other(report)
    if unknown > headings.MUCH_OTHER:
        kernels = headings.worded("kernels", report.provenance)
        sentences.append(f"{_percent(unknown, 1)} of it is in {kernels} of unknown category.")
    sentences += [] if headings.is_of_ranges(report) else [_busy(report), *idle_words.sentences(report)]
    sentences += [_between(report, time)] if time else []
    cost = report.recording if time else None
    sentences += [cost.reason] if cost and not cost.trusted and cost.reason != NO_MARK else []
    return " ".join(filter(None, sentences))


def _without_kernels(report: Report) -> str:
    """Return sentences on the work of a report without kernels, and the GPU's busy share; empty without work."""
    parts = [
        f"{counted(count_of(rows), *headings.KINDS_OF_WORK[kind])} ({time_in_digits(time_of(rows))})"
        for kind in ("memcpy", "memset")
        if (rows := [row for row in report.kernels if row.kind == kind])
    ]
    if not parts:
        return ""
    over = headings.scope(report)
    over = " in a step" if report.per_step else "" if over == "total" else f" {over}"
    sentences = [f"No kernels ran{over}: the work is {' and '.join(parts)}."]
    return " ".join([*sentences, *([] if headings.is_of_ranges(report) else [_busy(report)])]).rstrip()


def _is_whole(report: Report) -> bool:
    """Return whether the report is of whole steps, and not of some ranges or phases."""
    return not headings.is_of_ranges(report) and (not report.busy or bool(_of_everything(report)))


def _step(report: Report, time: StepTime) -> str:
    """Return how long a step takes, and how much the steps vary."""
    step, own_ns = "A rank's step" if report.ranks > 1 else "A step", [row.own_ns for row in time.compared]
    cost, recorded = report.recording, time_in_digits(time.step_ns)
    if cost and cost.alone_ns:
        return f"{step} takes {_alone(cost, cost.alone_ns, recorded)}."
    takes = f"{step} takes {recorded}{' while recorded' if _is_of_gpu(report) else ''}"
    if time.is_known_by_window:
        known = "from its first work to its last" if _is_of_gpu(report) else "its own range"
        return f"{takes} ({known}, as no other step follows)." if report.steps == 1 else f"{takes}."
    if not time.is_uneven:
        return f"{takes}."
    far_ns = max(own_ns, key=lambda ns: abs(ns - time.step_ns))
    varied = f"⚠ steps vary by {_percent(time.spread or 0, 1)}: record more steps, or on a quiet machine."
    return f"{takes} (median of {len(own_ns)}; one of {time_in_digits(far_ns)}). {varied}"


def _generation(report: Report, time: StepTime) -> Iterator[str]:
    """Yield how long prefill and decode take, of a step that generates."""
    prefill_ns, decode_ns, calls = time.prefill_ns, time.decode_ns, time.decode_calls
    if prefill_ns is None or decode_ns is None or not calls:
        return
    each = f"{time_in_digits(decode_ns / calls)} a call ({counted(calls, 'call')} of several tokens)"
    if time.tokens and time.token_ns is not None:
        each = f"{time_in_digits(time.token_ns)} a token ({counted(time.tokens, 'token')})"
    prefill = "While recorded, prefill" if report.recording and report.recording.alone_ns else "Prefill"
    yield f"{prefill} takes {time_in_digits(prefill_ns)}, decode {time_in_digits(decode_ns)}: {each}."


def _is_of_gpu(report: Report) -> bool:
    return report.provenance.unit_of_work != "CPU"


def _alone(cost: Recording, alone_ns: float, recorded: str) -> str:
    """Return the time of a step without recording, with its bounds where it varies, and the recorded one."""
    alone = time_in_digits(alone_ns)
    unit = " " + alone.partition(" ")[2]
    recorded = f"{recorded.removesuffix(unit)} while recorded"
    if cost.is_upper_limit:
        return f"at most {alone} ({recorded})"
    if cost.varies:
        low, high = (time_in_digits(ns or 0) for ns in (cost.unrecorded_low_ns, cost.unrecorded_high_ns))
        return f"{alone} ({low.removesuffix(unit)} to {high.removesuffix(unit)}; {recorded})"
    return f"{'about ' if cost.steps == 1 else ''}{alone} ({recorded})"


def _between(report: Report, time: StepTime) -> str:
    """Return how long the GPU is idle before a step's work begins, and what was taken out of steps."""
    sentences = []
    idle_ns = (time.between_ns or 0) - (time.between_busy_ns or 0)
    if idle_ns > MUCH_BETWEEN * time.step_ns:
        idle = f"{time_in_digits(idle_ns)} of a step ({_percent(idle_ns, time.step_ns)})"
        on_cpu = report.provenance.unit_of_work == "CPU"
        sentences.append(
            f"{idle} is between the steps' ranges." if on_cpu else f"The GPU is idle {idle} between steps."
        )
    taken_out = time.taken_out_ns
    if sum(taken_out.values()) > MUCH_TAKEN_OUT * time.step_ns:
        parts = ", ".join(f"{time_in_digits(ns)} of {name}" for name, ns in taken_out.items())
        sentences.append(f"Not part of the steps' time: {parts}.")
    return " ".join(sentences)


def _left_out(report: Report) -> list[str]:
    """Return how much work between the steps is in none of them, if it is much: before any share."""
    outside = [
        f"{time_in_digits(outside_ns)} of {time_in_digits(total_ns)} of "
        f"{phase or f'all {report.provenance.unit_of_work}'} work"
        for phase, outside_ns, total_ns in report.unaccounted
        if report.per_step and phase != OTHER and outside_ns > MUCH_OUTSIDE * total_ns
    ]
    return [f"Left out, as in no step: {', '.join(outside)}."] if outside else []


def next_view(report: Report) -> str:
    """Return the name of the view to ask for next."""
    if idle_words.is_idle(report):
        return "idle"
    return "steps" if report.steps > 1 else "phases"


def commands(report: Report, target: str) -> tuple[str, ...]:
    """Return the commands to run next, each with its reason; `target` is the report's path and options."""
    view = next_view(report)
    reason = idle_words.why(report) if view == "idle" else REASONS[view]
    return (
        f"nvtx-kernels view {view} {target}   # {reason}",
        f"nvtx-kernels page {target} --open   # all of it, in the browser",
    )


def _time(report: Report, with_graphs: Report, kernel_ns: Number, time: StepTime | None) -> str:
    """Return how long the kernels take, what that counts, and its parts."""
    kernels = kernels_of(with_graphs)
    times = {phase: time_of(row for row in kernels if row.phase == phase) for phase in PHASES}
    phases = sorted((phase for phase in PHASES if times[phase]), key=lambda phase: -times[phase])
    only_phase = phases[0] if len(phases) == 1 and phases[0] != OTHER else ""
    parts = [", ".join(f"{_called(phase)} {_percent(times[phase], kernel_ns)}" for phase in phases)]
    gemm = _gemm(report, kernel_ns)
    shares = "; ".join([*parts, gemm] if len(phases) > 1 else [gemm])
    on_cpu = report.provenance.unit_of_work == "CPU"
    over = headings.scope(report)
    over = (
        " in a rank's step"
        if report.per_step and report.ranks > 1
        else " in a step"
        if report.per_step
        else ("" if over == "total" else f" {over}")
    )
    spent = (
        f"{time_in_digits(kernel_ns)} of {'self CPU time of operators' if on_cpu else graphs.counted_time(report)}"
    )
    if headings.is_of_ranges(report):
        return f"The ranges asked for take {spent}{over}: {shares}."
    all_in = f", all of it in {only_phase}" if only_phase else ""
    if time and report.per_step and on_cpu:
        of_step = _of_step(kernel_ns, time.step_ns)
        if report.recording and report.recording.alone_ns:  # which made the operators slower, too
            of_step = f"While recorded, {of_step.replace(' of it ', ' of the step ')}"
        return f"{of_step} is self CPU time of operators{all_in}: {shares}."
    if time and time.busy_ns is not None:
        gpu = "A rank's GPU" if report.ranks > 1 else "Each GPU" if time.gpus > 1 else "The GPU"
        works = f"{gpu} works for {_worked(report.recording, time, time.busy_ns)}"
        if report.per_step:
            return f"{works}{all_in}: {shares}."
        return f"{works}. The report contains {spent}{over}{all_in}: {shares}."
    takes = f"{only_phase.capitalize()} takes" if only_phase else "The report contains"
    if not report.per_step and max((row.gpus for row in report.busy), default=1) > 1:
        takes = "The GPUs together have"
        over = f"{f' of {only_phase}' if only_phase else ''}{over}"
    return f"{takes} {spent}{over}: {shares}."


def _gemm(report: Report, kernel_ns: Number) -> str:
    """Return which share of the kernels' time is GEMM, or in graphs that hide their kernels."""
    if graph_ns := time_of(graphs.of_graphs(report)):
        in_graphs = _percent(graph_ns, kernel_ns)
        return f"{in_graphs} is in CUDA graphs launched whole"
    gemm_ns = time_of(row for row in report.kernels if row.category == "gemm")
    none = "none is known to be" if headings.share_of_other(report) > headings.MUCH_OTHER else "none is"
    return f"{_percent(gemm_ns, kernel_ns)} is GEMM" if gemm_ns else f"{none} GEMM"


def _worked(cost: Recording | None, time: StepTime, busy_ns: float) -> str:
    """Return how long a GPU works in a step; while recorded that is at least the share that it is otherwise."""
    if cost and cost.alone_ns and cost.busy_ns is not None:
        at_least, busy_ns = "at least " if cost.is_upper_limit else "", min(cost.busy_ns, cost.alone_ns)
        return f"{time_in_digits(busy_ns)} of it ({at_least}{_percent(busy_ns, cost.alone_ns)})"
    return f"{time_in_digits(busy_ns)} of it (at least {_percent(busy_ns, time.step_ns)})"


def _of_step(part_ns: Number, step_ns: Number) -> str:
    """Return a time as a part of a step; of several threads' time the sum may be longer than it."""
    if part_ns > step_ns:
        return f"{time_in_digits(part_ns)} per step"
    return f"{time_in_digits(part_ns)} of it ({_percent(part_ns, step_ns)})"


def _busy(report: Report) -> str:
    """Return how busy the GPU is where no step says it, and what bounds each phase; empty for a CPU."""
    rows = _of_everything(report) or report.busy
    if not rows:
        return ""
    phases = [row for row in report.busy if row not in rows] or rows
    bounds = []
    for bound, (waits, wait) in BOUNDS.items():
        bounded = [row for row in phases if row.verdict == bound]
        if bounded:
            *most, last = (WHOLE[row.phase] if row.phase in WHOLE else _called(row.phase) for row in bounded)
            names = f"{', '.join(most)} and {last}" if most else last
            kernels = sum(row.kernels for row in bounded)
            counted_kernels = f" ({counted(kernels, 'kernel')})" if kernels else ""
            bounds.append(f"{names} {wait if most else waits}{counted_kernels}")
    if report.step_time and _is_whole(report):
        bounded_by = ", ".join(bounds)
        return f"{bounded_by[0].upper()}{bounded_by[1:]}." if bounds else ""
    gpus = "The GPUs are" if max(row.gpus for row in rows) > 1 else "The GPU is"
    shares = ", ".join(
        f"{_percent(row.busy_ns, row.span_ns)} of {WHOLE.get(row.phase, _called(row.phase))}" for row in rows
    )
    waiting = f"; {', '.join(bounds)}" if bounds else ""
    if phases is rows:  # what it is busy with is of the same time
        found = {row.verdict for row in rows}
        waiting = "".join(f", mostly with {WITH[bound]}" for bound in BOUNDS if bound in found)
    return f"{gpus} busy {shares} (first start to last end of its work){waiting}."


def _of_everything(report: Report) -> list[BusyRow]:
    return [row for row in report.busy if row.phase in WHOLE]


def _called(phase: str) -> str:
    return headings.phase(phase)


def _percent(part: Number, total: Number) -> str:
    """Return a share as a percentage; only 0 is shown as 0%, and only 1 as 100%."""
    share = part / total if total else 0
    if 0 < share < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{share:.0%}"
