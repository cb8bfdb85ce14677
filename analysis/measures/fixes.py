"""What to change first, and how much of a step is at stake: each rule's change, replayed.

    a report ─► of a CPU? ─► cpu_fixes
             ─► replay ────► each rule's change, replayed
                  └ refused ─► fix_bounds: by the GPU's time alone, with the reason

A rule finds a symptom in the replayed steps and says which change removes it; the figure is the replayed step
less the replayed step after the change. Recording slows the host, so every figure is computed at all costs of
recording that give the step without it, and is a range. docs/fix_first.md has the definitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ..account import Partition
from ..report.recording import Recording
from ..support.small_numbers import quartiles
from ..support.units import time_in_digits
from ..trace import Bools, Int64s
from ..vocabulary import BACKWARD, FORWARD, PHASES
from .cpu_fixes import cpu_fixes
from .fix_bounds import bounds_of
from .fix_list import LEAST_SHARE, LIKELY_SHARE, NEAREST_STEP, Fix, Fixes, Silent, is_same_time
from .fix_rules import BF16_MORE, MEASURED, RULES, Rule, row_of
from .fix_subject import AT_ONCE_NS, FixSubject
from .gpu_time import Floats
from .host_line import Refused
from .late_batches import with_late_batches
from .replay import emptied_ns, replay_error, step_ns, timeline_of
from .symptoms import Found, Unjudged
from .timeline import PAUSE_NS, Timeline, emptied

#: The host's time without recording, as a share of that with it, where nothing says which: 0.33 to 1.0 were seen.
UNKNOWN_FACTORS = (0.4, 1.0)
#: Where the step without recording is known, all factors in between are tried that give it within this share.
FACTORS, NEAR_STEP = (0.2, 1.0), 0.03
#: Where host times of phases are known: they are looked for among these factors, and all factors within this share
#: of theirs are tried.
HOST_FACTORS, NEAR_HOST = (0.05, 1.0), 0.15
#: By how many standard deviations the quartiles of a normal distribution are apart.
QUARTILES_APART = 1.349
#: In how many places a range of factors is computed, and in how many it is looked for.
PLACES, SEARCHED = 5, 49
NO_FACTOR = "no cost of recording gives a step of the time without recording: the host's time is not judged"


class _Symptom(NamedTuple):
    rule: Rule
    finding: Found


def fixes_beside(partition: Partition, cost: Recording | None, given_ns: float | None = None) -> Fixes:
    """Return the changes of a step without recording: as given, ns, or by a report's trusted times beside it."""
    if given_ns is not None:
        return fixes_of(partition, unrecorded_step_ns=given_ns)
    if cost is None or not cost.alone_ns:
        return fixes_of(partition)
    idle_ns = {name: phase.span_ns * (1 - phase.busy_share) for name, phase in cost.phases.items()}
    return fixes_of(
        partition,
        unrecorded_step_ns=cost.alone_ns,
        least_ns=cost.least_ns,
        host_ns=cost.host_ns,
        idle_ns=idle_ns,
    )


def fixes_of(
    partition: Partition,
    *,
    unrecorded_step_ns: float | None = None,
    least_ns: float | None = None,
    host_ns: Mapping[str, float] | None = None,
    idle_ns: Mapping[str, float] | None = None,
) -> Fixes:
    """Return the changes that save a program the most time, by its report.

    `unrecorded_step_ns` is how long a step takes without recording, or at most, if it may take as little as
    `least_ns`; `host_ns` the host's own time in it, by phase, and `idle_ns` how long the GPU is idle in them.
    """
    if partition.on_cpu:
        return cpu_fixes(partition)
    try:
        timeline = timeline_of(partition)
    except Refused as refused:
        return bounds_of(partition, refused)
    subject = FixSubject(partition.attribution, timeline)
    most_ns = sum((idle_ns or {}).get(phase, 0.0) for phase in (FORWARD, BACKWARD)) or np.inf
    advice = _by_replay(subject, unrecorded_step_ns, least_ns, host_ns or {}, most_ns)
    return with_late_batches(advice, partition)


