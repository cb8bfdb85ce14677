"""What measurements say: how much a change saves, whether losses agree, and the verdict."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from statistics import mean, median
from typing import Literal, NamedTuple

from nvtx_kernels.analysis.support.noise import Interval, pooled_intervals

from .levers import AGAINST, Lever, Numbers
from .results import Ending

Verdict = Literal[
    "use",
    "use_check_accuracy",
    "use_after",
    "same_as",
    "no_change",
    "slower",
    "not_known",
    "losses_differ",
    "fails",
]
#: Verdicts of a change that should be made.
USED: tuple[Verdict, ...] = ("use", "use_check_accuracy", "use_after")
#: A gain counts from this share of a step on; below the second it is measured twice; from the third on it may hide
#: what other changes save, or save the same.
WORTH, SMALL, BIG = 0.02, 0.1, 0.2
#: What surely changes a step by less than this is no change.
SAME = 0.05
#: By how much of a step a run of its own may save less than the least that the screen says: runs differ.
RUNS_DIFFER = 0.1
#: From this share of their median on by which a run's steps differ, the run is its median step, else its mean.
UNEVEN = 0.2
#: A cold start is shown from this time on, s.
LEAST_COLD_S = 1.0
#: Losses and weights that differ by less, as a share, are equal: nothing was computed otherwise.
EQUAL, NEARLY_EQUAL = 1e-7, 1e-9

#: By how much blocks of steps, and processes, of one program usually differ, as a share, even if the steps of each
#: are equal; and how much larger the variance of a change is: it is between two of the program as it is.
BLOCKS_DIFFER, PROCESSES_DIFFER, OF_A_CHANGE = 0.03, 0.08, 1.5
#: By this factor a median of distances is a standard deviation.
OF_DISTANCES = 1.4826


class Visit(NamedTuple):
    """A time of a step, ns, the arm that was on, "" for the program as it is, and by which share steps differ."""

    arm: str
    step_ns: float
    spread: float = 0.0


@dataclass(frozen=True)
class Gain:
    """What an arm saves of a step of `base_ns`, with its interval; what was `on` meanwhile, also in the base."""

    interval: Interval
    base_ns: float
    on: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The share of the step that it saves."""
        return -self.interval.change

    @property
    def saved_ns(self) -> float:
        """The time that it saves."""
        return self.share * self.base_ns

    @property
    def noise_ns(self) -> float:
        """How much less it may save: the wider half of its interval; infinite where that is more than a step."""
        half = self.interval.high - self.interval.change
        return half * self.base_ns if half < 1 else math.inf

    @property
    def is_sure(self) -> bool:
        """Whether it surely saves time, and enough of it."""
        return self.interval.is_less and self.share >= WORTH

    @property
    def is_undecided(self) -> bool:
        """Whether neither a gain nor a loss is sure, nor the absence of one."""
        interval = self.interval
        return not (interval.is_less or interval.is_more or interval.is_within(SAME))


@dataclass
class Comparison:
    """How the losses and weights of an arm compare with those of the program as it is.

    After one run as it is, nothing tells whether its own losses differ from run to run: `is_decided` is false.
    """

    text: str
    is_fine: bool = True
    is_equal: bool = False
    is_decided: bool = True


@dataclass
class Arm:
    """A change: what was predicted of it, ns, what each stage measured, and what came of it.

    `alone` is its gain by itself, `then` with those on that save most. `cold_s` is what it takes once. What was
    cut off as the budget ended `is_cut`.
    """

    name: str
    lever: Lever | None = None
    rule: str | None = None
    predicted_ns: tuple[float, float] | None = None
    place: str = ""
    alone: Gain | None = None
    then: Gain | None = None
    runs: list[Ending] = field(default_factory=list)
    run_change: float | None = None
    cold_s: float = 0.0
    lost: str = ""
    is_cut: bool = False
    losses: Comparison | None = None
    verdict: Verdict = "not_known"
    after: tuple[str, ...] = ()
    memory_factor: float | None = None

    @property
    def called(self) -> str:
        """Return its name in tables."""
        return self.lever.change if self.lever else self.name

    @property
    def gain(self) -> Gain | None:
        """Return the gain that its verdict is about."""
        return self.then if self.verdict == "use_after" or self.alone is None else self.alone

    @property
    def pays_after_steps(self) -> int | None:
        """Return after how many steps its cold start is paid, None without one."""
        gain = self.gain
        if self.cold_s < LEAST_COLD_S or gain is None or gain.saved_ns <= 0:
            return None
        return math.ceil(self.cold_s * 1e9 / gain.saved_ns)

    @property
    def write(self) -> str | None:
        """Return the line to write, after the program's line if that is known; None for what not to use."""
        if self.verdict not in USED or self.lever is None:
            return None
        return f"{self.place}: {self.lever.write}" if self.place else self.lever.write


