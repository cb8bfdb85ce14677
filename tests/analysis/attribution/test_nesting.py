"""Nesting against a brute force that is obviously right, on generated ranges that nest, touch and cross."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.attribution.nesting import Nesting
from nvtx_kernels.analysis.errors import TooTangled
from nvtx_kernels.analysis.trace import Ranges, Spots, sorted_ranges

SPAN = st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8))
RANGE = st.tuples(SPAN, st.integers(0, 2))


def ranges_of(rows):
    """Build ranges from (thread, start, end, domain) rows."""
    thread, start, end, domain = np.array(rows, np.int64).reshape(-1, 4).T
    i32, n = np.int32, len(rows)
    return sorted_ranges(
        Ranges(
            start, end, thread.astype(i32), np.arange(n, dtype=i32), domain.astype(i32),
            np.full(n, -1), np.zeros(n, np.uint8), np.zeros(n, np.bool_), np.zeros(n, np.int8),
        )
    )  # fmt: skip


def path(nesting, node):
    """List the ranges of a node's path, outermost first."""
    rows = []
    while node >= 0:
        rows.append(int(nesting.forest.range[node]))
        node = nesting.forest.parent[node]
    return rows[::-1]


def holders(ranges, thread, start, end):
    """Brute force: every range of the thread that contains the whole interval, in the order of their starts."""
    inside = (ranges.thread == thread) & (ranges.start_ns <= start) & (end <= ranges.end_ns)
    return np.flatnonzero(inside).tolist()


def columns(spans):
    thread, start, length = np.array(spans, np.int64).reshape(-1, 3).T
    return thread.astype(np.int32), start, start + length


@given(st.lists(RANGE, max_size=9), st.lists(SPAN, min_size=1, max_size=9))
def test_path_is_every_range_that_contains_the_interval(rows, spans):
    ranges = ranges_of([(t, s, s + length, d) for (t, s, length), d in rows])
    nesting = Nesting(ranges)
    thread, start, end = columns(spans)
    nodes = nesting.containing(Spots(start, end, thread))
    expected = [holders(ranges, *query) for query in zip(thread, start, end, strict=True)]
    assert [path(nesting, node) for node in nodes] == expected


@given(st.lists(RANGE, max_size=9))
def test_home_is_below_every_earlier_range_that_contains_the_range(rows):
    ranges = ranges_of([(t, s, s + length, d) for (t, s, length), d in rows])
    nesting = Nesting(ranges)
    for row in range(len(ranges)):
        span = ranges.thread[row], ranges.start_ns[row], ranges.end_ns[row]
        outer = [other for other in holders(ranges, *span) if other < row]
        assert path(nesting, nesting.home[row]) == [*outer, row]


def test_endless_nesting_is_refused():
    with pytest.raises(TooTangled, match="nest more than 1000 deep"):
        Nesting(ranges_of([(0, i, 10_000 - i, 0) for i in range(1_001)]))


def test_times_that_no_clock_can_hold_are_refused():
    with pytest.raises(TooTangled, match="times are damaged"):
        Nesting(ranges_of([(0, -(2**62), 2**62, 0), (1, 0, 1, 0)]))


def test_a_thread_far_above_those_with_ranges_has_none_on_a_clock_that_is_nearly_full():
    nesting = Nesting(ranges_of([(0, 0, 10**18, 0)]))
    thread, moment = np.array([0, 37], np.int32), np.array([5, 5])  # 37 spans are just over 2**65 ns
    assert nesting.containing(Spots(moment, moment, thread)).tolist() == [0, -1]
