"""Whether two series of measured steps differ: medians with a floor, a rank test, intervals of many changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Verdict: TypeAlias = Literal["differs", "same", "not known"]
Values: TypeAlias = NDArray[np.float64]

#: From this number of steps a side on, medians must differ by this share, and the rank test must confirm it.
MANY_STEPS, FLOOR, LEVEL = 5, 0.02, 0.01
#: From this number of steps on, the sides' steps must not overlap, and medians must differ by this share.
SOME_STEPS, FLOOR_OF_SOME = 3, 0.05
#: Sides of few steps, or of several recordings, differ by this multiple of what either side's do.
OF_SOME_STEPS, OF_RECORDINGS = 1.5, 1.0
#: A larger difference is reported with fewer steps too.
LARGE = 0.25
#: Sides are the same if they surely differ by no more than this share.
SAME_WITHIN = 0.05
#: Up to this number of pairs of values the rank test is exact; above, the sum of ranks is nearly normal.
EXACT_PAIRS = 2500
#: The bounds of a difference are those of at most this number of values a side, evenly taken from all.
MOST_OF_PAIRS = 500
#: Of Student's t for a two-sided interval of 99.8%, by degrees of freedom from 4 on; and how it goes on.
T_998 = (
    7.173, 5.893, 5.208, 4.785, 4.501, 4.297, 4.144, 4.025, 3.930, 3.852, 3.787, 3.733,
    3.686, 3.646, 3.610, 3.579, 3.552, 3.527, 3.505, 3.485, 3.467, 3.450, 3.435, 3.421, 3.408, 3.396, 3.385,
)  # fmt: skip
T_998_LIMIT, T_998_SLOPE = 3.090, 9.0
#: A series that is noisier than the typical one by this factor has its own noise. No interval is narrower.
NOISY, LEAST_HALF_WIDTH = 3.0, 0.005
#: How many repetitions the usual noise of a change counts for; from how many on repetitions need none of it.
USUAL_FREEDOM, LEAST_FREEDOM = 4, 8
#: Steps of one kind launch as many kernels as the next larger of that kind, within this share.
SAME_LAUNCHES = 0.02
#: A program of more kinds has none: its steps vary.
MOST_KINDS = 4


def judged(a: Sequence[Values], b: Sequence[Values], *, level: float = LEVEL) -> Verdict:
    """Return whether the steps of B's recordings differ from A's; NaN is a step without a value.

    Each series has the steps of one recording. Where both sides have several, their medians must not overlap, and
    differ by more than those of one side do: recordings of one program differ by more than their steps say.
    """
    sides = _Sides(a, b)
    if not (len(sides.a) and len(sides.b)):
        return "not known"
    steps = sides.fewest
    change = changed(sides.a, sides.b)
    if steps < MANY_STEPS or least_probability(len(sides.a), len(sides.b)) > level:
        floor = FLOOR_OF_SOME if steps >= SOME_STEPS else LARGE
        differs = change >= floor and _far_apart(sides.a, sides.b, OF_SOME_STEPS)
    else:
        differs = change >= FLOOR and rank_test(sides.a, sides.b, level)
    if differs and sides.are_several:
        differs = _far_apart(sides.medians_a, sides.medians_b, OF_RECORDINGS)
    if differs:
        return "differs"
    low, high = bounds(a, b, level=level)
    return "same" if max(-low, high) <= SAME_WITHIN else "not known"


def bounds(a: Sequence[Values], b: Sequence[Values], *, level: float = LEVEL) -> tuple[float, float]:
    """Return the least and the most by which B's steps differ from A's, as shares of A's median.

    They are the bounds of the rank test: differences of pairs of steps (Hodges and Lehmann, Annals of Mathematical
    Statistics 34, 1963). With several recordings of both sides, any two of these are within them too. They are
    infinite where there are too few steps.
    """
    sides = _Sides(a, b)
    if sides.fewest < SOME_STEPS:
        return -np.inf, np.inf
    median_a = float(np.median(sides.a))
    if not median_a:
        return (-np.inf, np.inf) if sides.a.any() or sides.b.any() else (0.0, 0.0)
    differences = _thinned(sides.b)[:, None] - _thinned(sides.a)[None, :]
    pairs = np.sort(differences.ravel()) / median_a
    beyond = max(_most_wins(len(sides.a), len(sides.b), level), 0) / (len(sides.a) * len(sides.b))
    outermost = min(int(beyond * len(pairs)), (len(pairs) - 1) // 2)
    low = float(pairs[outermost])
    high = float(pairs[-1 - outermost])
    if sides.are_several:
        low = min(low, float(sides.medians_b.min() - sides.medians_a.max()) / median_a)
        high = max(high, float(sides.medians_b.max() - sides.medians_a.min()) / median_a)
    return low, high


def steps_to_tell(a: Sequence[Values], b: Sequence[Values]) -> int:
    """Return how many steps a side tell a difference as large as this one, or as SAME_WITHIN; 0 if unknown.

    The bounds of a rank test of normal values are 2.6 standard errors of the difference away from it, at 1%.
    """
    sides = _Sides(a, b)
    if sides.fewest < SOME_STEPS:
        return 0
    median_a = float(np.median(sides.a))
    if not median_a:
        return 0
    variance = (float(np.var(sides.a, ddof=1)) + float(np.var(sides.b, ddof=1))) / median_a**2
    return math.ceil(variance * (2.6 / max(changed(sides.a, sides.b), SAME_WITHIN)) ** 2)


class _Sides:
    """Both sides without what has no value: their steps, `a` and `b`, and the medians of their recordings."""

    def __init__(self, a: Sequence[Values], b: Sequence[Values]) -> None:
        self.a, self.medians_a = self._joined(a)
        self.b, self.medians_b = self._joined(b)
        self.fewest = min(len(self.a), len(self.b))
        self.are_several = min(len(self.medians_a), len(self.medians_b)) > 1

    @staticmethod
    def _joined(side: Sequence[Values]) -> tuple[Values, Values]:
        series = [values for values in map(known, side) if len(values)]
        medians = np.array([np.median(values) for values in series])
        return np.concatenate([np.zeros(0), *series]), medians


def _thinned(values: Values) -> Values:
    """Return some of many values, at even distances in their order."""
    if len(values) <= MOST_OF_PAIRS:
        return values
    places = np.linspace(0, len(values) - 1, MOST_OF_PAIRS).round().astype(np.int64)
    return np.sort(values)[places]


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of several kinds of steps together: B differs if any does, and is the same if all are."""
    order: tuple[Verdict, ...] = ("differs", "not known", "same")
    return next((verdict for verdict in order if verdict in verdicts), "not known")


