"""Collapsed stacks: each path with its own GPU time, which sums to all work of the report."""

import pytest
from nvtx_kernels.analysis import timeline
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.timeline.as_collapsed import OUTSIDE, collapsed_stacks

from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.bundled import OURS, unpacked


def stacks(report):
    """Return the GPU time of each stack, ns."""
    lines = [line.rstrip("\n").rpartition(" ") for line in collapsed_stacks(attribute(read(report)))]
    assert len(lines) == len({stack for stack, _, _ in lines})
    return {stack: int(ns) for stack, _, ns in lines}


def test_a_path_has_the_time_of_its_own_work(tmp_path):
    ranges = [Range("step; 1", 0, 100), Range("forward", 10, 50)]
    report = build(tmp_path, ranges=ranges, **launched((12, 20), (22, 30), (60, 64), (110, 120)))
    work = attribute(read(report)).trace.work.duration_ns.tolist()
    assert stacks(report) == {"step, 1;forward": work[0] + work[1], "step, 1": work[2], OUTSIDE: work[3]}


@pytest.mark.parametrize("name", OURS)
def test_stacks_sum_to_all_work(tmp_path, name):
    report = unpacked(name, tmp_path)
    assert sum(stacks(report).values()) == attribute(read(report)).trace.work.duration_ns.sum()


def test_the_command_writes_stacks(tmp_path, capsys):
    report, output = unpacked(OURS[1], tmp_path), tmp_path / "stacks.txt"
    assert timeline.main([str(report), "--format", "collapsed", "-o", str(output)]) == 0
    assert "speedscope" in "".join(capsys.readouterr())
    assert output.read_text() == "".join(collapsed_stacks(attribute(read(report))))
