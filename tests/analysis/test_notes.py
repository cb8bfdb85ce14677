"""What an answer says beside its numbers: what annotation would add where there is little or none."""

import pytest

import analysis
from analysis.attribution import attribute
from analysis.summary import summarize
from tests.analysis.building import AUTOGRAD, Range, build, launched
from tests.analysis.kineto import Call, Program, Work, write_kineto


def notes(path):
    return " ".join(summarize(attribute(analysis.read(path))).notes)


def test_report_without_ranges_says_what_they_would_add(tmp_path):
    said = notes(build(tmp_path, **launched((20, 30))))
    assert "has no NVTX ranges" in said
    assert "forward, backward and optimizer" in said


def test_trace_of_pytorch_is_told_of_its_own_blocks(tmp_path):
    program = Program([], [Call(1, 10, 20, 100)], [Work(1, 30, 40)], process=100)
    said = notes(write_kineto(tmp_path / "a.pt.trace.json", program))
    assert "no record_function blocks" in said
    assert "NVTX" not in said


@pytest.mark.parametrize(("name", "expected"), [("train", True), ("forward", False), ("Backward pass", False)])
def test_ranges_that_open_no_phase_are_named_as_such(tmp_path, name, expected):
    report = build(tmp_path, ranges=[Range(name, 0, 100)], **launched((20, 30)))
    assert ("No range opens a phase" in notes(report)) == expected


def test_thread_that_tells_a_phase_is_enough(tmp_path):
    rows = launched((20, 30), (40, 50, AUTOGRAD))
    report = build(tmp_path, ranges=[Range("train", 0, 35)], thread_names={AUTOGRAD: "pt_autograd_0"}, **rows)
    assert "No range opens a phase" not in notes(report)