def known(values: Values) -> Values:
    """Return the values that are numbers."""
    floats = np.asarray(values, np.float64)
    return floats[~np.isnan(floats)]


def changed(a: Values, b: Values) -> float:
    """Return by which share of A's median B's differs; infinity where only A's is 0."""
    median_a = float(np.median(a))
    median_b = float(np.median(b))
    if median_a == median_b:
        return 0.0
    return abs(median_b - median_a) / median_a if median_a else float("inf")


def apart(a: Values, b: Values) -> bool:
    """Return whether all of one side are larger than all of the other."""
    return bool(a.max() < b.min() or b.max() < a.min())


def _far_apart(a: Values, b: Values, multiple: float) -> bool:
    """Return whether both sides are apart, and their medians further than this multiple of a side's spread."""
    spread = max(float(np.ptp(a)), float(np.ptp(b)))
    return apart(a, b) and abs(float(np.median(b) - np.median(a))) > multiple * spread


def rank_test(a: Values, b: Values, level: float = LEVEL) -> bool:
    """Return whether one side ranks above the other at this level: Mann–Whitney's test, two-sided."""
    order = np.sort(b)
    below = np.searchsorted(order, a, "left")
    up_to = np.searchsorted(order, a, "right")
    wins = float((below + up_to).sum()) / 2  # pairs in which A's value is the larger, half of those that tie
    return min(wins, len(a) * len(b) - wins) <= _most_wins(len(a), len(b), level)


