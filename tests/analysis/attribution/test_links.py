"""Backward work led to the forward ranges that hold the operator of the same sequence number."""

import tracemalloc
from dataclasses import replace

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize

from tests.analysis.making.building import AUTOGRAD, Range, build, launched, thread
from tests.analysis.making.reference import ENGINE
from tests.analysis.making.traces import answers, attributed, summary

STEP = [
    Range("step", 0, 1000),
    Range("forward", 10, 200),
    Range("layer 3", 20, 100),
    Range("attention", 30, 90),
    Range("computing softmax", 40, 60),
    Range("backward", 300, 700),
]
SOFTMAX = Range("aten::softmax, seq = 12, op_id = 7, sizes = [[4, 4]]", 45, 50)
FULL = "step > backward > layer 3 > attention > computing softmax"
CALL = (320, 322, AUTOGRAD)


def node(start, end, name="SoftmaxBackward0", seq=12, on=AUTOGRAD):
    """Return the engine's range around a backward node, and the node's own ten nanoseconds further in."""
    return [
        Range(f"{ENGINE}{name}", start, end, on),
        Range(f"{name}, seq = {seq}, op_id = 99", start + 10, end - 10, on),
    ]


def branch(name, on, start=50):
    """Return a softmax of number 12 in a range of a thread of its own."""
    return [Range(name, start, 90, on), Range("aten::softmax, seq = 12", start + 5, start + 10, on)]


def linked(folder, *extra, calls=(CALL,), step=STEP, **rules):
    """Attribute calls inside a backward of softmax; `extra` ranges beside the step's."""
    return attributed(build(folder, ranges=[*step, *extra], **launched(*calls)), **rules)


