"""Whether two series of steps differ: the rank test against counting, its floors, kinds of steps, repetitions."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.support.noise import (
    judged,
    least_probability,
    matched_kinds,
    pooled_intervals,
    rank_test,
)

VALUES = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def wins(a, b):
    """Count the pairs in which a value of A is the larger, a tie as half of one."""
    return sum((x > y) + (x == y) / 2 for x in a for y in b)


@given(VALUES, VALUES, st.sampled_from([0.01, 0.05, 0.2]))
def test_the_rank_test_is_as_likely_to_err_as_counting_all_orders_says(a, b, level):
    n = len(a) + len(b)
    of_orders = [
        wins(ranks, [rank for rank in range(n) if rank not in ranks]) for ranks in combinations(range(n), len(a))
    ]
    lesser = min(wins(a, b), len(a) * len(b) - wins(a, b))
    probability = 2 * sum(lesser >= other for other in of_orders) / comb(n, len(a))
    assert rank_test(np.array(a, float), np.array(b, float), level) == (probability <= level)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (3, 3), (5, 5), (4, 9)])
def test_chance_puts_two_sides_apart_in_two_of_all_orders(a, b):
    assert least_probability(a, b) == pytest.approx(2 / comb(a + b, a))


def test_many_steps_are_judged_as_few_are():
    rng = np.random.default_rng(1)
    a, b = rng.normal(100, 3, (2, 400))
    assert (judged([a], [b]), judged([a], [b + 3]), judged([a[:50]], [b[:51] + 3])) == (
        "same",
        "differs",
        "differs",
    )


ONE = np.array([100.0, 101, 99, 100, 102])


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([ONE], [1.035 * ONE], "differs"),
        ([ONE], [1.015 * ONE], "same"),
        ([ONE, 1.03 * ONE], [1.05 * ONE, 1.06 * ONE], "differs"),
        ([ONE, 1.08 * ONE], [1.05 * ONE, 1.1 * ONE], "not known"),
        ([np.array([np.nan, 100.0])], [np.array([np.nan, 130.0])], "differs"),
        ([np.array([np.nan])], [ONE], "not known"),
        ([], [ONE], "not known"),
    ],
)
def test_medians_have_a_floor_and_recordings_of_one_side_are_no_difference(a, b, verdict):
    assert judged(a, b) == verdict


@pytest.mark.parametrize(
    ("a", "b", "kinds"),
    [
        ([704, 775, 704, 775], [775, 704, 775], [([0, 2], [1]), ([1, 3], [0, 2])]),
        ([704, 775, 704, 775], [704, 700, 775, 776], [([0, 2], [0, 1]), ([1, 3], [2, 3])]),
        ([3727, 3727], [2505], [([0, 1], [0])]),  # compiled
        ([704, 775], [704, 740], [([0], [0]), ([1], [1])]),  # a fused optimizer
        ([12, 704, 704], [704, 704], [([1, 2], [0, 1])]),  # the first was cut off
        ([10, 20, 40, 80, 160], [10], [([0, 1, 2, 3, 4], [0])]),  # sizes of batches vary
        ([0, 0], [0], [([0, 1], [0])]),
    ],
)
def test_steps_are_of_one_kind_where_they_launch_as_much(a, b, kinds):
    found = [(of_a.tolist(), of_b.tolist()) for of_a, of_b in matched_kinds(a, b)]
    assert found == kinds


#: By how much changes usually differ from one repetition to the next.
USUAL = 0.02


def intervals_of(series, usual=USUAL):
    """Return the intervals of changes, given by number or name, where nothing was measured without a change."""
    changes = series if isinstance(series, dict) else {str(n): values for n, values in enumerate(series)}
    return pooled_intervals(changes, [], dict.fromkeys(changes, usual))


def test_an_interval_holds_the_change_in_998_of_1000_cases():
    runs = np.random.default_rng(5).normal(0.05, 0.02, (4000, 3, 4))
    intervals = [intervals_of(series)["1"] for series in runs]
    assert np.mean([np.log1p(one.low) < 0.05 < np.log1p(one.high) for one in intervals]) > 0.996


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "drift"])
def test_of_ten_changes_without_effect_none_seems_to_save_in_39_of_40_tries(noise):
    rng, size = np.random.default_rng(1), (1500, 10, 4)
    drift = np.cumsum(rng.normal(0, 0.003, (1500, 40)), axis=1).reshape(size)
    values = {"normal": rng.normal(0, 0.02, size), "heavy tails": rng.standard_t(3, size) / 50}
    series = drift - drift.mean(axis=(1, 2), keepdims=True) if noise == "drift" else values[noise]
    tries = [intervals_of(one) for one in np.diff(series, axis=2)]
    assert np.mean([any(interval.is_less for interval in one.values()) for one in tries]) <= 1 / 40


def test_a_noisy_change_has_its_own_noise_and_leaves_the_others_theirs():
    calm = {str(n): [-0.1, -0.101, -0.099, -0.1] for n in range(5)}
    intervals = intervals_of({**calm, "noisy": [-0.5, 0.3, -0.4, 0.2]})
    assert (intervals["0"].is_less, intervals["0"].is_within(0.11)) == (True, True)
    assert (intervals["noisy"].is_less, intervals["noisy"].is_more) == (False, False)


@pytest.mark.parametrize(("usual", "is_known"), [(0.02, True), (0.2, False)])
def test_what_was_measured_once_is_as_noisy_as_is_usual(usual, is_known):
    intervals = intervals_of({"once": [-0.5], "never": []}, usual)
    assert [*intervals] == ["once"]
    assert intervals["once"].is_less == is_known
