"""Where idle time is looked for: in the measured steps and between two of them, else in all work."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..support.small_numbers import bounds, grouped_rows, rows_of_each
from ..trace import Bools, Columns, Int32s, Int64s
from ..vocabulary import PHASES
from .spans import STEP, Extents, Spans, kinds_of

#: How many steps are looked at where the answer is a median, besides the one with the most idle time.
TYPICAL_STEPS = 3


@dataclass(frozen=True, slots=True)
class Windows(Columns):
    """Disjoint windows by GPU and then time; no gap crosses their bounds.

    `step` is the measured step, from 0, that a window belongs to or comes after, -1 without steps; `between` marks
    windows between that step and the next.
    """

    gpu: Int32s  # position in Extents.gpus
    start_ns: Int64s
    end_ns: Int64s
    step: Int32s
    between: Bools

    @property
    def duration_ns(self) -> Int64s:
        """How long each window is, ns."""
        return self.end_ns - self.start_ns


def windows_of(extents: Extents, phases: Collection[str] = PHASES) -> Windows:
    """Return the measured steps and what lies between; without steps all work, or some phases' spans."""
    if STEP in kinds_of(phases) and (extents.inside(STEP)).any():
        return _of_steps(extents)
    if not len(extents.kept):
        return windows_around(extents.spans())
    spans = extents.spans()
    chosen = spans.take(np.isin(spans.kind, kinds_of(phases)))
    of_phases = STEP not in kinds_of(phases) and len(chosen)
    return windows_around(chosen if of_phases else extents.whole())


def windows_around(spans: Spans) -> Windows:
    """Return windows that cover some spans, of no step."""
    return _cut(spans.gpu, spans.start_ns, spans.end_ns, np.full(len(spans), -1, np.int32))


def typical(windows: Windows, idle_ns: Int64s) -> Windows:
    """Return the windows of a few steps of each GPU: nearest the median idle time, and the one with the most.

    `idle_ns` is each window's. All windows are returned where there are few steps.
    """
    chosen = np.ones(len(windows), np.bool_)
    for _, rows in rows_of_each(windows.gpu):
        inside = rows[~windows.between[rows]]
        if len(inside) <= TYPICAL_STEPS + 1:
            continue
        order = np.argsort(idle_ns[inside], kind="stable")
        middle = (len(order) - TYPICAL_STEPS) // 2
        kept = windows.step[inside[np.append(order[middle : middle + TYPICAL_STEPS], order[-1])]]
        chosen[rows] = np.isin(windows.step[rows], kept)
    return windows.take(chosen)


def _of_steps(extents: Extents) -> Windows:
    """Return the steps, cut where they overlap, and what lies between two that follow each other."""
    work, rows = extents.attribution.trace.work, np.flatnonzero(extents.inside(STEP))
    (gpu, step), group = grouped_rows(extents.gpu[rows], extents.step_of[rows])
    start, end = bounds(group, work.start_ns[rows], work.end_ns[rows], len(gpu))
    steps = _cut(gpu, start, end, step)
    first = np.flatnonzero((steps.gpu[1:] == steps.gpu[:-1]) & (steps.start_ns[1:] > steps.end_ns[:-1]))
    between = Windows(
        steps.gpu[first],
        steps.end_ns[first],
        steps.start_ns[first + 1],
        steps.step[first],
        np.ones(len(first), np.bool_),
    )
    both = Windows.joined([steps, between.take(~_interrupted(extents, between))])
    return both.take(np.lexsort((both.start_ns, both.gpu)))


def _interrupted(extents: Extents, windows: Windows) -> Bools:
    """Mark the windows in which work of warm-up, of evaluation or of a step that is not measured begins."""
    everything = extents.attribution.of_all_work
    warm_up, evaluation = everything.warm_up, everything.steps.evaluation
    of_node = np.append((warm_up | evaluation) if len(evaluation) == len(warm_up) else warm_up, False)
    interrupted = np.zeros(len(windows), np.bool_)
    if not of_node.any():
        return interrupted
    apart = of_node[everything.node]
    for (gpu,), rows in rows_of_each(windows.gpu):
        begins = np.sort(everything.trace.work.start_ns[apart & (extents.gpu_of_all == gpu)])
        before, after = (np.searchsorted(begins, times[rows]) for times in (windows.start_ns, windows.end_ns))
        interrupted[rows] = after > before
    return interrupted


def _cut(gpu: NDArray[np.integer], start_ns: Int64s, end_ns: Int64s, step: NDArray[np.integer]) -> Windows:
    """Return windows in the order of GPUs and time, each begun where those before it have ended."""
    order = np.lexsort((end_ns, start_ns, gpu))
    start, end = start_ns[order], end_ns[order]
    for _, rows in rows_of_each(gpu[order]):
        reach = np.maximum.accumulate(end[rows])
        start[rows[1:]] = np.maximum(start[rows[1:]], reach[:-1])
    no = np.zeros(len(order), np.bool_)
    windows = Windows(gpu[order].astype(np.int32), start, end, step[order].astype(np.int32), no)
    return windows.take(end > start)