@lru_cache(maxsize=1024)
def _most_wins(a: int, b: int, level: float) -> float:
    """Return in how many of a × b pairs the lesser side may win at most for a difference; -1 if in none."""
    if a * b > EXACT_PAIRS:
        deviation = (a * b * (a + b + 1) / 12) ** 0.5
        return float(a * b / 2 + NormalDist().inv_cdf(level / 2) * deviation)
    probability = 2 * np.cumsum(_orders(a, b)[: a * b // 2 + 1])
    return float(np.searchsorted(probability, level * (1 + 1e-9), "right")) - 1


def least_probability(a: int, b: int) -> float:
    """Return the probability that chance alone separates two sides of `a` and `b` values."""
    return float(2 * _orders(a, b)[0]) if a * b <= EXACT_PAIRS else 0.0


@lru_cache(maxsize=1024)
def _orders(a: int, b: int) -> Values:
    """Return the probability of each number of pairs won by A if both sides are equal: float64 (a × b + 1,)."""
    # The generating function of the sums of ranks: the product of (1 - q^(b+i)) / (1 - q^i), one i after another.
    share = np.zeros(a * b + 1)
    share[0] = 1.0
    for i in range(1, a + 1):
        if b + i <= a * b:
            share[b + i :] = share[b + i :] - share[: len(share) - b - i]
        for first in range(i):
            share[first::i] = np.cumsum(share[first::i])
        share *= i / (b + i)
    return share


@dataclass(frozen=True, slots=True)
class Interval:
    """A change of a time as a share of it, with the bounds between which it lies in 998 of 1000 cases."""

    change: float
    low: float
    high: float

    @property
    def is_less(self) -> bool:
        """Whether the time is surely shorter."""
        return self.high < 0

    @property
    def is_more(self) -> bool:
        """Whether the time is surely longer."""
        return self.low > 0

    def is_within(self, share: float) -> bool:
        """Return whether the time surely changed by less than this share."""
        return max(-self.low, self.high) < share


def pooled_intervals(
    changes: Mapping[str, Sequence[float]],
    of_nothing: Sequence[float],
    usual: Mapping[str, float],
) -> dict[str, Interval]:
    """Return the change of each series, which are logarithms of quotients: one series a change that was tried.

    The noise is that of all series together, and that `of_nothing`: changes where nothing was changed, as noisy as
    the others. A series that is much noisier than the others has its own. A change is taken to be as noisy as is
    `usual` for it (a standard deviation by series), which counts like USUAL_FREEDOM repetitions. Where there are
    LEAST_FREEDOM others, what these say alone counts if it is narrower, but for one value: it may be noisier.
    """
    series = {name: np.array(values, np.float64) for name, values in changes.items() if len(values)}
    deviations = {name: float(np.std(values, ddof=1)) for name, values in series.items() if len(values) > 1}
    most = NOISY * float(np.median([*deviations.values()])) if deviations else 0.0
    squares = {name: (len(series[name]) - 1) * deviation**2 for name, deviation in deviations.items()}
    calm = [name for name, deviation in deviations.items() if deviation <= most]
    freedom_of_calm = len(of_nothing) + sum(len(series[name]) - 1 for name in calm)
    squares_of_nothing = sum(change**2 for change in of_nothing)
    squares_of_calm = squares_of_nothing + sum(squares[name] for name in calm)
    intervals = {}
    for name, values in series.items():
        freedom, sum_of_squares = freedom_of_calm, squares_of_calm
        if name in deviations and name not in calm:
            freedom, sum_of_squares = len(values) - 1, squares[name]
        usual_squares = USUAL_FREEDOM * usual[name] ** 2
        half = _half_width(USUAL_FREEDOM + freedom, usual_squares + sum_of_squares, len(values))
        if len(values) > 1 and freedom >= LEAST_FREEDOM:
            half = min(half, _half_width(freedom, sum_of_squares, len(values)))
        half = max(half, LEAST_HALF_WIDTH)
        mean = float(values.mean())
        intervals[name] = Interval(*np.expm1([mean, mean - half, mean + half]).tolist())
    return intervals


def _half_width(freedom: int, squares: float, values: int) -> float:
    """Return half of the 99.8% interval of the mean of some values, for at least USUAL_FREEDOM."""
    t = T_998_LIMIT + T_998_SLOPE / freedom
    if freedom - USUAL_FREEDOM < len(T_998):
        t = T_998[freedom - USUAL_FREEDOM]
    return float(t * (squares / freedom / values) ** 0.5)


Kinds: TypeAlias = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


def matched_kinds(
    launches_a: Sequence[int] | NDArray[np.int64], launches_b: Sequence[int] | NDArray[np.int64]
) -> Kinds:
    """Return the kinds of steps that both sides have: which steps of A and which of B, positions, int64.

    Steps are of one kind where they launch about as many kernels. Kinds of both sides belong together if their
    launches agree; else, where all kinds that agree are at equal places, in the order of their launches. Steps of
    any other kind are in none. Where no kinds belong together, or a side has too many, all steps are one kind.
    """
    a = np.asarray(launches_a, np.int64)
    b = np.asarray(launches_b, np.int64)
    kinds_a = _kinds(a)
    kinds_b = _kinds(b)
    everything: Kinds = [(np.arange(len(a)), np.arange(len(b)))]
    if max(len(kinds_a), len(kinds_b)) > MOST_KINDS:
        return everything
    agree = []
    for i, of_a in enumerate(kinds_a):
        usual_a = np.median(a[of_a])
        for j, of_b in enumerate(kinds_b):
            if abs(usual_a - np.median(b[of_b])) <= SAME_LAUNCHES * usual_a:
                agree.append((i, j))
    if len(kinds_a) == len(kinds_b) and all(i == j for i, j in agree):
        return list(zip(kinds_a, kinds_b, strict=True))
    return [(kinds_a[i], kinds_b[j]) for i, j in agree] or everything


def _kinds(launches: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Divide steps where the next larger number of launches is more than SAME_LAUNCHES larger."""
    order = np.argsort(launches, kind="stable")
    larger = np.diff(launches[order]) > SAME_LAUNCHES * launches[order][1:]
    return [np.sort(part) for part in np.split(order, np.flatnonzero(larger) + 1)]
