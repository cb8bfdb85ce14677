"""What an answer says beside its numbers: what annotation would add where there is little or none."""

import json
from dataclasses import replace

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.attribution.steps import kernels_per_step
from nvtx_kernels.analysis.doctor.checks import examine
from nvtx_kernels.analysis.measures.steps import steps_of
from nvtx_kernels.analysis.summary.totals import summarize

from nvtx_kernels import analysis
from tests.analysis.making.building import AUTOGRAD, DOMAIN_CREATE, MARK, START_END, Range, build, launched
from tests.analysis.making.bundled import DATA
from tests.analysis.making.kineto import Call, Program, Work, write_kineto
from tests.analysis.making.traces import summary


def notes(path):
    return " ".join(summary(path).notes)


TENSORRT = [Range("TensorRT", 1, None, event=DOMAIN_CREATE, domain=3), Range("conv1", 5, 90, domain=3)]
UNUSED = [
    (TENSORRT, "1 ranges of libraries (TensorRT) or of single operators: --domain TensorRT shows them"),
    ([Range("forward", 5, 90, event=START_END)], "1 start/end ranges, which belong to no thread: push and pop"),
]


@pytest.mark.parametrize(("ranges", "says"), UNUSED, ids=["TensorRT", "start/end"])
def test_ranges_that_cannot_hold_work_are_not_said_to_be_absent(tmp_path, ranges, says):
    path = build(tmp_path, ranges=ranges, **launched((10, 20)))
    (note,) = [note for note in summary(path).notes if "range" in note]
    assert note.startswith("No range is the program's own, of the 1 that the report has: ")
    assert says in note
    assert any(says in finding.what for finding in examine(path))


def test_trace_of_pytorch_is_told_of_its_own_blocks(tmp_path):
    program = Program([], [Call(1, 10, 20, 100)], [Work(1, 30, 40)], process=100)
    said = notes(write_kineto(tmp_path / "a.pt.trace.json", program))
    assert "no record_function blocks" in said
    assert "NVTX" not in said


#: Ranges around a kernel and after it, whether autograd's thread launches one there, and what is said or not.
ADVICE = [
    ([], False, "has no NVTX ranges", True),
    ([], False, "forward, backward and optimizer", True),
    ([], True, "backward is known only by its threads", True),
    ([], True, "it is unknown", False),
    (["train"], False, "No range is named forward, backward or optimizer", True),
    (["forward"], False, "No range is named forward, backward or optimizer", False),
    (["Backward pass"], False, "No range is named forward, backward or optimizer", False),
    (["FSDP::pre_forward (blocks.3)"], False, "No range is named forward, backward or optimizer", True),
    (["train"], True, "No range is named forward, backward or optimizer", False),
    (["train", "backward"], True, "No range is named forward, so", True),
    (["forward", "backward"], True, "No range is named forward, so", False),
]


@pytest.mark.parametrize(("names", "autograd", "says", "expected"), ADVICE)
def test_a_report_says_which_ranges_it_lacks_and_what_they_would_add(tmp_path, names, autograd, says, expected):
    ranges = [Range(name, *span) for name, span in zip(names, ((0, 50), (55, 90)), strict=False)]
    rows = launched((20, 30), *[(60, 70, AUTOGRAD)] * autograd)
    threads = {AUTOGRAD: "pt_autograd_0"} if autograd else {}
    assert (says in notes(build(tmp_path, ranges=ranges, thread_names=threads, **rows))) == expected


TF32 = "cutlass_80_tensorop_s1688gemm_128x128_16x4_tn_align4"


@pytest.mark.parametrize(
    ("run", "name", "says"),
    [
        ({"tf32": False}, TF32, "The run says that TF32 is off, but its GEMMs used it (1 tf32)."),
        ({"tf32": True, "dtype": "fp32"}, TF32, "The run says that it is FP32, and that TF32 is on (1 tf32)."),
        ({"tf32": True, "dtype": "tf32"}, TF32, ""),
        ({"tf32": True}, "sgemm_128x128x8_NT_vec", "The run says that TF32 is on, but no GEMM used it (1 fp32)."),
        ({}, TF32, ""),
    ],
)
def test_answers_tell_of_an_arithmetic_that_the_run_denies(tmp_path, run, name, says):
    mark = Range(f"nvtx-kernels.run {json.dumps(run)}", 1, None, event=MARK)
    said = notes(build(tmp_path, ranges=[Range("forward", 0, 90), mark], **launched((20, 30), name=name)))
    assert says in said
    assert bool(says) == ("The run says" in said)


def test_answers_tell_of_a_step_that_was_cut_off(tmp_path):
    steps = [Range("step", n, n + 90) for n in (0, 100, 200)]
    calls = launched((1, 2), (5, 6), (9, 10), (101, 102), (201, 202), (205, 206), (209, 210))
    assert "Step 1 (1) has far fewer kernels than the others (3)" in notes(build(tmp_path, ranges=steps, **calls))


def test_kernels_per_step_are_those_of_the_step_figures():
    attribution = attribute(analysis.read(DATA / "h200_train_fp32.sqlite"))
    counts = kernels_per_step(attribution).tolist()
    assert counts == [step.kernels for step in steps_of(attribution)] == [3727, 3727]


@pytest.mark.parametrize(
    ("schema", "says"), [("3.27.0", False), ("2.9.1", False), ("99.0.0", True), ("", False), ("9x", False)]
)
def test_an_export_newer_than_any_that_was_tried_is_told(tmp_path, schema, says):
    path = build(tmp_path, ranges=[Range("forward", 0, 90)], **launched((20, 30)))
    trace = analysis.read(path)
    trace = replace(trace, provenance=replace(trace.provenance, schema=schema))
    said = " ".join(summarize(attribute(trace)).notes)
    assert ("The export's schema is 99.0.0" in said) == says
