from collections import defaultdict
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nvtx_kernels.profiling.recorder.cpu_operators import Operator, kernels, role
from torch.profiler import profile

ROLES = [
    ("aten::mm", "work"),
    ("aten::bmm", "work"),
    ("aten::_softmax", "work"),
    ("aten::sum", "work"),
    ("aten::add_", "work"),
    ("aten::_fused_adamw_", "work"),
    ("aten::zero_", "work"),
    ("graph_0_cpp_fused_mul_sigmoid_3", "work"),
    ("aten::copy_", "delegate"),
    ("aten::clone", "delegate"),
    ("aten::zeros", "delegate"),
    ("aten::mkldnn_convolution", "delegate"),
    ("aten::_foreach_mul_", "delegate"),
    ("aten::matmul", "none"),
    ("aten::linear", "delegate"),
    ("aten::softmax", "delegate"),
    ("aten::to", "none"),
    ("aten::transpose", "none"),
    ("aten::view", "none"),
    ("aten::as_strided", "none"),
    ("aten::detach", "none"),
    ("aten::expand", "none"),
    ("aten::_unsafe_view", "none"),
    ("aten::empty", "none"),
    ("aten::empty_strided", "none"),
    ("aten::resize_", "none"),
    ("aten::resolve_conj", "none"),
    ("MmBackward0", "none"),
    ("autograd::engine::evaluate_function: MmBackward0", "none"),
    ("Optimizer.step#AdamW.step", "none"),
]
# What each expression computes with, in order: one operator per piece of work.
WORK = [
    ("x @ x", ["aten::mm"]),
    ("x.t() @ x", ["aten::mm"]),
    ("x.softmax(-1)", ["aten::_softmax"]),
    ("x.sum()", ["aten::sum", "aten::fill_"]),
    ("x[:, 1:].contiguous()", ["aten::copy_"]),
    ("x.clone()", ["aten::copy_"]),
    ("x.to(torch.float64)", ["aten::copy_"]),
    ("torch.zeros(3, 3)", ["aten::zero_"]),
    ("torch.arange(4)", ["aten::arange"]),
    ("x.view(-1).reshape(3, 3).transpose(0, 1)", []),
    ("torch.einsum('ij,kj->ik', x, x)", ["aten::bmm"]),
]


def call(name="aten::mm", start=0, end=100, thread=1):
    return Operator(name, start, end, thread)


@st.composite
def nested_calls(draw, start=0, length=1000, depth=3):
    """Draw operators that nest as calls do: siblings disjoint, children inside."""
    found, at = [], start
    while at < start + length and draw(st.booleans()):
        begin = at + draw(st.integers(0, 50))
        end = min(begin + draw(st.integers(0, 300)), start + length)
        name = draw(st.sampled_from(["aten::mm", "aten::clone", "aten::to", "aten::sum", "MmBackward0"]))
        if begin < end:
            found.append((name, begin, end))
            found += draw(nested_calls(begin, end - begin, depth - 1)) if depth else []
        at = end + 1
    return found


@pytest.mark.parametrize(("name", "expected"), ROLES)
def test_roles_follow_pytorchs_own_registrations(name, expected):
    assert role(name) == expected


@pytest.mark.parametrize(("expression", "expected"), WORK)
def test_each_piece_of_work_is_one_operator(expression, expected):
    x = torch.ones(3, 3)
    eval(expression, {"torch": torch, "x": x})
    with profile(acc_events=True) as profiler:
        eval(expression, {"torch": torch, "x": x})
    events = profiler.profiler.kineto_results.events()
    calls = [Operator(e.name(), e.start_ns(), e.end_ns(), e.device_resource_id()) for e in events]
    assert [kernel.operator.name for kernel in kernels(calls)] == expected


def test_self_time_leaves_out_children_and_their_views():
    calls = [call("aten::sum", 0, 100), call("aten::as_strided", 10, 20), call("aten::fill_", 30, 45)]
    assert [(k.operator.name, k.start_ns, k.end_ns) for k in kernels(calls)] == [
        ("aten::sum", 0, 75),
        ("aten::fill_", 75, 90),
    ]


def test_threads_have_streams_of_their_own():
    calls = [call(start=0, end=100, thread=1), call(start=50, end=60, thread=2)]
    placed = {kernel.operator.thread: (kernel.start_ns, kernel.end_ns) for kernel in kernels(calls)}
    assert placed == {1: (0, 100), 2: (50, 60)}


@settings(deadline=None, max_examples=200)
@given(nested_calls(), nested_calls())
def test_kernels_never_overlap_and_never_outlast_the_outermost_operator(first, second):
    calls = [call(*drawn, thread=1) for drawn in first] + [call(*drawn, thread=2) for drawn in second]
    by_thread = defaultdict(list)
    for kernel in kernels(calls):
        by_thread[kernel.operator.thread].append(kernel)
        outer = [c for c in calls if c.thread == kernel.operator.thread and c.start_ns <= kernel.operator.start_ns]
        assert kernel.start_ns >= kernel.operator.start_ns
        assert kernel.end_ns <= max(c.end_ns for c in outer if c.end_ns >= kernel.operator.end_ns)
    for placed in by_thread.values():
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(placed))


@settings(deadline=None, max_examples=200)
@given(nested_calls())
def test_the_sum_of_kernels_is_the_sum_of_their_self_times(drawn):
    calls = [call(*one) for one in drawn]
    placed = list(kernels(calls))
    assert sum(k.end_ns - k.start_ns for k in placed) == sum(c.self_ns for c in calls if c.is_work)
    assert sum(c.self_ns for c in calls) <= 1000
