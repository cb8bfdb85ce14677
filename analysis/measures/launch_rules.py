"""The rule on launches that limit a step, and what makes one launch of many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..account.idle import LATENCY, LAUNCHING, MODULE_LOADING
from ..report.limits import CAUSE_FROM, IDLE_LIMITS_BELOW
from ..support.small_numbers import distinct, rows_of_each
from ..support.units import count_text
from ..trace import Bools, Int8s, Int64s
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES
from .fix_subject import FixSubject
from .gpu_time import Floats
from .read_rules import reads_inside, without_reads
from .symptoms import Found, HostTime, Unjudged
from .timeline import PAUSE_NS, Timeline
from .waste_rules import ALLOCATES

#: What a launch takes where CUDA graphs or a compiler make most of them go away, ns.
CHEAP_LAUNCH_NS = 300.0
#: The kernels of recurrent cells, and of how many a step is a loop over time.
OF_CELLS, MANY_CELLS = {"LSTM": r"lstm_cell_forward", "GRU": r"gru_cell_forward"}, 8


def at_once(
    subject: FixSubject, work: Bools, group: Int64s, lasts_ns: float | None = None
) -> Callable[[Timeline], Timeline]:
    """Return the change that makes each group of some work one kernel, that lasts so long or as long as all.

    `group` (work,) numbers the groups of all work.
    """
    call = subject.work.call
    dropped_calls = np.zeros(len(subject.host.row), np.bool_)
    dropped = work.copy()
    rows_of_groups = [np.flatnonzero(work)[rows] for _key, rows in rows_of_each(group[work])]
    firsts = [rows[0] for rows in rows_of_groups]
    for rows in rows_of_groups:
        dropped_calls[call[rows[0]] + 1 : call[rows[-1]] + 1] = True
    dropped[firsts] = False
    dropped_calls[call[~work]] = False

    def change(timeline: Timeline) -> Timeline:
        duration = timeline.duration_ns.copy()
        if lasts_ns is None:
            duration[firsts] = [timeline.duration_ns[rows].sum() for rows in rows_of_groups]
        else:
            duration[firsts] = lasts_ns
        return timeline.lasting(duration).without_calls(dropped_calls, dropped)

    return change


def launching(subject: FixSubject, factors: Floats) -> Iterator[Found | Unjudged]:
    """Find phases in which the GPU waits for one launch after another."""
    phases = limited_by_launching(subject, factors.min(axis=0))
    if not phases:
        return
    names = [PHASES[phase] for phase in phases]
    of_phase = np.isin(subject.timeline.phase, phases)
    calls = of_phase & ~subject.waiting & ~subject.calls_named(ALLOCATES)

    def change(timeline: Timeline) -> Timeline:
        is_short = calls & (timeline.own_ns <= PAUSE_NS)
        own_ns = np.where(is_short, np.minimum(timeline.own_ns, CHEAP_LAUNCH_NS), timeline.own_ns)
        paused = timeline.pausing(calls & (timeline.before_ns <= PAUSE_NS), CHEAP_LAUNCH_NS)
        return replace(paused, own_ns=own_ns)

    work = np.isin(subject.timeline.work_phase, phases)
    in_model = [name for name in names if name in (FORWARD, BACKWARD)]
    limited = " and ".join(in_model).capitalize() if in_model else "The step"
    verb = "are" if len(in_model) > 1 else "is"
    count = count_text(round(subject.per_step(work & subject.kernel)))
    kernels = f"{count} small kernels"
    reads = reads_inside(subject)
    remedy, short = _fewer_launches(subject, kernels) if reads is None else without_reads(subject, reads)
    sentence = f"{limited} {verb} limited by the CPU: {kernels} are launched one by one: {remedy}"
    concerned = np.flatnonzero(calls)
    if reads is not None:
        concerned = np.union1d(subject.work.call[reads], subject.waits_behind(reads))
    begins_with = "" if reads is None else "forward_read"
    yield Found(change, sentence, short, work, host=HostTime(concerned), begins_with=begins_with)


def _fewer_launches(subject: FixSubject, kernels: str) -> tuple[str, str]:
    """Return the remedy for launches where nothing stops CUDA graphs; and the same in short."""
    for cell, pattern in OF_CELLS.items():
        if subject.per_step(subject.matching(pattern) & subject.of_phase(FORWARD)) >= MANY_CELLS:
            remedy = f"nn.{cell} over all times at once, if no time needs another layer's output; else CUDA graphs"
            return (
                f"{remedy} (torch.compile)",
                f"nn.{cell} in place of a loop over nn.{cell}Cell: {kernels} a step",
            )
    if subject.run.get("compile") == "reduce-overhead":
        return "larger batches, which change training", f"Larger batches (they change training): {kernels} a step"
    if subject.is_compiled:
        remedy = 'CUDA graphs (mode="reduce-overhead" where it is compiled); larger batches change training'
        return remedy, f'CUDA graphs (mode="reduce-overhead" of what is compiled): {kernels} a step'
    remedy = 'torch.compile(mode="reduce-overhead"), CUDA graphs; larger batches change training'
    return remedy, f'torch.compile(mode="reduce-overhead"), CUDA graphs: {kernels} a step'


def limited_by_launching(subject: FixSubject, factor: Floats | float) -> list[int]:
    """Return the phases, as positions in PHASES, that launching limits even with so much of the host's time.

    `factor` is one of all phases, or of each.

    Idle time has the causes that `view idle` shows; launching includes the launched work's way to the GPU. Pauses
    of over 1 ms and loading code do not count.
    """
    phase = subject.timeline.work_phase
    gaps = subject.gaps
    chosen = [PHASES.index(name) for name in (FORWARD, BACKWARD)]
    if not np.isin(phase, chosen).any():
        chosen = sorted(set(distinct(phase).tolist()) - {PHASES.index(OPTIMIZER)})
    of_gap = subject.attribution.phase[gaps.next]
    busy_ns = _by_phase(phase, subject.duration_ns)
    most_ns = IDLE_LIMITS_BELOW * (busy_ns + _by_phase(of_gap, gaps.duration_ns) * factor)
    if not (busy_ns < most_ns)[chosen].any():
        return []
    pieces = subject.idle_pieces
    counted = pieces.take((pieces.cause != MODULE_LOADING) & (pieces.duration_ns <= PAUSE_NS))
    idle_ns, launching_ns = (
        _by_phase(of_gap[np.searchsorted(gaps.start_ns, some.start_ns, "right") - 1], some.duration_ns)
        for some in (counted, counted.take(np.isin(counted.cause, (LAUNCHING, LATENCY))))
    )
    limited = busy_ns < IDLE_LIMITS_BELOW * (busy_ns + idle_ns * factor)
    limited &= launching_ns >= CAUSE_FROM * idle_ns
    return [number for number in chosen if limited[number]]


def _by_phase(phase: Int8s, values: NDArray[Any]) -> Floats:
    """Return the sums by phase, a position in PHASES."""
    return np.bincount(phase, values, len(PHASES)).astype(np.float64)
