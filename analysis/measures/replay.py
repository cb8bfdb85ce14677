"""Replay the recorded calls of a few steps: how long a step would take after a change, or with a faster host.

A piece of work starts when its launch call has reached the GPU and what it waits for has ended: the work before
it on its stream, and events of other streams. A call that synchronizes returns when the work that it waits for
has ended. All else lasts as recorded, or as a change says. docs/fix_first.md draws it.

Many replays of one report are computed at once, for they differ in columns alone. Between two calls that wait, the
host's times are sums; and the end of a run of work is the largest of such sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..account import Partition
from ..support.small_numbers import medians
from ..support.units import share_text
from ..trace import Bools
from ..vocabulary import PHASES
from .gpu_time import Floats
from .host_line import NO_TIME, Refused, window_of
from .timeline import BEGIN, EMPTY, END, PAUSE_NS, ROOM, RUN, WAIT, Timeline, first_calls, recorded_timeline

#: A lag between a launch call and the start of its work above which it is not the host's, ns.
LONGEST_LAG_NS = 50_000
#: The replay of the unchanged report must give the recorded step within this share of it.
LARGEST_ERROR = 0.02
MISSES = "the replay of the unchanged report misses its step by {}"
#: The columns of a timeline that changes change.
CHANGING = ("before_ns", "own_ns", "waits", "lag_ns", "gap_ns", "duration_ns", "kept")


def timeline_of(partition: Partition) -> Timeline:
    """Return the recorded timeline of typical steps.

    Raises Refused where the report lacks what a replay needs, or where its replay does not give the recorded step.
    """
    timeline = recorded_timeline(partition.attribution, window_of(partition))
    if recorded_step_ns(timeline) <= 0:
        raise Refused(NO_TIME)
    if abs(error := replay_error(timeline)) > LARGEST_ERROR:
        raise Refused(MISSES.format(share_text(abs(error))))
    return timeline


def replay_error(timeline: Timeline) -> float:
    """Return how much longer the replay of the unchanged timeline is than the recorded step, as a share of it."""
    return float(step_ns([timeline], np.ones(1))[0]) / recorded_step_ns(timeline) - 1


def recorded_step_ns(timeline: Timeline) -> float:
    """Return how long one of the replayed steps took, as recorded."""
    window = timeline.window
    ends_ns = (window.ends_ns - window.host.begin_ns).astype(np.float64)
    return float(_step(ends_ns[:, None], timeline)[0])


def step_ns(timelines: Sequence[Timeline], factors: Floats) -> Floats:
    """Return how long a step takes in each replay, ns, with the host's times multiplied by its factor.

    `factors` has one for each replay, or a row for each, of one for each of PHASES. All replays are of one
    timeline, or each has its own.
    """
    return _step(_replayed(timelines, factors)[0], timelines[0])


def emptied_ns(emptied: Timeline, factors: Floats) -> Floats:
    """Return how long the host takes for each phase of a step that begins with nothing left for the GPU to do, ns.

    A row for each of `factors`, of a time for each of PHASES: the median over the steps. `emptied` is what
    `timeline.emptied` returned.
    """
    _, begins, leaves = _replayed([emptied], factors)
    first = first_calls(emptied)
    times = np.zeros((emptied.steps, len(PHASES), len(factors)))
    np.add.at(times, (emptied.step_of_call[first], emptied.phase[first]), leaves - begins)
    return medians(times.T)


def _replayed(timelines: Sequence[Timeline], factors: Floats) -> tuple[Floats, Floats, Floats]:
    """Return when steps end, and when the host begins and leaves phases that are emptied; columns are replays."""
    first = timelines[0]
    columns = {name: _stacked(timelines, name) for name in CHANGING}
    factor = np.repeat(factors[:, None], len(first.phase), axis=1)
    if factors.ndim > 1:
        factor = factors[:, first.phase]
    before_ns = columns["before_ns"]
    before_ns = np.where(before_ns > PAUSE_NS, before_ns, before_ns * factor)
    own_ns = columns["own_ns"]
    own_ns = np.where(first.scaled & (own_ns <= PAUSE_NS), own_ns * factor, own_ns)
    called_ns = np.cumsum(before_ns + own_ns, axis=1) - own_ns  # when each call begins, if none waits
    # Work by run: when its end would be if only its launch call mattered, and how long it keeps its stream.
    order = first.program.work
    begin = first.program.first
    call = first.window.work.call[order]
    lag_ns = columns["lag_ns"][:, order]
    lag_ns = np.where(lag_ns < LONGEST_LAG_NS, lag_ns * factor[:, call], lag_ns)
    is_kept = columns["kept"][:, order]
    duration_ns = columns["duration_ns"][:, order]
    reaches_ns = np.where(is_kept, called_ns[:, call] + lag_ns + duration_ns, -np.inf)
    takes_ns = np.cumsum(np.where(is_kept, columns["gap_ns"][:, order] + duration_ns, 0.0), axis=1)
    until_ns = takes_ns[:, np.append(begin[1:], len(order)) - 1]
    latest_ns = np.maximum.reduceat(reaches_ns - takes_ns, begin, axis=1) + until_ns
    run_ns = np.diff(until_ns, axis=1, prepend=0.0)
    return _followed(first, run_ns.T.copy(), latest_ns.T.copy(), called_ns.T, own_ns.T, columns["waits"].T)


def _stacked(timelines: Sequence[Timeline], name: str) -> NDArray[Any]:
    """Return a column of some timelines, a row for each."""
    return np.stack([getattr(timeline, name) for timeline in timelines])


def _followed(
    timeline: Timeline,
    run_ns: Floats,
    latest_ns: Floats,
    called_ns: Floats,
    own_ns: Floats,
    waits: Bools,
) -> tuple[Floats, Floats, Floats]:
    """Follow the operations in their order; return what `_replayed` does.

    Columns are replays, or one for all that do not differ. `run_ns` is how long a run keeps its stream,
    `latest_ns` its end on a free stream.
    """
    earlier_ns = timeline.program.earlier_ns - timeline.window.host.begin_ns
    run = earlier = len(earlier_ns)
    replays = called_ns.shape[1]
    ends_ns = np.empty((earlier + len(run_ns), replays))
    ends_ns[:earlier] = earlier_ns[:, None]
    waited_ns = np.zeros(replays)  # how long the host has waited so far
    step_ends: list[Floats] = []
    begins: list[Floats] = []
    leaves: list[Floats] = []
    begun = run
    for kind, call, after_ns, behind in timeline.program.operations:
        if kind == BEGIN:
            begun = run
            continue
        if kind == END:
            now_ns = waited_ns + called_ns[min(call, len(called_ns) - 1)]  # of a step without work of its own
            step_ends.append(ends_ns[begun:run].max(axis=0) if run > begun else now_ns)
            continue
        ended_ns = ends_ns[behind[0]] if len(behind) == 1 else ends_ns[list(behind)].max(axis=0)
        if kind == RUN:
            number = run - earlier
            ends_ns[run] = np.maximum(ended_ns + run_ns[number], waited_ns + latest_ns[number])
            run += 1
        elif kind == EMPTY:
            now_ns = waited_ns + (called_ns[call - 1] + own_ns[call - 1] if call else 0.0)
            leaves.append(now_ns)
            begins.append(np.maximum(now_ns, ended_ns))
            waited_ns = waited_ns + begins[-1] - now_ns
        elif kind == ROOM or waits[call].any():
            now_ns = waited_ns + called_ns[call]
            more_ns = np.maximum(ended_ns + after_ns - now_ns - (own_ns[call] if kind == WAIT else 0.0), 0.0)
            still = kind == ROOM or waits[call]
            waited_ns = waited_ns + np.where(still & ((ended_ns > now_ns) | (kind != WAIT)), more_ns, 0.0)
    leaves.append(waited_ns + called_ns[-1] + own_ns[-1])
    return np.stack(step_ends), np.array(begins), np.array(leaves[1:])


def _step(ends_ns: Floats, timeline: Timeline) -> Floats:
    """Return the mean of the steps that count, by replay, as steps end then; of a single one, since its begin."""
    if len(ends_ns) == 1:
        return np.asarray(ends_ns[0], np.float64)
    steps_ns = np.diff(ends_ns, axis=0)
    counts = timeline.window.counts[1:]
    counted_ns = steps_ns[counts] if counts.any() else steps_ns
    return np.asarray(counted_ns.mean(axis=0), np.float64)
