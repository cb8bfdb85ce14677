"""One step of a job on several GPUs, from its ranks' reports: what each rank does, and who waits for whom.

A rank's time in collectives that nothing hides is two things: waiting until the last rank has come, and transfer.
The clocks of ranks are not compared: of the n-th collective of a kind, the rank that needed least time waited
least, and what others needed more is their waiting (measures/communication.py). Figures are of the steps that
count on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..report import Report
from ..report.account import COMMUNICATION, IDLE, Cause, State, StepRow, mean
from ..trace import Int64s
from .communication import Parts, align
from .exchanges import Exchanges, listed_ranks, together

#: The share of a step from which waiting is told, and the share of it by which one rank waits less than others.
MUCH_WAITING, FOR_ONE = 0.05, 0.75
#: What recording makes longer: launches, and their way to the GPU.
SLOWED = ((IDLE, "launching"), (IDLE, "latency"), (IDLE, "profiler"))


@dataclass(frozen=True, slots=True)
class RankStep:
    """What one rank does in a step, means over the steps that count on all ranks, ns.

    `waiting_ns` is the part of its communication that nothing hides in which it waits for other ranks; None where
    that cannot be told from transfer. `alone_ns` is how long its step takes without recording; None if not known.
    """

    name: str
    gpu: str
    step_ns: float
    states_ns: Mapping[State, float]
    waiting_ns: float | None
    causes: tuple[Cause, ...]
    alone_ns: float | None

    def kind_ns(self, kind: str) -> float:
        """Return the time in all states of a kind."""
        return sum(ns for (of_kind, _), ns in self.states_ns.items() if of_kind == kind)


@dataclass(frozen=True, slots=True)
class Late:
    """The rank that others wait for, how long they wait in a step, and what it does longer than they do, ns.

    `of_recording_ns` is how much of the waiting recording may explain, as it slows the rank's launches.
    """

    rank: RankStep
    waiting_ns: float
    state: State | None
    more_ns: float
    of_recording_ns: float

    @property
    def may_vanish(self) -> bool:
        """Whether little of the waiting is left without what recording may explain."""
        return self.waiting_ns - self.of_recording_ns < MUCH_WAITING * self.rank.step_ns


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks of a job, in order; `steps` count on all of them. `late` is None where they wait for no one."""

    ranks: tuple[RankStep, ...]
    steps: int
    late: Late | None

    @property
    def step_ns(self) -> float:
        """How long a step takes: of a synchronous job as long on every rank, else on the slowest."""
        return max(rank.step_ns for rank in self.ranks)

    @property
    def waiting_ns(self) -> float:
        """How long the rank waits that waits longest."""
        return max((rank.waiting_ns or 0.0 for rank in self.ranks), default=0.0)


def job_of(reports: Sequence[tuple[str, Report, Exchanges]]) -> Job | None:
    """Return the step of a job, from each rank's name, report and exchanges of all its steps.

    None unless every report is of one GPU with steps, and all have the same number of them.
    """
    accounts = [report.account for _, report, _ in reports]
    if len(reports) < 2 or any(account is None or not account.has_steps for account in accounts):
        return None
    rows = [[row for row in account.rows if row.loop == 0] for account in accounts if account]
    if len({len(of_rank) for of_rank in rows}) > 1 or any(len(exchanged.gpus) > 1 for _, _, exchanged in reports):
        return None
    counted = [number for number, steps in enumerate(zip(*rows, strict=True)) if all(row.counted for row in steps)]
    if not counted:
        return None
    waiting = _waiting(reports, rows)
    ranks = tuple(
        RankStep(
            name=name,
            gpu=report.account.gpus[0].gpu if report.account and report.account.gpus else "",
            step_ns=mean([of_rank[number].own_ns for number in counted]),
            states_ns=_states([of_rank[number] for number in counted]),
            waiting_ns=None if of_step is None else float(of_step[counted].mean()),
            causes=report.account.gpus[0].causes if report.account and report.account.gpus else (),
            alone_ns=report.recording.alone_ns if report.recording else None,
        )
        for (name, report, _), of_rank, of_step in zip(reports, rows, waiting, strict=True)
    )
    return Job(ranks, len(counted), _late(ranks))


def _states(rows: Sequence[StepRow]) -> dict[State, float]:
    sums: dict[State, float] = {}
    for row in rows:
        for state, ns in row.states_ns:
            sums[state] = sums.get(state, 0.0) + ns / len(rows)
    return sums


def _waiting(
    reports: Sequence[tuple[str, Report, Exchanges]], rows: Sequence[Sequence[StepRow]]
) -> list[Int64s | None]:
    """Return how long each rank waits in each step while nothing hides it, ns; None where this is not known."""
    held = together([(name, exchanged) for name, _, exchanged in reports])
    kernels, steps = held.kernels, len(rows[0])
    group = np.where(np.array([not name for name in held.groups] or [True])[kernels.group], -1, kernels.group)
    listed = np.array([listed_ranks(name) for name in held.groups] or [0])[kernels.group]
    ranks = np.maximum(kernels.ranks, listed)
    parts = Parts(kernels.gpu, kernels.collective, group, ranks, kernels.start_ns, kernels.end_ns)
    in_step = kernels.step >= 0
    aligned = align(parts.take(in_step), one_clock=False).waiting_ns
    exposed_ns = (kernels.time_ns - kernels.hidden_ns)[in_step]
    step, gpu = kernels.step[in_step], kernels.gpu[in_step]
    result: list[Int64s | None] = []
    for rank, of_rank in enumerate(rows):
        mine = (gpu == rank) & (aligned >= 0)
        if not mine.any():
            result.append(None)
            continue
        waiting = np.zeros(steps, np.int64)
        np.add.at(waiting, np.minimum(step[mine], steps - 1), np.minimum(aligned, exposed_ns)[mine])
        exposed = np.array([row.kind_ns(COMMUNICATION) for row in of_rank], np.int64)
        result.append(np.minimum(waiting, exposed))
    return result


def _late(ranks: Sequence[RankStep]) -> Late | None:
    """Return the rank that the others wait for; None where none of them waits long, or they wait in turn."""
    if any(rank.waiting_ns is None for rank in ranks):
        return None
    waiting = {rank.name: rank.waiting_ns or 0.0 for rank in ranks}
    last = min(ranks, key=lambda rank: waiting[rank.name])
    others = [rank for rank in ranks if rank is not last]
    waiting_ns = float(np.median([waiting[rank.name] for rank in others]))
    is_much = waiting_ns >= MUCH_WAITING * last.step_ns
    if not is_much or waiting[last.name] > (1 - FOR_ONE) * waiting_ns:
        return None
    more = {
        state: ns - float(np.median([rank.states_ns.get(state, 0.0) for rank in others]))
        for state, ns in last.states_ns.items()
        if state[0] != COMMUNICATION
    }
    state = max(more, key=lambda each: more[each], default=None)
    more_ns = more[state] if state else 0.0
    slower_ns = max(last.step_ns - last.alone_ns, 0.0) if last.alone_ns else 0.0
    of_recording_ns = waiting_ns if state in SLOWED and not last.alone_ns else min(slower_ns, waiting_ns)
    return Late(last, waiting_ns, state, more_ns, of_recording_ns)
