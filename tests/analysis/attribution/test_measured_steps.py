"""Which ranges count as steps: their usual names, or what the user calls them."""

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.attribution.causes import Rules, attribute
from nvtx_kernels.analysis.errors import UsageError
from nvtx_kernels.analysis.report import as_object, from_object
from nvtx_kernels.analysis.summary.totals import summarize

from nvtx_kernels import analysis
from tests.analysis.making.building import Range, build, launched

LOOP = [Range(f"lap {n}", 100 * n, 100 * n + 90) for n in range(4)]
INNER = [Range("lap 9", 310, 320), Range("step", 20, 40)]


@pytest.fixture
def report(tmp_path):
    calls = launched(*((100 * n + 25, 100 * n + 26) for n in range(4)), (395, 396))
    return build(tmp_path, ranges=[*LOOP, *INNER], **calls)


@pytest.mark.parametrize(
    ("called", "steps"),
    [("", 1), ("lap *", 4), ("LAP ?", 4), ("lap 2", 1), ("lap 9", 1), ("l*", 4)],
)
def test_steps_are_what_they_are_called(report, called, steps):
    assert summarize(attribute(analysis.read(report), Rules(step=called))).steps == steps


def test_a_part_of_a_name_is_not_the_name(report):
    with pytest.raises(UsageError, match=r"No range is called 'lap'. Ranges: lap \*, step\."):
        attribute(analysis.read(report), Rules(step="lap"))


def test_figures_are_divided_by_them_and_the_rest_is_told(report, capsys):
    assert kernels.main([str(report), "--per-step", "--step", "lap *"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 steps measured" in said
    assert "per step, mean of 4" in said
    assert "In no mean: 10 ns in no measured step, 20.0% of all GPU work." in said


def test_what_steps_are_called_is_kept_with_the_summary(report):
    summary = summarize(attribute(analysis.read(report), Rules(step="lap *")))
    assert from_object(as_object(summary)) == summary
    assert summary.step == "lap *"


def test_report_without_steps_names_the_option(report, capsys):
    assert kernels.main([str(build(report.parent, **launched((20, 30)))), "--per-step"]) == 1
    assert "use --step NAME for ranges with another name" in capsys.readouterr().err
