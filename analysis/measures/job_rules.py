"""What to change first in a job of ranks: each rule's symptom, and what of a step its change saves.

    rank 0   work ▓▓▓▓ pause ........ work ▓▓▓ │ reduce ▓          saves what the others wait, but not more than
    rank 1   work ▓▓▓▓ work ▓▓▓ │ reduce: waits ▒▒▒▒▒▒▒ ▓          the pause

Pauses, kernels, copies and transfer last as long without recording; launches and what ranks wait for them do not.
So what is known by the former is the least that a change saves, and a share of the latter may come to it: the
step without recording as a share of the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..report import Report
from ..report.account import COMMUNICATION, COMPUTE, COPY, IDLE, Cause, LineTime, State
from ..support.units import count_text, counted, share_text, time_in_digits
from ..trace import Bools, Int64s, Path
from .fix_list import LEAST_SHARE, RANKS, Fix, Fixes, Silent
from .gpu_time import Floats
from .job import FOR_ONE, Job, RankStep, at_start, waiting_by_step
from .rank_evidence import ON_GPU, RankEvidence

#: Ranks that have at least this share of what one has more than others are late together with it.
ALSO_LATE = 0.5
#: They wait at most this share of what the others do.
WAITS_LESS = 0.5
#: A collective whose transfer is shorter is not of a bucket of gradients, ns.
SHORT_TRANSFER_NS = 30_000
#: A GPU is slower if it runs the same kernels so much longer, as a share.
SLOWER = 0.03
#: So many late ranks are named; and in so few steps nothing shows what is in most of them.
SOME, FEWEST_STEPS = 3, 2
DATA_LOADING, LAUNCHING = "data loading", (IDLE, "launching")
#: What of the host's time is left without recording, where that is not known.
UNKNOWN_SHARE = (0.4, 1.0)
#: What DDP's look for one unused parameter takes the host: 1.3 to 2.6 µs (reports/h200/several_gpus.md), ns.
LOOK_NS = 2_000.0
#: The kernels of two ranks are the same if so much of their time is of the same names and grids as often.
SAME_KERNELS = 0.98


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

    def most_ns(self, ranks: Sequence[RankStep], *, with_transfer: bool) -> float:
        """Return the most that a change saves if the work of some GPUs stays, and with it their transfer."""
        kinds = (COMPUTE, COPY, COMMUNICATION) if with_transfer else (COMPUTE, COPY)
        busy_ns = [sum(map(rank.kind_ns, kinds)) for rank in ranks]
        waiting_ns = [(rank.waiting_ns or 0.0) if with_transfer else 0.0 for rank in ranks]
        work_ns = [busy - waiting for busy, waiting in zip(busy_ns, waiting_ns, strict=True)]
        return max(self.step_ns - max(work_ns), 0.0)

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


def job_fixes(job: Job, reports: Sequence[tuple[str, Report, RankEvidence]]) -> Fixes:
    """Return the changes that save a job the most, and those that save too little to be shown."""
    subject = JobSubject(job, tuple(report for _, report, _ in reports), tuple(each for *_, each in reports))
    answers = [(rule, symptom) for rule in JOB_RULES for symptom in rule.find(subject)]
    answers.sort(key=lambda answer: -answer[1].likely_ns)
    least_ns = LEAST_SHARE * subject.step_ns
    listed = [answer for answer in answers if answer[1].likely_ns >= least_ns]
    others = [answer for answer in answers if answer[1].likely_ns < least_ns]
    return Fixes(
        fixes=tuple(_fix(rule, symptom, subject.step_ns) for rule, symptom in listed),
        silent=tuple(Silent(rule.name, rule.called, each.high_ns, each.low_ns) for rule, each in others),
        kind=RANKS,
        step_ns=subject.step_ns,
        is_unrecorded=job.alone_ns is not None,
        recorded_step_ns=job.step_ns,
        steps=job.steps,
    )


def _fix(rule: JobRule, symptom: JobSymptom, step_ns: float) -> Fix:
    evidence = {"kernels_ns": symptom.kernels_ns, "floor_ns": 0.0, "calls": symptom.count}
    return Fix(
        rule=rule.name,
        sentence=symptom.sentence,
        short=symptom.short,
        where=symptom.where,
        most=next(iter(symptom.where), ()),
        count=symptom.count,
        alone_ns=symptom.high_ns,
        alone_low_ns=symptom.low_ns,
        then_ns=None,
        step_ns=step_ns,
        up_to=True,
        evidence=evidence,
        lines=symptom.lines,
    )


def straggler(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find ranks that the others wait for, by what they do longer in nearly all steps: pause, copy or compute."""
    if not subject.knows_waiting:
        return
    pauses_ns = np.array([each.pauses_ns[subject.counted] for each in subject.evidence], np.float64)
    idle_ns = np.array([_idle_in_pauses(each)[subject.counted] for each in subject.evidence], np.float64)
    if late := _late(subject, idle_ns, pauses_ns):
        yield _pausing(subject, late)
    states = dict.fromkeys(state for rank in subject.job.ranks for state in rank.states_ns)
    for state in (state for state in states if state[0] == COPY and state[1] != ON_GPU):
        lasting = [each.copies_ns.get(state[1]) for each in subject.evidence]
        lasting_ns = [np.zeros(len(subject.counted)) if ns is None else ns[subject.counted] for ns in lasting]
        if late := _late(subject, subject.state_ns(state), np.array(lasting_ns, np.float64)):
            yield _copying(subject, late, state[1])
    computing_ns = sum(subject.state_ns(state) for state in states if state[0] == COMPUTE)
    if late := _late(subject, np.asarray(computing_ns), np.asarray(computing_ns)):
        yield _computing(subject, late)