def _by_replay(
    subject: FixSubject,
    unrecorded_step_ns: float | None,
    least_ns: float | None,
    host_ns: Mapping[str, float],
    launching_ns: float,
) -> Fixes:
    """Return the changes with what they save of the replayed step; launching saves `launching_ns` at most.

    Causes come first: launching, and chains of small kernels, are judged on the step that their changes leave, as
    far as these surely matter.
    """
    timeline = subject.timeline
    base = _without_annotation(subject)
    tried = _factors(subject, base, unrecorded_step_ns, least_ns or unrecorded_step_ns or 0.0, host_ns)
    answers = [(rule, answer) for rule in RULES for answer in rule.find(subject, tried.values)]
    unjudged = [answer.reason for _, answer in answers if isinstance(answer, Unjudged)]
    symptoms = [_Symptom(rule, answer) for rule, answer in answers if isinstance(answer, Found)]
    if not tried.fits:
        unjudged.append(NO_FACTOR)
        symptoms = [symptom for symptom in symptoms if not symptom.rule.unrecorded]
    step = _step_of(subject, unrecorded_step_ns)
    spread_ns = _noise_ns(timeline.window.steps_ns) * step.ns / subject.step_ns
    causes = [symptom for symptom in symptoms if not symptom.rule.last]
    last = [_with_first_part(symptom, causes) for symptom in _one_remedy(symptoms)]
    begun_with = {symptom.finding.begins_with for symptom in last}
    weighed = _Weighed(subject, base, causes, tried, step)
    left = freed = base
    for place in weighed.shown(spread_ns):
        rule, finding = causes[place]
        if weighed.is_sure(spread_ns)[place] and not rule.conditional:
            freed = finding.change(freed)
            left = left if rule.name in begun_with else finding.change(left)
    if last:
        launching_ns = max(launching_ns - _host_time_saved_ns(base, freed) * float(tried.values.mean()), 0.0)
        weighed = _Weighed(subject, base, [*causes, *last], tried, step, left=left, launching_ns=launching_ns)
    places = weighed.shown(spread_ns)
    return Fixes(
        fixes=weighed.fixes(places, spread_ns),
        silent=weighed.silent(places),
        unjudged=tuple(unjudged),
        step_ns=weighed.step.ns,
        is_unrecorded=unrecorded_step_ns is not None,
        is_upper_limit=bool(unrecorded_step_ns and least_ns and least_ns < unrecorded_step_ns),
        recorded_step_ns=subject.step_ns,
        fits=tried.fits,
        steps=timeline.steps,
        spread_ns=spread_ns,
        factors=(float(tried.values.min()), float(tried.values.max())),
        replay_error=replay_error(timeline),
        host_times_error=tried.host_times_error,
    )


def _one_remedy(symptoms: list[_Symptom]) -> list[_Symptom]:
    """Return the symptoms that come last, without chains where launching limits: both have the same remedy."""
    last = [symptom for symptom in symptoms if symptom.rule.last]
    limited = any(symptom.rule.name == "launching" for symptom in last)
    return [symptom for symptom in last if not (limited and symptom.rule.name == "compile")]


def _with_first_part(symptom: _Symptom, causes: Sequence[_Symptom]) -> _Symptom:
    """Return a symptom whose change is also that of the cause that it begins with, if there is one."""
    rule, finding = symptom
    first = next((cause.finding for cause in causes if cause.rule.name == finding.begins_with), None)
    if first is None:
        return symptom

    def change(timeline: Timeline) -> Timeline:
        return finding.change(first.change(timeline))

    return _Symptom(rule, replace(finding, change=change))


def _host_time_saved_ns(base: Timeline, left: Timeline) -> float:
    """Return how much less the host needs in forward and backward of a step of a changed timeline, ns."""
    in_model = np.isin(base.phase, [PHASES.index(FORWARD), PHASES.index(BACKWARD)])
    saved = (base.before_ns + base.own_ns - left.before_ns - left.own_ns)[in_model]
    return float(np.maximum(saved, 0.0).sum()) / base.steps


def _noise_ns(steps_ns: Int64s) -> float:
    """Return how far the mean of some steps may be off, at 95%: by the distance of their quartiles, ns."""
    low_ns, _, high_ns = quartiles(steps_ns)
    deviation_ns = (high_ns - low_ns) / QUARTILES_APART
    return float(1.96 * deviation_ns / math.sqrt(len(steps_ns)))


class _Step(NamedTuple):
    """The step that figures are of: its time, which part of that is not replayed, and what figures are scaled by.

    Without such a scale, a figure is the same share of the step as of the replayed one.
    A single step is replayed from its range's begin on; the time before that stays as it is. Where few steps take
    much longer than others, a step's time is a mean that no step has: no change saves more than `most_ns`, the
    time of a usual step.
    """

    ns: float
    outside_ns: float
    scale: float | None
    most_ns: float


