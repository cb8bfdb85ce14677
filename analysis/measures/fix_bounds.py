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

from dataclasses import dataclass

import numpy as np

from ..account import Partition
from ..account.intervals import union
from ..support.small_numbers import summed
from ..trace import Int64s
from .fix_list import GPU_TIME, LEAST_SHARE, Fix, Fixes, Silent, is_same_time
from .fix_rules import RULES, Rule
from .gpu_subject import GpuSubject
from .gpu_time import GpuTime
from .host_line import Refused
from .symptoms import Found, Unjudged


def bounds_of(partition: Partition, refused: Refused) -> Fixes:
    """Return the changes of the GPU's work of a step, or of a recording without steps, with their bounds."""
    subject = _subject_of(partition)
    work, steps = subject.trace.work, subject.steps
    busy_ns = float(union(work.start_ns[subject.row], work.end_ns[subject.row]).total_ns) / steps
    if partition.has_steps:
        busy_ns = min(
            busy_ns, float(partition.table.own_ns[partition.choices[partition.main_loop].counted].mean())
        )
    bounds = _Bounds(subject, busy_ns)
    unjudged: list[str] = []
    for rule in RULES:
        for answer in () if rule.needs_host else rule.find(subject, np.ones(1)):
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
        step_ns=busy_ns,
        steps=steps,
    )


def _subject_of(partition: Partition) -> GpuSubject:
    """Return one GPU's work in the steps that count, in the order of its launches; without steps, all of it."""
    whole = partition.attribution
    work, loop = whole.trace.work, partition.steps.loops[partition.main_loop]
    if partition.has_steps:
        rows, steps = partition.of_counted_steps.rows_of_all, len(partition.choices[partition.main_loop].counted)
    else:
        is_warm_up = np.append(whole.warm_up, False)[whole.node]
        rows, steps = np.flatnonzero(partition.include_warm_up | ~is_warm_up), 1
    rows = rows[work.process[rows] == loop.process]
    rows = _of_busiest_gpu(partition, rows)
    time = GpuTime(whole.phase[rows], work.duration_ns[rows].astype(np.float64), np.ones(len(rows), np.bool_))
    return GpuSubject(whole, rows, time, steps)


def _of_busiest_gpu(partition: Partition, rows: Int64s) -> Int64s:
    """Return those of some pieces of work that ran on the GPU with the most of them, by launch and then start."""
    trace = partition.attribution.trace
    work, launches = trace.work, trace.launches
    device = work.device_id[rows]
    times_ns = summed(device, work.duration_ns[rows], int(device.max(initial=0)) + 1)
    rows = rows[device == times_ns.argmax()]
    launched_ns = work.start_ns[rows].copy()
    known = work.launch[rows] >= 0
    launched_ns[known] = launches.start_ns[work.launch[rows[known]]]
    return rows[np.lexsort((work.start_ns[rows], launched_ns))]


@dataclass(frozen=True, eq=False, slots=True)
class _Bound:
    """A symptom with the most that its change takes from the GPU's time of a step, ns."""

    rule: Rule
    found: Found
    most_ns: float


class _Bounds:
    """The symptoms of a subject, in whose step the GPU works for `busy_ns`."""

    def __init__(self, subject: GpuSubject, busy_ns: float) -> None:
        self.subject, self.busy_ns, self.bounds = subject, busy_ns, list[_Bound]()

    def add(self, rule: Rule, found: Found) -> None:
        """Take a symptom."""
        self.bounds.append(_Bound(rule, found, self.saved_ns([found])))

    def saved_ns(self, changes: list[Found]) -> float:
        """Return by how much the GPU's work of a step shrinks with some changes, at most all that it works."""
        time = self.subject.timeline
        for found in changes:
            time = found.on_gpu(time)
        saved_ns = (self.subject.timeline.left_ns - time.left_ns) / self.subject.steps
        return min(max(saved_ns, 0.0), self.busy_ns)

    @property
    def shown(self) -> list[_Bound]:
        """The bounds that matter, the largest first."""
        enough = [bound for bound in self.bounds if bound.most_ns >= LEAST_SHARE * self.busy_ns > 0]
        return sorted(enough, key=lambda bound: -bound.most_ns)

    def silent(self) -> tuple[Silent, ...]:
        """Return the other bounds."""
        shown = self.shown
        others = [bound for bound in self.bounds if bound not in shown]
        return tuple(Silent(bound.rule.name, bound.rule.called, bound.most_ns, 0.0) for bound in others)

    def fixes(self) -> tuple[Fix, ...]:
        """Return the rows of the bounds that matter."""
        shown, rows = self.shown, []
        for place, bound in enumerate(shown):
            together = [above.found for above in shown[: place + 1]]
            rows.append(self._fix(bound, self.busy_ns - self.saved_ns(together), self._same_as(bound)))
        return tuple(rows)

    def _same_as(self, bound: _Bound) -> tuple[str, ...]:
        """Return the rules of the other changes that take away the same time."""
        same = []
        for other in self.shown:
            both_ns = self.saved_ns([bound.found, other.found])
            if other is not bound and is_same_time(bound.most_ns, other.most_ns, both_ns):
                same.append(other.rule.name)
        return tuple(same)

    def _fix(self, bound: _Bound, then_ns: float, same_as: tuple[str, ...]) -> Fix:
        subject, found = self.subject, bound.found
        evidence = {"kernels_ns": subject.time_ns(found.work), "calls": subject.per_step(found.work)}
        return Fix(
            rule=bound.rule.name,
            sentence=found.sentence,
            where=subject.places(found.work),
            count=subject.per_step(found.work),
            alone_ns=bound.most_ns,
            alone_low_ns=0.0,
            then_ns=then_ns,
            step_ns=self.busy_ns,
            up_to=True,
            same_as=same_as,
            evidence={"floor_ns": 0.0, **evidence, **found.evidence},
        )
