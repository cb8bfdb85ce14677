"""What is no part of a step's time: evaluation, warm-up, pauses of the recorder, and steps whose work was lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.steps import nodes_in
from ..support.small_numbers import looked_up, ordered, sorted_by
from ..trace import Bools
from .intervals import Intervals, union

#: What a piece of a step's time is: between two steps' work, or within its own. The others are taken out; of those
#: that overlap, the first of this order counts.
WINDOW, BETWEEN, LOST, EVALUATION, WARM_UP, RECORDER = range(6)
BEFORE_ALL = -(2**62)


def evaluation_and_warm_up(
    attribution: Attribution, process: int, loop: Intervals, *, include_warm_up: bool
) -> Iterator[tuple[int, Intervals]]:
    """Yield when a process evaluated, and when it warmed up, in the time of a loop.

    As with steps, that is from the end of the work before to the end of its own, so its loading is part of it. On
    a CPU it is the time in which ranges of evaluation, or of warm-up, are open.
    """
    evaluates = attribution.steps.evaluation | nodes_in(attribution, attribution.steps.validation)
    warms_up = attribution.warm_up & (not include_warm_up)
    if not (evaluates.any() or warms_up.any()):
        return
    if attribution.trace.provenance.unit_of_work == "CPU":
        yield EVALUATION, _open_ranges(attribution, process, evaluates)
        yield WARM_UP, _open_ranges(attribution, process, warms_up)
        return
    work = attribution.trace.work
    of_process = (work.process == process) & (work.end_ns > loop.start_ns[0])
    rows = np.flatnonzero(of_process & (work.start_ns < loop.end_ns[-1]))
    rows = sorted_by(rows, work.start_ns)
    node = attribution.node[rows]
    kind = np.where(looked_up(warms_up, node, False), WARM_UP, WINDOW)
    kind[looked_up(evaluates, node, False)] = EVALUATION
    reach_ns = np.maximum.accumulate(work.end_ns[rows])
    before_ns = np.concatenate([[BEFORE_ALL], reach_ns[:-1]])[: len(rows)]
    for number in (EVALUATION, WARM_UP):
        some = np.flatnonzero(kind == number)
        begin_ns = np.where(before_ns[some] == BEFORE_ALL, work.start_ns[rows[some]], before_ns[some])
        yield number, union(begin_ns, reach_ns[some])


def _open_ranges(attribution: Attribution, process: int, nodes: Bools) -> Intervals:
    """Return when ranges of some nodes were open in a process."""
    ranges = attribution.ranges
    rows = ordered(attribution.forest.range[nodes])
    rows = rows[attribution.trace.process_of_thread()[ranges.thread[rows]] == process]
    return union(ranges.start_ns[rows], ranges.end_ns[rows])


def recorder_pauses(attribution: Attribution, process: int) -> Intervals:
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
    start_ns = edges_ns[:-1]
    end_ns = edges_ns[1:]
    idle = (pauses.covered(start_ns, end_ns) > 0) & (busy.covered(start_ns, end_ns) == 0)
    return union(start_ns[idle], end_ns[idle])