def _step_of(subject: FixSubject, unrecorded_ns: float | None) -> _Step:
    """Return the step without recording if that is known, else the recorded one, for which replayed ones stand."""
    if unrecorded_ns:
        return _Step(unrecorded_ns, 0.0, None, unrecorded_ns)
    replayed_ns = float(step_ns([subject.timeline], np.ones(1))[0])
    most_ns = min(float(np.median(subject.window.steps_ns)), subject.step_ns)
    outside_ns = max(most_ns - replayed_ns, 0.0) if subject.steps == 1 else 0.0
    return _Step(subject.step_ns, outside_ns, (subject.step_ns - outside_ns) / replayed_ns, most_ns)


def _without_annotation(subject: FixSubject) -> Timeline:
    """Return the timeline without the pauses in which annotation opens backward's ranges."""
    timeline = subject.timeline
    pauses = subject.opening_backward & (timeline.before_ns > PAUSE_NS)
    return replace(timeline, before_ns=np.where(pauses, AT_ONCE_NS, timeline.before_ns))


class _Factors(NamedTuple):
    """The host's factors to compute at, one each, or a row of one for each of PHASES; and what they give.

    `fits` says whether any gives the step without recording, `host_times_error` by which share of it the replay
    with the host's times of phases misses it, if there are any.
    """

    values: Floats
    fits: bool = True
    host_times_error: float | None = None


def _factors(
    subject: FixSubject,
    base: Timeline,
    unrecorded_ns: float | None,
    least_ns: float,
    host_ns: Mapping[str, float],
) -> _Factors:
    """Return the factors that give the step without recording, or where it is not known, those that were seen.

    If that step is an upper limit, they give all steps from `least_ns` on, with the host's time made shorter alike
    in all phases.
    """
    if unrecorded_ns is None:
        return _Factors(np.linspace(*UNKNOWN_FACTORS, PLACES))
    error = None
    if host_ns:
        of_phases = _of_phases(subject, base, unrecorded_ns, host_ns)
        error = float(step_ns([base], of_phases[None])[0]) / unrecorded_ns - 1
        if abs(error) <= NEAREST_STEP:
            lowest = (1 - NEAR_HOST) * least_ns / unrecorded_ns
            around = of_phases * np.linspace(lowest, 1 + NEAR_HOST, 2 * PLACES + 1)[:, None]
            near = _is_near(step_ns([base], around), least_ns, unrecorded_ns)
            return _Factors(around[near] if near.any() else around, host_times_error=error)
    tried = np.linspace(*FACTORS, SEARCHED)
    steps = step_ns([base], tried)
    fine = np.linspace(*FACTORS, 16 * SEARCHED)
    near = _is_near(np.interp(fine, tried, steps), least_ns, unrecorded_ns)
    if not near.any():
        return _Factors(np.linspace(*FACTORS, PLACES), False, error)
    return _Factors(np.linspace(float(fine[near].min()), float(fine[near].max()), PLACES), True, error)


def _is_near(steps_ns: Floats, least_ns: float, most_ns: float) -> Bools:
    """Return which steps take as long as the step without recording."""
    return (steps_ns >= (1 - NEAR_STEP) * least_ns) & (steps_ns <= (1 + NEAR_STEP) * most_ns)


def _of_phases(subject: FixSubject, base: Timeline, unrecorded_ns: float, host_ns: Mapping[str, float]) -> Floats:
    """Return the factor of each phase at which it lasts on the host as long as in a step that is emptied.

    Such a step takes the host no longer than any other, where it may wait for earlier work too: times of which the
    sum is longer than a step, but nearly one, are made shorter. Phases without a time of their own get the factor
    of all.
    """
    measured = np.array([host_ns.get(phase, 0.0) for phase in PHASES])
    if unrecorded_ns < measured.sum() <= (1 + NEAR_HOST) * unrecorded_ns:
        measured *= unrecorded_ns / measured.sum()
    tried = np.linspace(*HOST_FACTORS, SEARCHED)
    replayed = emptied_ns(emptied(base, subject.attribution), tried)
    has_time = (measured > 0) & (replayed[-1] > 0)
    of_all = np.interp(measured.sum(), replayed.sum(axis=1), tried)
    factors = [np.interp(measured[phase], replayed[:, phase], tried) for phase in range(len(PHASES))]
    return np.where(has_time, factors, of_all)


