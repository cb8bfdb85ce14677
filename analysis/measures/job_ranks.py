"""Ranks of a job that differ: one that is late, or has more to compute than the others; each with what that costs.

The others wait for a rank that does something longer in nearly all steps: a pause of its program, copies, the same
kernels on a slower GPU, or more kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..report.account import COPY, Cause
from ..support.units import counted, share_text, time_in_digits
from ..trace import Int64s
from .gpu_time import Floats
from .job import FOR_ONE, UNEVEN, at_start
from .job_subject import JobSubject, JobSymptom
from .rank_evidence import ON_GPU, RankEvidence

#: Ranks that have at least this share of what one has more than others are late together with it.
ALSO_LATE = 0.5
#: They wait at most this share of what the others do.
WAITS_LESS = 0.5
#: A GPU is slower if it runs the same kernels so much longer, as a share.
SLOWER = 0.03
#: The kernels of two ranks are the same if so much of their time is of the same names and grids as often.
SAME_KERNELS = 0.98
#: So many late ranks are named.
SOME = 3
DATA_LOADING = "data loading"


def straggler(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find ranks that the others wait for, by what they do longer in nearly all steps: pause, copy or compute."""
    if not subject.knows_waiting:
        return
    pauses_ns = np.array([each.pauses_ns[subject.counted] for each in subject.evidence], np.float64)
    idle_ns = np.array([_idle_in_pauses(each)[subject.counted] for each in subject.evidence], np.float64)
    if late := _late(subject, idle_ns, pauses_ns):
        yield _pausing(subject, late)
    for state in (state for state in subject.states if state[0] == COPY and state[1] != ON_GPU):
        lasting = [each.copies_ns.get(state[1]) for each in subject.evidence]
        lasting_ns = [np.zeros(len(subject.counted)) if ns is None else ns[subject.counted] for ns in lasting]
        if late := _late(subject, subject.state_ns(state), np.array(lasting_ns, np.float64)):
            yield _copying(subject, late, state[1])
    computing_ns = subject.computing_ns
    if late := _late(subject, computing_ns, computing_ns):
        same = _same_kernels(subject, late)
        if same.share >= SAME_KERNELS and same.longer >= SLOWER:
            yield _slow_gpu(subject, late, same.longer)


def uneven_work(subject: JobSubject) -> Iterator[JobSymptom]:
    """Find ranks that compute longer than others in nearly all steps, in other kernels: they have more work.

    Who waits for whom does not tell, as recording slows launches, and with them the rank that has less to compute.
    Divided evenly, the work takes each rank as long as it takes them on average.
    """
    computing_ns = subject.computing_ns
    means_ns = computing_ns.mean(1)
    longer = _longer(computing_ns, computing_ns)
    if longer is None or longer.more_ns < UNEVEN * means_ns.min():
        return
    if _same_kernels(subject, longer).share >= SAME_KERNELS:
        return
    saved_ns = min(float(means_ns.max() - means_ns.mean()), subject.most_ns_of(float(means_ns.mean())))
    called = _called(subject, longer.ranks)
    least, most = (time_in_digits(float(ns)) for ns in (means_ns.min(), means_ns.max()))
    shortest = subject.job.ranks[int(means_ns.argmin())].name
    even = "divide the work evenly among ranks (batches, sequence lengths, experts)"
    yield JobSymptom(
        f"The GPU of {called} computes for {most}, that of {shortest} for {least}: {even}",
        f"{at_start(called)} computes {most}, {shortest} {least}: divide batches, lengths or experts evenly",
        saved_ns,
        saved_ns,
        1.0,
    )


def _idle_in_pauses(evidence: RankEvidence) -> Int64s:
    """Return how long a rank's GPU is idle in pauses of its program, for any cause, by step, ns."""
    idle_ns = np.zeros_like(evidence.pauses_ns)
    for of_cause_ns in evidence.idle_pauses_ns.values():
        idle_ns = idle_ns + of_cause_ns
    return idle_ns


