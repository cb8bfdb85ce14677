"""How long a step takes: from the end of one step's work to the end of the next's.

    step 1's work    between    step 2's work          step 3's work, which begins early (prefetch)
    ─────────────┤ ············ ├─────────────────────┤
                 │                          ├─────────┼────────────────┤
                 ├──────── own time of 2 ─────────────┤ own time of 3  │

The own time of a step has a *window*, from the first start of its work to the last end, and the time *between* it
and the step before. A window that begins before the last step ended is cut there, so both add up to the own time.
Evaluation, warm-up and the recorder's pauses are taken out of both. The first step of a process has only its
window. On a CPU, the steps' ranges take the place of work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.steps import measured_steps, nodes_in, step_of_nodes
from ..report.step_time import StepRow, StepTime
from ..support.small_numbers import bounds, distinct, ordered, rows_of_each, summed
from ..trace import Bools, Columns, Int8s, Int32s, Int64s
from .generation import Generation, ends_of_parts, generations
from .spans import Intervals, union

#: What a piece of a step's time is; from EVALUATION on it is taken out.
WINDOW, BETWEEN, EVALUATION, WARM_UP, RECORDER = range(5)
BEFORE_ALL = -(2**62)


@dataclass(frozen=True, slots=True)
class Periods(Columns):
    """The steps of one loop in order: each from the end of the step before, the first from its first start.

    `step` is a step's place among the measured ones. From `start_ns` to `end_ns` is its window, which is empty if
    all its work was done before the last step ended.
    """

    step: Int64s
    before_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s


@dataclass(frozen=True, slots=True)
class Pieces(Columns):
    """The time of a loop from its first start to its last end, in disjoint pieces in order.

    `row` is a position in its `Periods`, and `kind` is WINDOW, BETWEEN, or what is taken out.
    """

    row: Int64s
    kind: Int8s
    start_ns: Int64s
    end_ns: Int64s


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps that follow one another in one process, and the time that they take."""

    process: int  # position in Trace.processes
    periods: Periods
    pieces: Pieces


def step_time(attribution: Attribution, *, include_warm_up: bool = False) -> StepTime | None:
    """Measure the steps of a report; None if it has no measured step with work.

    `attribution` is that of all work, as a GPU is busy with any work, and what is taken out lies in no step.
    """
    found = loops(attribution, include_warm_up=include_warm_up)
    work, parts = {}, generations(attribution, include_warm_up=include_warm_up)
    if parts:
        work = dict(rows_of_each(step_of_nodes(attribution, include_warm_up=include_warm_up)[attribution.node]))
    rows = [
        _divided(row, attribution, loop, number, parts[row.step], work[row.step,]) if row.step in parts else row
        for loop in found
        for number, row in enumerate(_rows(attribution, loop))
    ]
    return StepTime(tuple(sorted(rows, key=lambda row: row.step))) if rows else None


def loops(attribution: Attribution, *, include_warm_up: bool = False) -> list[Loop]:
    """Return the loops of a report, with every moment of their steps in one piece."""
    steps = measured_steps(attribution, include_warm_up=include_warm_up)
    if not len(steps):
        return []
    work, on_cpu = attribution.trace.work, attribution.trace.provenance.unit_of_work == "CPU"
    step_of_work = step_of_nodes(attribution, include_warm_up=include_warm_up)[attribution.node]
    rows = np.flatnonzero(step_of_work >= 0)
    start_ns, end_ns = bounds(step_of_work[rows], work.start_ns[rows], work.end_ns[rows], len(steps))
    worked = end_ns >= start_ns
    if on_cpu:
        start_ns, end_ns = attribution.ranges.start_ns[steps], attribution.ranges.end_ns[steps]
    found = []
    loop, process_of_loop = _loops_of(attribution, steps)
    for number, process in enumerate(process_of_loop):
        chosen = np.flatnonzero((loop == number) & worked)
        if len(chosen):
            periods = _periods(chosen, start_ns[chosen], end_ns[chosen])
            cuts = [*_left_out(attribution, process, periods, include_warm_up)]
            cuts.append((RECORDER, _pauses(attribution, process)))
            found.append(Loop(process, periods, _pieces(periods, cuts)))
    return found


