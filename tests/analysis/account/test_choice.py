"""Which steps count: a table with a case of each rule, and ranks that choose together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.account.choice import choose
from nvtx_kernels.analysis.report.account import Difference, Varying

from tests.analysis.account.test_steps import account_of, own_ns, rows_of, stepping, together
from tests.analysis.making.building import in_process

ALIKE, VARY = 1, 0
SAVES = [10, 10, 10, 28]
#: Own times in order, which of them count, and the period. Without one, all others are outlying.
CASES = {
    "one step": ([10], [0], ALIKE),
    "within a fifth": ([10, 12, 8, 10], [0, 1, 2, 3], ALIKE),
    "a slow first step": ([30, 10, 10, 10], [1, 2, 3], ALIKE),
    "a fast step": ([10, 10, 7, 10], [0, 1, 3], ALIKE),
    "a third apart": ([30, 25, 10, 10, 10, 10], [2, 3, 4, 5], ALIKE),
    "more than a third apart": ([30, 25, 10, 10, 10], [0, 1, 2, 3, 4], VARY),
    "a loader of 45, 20 and 60": ([45, 20, 60], [0, 1, 2], VARY),
    "every fourth": (SAVES * 3, list(range(12)), 4),
    "every fourth, begun in a period": ([*SAVES[1:], *SAVES * 3], list(range(3, 15)), 4),
    "every fourth, but only late": ([10, 10, *SAVES * 3], [0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 12], ALIKE),
    "every fourth, ended later": ([*SAVES * 3, 10, 10], list(range(2, 14)), 4),
    "every second": ([10, 20] * 4, list(range(8)), 2),
    "every fourth twice": (SAVES * 2, [0, 1, 2, 4, 5, 6], ALIKE),
    "three apart, unevenly": ([10, 10, 28, 10, 28, 10, 10, 10, 28, 10], [0, 1, 3, 5, 6, 7, 9], ALIKE),
    "every second, but only late": ([*[10] * 6, *[28, 10] * 3], [*range(6), 7, 9, 11], ALIKE),
    "every second, but only early": ([*[28, 10] * 3, *[10] * 6], [1, 3, *range(5, 12)], ALIKE),
    "two steps, the second longer": ([10, 13], [0, 1], VARY),
}


@pytest.mark.parametrize(("own", "counted", "period"), CASES.values(), ids=CASES)
def test_each_rule_chooses_its_steps(own, counted, period):
    choice = choose(own, np.ones(len(own), np.bool_))
    assert (choice.counted.tolist(), choice.period) == (counted, period)
    assert choice.outlying.tolist() == (sorted({*range(len(own))} - {*counted}) if period == ALIKE else [])


FIRST = {
    "of two": ([13, 10], [1]),
    "of two, not by much": ([12, 10], [0, 1]),
    "beside another of five": ([614, 40, 32, 30, 33], [2, 3, 4]),
    "beside two of five": ([614, 40, 32, 25, 33], [0, 1, 2, 3, 4]),
    "faster than the others": ([8, 65, 50, 50], [0, 1, 2, 3]),
    "of steps that vary": ([60, 20, 45], [0, 1, 2]),
}


@pytest.mark.parametrize(("own", "counted"), FIRST.values(), ids=FIRST)
def test_a_process_warms_up_in_its_first_step(own, counted):
    choice = choose(own, np.ones(len(own), np.bool_), is_first=True)
    assert choice.counted.tolist() == counted
    assert choice.outlying.tolist() == sorted({*range(len(own))} - {*counted})
    if len(counted) < len(own):
        assert choose(own, np.ones(len(own), np.bool_)).period == VARY


@pytest.mark.parametrize(("known", "counted", "unknown"), [([False, True, True], [1, 2], [0]), ([False], [0], [])])
def test_an_unknown_step_is_left_out_unless_it_is_alone(known, counted, unknown):
    choice = choose([99, 10, 10][: len(known)], np.array(known))
    assert (choice.counted.tolist(), choice.outlying.tolist()) == (counted, [])
    assert choice.unknown.tolist() == unknown


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=20), st.booleans())
def test_a_step_counts_or_is_outlying_or_unknown_and_some_count(steps, is_first):
    own, known = (np.array(column) for column in zip(*steps, strict=True))
    choice = choose(own, known, is_first=is_first)
    groups = [set(rows.tolist()) for rows in (choice.counted, choice.outlying, choice.unknown)]
    assert len(choice.counted)
    assert len(set.union(*groups)) == sum(map(len, groups))
    if choice.period <= ALIKE:
        assert set.union(*groups) == {*range(len(own))}
    else:
        assert len(choice.counted) % choice.period == 0


def two_ranks(*ends_of_ranks):
    """Return the account of ranks whose steps, after a first one, end at these times."""
    ranks = [rows_of(stepping(*[[(end - 5, end)] for end in ends])) for ends in ends_of_ranks]
    return account_of(together(*(in_process(rows, 100 * n) for n, rows in enumerate(ranks, 1))))


def test_ranks_with_equally_many_steps_choose_together_by_their_means():
    account = two_ranks([10, 110, 210, 310, 440], [10, 110, 210, 310, 410])
    assert len(account.counted) == 2 * 4  # 115 is within a fifth of 100
    account = two_ranks([10, 110, 210, 310, 460], [10, 110, 210, 310, 460])
    assert [row.step for row in account.outlying] == [8, 9]
    assert account.steps_counted == 3


def test_ranks_with_other_numbers_of_steps_choose_alone():
    account = two_ranks([10, 110, 210, 310, 440], [10, 110, 210, 310])
    assert [row.own_ns for row in account.outlying] == [130]
    assert own_ns(account)[-1] == 100


def test_what_an_outlying_step_has_more_of_is_named():
    account = account_of(rows_of(stepping(*[[(end - 10, end)] for end in (20, 120, 220, 320)], [(330, 500)])))
    (outlying,) = account.outlying
    assert (outlying.step, outlying.own_ns, outlying.more.kind) == (4, 180, "compute")
    assert outlying.more.ns == 160
    assert (account.step_ns, account.all_step_ns) == (100, 120)


def test_what_longer_steps_of_those_that_vary_have_more_of_is_named():
    ends = [20, 120, 320, 420, 800, 910]
    stretches = stepping(*[[(end - 10, end)] for end in ends[:4]], [(500, 800)], [(900, 910)])
    account = account_of(rows_of(stretches))
    assert account.steps_counted == 5
    assert account.varying == Varying(1, Difference("compute", "other", 290))


@pytest.mark.parametrize("ends", [(20, 120, 220, 320), (20, 120, 320, 420, 620, 720, 920)])
def test_steps_that_are_similar_or_have_a_rhythm_do_not_vary(ends):
    account = account_of(rows_of(stepping(*[[(end - 10, end)] for end in ends])))
    assert account.varying is None


EVEN, UNEVEN = [10, 110, 210, 310, 410], [10, 60, 210, 260, 409]
RHYTHM = [10, 60, 110, 300, 350, 400, 590, 640, 690, 880]


def test_how_steps_vary_is_of_the_longest_loop():
    assert two_ranks(EVEN, UNEVEN).varying is None
    uneven_and_longer = [*UNEVEN[:-1], UNEVEN[-1] + 2]
    assert two_ranks(EVEN, uneven_and_longer).varying.longer == 2


def test_how_often_a_step_is_longer_is_of_the_longest_loop():
    even = [10 + 100 * number for number in range(len(RHYTHM))]
    assert two_ranks(even, RHYTHM).rhythm is None
    even_and_shorter = [10 + 96 * number for number in range(len(RHYTHM))]
    assert two_ranks(even_and_shorter, RHYTHM).rhythm.every == 3