NODE, ADOPTED, LINKED = node(305, 340), "adopted: step > backward", f"linked: {FULL}"
OTHER, OTHER_BRANCH = thread(100, 103), thread(100, 104)
#: A reentrant checkpoint's backward: the block's forward runs again in its node, and then its nodes.
RECOMPUTED = [
    Range(f"{ENGINE}CheckpointFunctionBackward", 305, 610, AUTOGRAD),
    Range("CheckpointFunctionBackward, seq = 11", 310, 600, AUTOGRAD),
    Range("mlp", 320, 380, AUTOGRAD),
    Range("aten::mm, seq = 12", 330, 340, AUTOGRAD),
    *node(400, 460, "MmBackward0"),
]
#: Examples of what test_attribution_by_brute_force.py generates, and operators that are kept below what is linked:
#: what is beside the step's ranges, how it differs else, and where its calls go.
CASES = {
    "a backward node leads to the forward range of its number": ([SOFTMAX, *NODE], {}, [LINKED]),
    "an operator that starts with the node did not make it": (
        [SOFTMAX, *NODE, Range("lm head", 312, 319), Range("aten::mm, seq = 12, op_id = 9", 315, 318)],
        {}, [LINKED],
    ),
    "kept operators stand below the linked path": (
        [SOFTMAX, *NODE], {"operators": "keep"}, [f"{LINKED} > {ENGINE}SoftmaxBackward0 > SoftmaxBackward0"],
    ),
    "a node of a reentrant checkpoint was made where its block ran again": (
        [Range("CheckpointFunction, seq = 11", 45, 50), Range("aten::mm, seq = 12", 120, 130), *RECOMPUTED],
        {"step": [*STEP[:3], Range("loss", 110, 150), STEP[5]],
         "calls": [(335, 337, AUTOGRAD), (420, 422, AUTOGRAD)]},
        ["adopted: step > backward > recompute > mlp", "linked: step > backward > mlp"],
    ),
    "a range of the program's own that is called recompute is one like any other": (
        [SOFTMAX, *NODE, Range("recompute", 318, 325, AUTOGRAD)], {}, [f"{ADOPTED} > recompute"],
    ),
    # As under create_graph=True: a node of the first pass runs an operator that makes one of the second.
    "a derivative of a derivative is led to where the first was led": (
        [Range("aten::mm, seq = 12", 45, 50), *node(210, 240, "MmBackward0"),
         Range("aten::mm, seq = 3", 225, 228, AUTOGRAD), *node(305, 340, "MmBackward0", seq=3)],
        {"step": [*STEP[:5], Range("penalty", 205, 290), STEP[5]], "calls": [(226, 227, AUTOGRAD), CALL]},
        [f"linked: step > {place} > layer 3 > attention > computing softmax"
         for place in ("penalty", "backward > penalty")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ranges", "differing", "expected"), CASES.values(), ids=CASES)
def test_work_of_backward_is_led_where_its_number_says(tmp_path, ranges, differing, expected):
    assert linked(tmp_path, *ranges, **differing) == expected


def test_each_step_leads_to_its_own_forward(tmp_path):
    later = [Range(r.name, r.start + 2000, r.end + 2000, r.thread) for r in (*STEP, SOFTMAX, *NODE)]
    report = build(tmp_path, ranges=[*STEP, SOFTMAX, *NODE, *later], **launched(CALL, (2320, 2322, AUTOGRAD)))
    assert attributed(report) == [LINKED] * 2
    row = {r.path: r for r in summary(report).ranges}[tuple(FULL.split(" > "))]
    assert (row.kernels, row.instances, row.span_ns, row.cpu_ns) == (2, None, None, None)


# What the engine calls a node, and an operator of its number.
MADE = [
    ("torch::autograd::CopyBackwards", "aten::copy_"), ("MyFunctionBackward", "MyFunction"),
    ("MmBackward0", "aten::mm"), ("NllLossBackward0", "aten::nll_loss_forward"), ("AddBackward1", "aten::add_"),
    ("MaxPool2DWithIndicesBackward0", "aten::max_pool2d_with_indices"), ("TBackward", "aten::t"),
    ("ThresholdBackwardBackward0", "aten::threshold_backward"), ("_DDPSinkBackward", "_DDPSink"),
    ("GeneratedBackwardFor_mylib_swish_defaultBackward", "mylib::swish"),
    ("torch::autograd::CppNode<vision::ops::ROIAlignFunction>", "torchvision::roi_align"),
]  # fmt: skip


NOT_MADE = [
    ("CopySlices", "aten::copy_"), ("MmBackward0", "aten::addmm"), ("MyFunctionBackward", "aten::mm"),
    ("torch::autograd::CppNode<vision::ops::ROIAlignFunction>", "aten::mm"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operator"), [*MADE, *NOT_MADE])
def test_a_node_is_led_to_an_operator_that_can_make_it_and_to_no_other(tmp_path, name, operator):
    made = Range(f"{operator}, seq = 12", 45, 50)
    expected = LINKED if (name, operator) in MADE else ADOPTED
    assert linked(tmp_path, made, *node(305, 340, name)) == [expected]


def test_a_part_of_a_phase_within_the_forward_stays_in_the_path_and_is_backward(tmp_path):
    ranges = [*STEP, Range("loss", 42, 58), SOFTMAX, *NODE]
    attribution = attribute(read(build(tmp_path, ranges=ranges, **launched(CALL))))
    names = tuple(f"{FULL} > loss".split(" > "))
    assert [(how, tuple(path), phase) for how, path, phase in answers(attribution)] == [
        ("linked", names, "backward")
    ]


def test_of_two_branches_with_one_number_nothing_tells_and_the_work_stays_adopted(tmp_path):
    ranges = [*STEP, *branch("branch 0", OTHER), *branch("branch 1", OTHER_BRANCH), *NODE]
    found = attribute(read(build(tmp_path, ranges=ranges, **launched(CALL))))
    assert [path for _, path, _ in answers(found)] == [("step", "backward")]
    assert found.unfit.tolist() == [True]
    notes = summarize(found).notes
    assert any("10 ns (100.0%)" in note and "linked to a forward operator" in note for note in notes), notes


def test_replicas_on_two_gpus_are_told_apart_by_them(tmp_path):
    two = [*branch("replica 0", OTHER), *branch("replica 1", OTHER_BRANCH)]
    calls = [CALL, (61, 62, OTHER), (63, 64, OTHER_BRANCH)]
    rows = launched(*calls)
    rows["work"] = [replace(work, device=device) for work, device in zip(rows["work"], (1, 0, 1), strict=True)]
    report = build(tmp_path, ranges=[*STEP, *two, *NODE], **rows)
    assert attributed(report)[0] == "linked: step > backward > replica 1"


def test_an_operator_range_is_shown_where_it_holds_what_no_other_does_and_only_there(tmp_path):
    ranges = [Range("forward", 10, 200), *(Range("aten::mm", start, start + 10) for start in (20, 300))]
    report = build(tmp_path, ranges=ranges, **launched((22, 24), (302, 304)))
    assert attributed(report) == ["own: forward", "own: aten::mm"]
    rows = {row.path: (row.instances, row.cpu_ns) for row in summary(report).ranges}
    assert rows == {("forward",): (1, 190), ("aten::mm",): (1, 10)}


def test_a_range_named_like_an_operator_stays_the_users(tmp_path):
    ranges = [
        Range("forward", 10, 200),
        Range("Attention", 30, 90),
        Range("Attention, seq = 3, op_id = 5", 40, 60),
    ]
    report = build(tmp_path, ranges=ranges, **launched((45, 47)))
    assert attributed(report) == ["own: forward > Attention"]


def test_numbers_that_come_again_in_each_of_many_runs_take_no_more_memory_than_others(tmp_path):
    runs = 1500
    ranges = [
        Range(one.name, one.start + at, one.end + at, one.thread)
        for at in range(0, 2000 * runs, 2000)
        for one in [*STEP, SOFTMAX, *NODE]
    ]
    calls = [(start + at, end + at, on) for at in range(0, 2000 * runs, 2000) for start, end, on in [CALL]]
    trace = read(build(tmp_path, ranges=ranges, **launched(*calls)))
    tracemalloc.start()
    found = attribute(trace)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (path,) = {row.path for row in summarize(found).kernels}
    assert " > ".join(path) == FULL
    assert peak < 16 << 20