def _idle_in_pauses(evidence: RankEvidence) -> Int64s:
    """Return how long a rank's GPU is idle in pauses of its program, for any cause, by step, ns."""
    idle_ns = np.zeros_like(evidence.pauses_ns)
    for of_cause_ns in evidence.idle_pauses_ns.values():
        idle_ns = idle_ns + of_cause_ns
    return idle_ns


class _LateRanks(NamedTuple):
    """Ranks that do something longer than the others, positions; how much, and what of it the others wait, ns."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    more_ns: float
    saved_ns: float


def _late(subject: JobSubject, own_ns: Floats, of_others_ns: Floats) -> _LateRanks | None:
    """Return the ranks that take longer than the others in nearly all steps; None without such ranks.

    `own_ns` is what each rank takes, (ranks, steps), and `of_others_ns` what it is taken to be of the others.
    Ranks that are longer in turn are not late: what one has less is less than a quarter of what it has more. Nor
    are ranks that wait themselves: other ranks' waiting kernels slow their work.
    """
    count = len(own_ns)
    more_ns = np.array(
        [own_ns[rank].mean() - np.median(np.delete(of_others_ns, rank, 0).mean(1)) for rank in range(count)]
    )
    late = (more_ns > 0) & (more_ns >= ALSO_LATE * more_ns.max())
    if not late.any() or 2 * late.sum() > count:
        return None
    extra_ns = own_ns[late].min(0) - np.median(of_others_ns[~late], axis=0)
    longer_ns = np.maximum(extra_ns, 0).sum()
    shorter_ns = np.maximum(-extra_ns, 0).sum()
    if shorter_ns > (1 - FOR_ONE) * longer_ns:
        return None
    waited_ns = float(subject.waiting_ns[~late].mean(1).min())
    mean_ns = float(extra_ns.mean())
    if float(subject.waiting_ns[late].mean(1).max()) > WAITS_LESS * waited_ns or mean_ns <= 0:
        return None
    ranks, others = (tuple(np.flatnonzero(some).tolist()) for some in (late, ~late))
    most_ns = subject.most_ns([subject.job.ranks[rank] for rank in others], with_transfer=True)
    saved_ns = min(mean_ns, waited_ns, most_ns)
    return _LateRanks(ranks, others, mean_ns, saved_ns)


def _waits_for(subject: JobSubject, late: _LateRanks) -> tuple[str, str]:
    """Return `Rank 1 waits for rank 0`, and `rank 0`."""
    names = [rank.name for rank in subject.job.ranks]
    called = " and ".join(names[rank] for rank in late.ranks[:SOME])
    more = len(late.ranks) - SOME
    called = f"{called} and {counted(more, 'other rank')}" if more > 0 else called
    alone = names[late.others[0]]
    waits = "The other ranks wait" if len(late.others) > 1 else f"{at_start(alone)} waits"
    return f"{waits} for {called}", called


def _pausing(subject: JobSubject, late: _LateRanks) -> JobSymptom:
    waits, called = _waits_for(subject, late)
    idle_ns = {
        name: float(ns[subject.counted].mean())
        for name, ns in subject.evidence[late.ranks[0]].idle_pauses_ns.items()
    }
    name = max(idle_ns, key=lambda each: idle_ns[each])
    causes = subject.job.ranks[late.ranks[0]].causes
    cause = next((each for each in causes if each.cause == name), None)
    lasts = time_in_digits(late.more_ns)
    place = _place(cause)
    if name == DATA_LOADING:
        sentence = (
            f"{waits}, whose data loading leaves its GPU idle for {lasts}: give its loader more workers, or less "
            "to do (num_workers, prefetch_factor)"
        )
        short = f"{at_start(called)} loads data for {lasts}: more workers, or a faster __getitem__"
    else:
        sentence = (
            f"{waits}, whose program leaves its GPU idle for {lasts}{place}: shorten what {called} does{place}, "
            "run it every N steps, or divide it among all ranks"
        )
        short = f"{at_start(called)} runs Python for {lasts}{place}: shorten it, or run it every N steps"
    where = (cause.path,) if cause and cause.path else ()
    return JobSymptom(sentence, short, late.saved_ns, late.saved_ns, 1.0, where, cause.lines if cause else ())


def _place(cause: Cause | None) -> str:
    """Return where most of some idle time is: its line, or else the call before it."""
    if cause and cause.line:
        return f" at {cause.line}"
    return f" after {cause.after}" if cause and cause.after else " there"


def _copying(subject: JobSubject, late: _LateRanks, direction: str) -> JobSymptom:
    waits, called = _waits_for(subject, late)
    lasts = time_in_digits(late.more_ns)
    sentence = (
        f"{waits}, which copies {direction} for {lasts} longer: let {called} copy less, or "
        "beside the step, from pinned memory"
    )
    short = f"{at_start(called)} copies {direction} for {lasts} longer: copy less, or from pinned memory"
    return JobSymptom(sentence, short, late.saved_ns, late.saved_ns, 1.0)


def _computing(subject: JobSubject, late: _LateRanks) -> JobSymptom:
    waits, called = _waits_for(subject, late)
    lasts = time_in_digits(late.more_ns)
    slower = _slower(subject, late.ranks[0], late.others[0])
    if slower:
        sentence = (
            f"{waits}, whose GPU runs the same kernels {share_text(slower, 0)} longer ({lasts}): look at the "
            f"clocks, power and temperature of {called} (nvidia-smi -q -d CLOCK,PERFORMANCE)"
        )
        short = (
            f"{at_start(called)} runs the same kernels {share_text(slower, 0)} longer: look at its clocks and "
            "temperature (nvidia-smi)"
        )
    else:
        sentence = (
            f"{waits}, whose GPU computes {lasts} longer, in other kernels: divide the work evenly among ranks "
            "(batches, sequence lengths, experts)"
        )
        short = f"{at_start(called)} computes {lasts} longer: divide batches, lengths or experts evenly"
    return JobSymptom(sentence, short, late.saved_ns, late.saved_ns, 1.0)


def _slower(subject: JobSubject, rank: int, other: int) -> float:
    """Return how much longer a rank's GPU runs the same kernels as another's, as a share; 0 if they are others."""
    steps = [
        report.account.gpus[0].steps if report.account and report.account.gpus else 1 for report in subject.reports
    ]
    kernels = subject.evidence[rank].kernels
    others = subject.evidence[other].kernels
    nothing = (0, 0)
    same = [
        (ns / steps[rank], others[key][1] / steps[other])
        for key, (count, ns) in kernels.items()
        if count * steps[other] == others.get(key, nothing)[0] * steps[rank]
    ]
    all_ns = sum(ns for _, ns in kernels.values()) / steps[rank]
    same_ns = sum(ns for ns, _ in same)
    other_ns = sum(ns for _, ns in same)
    is_same = all_ns > 0 and same_ns >= SAME_KERNELS * all_ns
    longer = same_ns / other_ns - 1 if other_ns else 0.0
    return longer if is_same and longer >= SLOWER else 0.0


def early_reduction(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find gradients that are reduced in micro-batches before the last.

    The least that this costs is their transfer, and the copies of reduced gradients. Ranks also wait in them, at
    least as long as each of them does in a step, and where launches limit all ranks, the host's time is lost too.
    """
    waits = subject.job.waits
    early = subject.joined(lambda evidence: evidence.early.kernels) & (waits.moving_ns >= SHORT_TRANSFER_NS)
    if not subject.knows_waiting or not early.any():
        return
    transfer_ns = subject.of_kernels(early, subject.transfer_ns)
    waiting_ns = subject.of_kernels(early, waits.waiting_ns)
    copies_ns = np.array([each.early.copies_ns[subject.counted] for each in subject.evidence], np.float64)
    calls_ns = np.array([each.early.calls_ns[subject.counted] for each in subject.evidence], np.float64)
    moved_ns = transfer_ns + copies_ns
    low_ns = float(moved_ns.min(0).mean())
    waited_ns = float((moved_ns + waiting_ns).min(0).mean()) - low_ns
    host_ns = min(float(calls_ns.mean(1).min()), subject.launching_ns)
    most_ns = subject.most_ns(subject.job.ranks, with_transfer=False)
    ones = np.ones(len(early), np.int64)
    count = float(subject.of_kernels(early, ones)[0].mean())
    every = float(subject.of_kernels(ones > 0, ones)[0].mean())
    sentence = (
        f"{count_text(round(count))} of {count_text(round(every))} collectives of a step reduce gradients in "
        "micro-batches before the last: reduce them in the last micro-batch alone (no_sync() of DDP, "
        "set_requires_gradient_sync(False) of FSDP)"
    )
    first = subject.evidence[0]
    yield JobSymptom(
        sentence,
        "Reduce gradients in the last micro-batch alone: no_sync() of DDP, set_requires_gradient_sync of FSDP",
        min(low_ns, most_ns),
        min(low_ns + (waited_ns + host_ns) * subject.shortened[1], most_ns),
        count,
        (_common_path(first, first.early.kernels),),
        first.early.lines,
        float(transfer_ns.mean()),
    )


