"""What could be changed where the host cannot be replayed: bounds by the GPU's time alone.

The kernels of a step, or without steps of the recording, still say what computes in fp32, which attention writes
its scores, what is computed again. No figure says what a step would save: a bound is the time of the GPU's work
that would go away or become shorter, "at most".

    GPU's work     [ fp32 GEMM ] [ add ] [ fp32 GEMM ]     busy time of a step: what figures are a share of
    with TF32      [ ]           [ add ] [ ]
    at most        ├───────────┤         ├───────────┤

The work is that of one GPU: of the process with the main loop, the GPU on which it works the longest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..account import Partition
from ..account.intervals import union
from ..support.small_numbers import summed
from ..trace import Int64s, Work
from .counted_work import counted_work
from .fix_list import GPU_TIME, LEAST_SHARE, Fix, Fixes, Silent, is_same_time
from .fix_rules import RULES, Rule, row_of
from .gpu_subject import GpuSubject
from .gpu_time import GpuTime
from .host_line import Refused
from .symptoms import Found, Unjudged


def bounds_of(partition: Partition, refused: Refused) -> Fixes:
    """Return the changes of the GPU's work of a step, or of a recording without steps, with their bounds."""
    subject = _subject_of(partition)
    bounds = _Bounds(subject, _busy_ns(partition, subject))
    unjudged: list[str] = []
    for rule in RULES:
        if rule.needs_host:
            continue
        for answer in rule.find(subject, np.ones(1)):
            if isinstance(answer, Unjudged):
                unjudged.append(answer.reason)
            else:
                bounds.add(rule, answer)
    return Fixes(
        fixes=bounds.fixes(),
        silent=bounds.silent(),
        unjudged=tuple(unjudged),
        kind=GPU_TIME,
        reason=refused.reason,
        remedy=refused.remedy,
        per=partition.per,
        step_ns=bounds.busy_ns,
        steps=subject.steps,
    )


def _subject_of(partition: Partition) -> GpuSubject:
    """Return one GPU's work in the steps that count, in the order of its launches; without steps, all of it."""
    attribution = partition.attribution
    work = attribution.trace.work
    rows = counted_work(partition)
    process = partition.steps.loops[partition.main_loop].process
    rows = _by_launch(partition, _of_busiest_gpu(work, rows[work.process[rows] == process]))
    duration_ns = work.duration_ns[rows].astype(np.float64)
    time = GpuTime(attribution.phase[rows], duration_ns, np.ones(len(rows), np.bool_))
    steps = len(partition.choices[partition.main_loop].counted) if partition.has_steps else 1
    return GpuSubject(attribution, rows, time, steps)


def _of_busiest_gpu(work: Work, rows: Int64s) -> Int64s:
    """Return those of some pieces of work that ran on the GPU with the most of it."""
    device = work.device_id[rows]
    count = int(device.max(initial=0)) + 1
    times_ns = summed(device, work.duration_ns[rows], count)
    busiest: Int64s = rows[device == times_ns.argmax()]
    return busiest


def _by_launch(partition: Partition, rows: Int64s) -> Int64s:
    """Return some pieces of work by the start of their launch calls, or if that is unknown, by their own."""
    trace = partition.attribution.trace
    launch = trace.work.launch[rows]
    start_ns = trace.work.start_ns[rows]
    launched_ns = start_ns.copy()
    launched_ns[launch >= 0] = trace.launches.start_ns[launch[launch >= 0]]
    return rows[np.lexsort((start_ns, launched_ns))]


def _busy_ns(partition: Partition, subject: GpuSubject) -> float:
    """Return how long the GPU works in a step, at most the step itself, ns; without steps, in the recording."""
    work = subject.trace.work
    covered = union(work.start_ns[subject.row], work.end_ns[subject.row])
    busy_ns = covered.total_ns / subject.steps
    if not partition.has_steps:
        return busy_ns
    counted = partition.choices[partition.main_loop].counted
    return min(busy_ns, float(partition.table.own_ns[counted].mean()))


@dataclass(frozen=True, eq=False, slots=True)
class _Bound:
    """A symptom with the most that its change takes from the GPU's time of a step, ns."""

    rule: Rule
    symptom: Found
    most_ns: float


class _Bounds:
    """The symptoms of a subject, in whose step the GPU works for `busy_ns`."""

    def __init__(self, subject: GpuSubject, busy_ns: float) -> None:
        self.subject = subject
        self.busy_ns = busy_ns
        self.bounds: list[_Bound] = []

    def add(self, rule: Rule, symptom: Found) -> None:
        """Take a symptom."""
        self.bounds.append(_Bound(rule, symptom, self.saved_ns([symptom])))

    def saved_ns(self, changes: list[Found]) -> float:
        """Return by how much the GPU's work of a step shrinks with some changes, at most all that it works."""
        time = self.subject.timeline
        for symptom in changes:
            time = symptom.on_gpu(time)
        saved_ns = (self.subject.timeline.left_ns - time.left_ns) / self.subject.steps
        return min(max(saved_ns, 0.0), self.busy_ns)

    @property
    def shown(self) -> list[_Bound]:
        """The bounds that matter, the largest first."""
        enough = [bound for bound in self.bounds if bound.most_ns >= LEAST_SHARE * self.busy_ns > 0]
        return sorted(enough, key=lambda bound: -bound.most_ns)

    def silent(self) -> tuple[Silent, ...]:
        """Return the other bounds."""
        listed = self.shown
        others = [bound for bound in self.bounds if bound not in listed]
        return tuple(Silent(bound.rule.name, bound.rule.called, bound.most_ns, 0.0) for bound in others)

    def fixes(self) -> tuple[Fix, ...]:
        """Return the rows of the bounds that matter."""
        rows = []
        together: list[Found] = []
        for bound in self.shown:
            together.append(bound.symptom)
            row = replace(
                row_of(bound.rule, bound.symptom, self.subject),
                alone_ns=bound.most_ns,
                then_ns=self.busy_ns - self.saved_ns(together),
                step_ns=self.busy_ns,
                up_to=True,
                about=False,
                same_as=self._same_as(bound),
            )
            rows.append(row)
        return tuple(rows)

    def _same_as(self, bound: _Bound) -> tuple[str, ...]:
        """Return the rules of the other changes that take away the same time."""
        same = []
        for other in self.shown:
            both_ns = self.saved_ns([bound.symptom, other.symptom])
            if other is not bound and is_same_time(bound.most_ns, other.most_ns, both_ns):
                same.append(other.rule.name)
        return tuple(same)
