"""The package as a library: what notebooks and scripts get."""

from dataclasses import fields
from pathlib import Path

import pytest

import analysis
from analysis.attribution import Rules
from analysis.errors import ReportError
from analysis.report import KernelRow, PhaseRow, RangeRow

REPORT = Path(__file__).parents[1] / "data" / "h200_train_fp32.sqlite"


@pytest.fixture(scope="module")
def trace():
    return analysis.read(REPORT)


@pytest.mark.parametrize(("table", "row"), [("phases", PhaseRow), ("ranges", RangeRow), ("kernels", KernelRow)])
def test_frames_have_the_columns_of_their_rows(trace, table, row):
    frame = getattr(analysis.rank(trace), table)
    assert list(frame.columns) == [field.name for field in fields(row)]
    assert len(frame)


def test_totals_are_those_of_the_kernels(trace):
    ranking = analysis.rank(trace)
    assert ranking.totals["work_ns"] == ranking.kernels["total_ns"].sum() + ranking.totals["excluded_ns"]


def test_per_step_divides_by_the_steps(trace):
    whole, step = analysis.rank(trace), analysis.rank(trace, per_step=True)
    assert (step.phases["kernel_ns"] * 2 == whole.phases["kernel_ns"]).all()


def test_per_step_of_a_report_without_steps_is_refused(trace):
    with pytest.raises(ReportError, match="no measured step ranges"):
        analysis.rank(trace, per_step=True, rules=Rules(domains=["CCCL"]))


def test_notebook_shows_the_ranges_and_escapes_their_names(trace):
    html = analysis.rank(trace)._repr_html_()
    assert "computing softmax" in html
    assert "measure &gt; step &gt; backward" in html