def _loops_of(attribution: Attribution, steps: Int32s) -> tuple[Int64s, list[int]]:
    """Return the loop of each step, and each loop's process.

    The steps of a process are one loop, unless threads have steps at the same time: then each thread has its own.
    """
    ranges = attribution.ranges
    thread = ranges.thread[steps]
    process_of_thread = attribution.trace.process_of_thread()
    loop, processes = np.zeros(len(steps), np.int64), list[int]()
    for process in distinct(process_of_thread[thread]).tolist():
        rows = np.flatnonzero(process_of_thread[thread] == process)
        overlap = (ranges.start_ns[steps[rows[1:]]] < ranges.end_ns[steps[rows[:-1]]]).any()
        for threads in [[one] for one in distinct(thread[rows]).tolist()] if overlap else [thread[rows]]:
            loop[rows[np.isin(thread[rows], threads)]] = len(processes)
            processes.append(process)
    return loop, processes


def _periods(step: Int64s, start_ns: Int64s, end_ns: Int64s) -> Periods:
    """Cut windows where the step before ended."""
    reach_ns = np.maximum.accumulate(end_ns)
    before_ns = np.concatenate([start_ns[:1], reach_ns[:-1]])
    return Periods(step, before_ns, np.clip(start_ns, before_ns, reach_ns), reach_ns)


def _left_out(
    attribution: Attribution, process: int, periods: Periods, include_warm_up: bool
) -> Iterator[tuple[int, Intervals]]:
    """Yield when a process evaluated, and when it warmed up, between the ends of its measured steps.

    As with steps, that is from the end of the work before to the end of its own, so its loading is part of it.
    """
    evaluates = attribution.steps.evaluation | nodes_in(attribution, attribution.steps.validation)
    warms_up = attribution.warm_up & (not include_warm_up)
    if not (evaluates.any() or warms_up.any()):
        return
    if attribution.trace.provenance.unit_of_work == "CPU":
        yield from _left_out_on_cpu(attribution, process, evaluates, warms_up)
        return
    work = attribution.trace.work
    of_process = (work.process == process) & (work.end_ns > periods.before_ns[0])
    rows = np.flatnonzero(of_process & (work.start_ns < periods.end_ns[-1]))
    rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
    node = attribution.node[rows]
    kind = np.where(np.append(warms_up, False)[node], WARM_UP, WINDOW)
    kind[np.append(evaluates, False)[node]] = EVALUATION
    reach_ns = np.maximum.accumulate(work.end_ns[rows])
    before_ns = np.concatenate([[BEFORE_ALL], reach_ns[:-1]])[: len(rows)]
    for number in (EVALUATION, WARM_UP):
        some = np.flatnonzero(kind == number)
        begin_ns = np.where(before_ns[some] == BEFORE_ALL, work.start_ns[rows[some]], before_ns[some])
        yield number, union(begin_ns, reach_ns[some])


def _left_out_on_cpu(
    attribution: Attribution, process: int, evaluates: Bools, warms_up: Bools
) -> Iterator[tuple[int, Intervals]]:
    """Yield when ranges of evaluation, and of warm-up, were open in a process."""
    ranges, of_node = attribution.ranges, attribution.forest.range
    for number, marked in ((EVALUATION, evaluates), (WARM_UP, warms_up)):
        rows = ordered(of_node[marked])
        rows = rows[attribution.trace.process_of_thread()[ranges.thread[rows]] == process]
        yield number, union(ranges.start_ns[rows], ranges.end_ns[rows])


def _pauses(attribution: Attribution, process: int) -> Intervals:
    """Return when the recorder kept a process waiting, and its GPUs had nothing to do."""
    trace = attribution.trace
    paused = trace.pauses.take(trace.process_of_thread()[trace.pauses.thread] == process)
    pauses = union(paused.start_ns, paused.end_ns)
    if not len(pauses) or trace.provenance.unit_of_work == "CPU":
        return pauses
    work = trace.work
    beside = (work.end_ns > pauses.start_ns[0]) & (work.start_ns < pauses.end_ns[-1])
    rows = np.flatnonzero(beside & (work.process == process))
    busy = union(work.start_ns[rows], work.end_ns[rows])
    edges_ns = ordered(np.concatenate([pauses.start_ns, pauses.end_ns, busy.start_ns, busy.end_ns]))
    start_ns, end_ns = edges_ns[:-1], edges_ns[1:]
    idle = (pauses.covered(start_ns, end_ns) > 0) & (busy.covered(start_ns, end_ns) == 0)
    return union(start_ns[idle], end_ns[idle])


