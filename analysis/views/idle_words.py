"""Why the GPU is idle, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from ..report import IdleReport, IdleRow, Path, Report
from ..support.text import fit
from ..support.units import time_in_digits
from ..vocabulary import step_matcher
from . import headings
from .rows import label

#: What each cause of idle time means.
MEANING = {
    "launching": "the CPU launches too slowly",
    "host code": "the program launches nothing",
    "synchronization": "the CPU waits for the GPU",
    "allocation": "CUDA allocates or frees memory",
    "copy": "the CPU is in a call that copies",
    "module loading": "CUDA loads kernels",
    "between kernels": "pauses between launched kernels",
    "latency": "the launch is on its way",
    "queue": "launched work waits for a stream, copy, process or batch",
    "profiler": "the profiler writes its data, or annotation sets hooks",
    "unknown": "the next work has no recorded launch",
}
#: How a sentence names a cause whose name alone says too little.
DURING = {
    "launching": "while the CPU launches the next kernel",
    "latency": "while a launch is on its way",
    "queue": "while launched work waits",
    "unknown": "of unknown cause",
    "between kernels": "between launched kernels",
}
#: What only one step does, after its number.
ALONE = {
    "host code": "has {} more of host code than any other",
    "module loading": "loads modules: {}",
    "allocation": "allocates memory: {}",
    "Python": "spends {} more in Python than any other",
    "data loading": "loads data for {} longer than any other",
    "waiting": "waits for {} longer than any other",
}
#: What a program does on a CPU outside of operators, as a part of a sentence.
ON_CPU = {"Python": "in its own Python", "data loading": "loading data", "waiting": "waiting"}
LONGEST_FUNCTION = 80
#: From this share of the time on, the answer says why the GPU is idle, and of one step from this share of a step's
#: idle time what it alone has.
SAID_FROM, ALONE_FROM = 0.1, 0.5
#: Recording slows launching most: where the GPU may work for this share without, it is no verdict.
LAUNCHING, BUSY_FROM = "launching", 0.75


def sentences(report: Report) -> Iterator[str]:
    """Yield sentences on why the GPU is idle: in a typical step, in one step alone, or in one long pause."""
    idle = report.idle
    if report.idle_on_cpu:
        yield from _on_cpu(report.idle_on_cpu, report)
    if idle is None or not idle.rows:
        return
    if idle.pause:
        yield from _of_a_pause(idle)
    elif is_idle(report):
        yield _largest(idle, report)
    yield from _in_one_step(idle)


def _in_one_step(idle: IdleReport) -> Iterator[str]:
    """Yield a sentence on the cause that one step has more of than any other, if it is much."""
    alone = max(
        (row for row in idle.rows if row.alone_step is not None), key=lambda row: row.alone_ns, default=None
    )
    if alone and alone.alone_ns >= ALONE_FROM * max(idle.idle_ns, SAID_FROM * idle.span_ns):
        more = ALONE.get(alone.cause, f"has {{}} more of {alone.cause} than any other")
        yield f"Step {alone.alone_step} {more.format(time_in_digits(alone.alone_ns))}."


def is_idle(report: Report) -> bool:
    """Return whether the answer says why the GPUs are idle: they are a tenth of the time, unrecorded if known."""
    idle, cost = report.idle, report.recording
    if report.idle_on_cpu and not headings.is_of_ranges(report):
        return report.idle_on_cpu.idle_ns >= SAID_FROM * report.idle_on_cpu.span_ns
    if idle is None or not idle.rows or headings.is_of_ranges(report):
        return False
    if idle.pause:
        return True
    busy_share = 1 - idle.idle_ns / idle.span_ns
    if cost and cost.alone_ns:
        busy_share = cost.busy_share("step", busy_share)
    return 1 - busy_share >= SAID_FROM


def _on_cpu(idle: IdleReport, report: Report) -> Iterator[str]:
    """Yield sentences on the program's thread outside of operators: causes with a tenth of the time or more."""
    if idle.idle_ns < SAID_FROM * idle.span_ns:
        yield from _in_one_step(idle)
        return
    said = [row for row in idle.rows if row.median_ns >= SAID_FROM * idle.span_ns] or idle.rows[:1]
    causes = [
        ("" if len(idle.rows) == 1 else f"{time_in_digits(row.median_ns)} of it ")
        + ON_CPU.get(row.cause, row.cause)
        + (f" (most in {label(row.path)})" if row.path else "")
        for row in said
    ]
    where = "of a typical step" if idle.per_step else "of the time"
    is_alone = report.recording and report.recording.alone_ns  # the step is given without recording
    program = "As recorded, the program" if is_alone else "The program"
    outside = f"{program} runs no operator for {time_in_digits(idle.idle_ns)} {where}"
    yield f"{outside}{', but is ' if len(idle.rows) == 1 else ': '}{', '.join(causes)}."
    yield from _in_one_step(idle)


