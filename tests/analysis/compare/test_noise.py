"""Whether two series of steps differ: the rank test against counting, its floors, kinds of steps, repetitions."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.support.noise import (
    interval_of_pairs,
    judged,
    least_probability,
    matched_kinds,
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


def test_what_slows_both_of_a_pair_is_no_difference():
    machine = np.array([1.0, 1.4, 0.9, 2.0, 1.1])
    interval = interval_of_pairs(10 * machine, 10.5 * machine * [1.001, 0.999, 1, 1, 1])
    assert (interval.low < 0.05 < interval.high, interval.width < 0.01, interval.verdict(0.02)) == (
        True,
        True,
        "differs",
    )
    assert interval_of_pairs([1.0], [2.0]) is None


@pytest.mark.parametrize(
    ("other", "verdict"), [([1, 1.001], "same"), ([1, 1.1], "not known"), ([2, 2], "differs")]
)
def test_an_interval_around_nothing_is_the_same_only_if_it_is_narrow(other, verdict):
    assert interval_of_pairs([1, 1], other).verdict(0.02) == verdict


def test_an_interval_holds_the_change_in_95_of_100_cases():
    rng = np.random.default_rng(5)
    runs = rng.normal(1, 0.02, (4000, 2, 6))
    intervals = [interval_of_pairs(a, 1.05 * b) for a, b in runs]
    assert np.mean([one.low < 0.05 < one.high for one in intervals]) == pytest.approx(0.95, abs=0.015)
