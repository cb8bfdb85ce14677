"""One step of a job on several GPUs, from its ranks' reports: what each rank does, and who waits for whom.

A rank's time in collectives that nothing hides is two things: waiting until the last rank has come, and transfer.
The clocks of ranks are not compared: of the n-th collective of a kind, the rank that needed least time waited
least, and what others needed more is their waiting (measures/communication.py). Figures are of the steps that
count on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..report import Report
from ..report.account import COMMUNICATION, COMPUTE, IDLE, Account, Cause, State, StepRow, mean
from ..trace import Bools, Int64s
from .communication import align, parts_of
from .exchanges import COLLECTIVES, SEND_RECV, Exchanges, together
from .gpu_time import Floats
from .rank_evidence import RankEvidence

#: The share of a step from which waiting is shown, and the share of it by which one rank waits less than others.
MUCH_WAITING, FOR_ONE = 0.05, 0.75
#: Ranks with such a share more to compute have more work: waiting kernels of others slow the same work by 20%.
UNEVEN = 0.25
#: Ranks compute one after another if so much of what they exchange is sent and received, and if what they compute
#: adds up to such a share of a step.
SENT, ONE_BY_ONE = 0.9, (0.85, 1.1)
#: What recording makes longer: launches, and their way to the GPU.
SLOWED = ((IDLE, "launching"), (IDLE, "latency"), (IDLE, "profiler"))


@dataclass(frozen=True, slots=True)
class RankStep:
    """What one rank does in a step, means over the steps that count on all ranks, ns.

    `waiting_ns` is the part of its communication that nothing hides in which it waits for other ranks; None where
    that cannot be separated from transfer. `alone_ns` is its step's time without recording, None if unknown.
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
class Waits:
    """What no compute hides of the collectives of all ranks, by kernel, one rank's after another's, ns.

    `waiting_ns` is what of the exposed time is waiting for other ranks, -1 where that is not known; `moving_ns` is
    how long a kernel transfers, exposed or not. `is_sent` marks sends and receives.
    """

    rank: Int64s
    step: Int64s  # -1 in none
    is_sent: Bools
    exposed_ns: Int64s
    waiting_ns: Int64s
    moving_ns: Int64s

    def by_step(self, values_ns: Int64s, ranks: int, steps: int) -> Floats:
        """Return the sums of a value of each kernel by rank and step, float64 (ranks, steps)."""
        sums = np.zeros((ranks, steps))
        inside = self.step >= 0
        np.add.at(sums, (self.rank[inside], np.minimum(self.step[inside], steps - 1)), values_ns[inside])
        return sums

    @property
    def sent(self) -> float:
        """The share of sends and receives in the time that nothing hides; 0 where nothing is exposed."""
        return float(self.exposed_ns[self.is_sent].sum()) / max(float(self.exposed_ns.sum()), 1.0)

    def known(self, ranks: int) -> Bools:
        """Mark the ranks whose waiting in some collective is known, bool (ranks,)."""
        aligned = (self.waiting_ns >= 0) & (self.step >= 0)
        return np.bincount(self.rank[aligned], minlength=ranks) > 0


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks of a job, in order; `counted` are the steps that count on all of them.

    `late` is None where they wait for no one; see `waits` and `rows`, the steps of each rank.
    """

    ranks: tuple[RankStep, ...]
    counted: tuple[int, ...]
    late: Late | None
    waits: Waits = field(repr=False)
    rows: tuple[tuple[StepRow, ...], ...] = field(repr=False)

    @property
    def steps(self) -> int:
        """How many steps count."""
        return len(self.counted)

    @property
    def alone_ns(self) -> float | None:
        """How long a step takes without recording, which is as long on every rank; None if no rank knows."""
        return _alone_ns(self.ranks)

    @property
    def step_ns(self) -> float:
        """How long a step takes: of a synchronous job as long on every rank, else on the slowest."""
        return max(rank.step_ns for rank in self.ranks)

    @property
    def uneven(self) -> tuple[RankStep, RankStep] | None:
        """The ranks that compute longest and shortest; None where they are alike."""
        shortest, *_, longest = sorted(self.ranks, key=lambda rank: rank.kind_ns(COMPUTE))
        more_ns = longest.kind_ns(COMPUTE) - shortest.kind_ns(COMPUTE)
        is_much = more_ns >= max(UNEVEN * shortest.kind_ns(COMPUTE), MUCH_WAITING * self.step_ns)
        return (longest, shortest) if is_much else None

    @property
    def in_turn(self) -> bool:
        """Whether ranks send what they computed and compute in turn, as a pipeline with one micro-batch does."""
        computing_ns = sum(rank.kind_ns(COMPUTE) for rank in self.ranks)
        low, high = ONE_BY_ONE
        return self.waits.sent >= SENT and low <= computing_ns / self.step_ns <= high

    @property
    def waiting_ns(self) -> float:
        """How long the rank waits that waits longest."""
        return max((rank.waiting_ns or 0.0 for rank in self.ranks), default=0.0)


def at_start(name: str) -> str:
    """Return how a sentence begins that begins with a rank's name: `Rank 0`, but a file's name as it is."""
    return f"R{name[1:]}" if name.startswith("rank ") else name


def job_of(reports: Sequence[tuple[str, Report, RankEvidence]]) -> Job | None:
    """Return the step of a job, from each rank's name, report and evidence.

    None unless every report is of one GPU with steps, and all have the same number of them.
    """
    accounts = [report.account for _, report, _ in reports]
    if len(reports) < 2 or any(account is None or not account.has_steps for account in accounts):
        return None
    rows = [_of_first_loop(account) for account in accounts if account]
    held = [(name, evidence.exchanges) for name, _, evidence in reports]
    if len({len(of_rank) for of_rank in rows}) > 1 or any(len(exchanged.gpus) > 1 for _, exchanged in held):
        return None
    counted = []
    for number, of_step in enumerate(zip(*rows, strict=True)):
        if all(row.counted for row in of_step):
            counted.append(number)
    if not counted:
        return None
    waits = _waits(held)
    waiting_ns = waiting_by_step(waits, rows)
    knows = waits.known(len(rows))
    ranks = []
    for number, (name, report, _) in enumerate(reports):
        steps = [rows[number][step] for step in counted]
        gpus = report.account.gpus if report.account else ()
        rank = RankStep(
            name=name,
            gpu=gpus[0].gpu if gpus else "",
            step_ns=mean([row.own_ns for row in steps]),
            states_ns=_states(steps),
            waiting_ns=float(waiting_ns[number, counted].mean()) if knows[number] else None,
            causes=gpus[0].causes if gpus else (),
            alone_ns=report.recording.alone_ns if report.recording else None,
        )
        ranks.append(rank)
    return Job(tuple(ranks), tuple(counted), _late(ranks), waits, tuple(rows))


def _of_first_loop(account: Account) -> tuple[StepRow, ...]:
    return tuple(row for row in account.rows if row.loop == 0)


def _states(rows: Sequence[StepRow]) -> dict[State, float]:
    sums: dict[State, float] = {}
    for row in rows:
        for state, ns in row.states_ns:
            sums[state] = sums.get(state, 0.0) + ns / len(rows)
    return sums


def _waits(reports: Sequence[tuple[str, Exchanges]]) -> Waits:
    """Return how long each rank waits in each collective while nothing hides it, and how long it is exposed."""
    held = together(reports)
    kernels = held.kernels
    in_step = np.flatnonzero(kernels.step >= 0)
    aligned = np.full(len(kernels), -1, np.int64)
    aligned[in_step] = align(parts_of(held).take(in_step), one_clock=False).waiting_ns
    exposed_ns = kernels.time_ns - kernels.hidden_ns
    moving_ns = kernels.end_ns - kernels.start_ns - np.maximum(aligned, 0)
    is_sent = kernels.collective == COLLECTIVES.index(SEND_RECV)
    return Waits(kernels.gpu, kernels.step, is_sent, exposed_ns, np.minimum(aligned, exposed_ns), moving_ns)


def waiting_by_step(waits: Waits, rows: Sequence[Sequence[StepRow]]) -> Floats:
    """Return how long each rank waits in each step, at most its exposed communication: float64 (ranks, steps)."""
    exposed_ns = np.zeros((len(rows), len(rows[0])))
    for rank, of_rank in enumerate(rows):
        exposed_ns[rank] = [row.kind_ns(COMMUNICATION) for row in of_rank]
    waiting_ns = waits.by_step(np.maximum(waits.waiting_ns, 0), len(rows), len(rows[0]))
    return np.minimum(waiting_ns, exposed_ns)


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
    more = {}
    for other_state, ns in last.states_ns.items():
        if other_state[0] != COMMUNICATION:
            usual_ns = float(np.median([rank.states_ns.get(other_state, 0.0) for rank in others]))
            more[other_state] = ns - usual_ns
    state = max(more, key=lambda each: more[each], default=None)
    more_ns = more[state] if state else 0.0
    alone_ns = _alone_ns(ranks)
    slower_ns = max(last.step_ns - alone_ns, 0.0) if alone_ns else 0.0
    of_recording_ns = waiting_ns if state in SLOWED and not alone_ns else min(slower_ns, waiting_ns)
    return Late(last, waiting_ns, state, more_ns, of_recording_ns)


def _alone_ns(ranks: Sequence[RankStep]) -> float | None:
    """Return how long a step takes without recording, by the rank that says the most; None if none does."""
    return max((rank.alone_ns for rank in ranks if rank.alone_ns), default=None)
