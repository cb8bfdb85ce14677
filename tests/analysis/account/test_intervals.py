"""Unions of intervals, and what they share, against sets of moments."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.account.intervals import cut_at, union
from nvtx_kernels.analysis.support.layers import Layers

MOMENTS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def arrays(pairs):
    return (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))


def moments(pairs):
    return {moment for start, end in pairs for moment in range(start, end)}


@given(MOMENTS, MOMENTS)
def test_unions_and_what_they_share_are_those_of_sets_of_moments(a, b):
    one, two = union(*arrays(a)), union(*arrays(b))
    assert one.total_ns == len(moments(a))
    assert one.shared_with(two) == two.shared_with(one) == len(moments(a) & moments(b))
    assert one.joined_with(two).total_ns == len(moments(a) | moments(b))
    assert (one.start_ns[1:] > one.end_ns[:-1]).all()
    assert one.contain(np.arange(80)).tolist() == [moment in moments(a) for moment in range(80)]


@given(MOMENTS, st.lists(st.integers(0, 80), max_size=9))
def test_cut_pieces_make_up_their_intervals_and_none_holds_a_cut(pairs, cuts):
    start, end = arrays([pair for pair in pairs if pair[0] < pair[1]])
    of, begin, until = cut_at(np.unique(np.array(cuts, np.int64)), start, end)
    lengths = np.bincount(of, until - begin, len(start))
    assert lengths.tolist() == (end - start).tolist()
    assert not any(low < cut < high for cut in cuts for low, high in zip(begin, until, strict=True))


@given(MOMENTS)
def test_the_innermost_of_nested_intervals_is_the_last_that_began(pairs):
    nested = [pair for n, pair in enumerate(pairs) if not any(crosses(pair, other) for other in pairs[:n])]
    at = np.arange(80)
    found = Layers(*arrays(nested)).innermost(at)
    for moment, position in zip(at.tolist(), found.tolist(), strict=True):
        around = [end - start for start, end in nested if start <= moment < end]
        assert (position < 0) == (not around)
        assert position < 0 or nested[position][1] - nested[position][0] == min(around)


def crosses(one, other):
    """Return whether two intervals overlap, and neither contains the other."""
    (a, b), (c, d) = sorted((one, other), key=lambda pair: (pair[0], -pair[1]))
    return a < c < b < d