def _common_path(evidence: RankEvidence, chosen: Bools) -> Path:
    """Return the ranges around all of some collectives of a rank."""
    held = evidence.exchanges
    paths = [held.places[place][0] for place in set(held.kernels.place[chosen].tolist())]
    common: list[str] = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return tuple(common)


def read_values(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find collectives outside of the model that the program waits for in nearly all steps.

    Without the waits, each host saves its own, and the slowest host still sets the pace: the least that one waits
    over all steps is the most that it saves, and the least that any rank waits in each step the least.
    """
    reads = [evidence.reads for evidence in subject.evidence]
    counts = np.array([(read.values + read.barriers)[subject.counted] for read in reads])
    most_steps = max(len(subject.counted) - 1, 1)
    if len(subject.counted) < FEWEST_STEPS or ((counts > 0).sum(1) < most_steps).any():
        return
    waiting_ns = np.array([read.waiting_ns[subject.counted] for read in reads], np.float64)
    handling_ns = np.array([read.handling_ns[subject.counted] for read in reads], np.float64).mean(1).min()
    most_ns = subject.most_ns(subject.job.ranks, with_transfer=True)
    least, most = subject.shortened
    low_ns = least * float(handling_ns + waiting_ns.min(0).mean())
    high_ns = most * float(handling_ns + waiting_ns.mean(1).min())
    values, barriers = (
        round(float(np.median(of_rank[subject.counted]))) for of_rank in (reads[0].values, reads[0].barriers)
    )
    waits = ["a barrier" if barriers == 1 else counted(barriers, "barrier")] if barriers else []
    waits += [counted(values, "reduced value")] if values else []
    line = f" ({reads[0].lines[0].called})" if reads[0].lines else ""
    remedies = ["leave the barrier out"] if barriers else []
    remedies += ["keep values on the GPU, and reduce and read them every N steps"] if values else []
    instead = "leave the barrier out" if barriers else "reduce and read them every N steps"
    yield JobSymptom(
        f"The program waits in each step for {' and '.join(waits)}{line}: {'; '.join(remedies)}",
        f"The program waits for {' and '.join(waits)} a step: {instead}",
        min(low_ns, most_ns),
        min(high_ns, most_ns),
        float(values + barriers),
        (reads[0].path,) if reads[0].path else (),
        reads[0].lines,
    )


def unused_parameters(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find DDP's look for unused parameters in each step, where all are used.

    DDP then copies a map of the used parameters to the GPU and adds it up over ranks; if one is not used, it
    copies the map back (torch/csrc/distributed/c10d/reducer.cpp, "Skip allreducing local_used_map_dev").
    """
    maps = subject.joined(lambda evidence: evidence.maps.kernels)
    sums = subject.of_kernels(maps, np.ones(len(maps), np.int64))
    if (sums == 0).any() or any(evidence.maps.copied_back for evidence in subject.evidence):
        return
    transfer_ns = subject.of_kernels(maps, subject.transfer_ns)
    parameters = max(evidence.maps.parameters for evidence in subject.evidence)
    saved_ns = float(transfer_ns.min(0).mean()) + min(parameters * LOOK_NS, subject.launching_ns)
    saved_ns = min(saved_ns, subject.most_ns(subject.job.ranks, with_transfer=False))
    first = subject.evidence[0]
    count = f" of {counted(parameters, 'parameter')}" if parameters else ""
    yield JobSymptom(
        f"DDP looks for unused ones{count} in each step, and all are used: find_unused_parameters=False",
        "find_unused_parameters=False: all parameters are used",
        saved_ns,
        saved_ns,
        float(sums[0].mean()),
        (_common_path(first, first.maps.kernels),),
        (),
        float(transfer_ns.mean()),
    )


#: In the order in which rows of equal figures are shown.
JOB_RULES = (
    JobRule("straggler", "a rank that is late", straggler, "ranks that are longer in turn"),
    JobRule(
        "early_reduction", "reducing in each micro-batch", early_reduction, "no_sync(); sums of tensor parallelism"
    ),
    JobRule("read_values", "waiting for reduced values", read_values, "values that are read every tenth step"),
    JobRule("unused_parameters", "looking for unused parameters", unused_parameters, "a model with unused ones"),
)