def intervals_of(series: Sequence[Sequence[Visit]], differ: float) -> dict[str, Interval]:
    """Return by arm how its time differs from that of the program as it is, of visits in their order.

    Visits of one arm usually `differ` by this share: BLOCKS_DIFFER or PROCESSES_DIFFER.
    """
    changes = changes_of(series)
    usual = {arm: _usual_noise(series, arm, differ) for arm in changes}
    return pooled_intervals(changes, changes_of_nothing(series), usual)


def changes_of(series: Iterable[Sequence[Visit]]) -> dict[str, list[float]]:
    """Return by arm the logarithms of the quotients of its times to those of the program as it is around them.

    Each series is of visits in the order in which they were made. What lies between two visits of the program as
    it is, is compared with the straight line between these: the machine's pace drifts.
    """
    changes: dict[str, list[float]] = defaultdict(list)
    for visits in series:
        bases = [place for place, visit in enumerate(visits) if not visit.arm]
        for before, after in pairwise(bases):
            first = log(visits[before].step_ns)
            last = log(visits[after].step_ns)
            for place in range(before + 1, after):
                share = (place - before) / (after - before)
                change = log(visits[place].step_ns) - first - share * (last - first)
                changes[visits[place].arm].append(change)
    return dict(changes)


def changes_of_nothing(series: Iterable[Sequence[Visit]]) -> list[float]:
    """Return how the program as it is differs from itself, of two visits each, scaled to the noise of a change."""
    changes: list[float] = []
    for visits in series:
        bases = [log(visit.step_ns) for visit in visits if not visit.arm]
        pairs = zip(bases[::2], bases[1::2], strict=False)
        changes += [(after - before) * math.sqrt(OF_A_CHANGE / 2) for before, after in pairs]
    return changes


def _usual_noise(series: Iterable[Sequence[Visit]], arm: str, differ: float) -> float:
    """Return how noisy a change is before any is repeated: visits differ the more, the more their steps do."""
    visits = [visit for of_one in series for visit in of_one]
    spreads = [median(visit.spread for visit in visits if visit.arm == name) for name in ("", arm)]
    return math.sqrt(OF_A_CHANGE * (differ**2 + max(spreads) ** 2))


def spread_of(step_ns: Sequence[float]) -> float:
    """Return by which share steps differ from their median: a standard deviation without outliers."""
    middle = median(step_ns)
    return OF_DISTANCES * median(abs(step / middle - 1) for step in step_ns)


def step_of(step_ns: Sequence[float]) -> float:
    """Return the time of a run's step: the mean, or the median of steps that differ much."""
    middle = median(step_ns)
    return middle if max(step_ns) - min(step_ns) > UNEVEN * middle else mean(step_ns)


