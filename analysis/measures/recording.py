"""The time of a step without recording: from marks of steps timed next to the recording, or given by hand.

Recording adds host time and does not change the GPU's work. So the GPU's busy share is the work of a recorded step
divided by the time of an unrecorded one. `_doubt` has the tests of trust in their order; the first that fails is
the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.steps import measured_steps
from ..readers.marks import RecordedMark, TrainingMark, UnrecordedMark
from ..report.recording import NO_MARK, PhaseAlone, Recording
from ..report.step_time import StepTime
from ..support.small_numbers import distinct, summed
from ..support.units import time_in_digits
from ..vocabulary import OTHER, PHASES
from .spans import Extents, union
from .step_time import BETWEEN, Loop, loops

#: The share by which timed and measured steps may differ in shape, sizes and allocations.
SAME = 0.02
#: What the GPU's work may be longer than the step without recording, and that step than the recorded one.
MOST_WORK, MOST_STEP = 1.02, 1.05
#: A pause of the program is longer than this; and what of a step such pauses may take more than unrecorded.
PAUSE_NS, MOST_PAUSES = 1_000_000, 0.1
WATCHED = (
    "Warm-up was watched by nsys too: `nvtx-kernels nsys`, or `-c cudaProfilerApi --capture-range-end=stop`, "
    "leaves it unwatched."
)
OTHER_WORK = "The timed steps did other work."
OTHER_PACE = "The machine changed pace: a step took {} without recording, and {} while recorded."
MORE_WORK = "The GPU works for {} of a recorded step, longer than the {} that a step takes without recording."
OTHER_PAUSES = "The program paused longer in the recorded steps: batches may have been ready in warm-up."


def recording(
    attribution: Attribution,
    time: StepTime,
    *,
    unrecorded_step_ns: float | None = None,
    include_warm_up: bool = False,
) -> Recording:
    """Return the times of a step with and without recording; `unrecorded_step_ns` was measured elsewhere."""
    busy = [row.busy_ns / row.gpus for row in time.compared if row.busy_ns is not None]
    found = Recording(time.step_ns, median(busy) if busy else None)
    marks = [fact.mark for fact in attribution.trace.facts if isinstance(fact.mark, UnrecordedMark)]
    if unrecorded_step_ns is not None:
        given_ns = unrecorded_step_ns
        found = replace(found, unrecorded_step_ns=given_ns, clock="given")
        found = replace(found, unrecorded_low_ns=given_ns, unrecorded_high_ns=given_ns)
        return _judged(found, "" if unrecorded_step_ns > 0 else NO_MARK)
    if not marks:
        return found
    step_ns = [ns for mark in marks for ns in mark.step_ns]
    of_loops = loops(attribution, include_warm_up=include_warm_up)
    extents = Extents(attribution, include_warm_up=include_warm_up)
    working_ns = _working(attribution, extents, of_loops)
    spans_ns = {
        phase: [ns for mark in marks for name, times in mark.span_ns.items() if name == phase for ns in times]
        for phase in PHASES
    }
    phases = {
        phase: PhaseAlone(span_ns := median(spans), min(1.0, working_ns[phase] / span_ns))
        for phase, spans in spans_ns.items()
        if phase in working_ns and spans and median(spans) > 0
    }
    found = replace(
        found,
        unrecorded_step_ns=median(step_ns),
        unrecorded_low_ns=min(step_ns),
        unrecorded_high_ns=max(step_ns),
        clock=marks[0].clock,
        steps=len(step_ns),
        timed_ns=tuple(map(float, step_ns)),
        phases=phases,
        pauses_ns=_pauses_ns(attribution, extents, of_loops),
        where=marks[0].where,
        is_detached=all(mark.is_detached for mark in marks),
        host_ns={str(phase): float(ns) for phase, ns in marks[0].host_ns.items()},
    )
    return _judged(found, _doubt(attribution, marks, found, include_warm_up))


def _judged(found: Recording, doubt: str) -> Recording:
    """Return the recording with what makes it doubtful: as given, or by its times."""
    alone_ns, busy_ns = found.unrecorded_step_ns or 0.0, found.busy_ns or 0.0
    if not doubt and busy_ns > MOST_WORK * alone_ns:
        doubt = MORE_WORK.format(time_in_digits(busy_ns), time_in_digits(alone_ns))
    if not doubt and found.phases and found.pauses_ns is not None:
        between_ns = alone_ns - sum(phase.span_ns for name, phase in found.phases.items() if name != OTHER)
        doubt = OTHER_PAUSES if found.pauses_ns > max(between_ns, 0.0) + MOST_PAUSES * alone_ns else ""
    if not doubt and alone_ns > MOST_STEP * found.step_ns:
        doubt = OTHER_PACE.format(time_in_digits(alone_ns), time_in_digits(found.step_ns))
    return replace(found, trusted=not doubt, reason=doubt)


def _doubt(
    attribution: Attribution, marks: Sequence[UnrecordedMark], found: Recording, include_warm_up: bool
) -> str:
    """Return why the timed steps do not match the measured ones, or "" if they do."""
    if not found.unrecorded_step_ns:
        return NO_MARK
    if any(mark.where == "before" for mark in marks) and _is_watched(attribution, include_warm_up):
        return WATCHED
    recorded = [fact.mark for fact in attribution.trace.facts if isinstance(fact.mark, RecordedMark)]
    for mark in marks:
        shapes = [shape for of_process in recorded for shape in of_process.shapes]
        other_shapes = sum(shape != mark.shape for shape in shapes)
        sizes = [size for of_process in recorded for size in of_process.sizes]
        allocations = [pair for of_process in recorded for pair in of_process.allocations]
        differs = [other_shapes > SAME * len(shapes)]
        differs += [_differs([mark.sizes], sizes)] if mark.sizes is not None else []
        if mark.allocations is not None:
            differs += [
                _differs([own], [pair[n] for pair in allocations]) for n, own in enumerate(mark.allocations)
            ]
        if any(differs):
            return OTHER_WORK
    return ""


def _differs(timed: Sequence[int], measured: Sequence[int]) -> bool:
    """Return whether the medians differ by more than 2%; of what one side does not say, nothing is known."""
    if not measured:
        return False
    own, other = median(timed), median(measured)
    return abs(own - other) > SAME * max(own, other)


def _is_watched(attribution: Attribution, include_warm_up: bool) -> bool:
    """Return whether the report has work from before the measured block."""
    trace = attribution.trace
    begins_ns = [
        fact.at_ns for fact in trace.facts if isinstance(fact.mark, TrainingMark) and fact.mark.event == "measure"
    ]
    if not begins_ns:
        steps = measured_steps(attribution, include_warm_up=include_warm_up)
        begins_ns = attribution.ranges.start_ns[steps].tolist()
    return bool(begins_ns) and int(trace.work.start_ns.min(initial=2**62)) < min(begins_ns)


def _working(attribution: Attribution, extents: Extents, of_loops: Iterable[Loop]) -> dict[str, float]:
    """Return how long a GPU works in each phase of a step: the median over the steps, ns."""
    work, found = attribution.trace.work, {}
    for kind, phase in enumerate(PHASES):
        of_steps_ns: list[float] = []
        rows = np.flatnonzero((extents.phase_of == kind) & (extents.step_of >= 0))
        for loop in of_loops:
            of_loop = rows[work.process[rows] == loop.process]
            busy_ns, devices = np.zeros(len(loop.periods), np.int64), distinct(work.device_id[of_loop]).tolist()
            inside = loop.pieces.take(loop.pieces.kind <= BETWEEN)
            for device in devices:
                on_gpu = of_loop[work.device_id[of_loop] == device]
                times = union(work.start_ns[on_gpu], work.end_ns[on_gpu])
                busy_ns += summed(inside.row, times.covered(inside.start_ns, inside.end_ns), len(loop.periods))
            compared_ns = busy_ns[1:] if len(busy_ns) > 1 else busy_ns
            of_steps_ns += (compared_ns / max(len(devices), 1)).tolist()
        if len(rows):
            found[phase] = float(median(of_steps_ns))
    return found


def _pauses_ns(attribution: Attribution, extents: Extents, of_loops: Iterable[Loop]) -> float | None:
    """Return how long the GPU is idle outside of phases for over 1 ms at a time: the median over the steps, ns.

    A phase lasts on the GPU and on the CPU, which may work long before it launches the first kernel.
    """
    work, spans, of_steps_ns = attribution.trace.work, extents.spans(), list[float]()
    named = spans.take((spans.kind < len(PHASES)) & (spans.kind != PHASES.index(OTHER)))
    in_phases = union(
        np.concatenate([named.start_ns, named.cpu_start_ns]), np.concatenate([named.end_ns, named.cpu_end_ns])
    )
    for loop in of_loops:
        rows = np.flatnonzero(work.process == loop.process)
        busy = union(work.start_ns[rows], work.end_ns[rows])
        start_ns, end_ns = busy.end_ns[:-1], busy.start_ns[1:]
        outside_ns = end_ns - start_ns - in_phases.covered(start_ns, end_ns)
        row = np.searchsorted(loop.periods.end_ns, end_ns, "left")
        long = (outside_ns > PAUSE_NS) & (row < len(loop.periods)) & (start_ns >= loop.periods.before_ns[0])
        paused_ns = summed(row[long], outside_ns[long], len(loop.periods))
        of_steps_ns += (paused_ns[1:] if len(paused_ns) > 1 else paused_ns).astype(float).tolist()
    return float(median(of_steps_ns)) if of_steps_ns else None