def _range(saved: Floats, at_least: Floats, ranged: Sequence[int]) -> tuple[Floats, Floats]:
    """Return the least and the most that changes save at any factor; some save `at_least` so much."""
    low = saved.min(axis=1, initial=np.inf)
    high = saved.max(axis=1, initial=0.0)
    low[list(ranged)] = at_least[: len(ranged)].min(axis=1, initial=np.inf)
    return low, high


class _Weighed:
    """All symptoms, replayed without them one at a time, at all factors.

    `share` is what they save of the step. What comes last is replayed on the timeline that is `left`, and
    launching saves `launching_ns` at most beside what it begins with.
    """

    def __init__(
        self,
        subject: FixSubject,
        base: Timeline,
        symptoms: Sequence[_Symptom],
        tried: _Factors,
        step: _Step,
        *,
        left: Timeline | None = None,
        launching_ns: float = np.inf,
    ) -> None:
        self.subject = subject
        self.base = base
        self.symptoms = symptoms
        self.step = step
        factors = tried.values
        self.inside_ns = step.ns - step.outside_ns
        self.usual_ns = step.most_ns - step.outside_ns
        starts = [left if symptom.rule.last and left is not None else base for symptom in symptoms]
        pairs = [(start, symptom.finding.change(start)) for symptom, start in zip(symptoms, starts, strict=True)]
        ranged = []
        for place, symptom in enumerate(symptoms):
            if symptom.finding.least:
                ranged.append(place)
                pairs.append((starts[place], symptom.finding.least(starts[place])))
        pairs += [(base, symptom.finding.more[0](base)) for symptom in symptoms if symptom.finding.more]
        timelines = [base, left or base, *(changed for _, changed in pairs)]
        of_each = [timeline for timeline in timelines for _ in factors]
        steps_ns = step_ns(of_each, np.concatenate([factors] * len(timelines))).reshape(len(timelines), -1)
        self.base_ns, left_ns = steps_ns[:2]
        count = len(symptoms)
        before_ns = np.array([left_ns if start is left else self.base_ns for start, _ in pairs])
        saved = np.maximum(before_ns.reshape(-1, len(factors)) - steps_ns[2:], 0.0)
        own_share = subject.idle_in_pauses(step.ns) if step.scale is None and tried.fits else 1.0
        for place, symptom in enumerate(symptoms):
            if symptom.rule.name == "launching":
                first_ns = saved[self._first_part(symptom.finding)].sum(axis=0)
                saved[place] = np.minimum(saved[place], launching_ns + first_ns)
            if symptom.rule.name == "host_pause":
                saved[place] *= own_share
        share = saved / self.base_ns * (self.inside_ns / step.ns)
        scale = step.ns / self.base_ns if step.scale is None else step.scale
        saved = np.minimum(saved * scale, step.most_ns)
        more = saved[count + len(ranged) :]
        self.more_ns = more.max(axis=1, initial=0.0)
        self.share = share[:count]
        self.low_share, self.high_share = _range(share[:count], share[count:], ranged)
        self.low_ns, self.high_ns = _range(saved[:count], saved[count:], ranged)
        self.nearest = int(np.abs(self.base_ns - self.inside_ns).argmin())
        self.factor = factors[self.nearest : self.nearest + 1]

    def shown(self, spread_ns: float) -> list[int]:
        """Return the symptoms that matter, those that save the most in the middle of their range first.

        A cause comes before launching if it saves at least half as much: launching has no change of one line.
        """
        is_known = self.step.scale is None  # without recording
        by_host = np.array([symptom.rule.unrecorded and not is_known for symptom in self.symptoms], np.bool_)
        middle_share = (self.low_share + self.high_share) / 2
        is_likely = (middle_share >= LIKELY_SHARE) & (self.middle_ns > spread_ns)
        enough = self.is_sure(spread_ns) | (is_likely & ~by_host)
        later = [each.rule.last or each.rule.conditional for each in self.symptoms]
        weight = np.where(later, self.middle_ns / 2, self.middle_ns)
        places = [place for place in np.argsort(-weight, kind="stable").tolist() if enough[place]]
        begun_with = self._begun_with(places)
        return [place for place in places if self.symptoms[place].rule.name not in begun_with]

    def _begun_with(self, places: Sequence[int]) -> set[str]:
        """Return the rules whose changes are the first parts of some changes."""
        return {self.symptoms[place].finding.begins_with for place in places}

    @property
    def middle_ns(self) -> Floats:
        """The middle of the range of what each symptom's change saves, ns."""
        return (self.low_ns + self.high_ns) / 2

    def is_sure(self, spread_ns: float) -> Bools:
        """Mark the symptoms whose changes save enough to matter at the least."""
        return (self.low_share >= LEAST_SHARE) & (self.low_ns > spread_ns)

    def silent(self, places: Sequence[int]) -> tuple[Silent, ...]:
        """Return the other symptoms, but those that a shown change begins with."""
        begun_with = self._begun_with(places)
        return tuple(
            Silent(symptom.rule.name, symptom.rule.called, float(self.high_ns[place]), float(self.low_ns[place]))
            for place, symptom in enumerate(self.symptoms)
            if place not in places and symptom.rule.name not in begun_with
        )

    def fixes(self, places: Sequence[int], spread_ns: float) -> tuple[Fix, ...]:
        """Return the rows of the symptoms that matter."""
        then = self._replayed([places[: count + 1] for count in range(len(places))])
        same = self._same(places)
        is_sure = self.is_sure(spread_ns)
        rows = []
        for place, then_ns in zip(places, then, strict=True):
            rows.append(replace(self._fix(place, then_ns, same[place]), uncertain=not is_sure[place]))
        return tuple(rows)

    def _fix(self, place: int, then_ns: float, same_as: tuple[str, ...]) -> Fix:
        rule, finding = self.symptoms[place]
        row = row_of(rule, finding, self.subject)
        return replace(
            row,
            sentence=finding.sentence + self._more(place) + self._of_first_part(finding),
            short=finding.short + self._of_first_part(finding),
            alone_ns=float(self.high_ns[place]),
            alone_low_ns=float(self.low_ns[place]),
            then_ns=then_ns,
            step_ns=self.step.ns,
            measured=MEASURED.get(rule.name) if finding.is_like_measured else None,
            same_as=same_as,
            evidence={"floor_ns": 0.0, **row.evidence},  # first in JSON
        )

    def _of_first_part(self, finding: Found) -> str:
        """Return what the change saves that another begins with, to append to its text; "" if none does."""
        first = self._first_part(finding)
        return f" (the first alone up to {time_in_digits(float(self.high_ns[first[0]]))})" if first else ""

    def _first_part(self, finding: Found) -> list[int]:
        """Return the place of the symptom whose change is the first part of one; none if there is none."""
        return [place for place, each in enumerate(self.symptoms) if each.rule.name == finding.begins_with]

    def _more(self, place: int) -> str:
        """Return a sentence on a change that goes further, if it saves more, else ""."""
        more = self.symptoms[place].finding.more
        if more is None:
            return ""
        order = sum(symptom.finding.more is not None for symptom in self.symptoms[:place])
        most_ns = float(self.more_ns[order])
        is_worth_it = most_ns >= BF16_MORE * self.high_ns[place]
        return f" {more[1].format(time_in_digits(most_ns))}" if is_worth_it else ""

    def _replayed(self, sets: Sequence[Sequence[int]]) -> list[float]:
        """Return how long a step takes after each of some sets of changes, ns.

        The factor that is nearest may give a slightly longer or shorter step without them: all keep their share.
        """
        if not sets:
            return []
        timelines = []
        for places in sets:
            timeline = self.base
            for place in places:
                timeline = self.symptoms[place].finding.change(timeline)
            timelines.append(timeline)
        after = step_ns(timelines, np.concatenate([self.factor] * len(sets)))
        saved_ns = np.minimum((1 - after / self.base_ns[self.nearest]) * self.inside_ns, self.usual_ns)
        return [self.step.ns - float(ns) for ns in saved_ns]

    def _same(self, places: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Return for each change the rules that save the same time."""
        pairs = list(combinations(places, 2))
        same: dict[int, list[str]] = {place: [] for place in places}
        alone_ns = self.share[:, self.nearest] * self.step.ns * (self.usual_ns / self.inside_ns)
        for (a, b), ns in zip(pairs, self._replayed(pairs), strict=True):
            if is_same_time(alone_ns[a], alone_ns[b], self.step.ns - ns):
                same[a].append(self.symptoms[b].rule.name)
                same[b].append(self.symptoms[a].rule.name)
        return {place: tuple(names) for place, names in same.items()}
