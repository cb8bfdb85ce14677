"""The time of a step without recording: from marks of steps timed next to the recording, or given by hand.

Recording adds host time and does not change the GPU's work. So the GPU's busy share is the work of a recorded step
divided by the time of an unrecorded one. `_doubt` has the tests of trust in their order; the first that fails is
the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from ..account import Partition
from ..account.intervals import union
from ..attribution.steps import measured_steps
from ..readers.marks import RecordedMark, TrainingMark, UnrecordedMark
from ..report.account import COMMUNICATION, IDLE, Account, mean
from ..report.recording import NO_MARK, PhaseAlone, Recording
from ..support.small_numbers import quartiles, summed
from ..support.units import time_in_digits
from ..vocabulary import OTHER, PHASES
from .spans import Extents

#: The share by which timed and measured steps may differ in shape, sizes and allocations.
SAME = 0.02
#: By how many times the distance of the quartiles an outlier is beyond them (Tukey's fences).
OUTLIER = 1.5
#: What the GPU's work may be longer than the step without recording, and that step than the recorded one.
MOST_WORK, MOST_STEP = 1.02, 1.05
#: A pause of the program is longer than this; and what of a step such pauses may take more than unrecorded.
PAUSE_NS, MOST_PAUSES = 1_000_000, 0.1
WATCHED = (
    "Warm-up was watched by nsys too: `nvtx-kernels nsys`, or `-c cudaProfilerApi --capture-range-end=stop`, "
    "leaves it unwatched."
)
OTHER_WORK = "The time without recording is unknown: steps timed without it did other work than recorded ones."
OTHER_PACE = (
    "The time without recording is not used: the machine changed pace (steps took {}, recorded ones only {})."
)
MORE_WORK = "Recording slows the GPU, too: a step has {} of GPU work with it, and takes {} without."
#: Recording makes a pause at most so many times as long.
LONGER_PAUSES = 2
OTHER_KIND = "The steps timed without recording are of another kind: recorded ones pause for {}, those take {}."
OTHER_PAUSES = "The time without recording is unknown: the program waits longer in recorded steps than in warm-up."


def recording(partition: Partition, account: Account, *, unrecorded_step_ns: float | None = None) -> Recording:
    """Return the times of a step with and without recording; `unrecorded_step_ns` was measured elsewhere.

    `account` has the sums of the partition. Both are of a report with steps.
    """
    attribution = partition.attribution
    timed = Recording(account.recorded_ns, account.busy_ns)
    marks = [fact.mark for fact in attribution.trace.facts if isinstance(fact.mark, UnrecordedMark)]
    if unrecorded_step_ns is not None:
        given_ns = unrecorded_step_ns
        timed = replace(timed, unrecorded_step_ns=given_ns, clock="given")
        timed = replace(timed, unrecorded_low_ns=given_ns, unrecorded_high_ns=given_ns)
        return _judged(timed, account, "" if unrecorded_step_ns > 0 else NO_MARK)
    if not marks:
        return timed
    step_ns = [ns for mark in marks for ns in mark.step_ns]
    phases = {}
    for phase in PHASES:
        spans_ns = [ns for mark in marks for name, times in mark.span_ns.items() if name == phase for ns in times]
        span_ns = median(spans_ns) if spans_ns else 0
        working_ns = _working_ns(account, phase)
        if span_ns > 0 and working_ns:
            phases[phase] = PhaseAlone(span_ns, min(1.0, working_ns / span_ns))
    between_ns = _pauses_ns(partition, in_phases=False)
    timed = replace(
        timed,
        unrecorded_step_ns=median(step_ns),
        unrecorded_low_ns=min(step_ns),
        unrecorded_high_ns=max(step_ns),
        clock=marks[0].clock,
        steps=len(step_ns),
        timed_ns=tuple(map(float, step_ns)),
        phases=phases,
        pauses_ns=median(between_ns) if between_ns else None,
        where=marks[0].where,
        is_detached=all(mark.is_detached for mark in marks),
        host_ns={str(phase): float(ns) for phase, ns in marks[0].host_ns.items()},
    )
    doubt = _doubt(partition, marks, timed)
    return _judged(timed, account, doubt or _of_another_kind(partition, timed))


def _judged(timed: Recording, account: Account, doubt: str) -> Recording:
    """Return the recording with what makes it doubtful: as given, or by its times.

    In its communication a GPU can wait for ranks that recording slows, which is not its own work.
    """
    alone_ns = timed.unrecorded_step_ns or 0.0
    exchanged_ns = mean([row.kind_ns(COMMUNICATION) / row.gpus for row in account.counted if row.gpus])
    working_ns = (timed.busy_ns or 0.0) - exchanged_ns
    if not doubt and working_ns > MOST_WORK * alone_ns:
        doubt = MORE_WORK.format(time_in_digits(working_ns), time_in_digits(alone_ns))
    if not doubt and timed.phases and timed.pauses_ns is not None:
        between_ns = alone_ns - sum(phase.span_ns for name, phase in timed.phases.items() if name != OTHER)
        doubt = OTHER_PAUSES if timed.pauses_ns > max(between_ns, 0.0) + MOST_PAUSES * alone_ns else ""
    if not doubt and alone_ns > MOST_STEP * timed.step_ns:
        doubt = OTHER_PACE.format(time_in_digits(alone_ns), time_in_digits(timed.step_ns))
    return replace(timed, trusted=not doubt, reason=doubt)


def _of_another_kind(partition: Partition, timed: Recording) -> str:
    """Return the reason that a step without recording has no room for half the pauses of recorded ones, or ""."""
    paused_ns = mean(_pauses_ns(partition, in_phases=True))
    alone_ns = timed.unrecorded_step_ns or 0.0
    if paused_ns <= LONGER_PAUSES * alone_ns:
        return ""
    return OTHER_KIND.format(time_in_digits(paused_ns), time_in_digits(alone_ns))


def _doubt(partition: Partition, marks: Sequence[UnrecordedMark], timed: Recording) -> str:
    """Return the reason that the timed steps do not match the measured ones, or "" if they do."""
    if not timed.unrecorded_step_ns:
        return NO_MARK
    if any(mark.where == "before" for mark in marks) and _is_watched(partition):
        return WATCHED
    recorded = [fact.mark for fact in partition.attribution.trace.facts if isinstance(fact.mark, RecordedMark)]
    for mark in marks:
        shapes = [shape for of_process in recorded for shape in of_process.shapes]
        other_shapes = sum(shape != mark.shape for shape in shapes)
        sizes = [size for of_process in recorded for size in of_process.sizes]
        allocations = [pair for of_process in recorded for pair in of_process.allocations]
        differs = [other_shapes > SAME * len(shapes)]
        differs += [_differs([mark.sizes], sizes)] if mark.sizes is not None else []
        for place, count in enumerate(mark.allocations or ()):
            differs.append(_differs([count], [pair[place] for pair in allocations]))
        if any(differs):
            return OTHER_WORK
    return ""


def _differs(timed: Sequence[int], measured: Sequence[int]) -> bool:
    """Return whether the medians differ by more than 2%, and the timed one would be an outlier of those measured.

    Steps of a program whose batches vary differ by themselves. Of what one side does not say, nothing is known.
    """
    if not measured:
        return False
    timed_median = median(timed)
    low, measured_median, high = quartiles(measured)
    is_far = abs(timed_median - measured_median) > SAME * max(timed_median, measured_median)
    fence = OUTLIER * (high - low)
    return bool(is_far and not low - fence <= timed_median <= high + fence)


def _is_watched(partition: Partition) -> bool:
    """Return whether the report has work from before the measured block."""
    attribution = partition.attribution
    trace = partition.attribution.trace
    begins_ns = [
        fact.at_ns for fact in trace.facts if isinstance(fact.mark, TrainingMark) and fact.mark.event == "measure"
    ]
    if not begins_ns:
        steps = measured_steps(attribution, include_warm_up=partition.include_warm_up)
        begins_ns = attribution.ranges.start_ns[steps].tolist()
    return bool(begins_ns) and int(trace.work.start_ns.min(initial=2**62)) < min(begins_ns)


def _working_ns(account: Account, phase: str) -> float:
    """Return how long a GPU works in a phase of a step, ns: a mean over steps and GPUs."""
    working_ns = [gpu.total_ns(phase=phase) - gpu.total_ns(kind=IDLE, phase=phase) for gpu in account.gpus]
    steps = sum(gpu.steps for gpu in account.gpus)
    return sum(working_ns) / steps if steps else 0.0


def _pauses_ns(partition: Partition, *, in_phases: bool) -> list[float]:
    """Return how long the GPU is idle for over 1 ms at a time in each step that counts, ns.

    Without pauses `in_phases`, it is that outside of them. A phase lasts on the GPU and on the CPU, which may work
    long before it launches the first kernel.
    """
    work = partition.attribution.trace.work
    table = partition.table
    of_steps_ns = list[float]()
    spans = Extents(partition.attribution, include_warm_up=partition.include_warm_up).spans()
    named = spans.take((spans.kind < len(PHASES)) & (spans.kind != PHASES.index(OTHER)))
    of_phases = union(
        np.concatenate([named.start_ns, named.cpu_start_ns]), np.concatenate([named.end_ns, named.cpu_end_ns])
    )
    for loop, choice in zip(partition.steps.loops, partition.choices, strict=True):
        rows = np.flatnonzero(work.process == loop.process)
        busy = union(work.start_ns[rows], work.end_ns[rows])
        start_ns = busy.end_ns[:-1]
        end_ns = busy.start_ns[1:]
        outside_ns = end_ns - start_ns
        if not in_phases:
            outside_ns -= of_phases.covered(start_ns, end_ns)
        step = np.searchsorted(table.end_ns[loop.rows], end_ns, "left")
        long = (outside_ns > PAUSE_NS) & (step < len(loop.rows)) & (start_ns >= table.before_ns[loop.rows[0]])
        paused_ns = summed(step[long], outside_ns[long], len(loop.rows))
        of_steps_ns += paused_ns[np.isin(loop.rows, choice.counted)].astype(float).tolist()
    return of_steps_ns