def _pieces(periods: Periods, cuts: list[tuple[int, Intervals]]) -> Pieces:
    """Divide the periods of a loop at what is taken out; of what overlaps, the first of the cuts counts."""
    edges = [periods.before_ns, periods.start_ns, periods.end_ns]
    edges += [side for _, times in cuts for side in (times.start_ns, times.end_ns)]
    edges_ns = ordered(np.clip(np.concatenate(edges), periods.before_ns[0], periods.end_ns[-1]))
    start_ns, end_ns = edges_ns[:-1], edges_ns[1:]
    row = np.searchsorted(periods.end_ns, start_ns, "right")
    kind = np.where(start_ns < periods.start_ns[row], BETWEEN, WINDOW).astype(np.int8)
    for number, times in reversed(cuts):
        kind[times.covered(start_ns, end_ns) > 0] = number
    return Pieces(row, kind, start_ns, end_ns)


def _rows(attribution: Attribution, loop: Loop) -> Iterator[StepRow]:
    """Yield the figures of each step of a loop."""
    pieces, count = loop.pieces, len(loop.periods)
    duration_ns = pieces.end_ns - pieces.start_ns
    cells = pieces.row * (RECORDER + 1) + pieces.kind
    times_ns = summed(cells, duration_ns, count * (RECORDER + 1)).reshape(count, RECORDER + 1)
    busy_ns, gpus = np.zeros((count, RECORDER + 1), np.int64), 0
    if attribution.trace.provenance.unit_of_work != "CPU":
        for busy in _busy(attribution, loop):
            inside_ns = busy.covered(pieces.start_ns, pieces.end_ns)
            busy_ns += summed(cells, inside_ns, count * (RECORDER + 1)).reshape(busy_ns.shape)
            gpus += 1
    process_id = attribution.trace.processes[loop.process].process_id
    for number, step in enumerate(loop.periods.step.tolist()):
        window_ns, between_ns, evaluation_ns, warm_up_ns, recorder_ns = times_ns[number].tolist()
        window_busy_ns, between_busy_ns = busy_ns[number, :EVALUATION].tolist()
        yield StepRow(
            step=step,
            process_id=process_id,
            first=number == 0,
            own_ns=window_ns + between_ns,
            window_ns=window_ns,
            between_ns=between_ns,
            evaluation_ns=evaluation_ns,
            warm_up_ns=warm_up_ns,
            recorder_ns=recorder_ns,
            busy_ns=window_busy_ns + between_busy_ns if gpus else None,
            between_busy_ns=between_busy_ns if gpus else None,
            gpus=gpus,
        )


def _divided(
    step: StepRow, attribution: Attribution, loop: Loop, number: int, generation: Generation, work: Int64s
) -> StepRow:
    """Return a step, which is period `number` of its loop, with its own time divided into prefill and decode."""
    periods, pieces = loop.periods, loop.pieces
    kept = (pieces.row == number) & (pieces.kind < EVALUATION)
    before_ns, end_ns = periods.before_ns[number], periods.end_ns[number]
    ends_ns = np.clip(ends_of_parts(attribution, generation, work), before_ns, end_ns)
    edges_ns = np.concatenate([[before_ns], ends_ns, [end_ns]])
    times_ns = union(pieces.start_ns[kept], pieces.end_ns[kept]).covered(edges_ns[:-1], edges_ns[1:])
    return replace(
        step,
        prefill_ns=int(times_ns[generation.is_prefill].sum()),
        decode_ns=int(times_ns[~generation.is_prefill].sum()),
        decode_calls=int((~generation.is_prefill).sum()),
        tokens=generation.tokens,
    )


def _busy(attribution: Attribution, loop: Loop) -> Iterator[Intervals]:
    """Yield when each GPU that a loop's process works on is busy in the loop's time."""
    work, periods = attribution.trace.work, loop.periods
    inside = (work.process == loop.process) & (work.end_ns > periods.before_ns[0])
    rows = np.flatnonzero(inside & (work.start_ns < periods.end_ns[-1]))
    for device in distinct(work.device_id[rows]).tolist():
        on_gpu = rows[work.device_id[rows] == device]
        yield union(work.start_ns[on_gpu], work.end_ns[on_gpu])