def compared(bases: Sequence[Ending], ending: Ending, numbers: Numbers) -> Comparison:
    """Compare the losses of a run, and the norm of its weights, with those of runs of the program as it is.

    If they are not equal, the runs as it is decide, which may differ too; else what the change does to numbers: by
    how much the first step's loss may differ, and by ten times that the mean of the last third, as rounding grows
    from step to step.
    """
    base, *others = bases
    pairs = _both_known(base, ending)
    if not pairs:
        return Comparison("not seen")
    shares = [_difference(a, b) for a, b in pairs]
    first, worst = shares[0], max(shares)
    weights = _difference(base.weights, ending.weights) if base.steps == ending.steps else 0.0
    if max(worst, weights) <= EQUAL:
        return Comparison("within 1e-7", is_equal=True)
    if not math.isfinite(worst):
        return Comparison("NaN or infinite", is_fine=False)
    as_it_is = [_difference(a, b) for other in others for a, b in _both_known(base, other)]
    weights_as_it_is = [_difference(base.weights, other.weights) for other in others]
    usual = max(as_it_is, default=0.0)
    usual_weights = max(weights_as_it_is, default=0.0)
    if worst <= 2 * usual and weights <= 2 * usual_weights + NEARLY_EQUAL:
        return Comparison(f"{worst:.0e}, as its runs")
    last = _last_third(pairs)
    varies = 0.0
    if numbers is Numbers.RANDOM:
        first_loss, _ = pairs[0]
        varies = max(_difference(first_loss, loss) for loss, _ in pairs)
    is_fine = (
        first <= max(numbers.of_loss, 2 * usual)
        and last <= max(10 * numbers.of_loss, 2 * usual, varies)
        and weights <= max(numbers.of_weights, 2 * usual_weights)
    )
    differs = max(worst, weights)
    if not is_fine and not others and differs <= Numbers.RANDOM.of_loss:
        return Comparison(f"differ by {differs:.0e}, as its runs may", is_decided=False)
    return Comparison(f"differ by {differs:.0e}", is_fine)


def _both_known(base: Ending, other: Ending) -> list[tuple[float, float]]:
    pairs = zip(base.losses, other.losses, strict=False)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _last_third(pairs: Sequence[tuple[float, float]]) -> float:
    last = pairs[-max(1, len(pairs) // 3) :]
    return _difference(mean(a for a, _ in last), mean(b for _, b in last))


def _difference(a: float, b: float) -> float:
    """Return by which share of A's a value of B's differs; infinity if only one is a finite number."""
    if math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / (abs(a) or 1.0)
    return 0.0 if math.isfinite(a) == math.isfinite(b) else math.inf


def judge(arm: Arm, bases: Sequence[Ending], on: Sequence[str]) -> None:
    """Give an arm its comparison of losses, its memory and its verdict; `on` are the arms that save most."""
    last = arm.runs[-1] if arm.runs else None
    if last is not None and bases:
        numbers = arm.lever.numbers if arm.lever else Numbers.LOWER
        arm.losses = compared(bases, last, numbers)
        if last.memory_bytes and bases[-1].memory_bytes:
            arm.memory_factor = last.memory_bytes / bases[-1].memory_bytes
    arm.verdict = _verdict(arm, on)
    if arm.verdict in ("same_as", "use_after"):
        arm.after = arm.then.on if arm.then else tuple(on)


def _verdict(arm: Arm, on: Sequence[str]) -> Verdict:
    if arm.lost:
        return "fails"
    latest = arm.then or arm.alone
    if latest is None:
        return "not_known"
    is_sure_alone = arm.alone is not None and arm.alone.is_sure
    if not latest.is_sure:
        return "same_as" if is_sure_alone and arm.then is not None else _without_gain(latest)
    if contradicts(arm):
        return "not_known"
    if arm.losses is not None and not arm.losses.is_fine:
        return "losses_differ"
    if not is_sure_alone and on:
        return "use_after"
    is_safe = arm.lever.is_safe if arm.lever else arm.losses is not None and arm.losses.is_equal
    is_decided = arm.losses is None or arm.losses.is_decided
    return "use" if is_safe and is_decided else "use_check_accuracy"


def contradicts(arm: Arm) -> bool:
    """Return whether a run of its own saved much less than the screen says."""
    latest = arm.then or arm.alone
    if latest is None or arm.run_change is None or arm.then is not None:
        return False
    return arm.run_change > latest.interval.high + RUNS_DIFFER


def _without_gain(gain: Gain) -> Verdict:
    interval = gain.interval
    if interval.is_more and interval.change >= WORTH:
        return "slower"
    return "no_change" if interval.is_within(SAME) else "not_known"


def best_of_each_kind(arms: Iterable[Arm]) -> list[Arm]:
    """Return the arms to be used together: of levers of one kind the one that saves most."""
    best: dict[str, Arm] = {}
    for arm in arms:
        if arm.verdict not in USED or arm.gain is None or arm.name == AGAINST:
            continue
        kind = (arm.lever.kind if arm.lever else "") or arm.name
        other = best.get(kind)
        if other is None or other.gain is None or arm.gain.share > other.gain.share:
            best[kind] = arm
    return list(best.values())
