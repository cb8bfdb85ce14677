"""What to change first, and how much of a step is at stake: each rule's change, replayed.

A rule finds a symptom in the replayed steps and says which change removes it; the figure is the replayed step
less the replayed step after the change. Recording slows the host, so every figure is computed at all costs of
recording that give the step without it, and is a range. docs/fix_first.md has the definitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ..account import Partition
from ..report.account import LineTime
from ..report.recording import Recording
from ..support.units import time_in_digits
from ..trace import Bools, Path
from ..vocabulary import PHASES
from .fix_rules import BF16_MORE, MEASURED, RULES, Found, Rule, Unjudged
from .fix_subject import AT_ONCE_NS, FixSubject
from .host_line import Refused
from .replay import PAUSE_NS, emptied_ns, replay_error, step_ns, timeline_of
from .timeline import Floats, Timeline, emptied

#: The host's time without recording, as a share of that with it, where nothing says which: 0.33 to 1.0 were seen.
UNKNOWN_FACTORS = (0.4, 1.0)
#: Where the step without recording is known, all factors in between are tried that give it within this share.
FACTORS, NEAR_STEP = (0.2, 1.0), 0.03
#: Where host times of phases are known: they are looked for among these factors, which must give the step so
#: nearly; all factors within this share of theirs are tried.
HOST_FACTORS, NEAREST_STEP, NEAR_HOST = (0.05, 1.0), 0.08, 0.15
#: In how many places a range of factors is computed, and in how many it is looked for.
PLACES, SEARCHED = 5, 49
#: Less of the step is not shown.
LEAST_SHARE = 0.02
#: Two changes save the same time if both together save less than this multiple of the larger's saving, and the
#: smaller adds less than this share of its own saving.
SAME_TIME, ADDS = 1.1, 0.25
NO_FACTOR = (
    "no cost of recording gives a step of the time without recording: what depends on the host's time is not "
    "judged, and the other figures are the lowest at any cost"
)


@dataclass(frozen=True, slots=True)
class Fix:
    """One change, and the time that it alone takes from a step: at most, and at the least of its range, ns.

    `then_ns` is the step after it and the changes before it. `up_to` says that the change can save less,
    whatever recording cost. `measured` is how many changes of this rule were measured, and which percentages of
    the figure they saved, from least to most. `evidence` has `kernels_ns`, `floor_ns` and `calls` of the work
    concerned, per step.
    """

    rule: str
    sentence: str
    where: tuple[Path, ...]
    count: float
    alone_ns: float
    alone_low_ns: float
    then_ns: float
    step_ns: float
    up_to: bool
    measured: tuple[int, int, int] | None = None
    same_as: tuple[str, ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)
    #: The lines of the program that launch the work concerned, over the replayed steps; empty if unknown.
    lines: tuple[LineTime, ...] = ()


@dataclass(frozen=True, slots=True)
class Silent:
    """A change that takes too little from a step to be shown: how screens call it, at most and at least, ns."""

    rule: str
    called: str
    alone_ns: float
    alone_low_ns: float


@dataclass(frozen=True, slots=True)
class Fixes:
    """All changes that matter, by the least that they save; and what stayed silent, or was not judged.

    `step_ns` is the step without recording where `is_unrecorded`, of which it may be an upper limit, else the
    recorded one; `factors` are the lowest and the highest share of the recorded host time that was replayed;
    `spread_ns` is half the interquartile range of the recorded steps. `refused` says why nothing was replayed;
    `fits` is false where no factor gives the unrecorded step. `host_times_error` is by which share of that step
    the replay misses it with the host's times by phase, None without such times; where it is too large, they are
    not used.
    """

    fixes: tuple[Fix, ...] = ()
    silent: tuple[Silent, ...] = ()
    unjudged: tuple[str, ...] = ()
    refused: str = ""
    step_ns: float = 0
    is_unrecorded: bool = False
    is_upper_limit: bool = False
    recorded_step_ns: float = 0
    fits: bool = True
    steps: int = 0
    spread_ns: float = 0
    factors: tuple[float, float] | None = None
    replay_error: float | None = None
    host_times_error: float | None = None

    @property
    def host_times_used(self) -> bool:
        """Whether the figures are of the host's times by phase."""
        return self.host_times_error is not None and abs(self.host_times_error) <= NEAREST_STEP


