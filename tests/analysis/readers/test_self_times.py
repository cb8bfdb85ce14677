"""The self time of operators on a CPU, which takes the place of kernels in traces and in recordings."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis.readers.chrome_columns import TraceColumns
from nvtx_kernels.analysis.readers.chrome_events import Envelope, Event
from nvtx_kernels.analysis.readers.pytorch_trace import Assembly


class Operator(NamedTuple):
    """One call of an operator; times in ns."""

    name: str
    start_ns: int
    end_ns: int
    thread: int


def call(name="aten::mm", start=0, end=100, thread=1):
    return Operator(name, start, end, thread)


def kernels(calls):
    """Return each operator that has self time, with begin and end of it."""
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
    assembly = Assembly(Path("trace.json"), columns, Envelope(events=[]))
    work, rows = assembly.self_times(assembly.ranges())
    times = zip(rows.tolist(), work.start_ns.tolist(), work.end_ns.tolist(), strict=True)
    return [(calls[row], start_ns, end_ns) for row, start_ns, end_ns in times]


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
