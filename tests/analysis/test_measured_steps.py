"""Which ranges count as steps: their usual names, or what the user calls them."""

import pytest

import analysis
from analysis import kernels
from analysis.attribution import Rules, attribute
from analysis.errors import UsageError
from analysis.report import as_object, from_object
from analysis.summary import summarize
from tests.analysis.building import Range, build, launched

LOOP = [Range(f"batch {n}", 100 * n, 100 * n + 90) for n in range(4)]
INNER = [Range("batch 9", 310, 320), Range("step", 20, 40)]


@pytest.fixture
def report(tmp_path):
    calls = launched(*((100 * n + 25, 100 * n + 26) for n in range(4)), (395, 396))
    return build(tmp_path, ranges=[*LOOP, *INNER], **calls)


@pytest.mark.parametrize(
    ("called", "steps"),
    [("", 1), ("batch *", 4), ("BATCH ?", 4), ("batch 2", 1), ("batch 9", 1), ("b*", 4)],
)
def test_steps_are_what_they_are_called(report, called, steps):
    assert summarize(attribute(analysis.read(report), Rules(step=called))).steps == steps


def test_a_part_of_a_name_is_not_the_name(report):
    with pytest.raises(UsageError, match=r"No range is called 'batch'. Ranges: batch \*, step\."):
        attribute(analysis.read(report), Rules(step="batch"))


def test_figures_are_divided_by_them_and_the_rest_is_told(report, capsys):
    assert kernels.main([str(report), "--per-step", "--step", "batch *"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 steps measured" in said
    assert "per step, mean of 4" in said
    assert "In no measured step: 2 ns (20.0%) of this, divided by the steps too." in said


def test_what_steps_are_called_is_kept_with_the_summary(report):
    summary = summarize(attribute(analysis.read(report), Rules(step="batch *")))
    assert from_object(as_object(summary)) == summary
    assert summary.step == "batch *"


def test_report_without_steps_names_the_option(report, capsys):
    assert kernels.main([str(build(report.parent, **launched((20, 30)))), "--per-step"]) == 1
    assert "say with --step which ranges are the steps" in capsys.readouterr().err
