"""What rules look at in a job of ranks, and what they find: symptoms, with what their changes save.

    rank 0   work ▓▓▓▓ pause ........ work ▓▓▓ │ reduce ▓          saves what the others wait, but not more than
    rank 1   work ▓▓▓▓ work ▓▓▓ │ reduce: waits ▒▒▒▒▒▒▒ ▓          the pause

Pauses, kernels, copies and transfer last as long without recording; launches and what ranks wait for them do not.
So what is known by the former is the least that a change saves, and a share of the latter may come to it: the
step without recording as a share of the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..report import Report
from ..report.account import COMMUNICATION, COMPUTE, COPY, IDLE, LineTime, State
from ..trace import Bools, Int64s, Path
from .gpu_time import Floats
from .job import Job, RankStep, waiting_by_step
from .rank_evidence import RankEvidence

LAUNCHING = (IDLE, "launching")
#: What of the host's time is left without recording, where that is not known.
UNKNOWN_SHARE = (0.4, 1.0)


@dataclass(frozen=True, slots=True)
class JobSymptom:
    """A symptom of a job: what to change, where, and what of a step that saves, at the least and at most, ns.

    `sentence` has the cause and the remedy, `short` both in the few words of a row.
    """

    sentence: str
    short: str
    low_ns: float
    high_ns: float
    count: float
    where: tuple[Path, ...] = ()
    lines: tuple[LineTime, ...] = ()
    kernels_ns: float = 0.0

    @property
    def likely_ns(self) -> float:
        """The middle of what it saves."""
        return (self.low_ns + self.high_ns) / 2


class JobRule(NamedTuple):
    """A rule: its name in JSON, how screens call it, how it is found, and a program that it must not name."""

    name: str
    called: str
    find: Callable[[JobSubject], Iterator[JobSymptom]]
    near_miss: str


@dataclass(frozen=True)
class JobSubject:
    """What rules look at: the job, and each rank's report and evidence, in the order of its ranks."""

    job: Job
    reports: tuple[Report, ...]
    evidence: tuple[RankEvidence, ...]

    @cached_property
    def counted(self) -> Int64s:
        """The steps that count on all ranks, int64 (steps,)."""
        return np.array(self.job.counted, np.int64)

    @property
    def step_ns(self) -> float:
        """What figures are a share of: the step without recording if that is known, else the recorded one."""
        return self.job.alone_ns or self.job.step_ns

    @property
    def shortened(self) -> tuple[float, float]:
        """Which share of what the host takes is left without recording, at the least and at most."""
        if self.job.alone_ns is None:
            return UNKNOWN_SHARE
        share = min(self.step_ns / self.job.step_ns, 1.0)
        return share, share

    @cached_property
    def waiting_ns(self) -> Floats:
        """How long each rank waits for others in each step that counts, float64 (ranks, steps)."""
        return waiting_by_step(self.job.waits, self.job.rows)[:, self.counted]

    @property
    def knows_waiting(self) -> bool:
        """Whether waiting is known apart from transfer, on every rank."""
        return all(rank.waiting_ns is not None for rank in self.job.ranks)

    @property
    def states(self) -> Iterable[State]:
        """The states that a GPU is in, each once."""
        return dict.fromkeys(state for rank in self.job.ranks for state in rank.states_ns)

    @cached_property
    def computing_ns(self) -> Floats:
        """How long each rank's GPU computes in each step that counts, float64 (ranks, steps)."""
        return np.asarray(sum(self.state_ns(state) for state in self.states if state[0] == COMPUTE))

    def most_ns_of(self, work_ns: float) -> float:
        """Return the most that a change saves that leaves each GPU so much work."""
        return max(self.step_ns - work_ns, 0.0)

    def most_ns(self, ranks: Sequence[RankStep], *, with_transfer: bool) -> float:
        """Return the most that a change saves if the work of some GPUs stays, and with it their transfer."""
        kinds = (COMPUTE, COPY, COMMUNICATION) if with_transfer else (COMPUTE, COPY)
        busy_ns = [sum(map(rank.kind_ns, kinds)) for rank in ranks]
        waiting_ns = [(rank.waiting_ns or 0.0) if with_transfer else 0.0 for rank in ranks]
        work_ns = [busy - waiting for busy, waiting in zip(busy_ns, waiting_ns, strict=True)]
        return self.most_ns_of(max(work_ns))

    @property
    def launching_ns(self) -> float:
        """How long all GPUs are idle in a step, as launches limit them: what the host's time costs at most."""
        return min(rank.states_ns.get(LAUNCHING, 0.0) for rank in self.job.ranks)

    def of_kernels(self, chosen: Bools, values_ns: Int64s) -> Floats:
        """Return a value of some collectives by rank and step that counts, ns, float64 (ranks, steps)."""
        ranks = len(self.job.ranks)
        steps = len(self.job.rows[0])
        values_ns = np.where(chosen, np.maximum(values_ns, 0), 0)
        return self.job.waits.by_step(values_ns, ranks, steps)[:, self.counted]

    @cached_property
    def transfer_ns(self) -> Int64s:
        """How long each collective transfers while no compute hides it, ns."""
        return self.job.waits.exposed_ns - np.maximum(self.job.waits.waiting_ns, 0)

    def joined(self, of_rank: Callable[[RankEvidence], Bools]) -> Bools:
        """Return a mark of each rank's collectives, for those of all ranks."""
        return np.concatenate([of_rank(evidence) for evidence in self.evidence])

    def state_ns(self, state: State) -> Floats:
        """Return how long each rank's GPU is in a state, by step that counts: float64 (ranks, steps)."""
        times_ns = np.zeros((len(self.job.ranks), len(self.job.counted)))
        for rank, rows in enumerate(self.job.rows):
            times_ns[rank] = [dict(rows[step].states_ns).get(state, 0) for step in self.job.counted]
        return times_ns