class _Symptom(NamedTuple):
    rule: Rule
    found: Found


def fixes_beside(partition: Partition, cost: Recording | None, given_ns: float | None = None) -> Fixes:
    """Return such changes of a step without recording: as given, ns, or by a report's trusted times beside it."""
    if given_ns is not None:
        return fixes_of(partition, unrecorded_step_ns=given_ns)
    if cost is None or not cost.alone_ns:
        return fixes_of(partition)
    return fixes_of(partition, unrecorded_step_ns=cost.alone_ns, least_ns=cost.least_ns, host_ns=cost.host_ns)


def fixes_of(
    partition: Partition,
    *,
    unrecorded_step_ns: float | None = None,
    least_ns: float | None = None,
    host_ns: Mapping[str, float] | None = None,
) -> Fixes:
    """Return the changes that save a program the most time, by its report.

    `unrecorded_step_ns` is how long a step takes without recording, or at most, if it may take as little as
    `least_ns`; `host_ns` the host's own time in it, by phase.
    """
    try:
        timeline = timeline_of(partition)
    except Refused as reason:
        return Fixes(refused=str(reason))
    subject = FixSubject(partition.attribution, timeline)
    base = _without_annotation(subject)
    found = _factors(subject, base, unrecorded_step_ns, least_ns or unrecorded_step_ns or 0.0, host_ns or {})
    factors, fits = found.values, found.fits
    answers = [(rule, answer) for rule in RULES for answer in rule.find(subject, factors)]
    unjudged = [answer.reason for _, answer in answers if isinstance(answer, Unjudged)]
    symptoms = [_Symptom(rule, answer) for rule, answer in answers if isinstance(answer, Found)]
    if not fits:
        unjudged.append(NO_FACTOR)
        symptoms = [symptom for symptom in symptoms if not symptom.rule.on_host]
    steps_ns = np.sort(timeline.window.steps_ns)
    recorded_ns = float(steps_ns.mean())
    step = unrecorded_step_ns or recorded_ns
    low_ns, high_ns = np.interp((len(steps_ns) - 1) * np.array([0.25, 0.75]), np.arange(len(steps_ns)), steps_ns)
    spread_ns = float(high_ns - low_ns) / 2
    # Without a step of which recording is known to be no part, the replayed steps stand for those that count.
    replayed_ns = float(step_ns([timeline], np.ones(1))[0])
    scale = 1.0 if unrecorded_step_ns else recorded_ns / replayed_ns
    weighed = _Weighed(subject, base, symptoms, factors, fits, step, scale)
    shown = weighed.shown(spread_ns)
    return Fixes(
        fixes=weighed.fixes(shown),
        silent=weighed.silent(shown),
        unjudged=tuple(unjudged),
        step_ns=step,
        is_unrecorded=unrecorded_step_ns is not None,
        is_upper_limit=bool(unrecorded_step_ns and least_ns and least_ns < unrecorded_step_ns),
        recorded_step_ns=recorded_ns,
        fits=fits,
        steps=timeline.steps,
        spread_ns=spread_ns,
        factors=(float(factors.min()), float(factors.max())),
        replay_error=replay_error(timeline),
        host_times_error=found.host_times_error,
    )


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
    own = (measured > 0) & (replayed[-1] > 0)
    of_all = np.interp(measured.sum(), replayed.sum(axis=1), tried)
    factors = [np.interp(measured[phase], replayed[:, phase], tried) for phase in range(len(PHASES))]
    return np.where(own, factors, of_all)


