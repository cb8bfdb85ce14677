"""The lines of what rules find: of the work concerned, of calls, and of the pauses after them."""

import json

import numpy as np
import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.measures.fix_subject import FixSubject
from nvtx_kernels.analysis.measures.replay import timeline_of
from nvtx_kernels.analysis.opened import opened

from tests.analysis.making.lined import traced_report


@pytest.fixture
def subject(tmp_path):
    partition = opened(traced_report(tmp_path, count=6, longer=-1)).partition
    return FixSubject(partition.attribution, timeline_of(partition))


def test_work_has_the_lines_that_launch_it(subject):
    assert [time.line.line for time in subject.lines_of(subject.named(lambda name: name == "add"))] == [13]
    assert [time.line.line for time in subject.lines_of(subject.named(lambda name: name == "mm"))] == [12]


def test_calls_have_their_lines_and_pauses_those_that_follow(subject):
    waits = np.flatnonzero(subject.waiting)
    assert [time.line.line for time in subject.lines_of_calls(waits)] == [14]
    assert [time.line.line for time in subject.lines_of_calls(waits, after=True)] == [15]


def test_fixes_of_a_report_have_lines_in_json(tmp_path, capsys):
    assert kernels.main([str(traced_report(tmp_path, count=6, longer=-1)), "--format", "json"]) == 0
    fixes = json.loads(capsys.readouterr().out)["fixes"]
    assert fixes
    assert all(
        set(line) == {"file", "line", "function", "backward", "ns"} for fix in fixes for line in fix["lines"]
    )
    assert any(fix["lines"] for fix in fixes)