class _LateRanks(NamedTuple):
    """Ranks that do something longer than the others, positions; how much, and what of that a change saves, ns."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    more_ns: float
    saved_ns: float


def _late(subject: JobSubject, own_ns: Floats, of_others_ns: Floats) -> _LateRanks | None:
    """Return the ranks that take longer than the others, which wait for them; None without such ranks.

    Ranks that wait themselves are not late: other ranks' waiting kernels slow their work.
    """
    longer = _longer(own_ns, of_others_ns)
    if longer is None:
        return None
    ranks, others = list(longer.ranks), list(longer.others)
    waited_ns = float(subject.waiting_ns[others].mean(1).min())
    if float(subject.waiting_ns[ranks].mean(1).max()) > WAITS_LESS * waited_ns:
        return None
    most_ns = subject.most_ns([subject.job.ranks[rank] for rank in others], with_transfer=True)
    return longer._replace(saved_ns=min(longer.more_ns, waited_ns, most_ns))


def _longer(own_ns: Floats, of_others_ns: Floats) -> _LateRanks | None:
    """Return the ranks that take longer than the others in nearly all steps; None without such ranks.

    `own_ns` is what each rank takes, (ranks, steps), and `of_others_ns` what it is taken to be of the others. Not
    those that are longer in turn: what one has less is less than a quarter of what it has more.
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
    mean_ns = float(extra_ns.mean())
    ranks, others = (tuple(np.flatnonzero(some).tolist()) for some in (late, ~late))
    return _LateRanks(ranks, others, mean_ns, mean_ns) if mean_ns > 0 else None


def _waits_for(subject: JobSubject, late: _LateRanks) -> tuple[str, str]:
    """Return `Rank 1 waits for rank 0`, and `rank 0`."""
    called = _called(subject, late.ranks)
    alone = subject.job.ranks[late.others[0]].name
    waits = "The other ranks wait" if len(late.others) > 1 else f"{at_start(alone)} waits"
    return f"{waits} for {called}", called


def _called(subject: JobSubject, ranks: Sequence[int]) -> str:
    """Return the names of some ranks, `rank 0 and rank 3`, of many the first."""
    called = " and ".join(subject.job.ranks[rank].name for rank in ranks[:SOME])
    more = len(ranks) - SOME
    return f"{called} and {counted(more, 'other rank')}" if more > 0 else called


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
        beside = "" if cause and cause.lines else place
        short = f"{at_start(called)} runs Python for {lasts}{beside}: shorten it, or run it every N steps"
    where = (cause.path,) if cause and cause.path else ()
    return JobSymptom(sentence, short, late.saved_ns, late.saved_ns, 1.0, where, cause.lines if cause else ())


def _place(cause: Cause | None) -> str:
    """Return where most of some idle time is: its line, or else the call before it."""
    if cause and cause.line:
        return f" at {cause.line}"
    return f" {cause.after_wait}" if cause and cause.after else " there"


def _copying(subject: JobSubject, late: _LateRanks, direction: str) -> JobSymptom:
    waits, called = _waits_for(subject, late)
    lasts = time_in_digits(late.more_ns)
    sentence = (
        f"{waits}, which copies {direction} for {lasts} longer: let {called} copy less, or "
        "beside the step, from pinned memory"
    )
    short = f"{at_start(called)} copies {direction} for {lasts} longer: copy less, or from pinned memory"
    return JobSymptom(sentence, short, late.saved_ns, late.saved_ns, 1.0)


def _slow_gpu(subject: JobSubject, late: _LateRanks, longer: float) -> JobSymptom:
    waits, called = _waits_for(subject, late)
    share = share_text(longer, 0)
    sentence = (
        f"{waits}, whose GPU runs the same kernels {share} longer ({time_in_digits(late.more_ns)}): look at the "
        f"clocks, power and temperature of {called} (nvidia-smi -q -d CLOCK,PERFORMANCE)"
    )
    short = (
        f"{at_start(called)} runs the same kernels {share} longer: look at its clocks and temperature (nvidia-smi)"
    )
    return JobSymptom(sentence, short, late.saved_ns, late.saved_ns, 1.0)


class _SameKernels(NamedTuple):
    """The kernels that two ranks run as often: their share of one's time, and how much longer it takes them."""

    share: float
    longer: float


def _same_kernels(subject: JobSubject, late: _LateRanks) -> _SameKernels:
    """Return what the first of some late ranks and the first of the others have in common."""
    rank, other = late.ranks[0], late.others[0]
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
    return _SameKernels(same_ns / all_ns if all_ns else 0.0, same_ns / other_ns - 1 if other_ns else 0.0)