class _Weighed:
    """All symptoms, replayed without them one at a time, at all factors.

    `share` is what they save of each replayed step. Where no factor gives the step, it is taken of that step.
    """

    def __init__(
        self,
        subject: FixSubject,
        base: Timeline,
        symptoms: Sequence[_Symptom],
        factors: Floats,
        fits: bool,
        step: float,
        scale: float,
    ) -> None:
        self.subject, self.base, self.symptoms, self.step = subject, base, symptoms, step
        changed = [symptom.found.change(base) for symptom in symptoms]
        more = [symptom.found.more[0](base) for symptom in symptoms if symptom.found.more]
        timelines = [base, *changed, *more]
        each = np.concatenate([factors] * len(timelines))
        steps = step_ns([timeline for timeline in timelines for _ in factors], each).reshape(len(timelines), -1)
        self.base_ns = steps[0]
        saved, count = np.maximum(steps[0] - steps[1:], 0.0), len(symptoms)
        share = saved / self.base_ns
        saved = saved * (scale if fits else step / self.base_ns)
        self.share, self.saved_ns, more = share[:count], saved[:count], saved[count:]
        self.more_ns = more.max(axis=1, initial=0.0) if fits else more.min(axis=1, initial=np.inf)
        self.low_ns = self.saved_ns.min(axis=1, initial=np.inf)
        self.high_ns = self.saved_ns.max(axis=1, initial=0.0) if fits else self.low_ns
        self.nearest = int(np.abs(self.base_ns - step).argmin())
        self.factor = factors[self.nearest : self.nearest + 1]

    def shown(self, spread_ns: float) -> list[int]:
        """Return the symptoms that matter, those that save the most at the least first."""
        enough = self.share.min(axis=1, initial=np.inf) >= LEAST_SHARE
        enough &= self.low_ns > spread_ns
        return [place for place in np.argsort(-self.low_ns, kind="stable").tolist() if enough[place]]

    def silent(self, shown: Sequence[int]) -> tuple[Silent, ...]:
        """Return the other symptoms."""
        return tuple(
            Silent(symptom.rule.name, symptom.rule.called, float(self.high_ns[place]), float(self.low_ns[place]))
            for place, symptom in enumerate(self.symptoms)
            if place not in shown
        )

    def fixes(self, shown: Sequence[int]) -> tuple[Fix, ...]:
        """Return the rows of the symptoms that matter."""
        then = self._replayed([shown[: count + 1] for count in range(len(shown))])
        same = self._same(shown)
        return tuple(self._fix(place, then_ns, same[place]) for place, then_ns in zip(shown, then, strict=True))

    def _fix(self, place: int, then_ns: float, same_as: tuple[str, ...]) -> Fix:
        rule, found = self.symptoms[place]
        subject = self.subject
        evidence = {
            "kernels_ns": subject.time_ns(found.work),
            "calls": subject.per_step(found.work),
            **found.evidence,
        }
        return Fix(
            rule=rule.name,
            sentence=found.sentence + self._more(place),
            where=subject.places(found.work),
            lines=subject.lines_of(found.work),
            count=subject.per_step(found.work),
            alone_ns=float(self.high_ns[place]),
            alone_low_ns=float(self.low_ns[place]),
            then_ns=then_ns,
            step_ns=self.step,
            up_to=rule.up_to,
            measured=MEASURED.get(rule.name),
            same_as=same_as,
            evidence={"floor_ns": 0.0, **evidence},
        )

    def _more(self, place: int) -> str:
        """Return a sentence on a change that goes further, if it saves more, else ""."""
        found = self.symptoms[place].found
        if found.more is None:
            return ""
        order = sum(symptom.found.more is not None for symptom in self.symptoms[:place])
        most_ns = float(self.more_ns[order])
        return (
            f" {found.more[1].format(time_in_digits(most_ns))}"
            if most_ns >= BF16_MORE * self.high_ns[place]
            else ""
        )

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
                timeline = self.symptoms[place].found.change(timeline)
            timelines.append(timeline)
        after = step_ns(timelines, np.concatenate([self.factor] * len(sets)))
        return [float(ns) for ns in after * (self.step / self.base_ns[self.nearest])]

    def _same(self, shown: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Return for each change the rules that save the same time."""
        pairs = list(combinations(shown, 2))
        same: dict[int, list[str]] = {place: [] for place in shown}
        alone_ns = self.share[:, self.nearest] * self.step
        for (a, b), ns in zip(pairs, self._replayed(pairs), strict=True):
            smaller, larger = sorted((alone_ns[a], alone_ns[b]))
            if self.step - ns < min(SAME_TIME * larger, larger + ADDS * smaller):
                same[a].append(self.symptoms[b].rule.name)
                same[b].append(self.symptoms[a].rule.name)
        return {place: tuple(names) for place, names in same.items()}
