"""The self time of operators on a CPU, which takes the place of kernels in traces and in recordings."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis.readers.chrome_columns import TraceColumns
from nvtx_kernels.analysis.readers.chrome_events import Envelope, Event
from nvtx_kernels.analysis.readers.pytorch_trace import Assembly
from nvtx_kernels.analysis.trace import Spots


class Operator(NamedTuple):
    """One call of an operator; times in ns."""

    name: str
    start_ns: int
    end_ns: int
    thread: int


def call(name="aten::mm", start=0, end=100, thread=1):
    return Operator(name, start, end, thread)


def assembled(calls):
    """Return calls as the reader has them."""
    columns = TraceColumns()
    columns.take(
        Event(
            "X",
            "cpu_op",
            one.name,
            1,
            one.thread,
            microseconds(one.start_ns),
            microseconds(one.end_ns - one.start_ns),
        )
        for one in calls
    )
    return Assembly(Path("trace.json"), columns, Envelope(events=[]))


def kernels(calls):
    """Return each operator that has self time, with begin and end of it."""
    assembly = assembled(calls)
    work, rows, _ = assembly.self_times(assembly.ranges())
    times = zip(rows.tolist(), work.start_ns.tolist(), work.end_ns.tolist(), strict=True)
    return [(calls[row], start_ns, end_ns) for row, start_ns, end_ns in times]


def pieces(calls, ranges):
    """Return name, self time and launch of each piece of operators' time, with the program's ranges."""
    assembly = assembled(calls)
    threads = {place: number for number, (_, place) in enumerate(assembly.columns.threads)}
    rows = [(start, end, threads[thread]) for start, end, thread in ranges if thread in threads]
    own = Spots(*np.array(rows, np.int64).reshape(-1, 3).T)
    work, of, launches = assembly.self_times(assembly.ranges(), own)
    columns = [column.tolist() for column in (of, work.duration_ns, launches.start_ns, launches.end_ns)]
    return [(calls[row].name, *times) for row, *times in zip(*columns, strict=True)]


def microseconds(ns):
    return msgspec.Raw(f"{ns // 1000}.{ns % 1000:03}".encode())


@st.composite
def nested_calls(draw, start=0, length=1000, depth=3):
    """Draw operators that nest as calls do: siblings disjoint, children inside."""
    operators, at = [], start
    while at < start + length and draw(st.booleans()):
        begin = at + draw(st.integers(0, 50))
        end = min(begin + draw(st.integers(0, 300)), start + length)
        name = draw(st.sampled_from(["aten::mm", "aten::clone", "aten::to", "aten::sum", "MmBackward0"]))
        if begin < end:
            operators.append((name, begin, end))
            operators += draw(nested_calls(begin, end - begin, depth - 1)) if depth else []
        at = end + 1
    return operators


def test_self_time_leaves_out_children_and_views_are_work_too():
    calls = [call("aten::sum", 0, 100), call("aten::as_strided", 10, 20), call("aten::fill_", 30, 45)]
    assert [(operator.name, start_ns, end_ns) for operator, start_ns, end_ns in kernels(calls)] == [
        ("aten::sum", 0, 75),
        ("aten::as_strided", 75, 85),
        ("aten::fill_", 85, 100),
    ]


def test_threads_have_streams_of_their_own():
    calls = [call(start=0, end=100, thread=1), call(start=50, end=60, thread=2)]
    assert {operator.thread: times for operator, *times in kernels(calls)} == {1: [0, 100], 2: [50, 60]}


@settings(deadline=None, max_examples=200)
@given(nested_calls(), nested_calls())
def test_kernels_never_overlap_and_never_outlast_the_outermost_operator(first, second):
    calls = [call(*drawn, thread=1) for drawn in first] + [call(*drawn, thread=2) for drawn in second]
    by_thread = defaultdict(list)
    for operator, start_ns, end_ns in kernels(calls):
        by_thread[operator.thread].append((start_ns, end_ns))
        outer = [c for c in calls if c.thread == operator.thread and c.start_ns <= operator.start_ns]
        assert start_ns >= operator.start_ns
        assert end_ns <= max(c.end_ns for c in outer if c.end_ns >= operator.end_ns)
    for placed in by_thread.values():
        assert all(end_ns <= start_ns for (_, end_ns), (start_ns, _) in pairwise(placed))


@settings(deadline=None, max_examples=200)
@given(nested_calls())
def test_the_sum_of_kernels_is_the_time_of_the_outermost_operators(drawn):
    calls = [call(*operator) for operator in drawn]
    inside = [
        o for o in calls if any(c is not o and c.start_ns <= o.start_ns and o.end_ns <= c.end_ns for c in calls)
    ]
    outermost = sum(o.end_ns - o.start_ns for o in calls if not any(o is other for other in inside))
    if len({(o.start_ns, o.end_ns) for o in calls}) == len(calls):
        assert sum(end_ns - start_ns for _, start_ns, end_ns in kernels(calls)) == outermost


GRAPH = [call("graph", 0, 100), call("mm", 40, 60)]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], [("graph", 80, 0, 100), ("mm", 20, 40, 60)]),
        ([(0, 100, 1)], [("graph", 80, 0, 100), ("mm", 20, 40, 60)]),  # around the operator
        ([(10, 30, 2)], [("graph", 80, 0, 100), ("mm", 20, 40, 60)]),  # of another thread
        ([(10, 30, 1)], [("graph", 60, 0, 100), ("graph", 20, 10, 30), ("mm", 20, 40, 60)]),
        ([(30, 70, 1)], [("graph", 60, 0, 100), ("graph", 20, 30, 70), ("mm", 20, 40, 60)]),  # around another
        ([(80, 130, 1)], [("graph", 60, 0, 100), ("mm", 20, 40, 60), ("graph", 20, 80, 100)]),  # ends later
        ([(10, 30, 1), (20, 25, 1)], [
            ("graph", 60, 0, 100), ("graph", 15, 10, 30), ("graph", 5, 20, 25), ("mm", 20, 40, 60)]),
    ],
)  # fmt: skip
def test_range_inside_an_operator_has_the_time_that_the_operator_spent_in_it(ranges, expected):
    assert pieces(GRAPH, ranges) == expected


@settings(deadline=None, max_examples=200)
@given(nested_calls(), st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300)), max_size=8))
def test_ranges_inside_operators_divide_their_time_and_lose_none(drawn, starts):
    calls, ranges = [call(*one) for one in drawn], [(start, start + length, 1) for start, length in starts]
    whole = sum(end_ns - start_ns for _, start_ns, end_ns in kernels(calls))
    divided = pieces(calls, ranges)
    assert sum(self_ns for _, self_ns, _, _ in divided) == whole
    assert all(0 < self_ns <= end_ns - start_ns for _, self_ns, start_ns, end_ns in divided)