def _largest(idle: IdleReport, report: Report) -> str:
    gpus = "The GPUs are" if max((row.gpus for row in report.busy), default=1) > 1 else "The GPU is"
    where = " in a typical step" if idle.per_step else ""
    row, cost = idle.rows[0], report.recording
    if cost and cost.alone_ns:  # the step is given without recording, and causes are as recorded
        gpus = f"As recorded, {gpus[0].lower()}{gpus[1:]}"
    meaning = f": {MEANING[row.cause]}"
    if row.cause == LAUNCHING and cost and cost.busy_share("step", 1 - idle.idle_ns / idle.span_ns) >= BUSY_FROM:
        meaning = ""
    return (
        f"{gpus} idle for {time_in_digits(idle.idle_ns)}{where}, {time_in_digits(row.median_ns)} of it "
        f"{DURING.get(row.cause, f'due to {row.cause}')}{place(row, report)}{meaning}."
    )


def why(report: Report) -> str:
    """Return why to look at idle time, with its share."""
    if report.idle_on_cpu:
        return "what the program does outside of operators"
    idle = report.idle
    of_what = "of the step" if idle and idle.per_step else "of the time"
    return f"why the GPU is idle {idle.idle_ns / idle.span_ns:.0%} {of_what}" if idle else "why the GPU is idle"


def place(row: IdleRow, report: Report) -> str:
    """Return where most of a cause is, by range and function, and after which call, as a part of a sentence."""
    is_step = step_matcher(report.step)
    inner = max((depth for depth, name in enumerate(row.path, 1) if is_step(name.replace("*", "0"))), default=0)
    parts = [f"most in {label(row.path[inner:] or row.path)}"] if row.path else []
    parts += [f"{'in' if parts else 'most in'} {fit(row.function, LONGEST_FUNCTION)}"] if row.function else []
    parts += [f"after {row.after}"] if row.after else []
    return f" ({', '.join(parts)})" if parts else ""


def _of_a_pause(idle: IdleReport) -> Iterator[str]:
    pause = idle.pause
    assert pause is not None
    yield (
        f"{time_in_digits(pause.duration_ns)} of it is one pause, {_between(pause.before, pause.after)} "
        f"{time_in_digits(pause.start_ns)} after the first work."
    )
    if pause.rest_ns and pause.rest_idle_ns >= SAID_FROM * pause.rest_ns:
        busy = 1 - pause.rest_idle_ns / pause.rest_ns
        yield (
            f"Without it the GPU is busy {busy:.0%} of {time_in_digits(pause.rest_ns)}, and "
            f"{time_in_digits(pause.rest_cause_ns)} of the {time_in_digits(pause.rest_idle_ns)} of idle time is "
            f"{pause.rest_cause}: {MEANING[pause.rest_cause]}."
        )
    elif pause.rest_ns:
        busy = 1 - pause.rest_idle_ns / pause.rest_ns
        yield f"Without it the GPU is busy {busy:.0%} of {time_in_digits(pause.rest_ns)}."


def _between(before: Path, after: Path) -> str:
    names = [str(label(path)) if path else "work outside all ranges" for path in (before, after)]
    if names[0] == names[1]:
        return f"between two pieces of work in {names[0]}," if before else "between work outside all ranges,"
    return f"between {names[0]} and {names[1]},"
