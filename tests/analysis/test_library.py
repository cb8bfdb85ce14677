"""The package as a library: what notebooks and scripts get."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from nvtx_kernels.analysis import kernels, view
from nvtx_kernels.analysis.attribution.causes import Rules
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.report import KernelRow, PhaseRow, RangeRow

import nvtx_kernels as nk
from nvtx_kernels import analysis

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


def test_per_step_of_a_report_without_steps_is_refused(trace):
    with pytest.raises(ReportError, match="no measured step ranges"):
        analysis.rank(trace, per_step=True, rules=Rules(domains=["CCCL"]))


def test_notebook_shows_the_ranges_and_escapes_their_names(trace):
    html = analysis.rank(trace)._repr_html_()
    assert "computing softmax" in html
    assert "backward &gt; layer * &gt; ffn &gt; down projection" in html


def test_a_path_is_as_good_as_a_trace(trace):
    assert analysis.rank(REPORT).report == analysis.rank(str(REPORT)).report == analysis.rank(trace).report


def test_repr_is_short_and_names_the_frames(trace):
    assert repr(analysis.rank(trace, per_step=True)).splitlines() == [
        "Ranking of h200_train_fp32.sqlite: 60.21 ms of work per step",
        "  phases: forward 18.44 ms, backward 36.23 ms, optimizer 5.33 ms",
        "  frames: .phases (3 rows), .ranges (469), .kernels (1409), .totals",
        "  screens: .show(), .plot()",
    ]


def test_shown_is_the_overview_of_the_command(trace, capsys):
    analysis.rank(trace, per_step=True).show(width=80)
    shown = capsys.readouterr().out
    assert kernels.main([str(REPORT), "--per-step"]) == 0
    assert capsys.readouterr().out.startswith(shown)  # and then says what to type next


FRAMES = {
    "phases": ["phases"],
    "balance": ["balance", "queue", "gaps"],
    "overlap": ["overlap", "transfers"],
    "steps": ["steps"],
    "attention": ["attention", "rates", "ratios"],
    "agreement": ["agreement"],
}


@pytest.mark.parametrize("view", FRAMES)
def test_views_are_frames(trace, view):
    answer = getattr(nk, view)(trace)
    assert list(answer) == FRAMES[view]
    assert all(len(frame) for frame in answer.values())
    assert "<table>" in answer._repr_html_()
    assert len(repr(answer).splitlines()) == 1 + len(answer)


def test_frames_of_a_view_are_what_the_command_writes_for_machines(trace, capsys):
    view.main(["balance", str(REPORT), "--format", "json"])
    tables = json.loads(capsys.readouterr().out)["tables"]
    answer = nk.balance(trace)
    assert {table["key"]: table["rows"] for table in tables} == {
        key: frame.astype(object).where(frame.notna(), None).to_dict("records") for key, frame in answer.items()
    }


def test_a_notebook_is_told_nothing_to_type_on_a_command_line(trace):
    for answer in (analysis.rank(trace, per_step=True), nk.balance(trace), nk.agreement(trace)):
        assert "--top" not in answer._repr_html_()
        assert "nvtx-kernels view" not in answer._repr_html_()
    assert "the view balance shows what the GPU waits for" in nk.agreement(trace)._repr_html_()


def test_idle_time_is_ranked_by_the_range_that_ends_it(trace):
    idle = nk.idle(trace)
    assert idle["idle_ns"].is_monotonic_decreasing
    assert idle["share"].sum() == pytest.approx(1)


def test_launches_of_a_kernel_are_explained(trace):
    assert nk.explain(trace, "splitKreduce")["explained"]["kernel"].str.contains("splitKreduce").all()


@pytest.mark.parametrize("per_step", [True, False])
def test_a_report_compared_with_itself_has_not_changed(trace, per_step):
    answer = nk.compare(trace, REPORT, per_step=per_step)
    assert list(answer) == ["by_phase", "by_category", "by_range", "by_kernel"]
    assert (answer["by_kernel"]["delta_ns"] == 0).all()
    assert answer["by_phase"]["a_ns"].sum() == analysis.rank(trace, per_step=per_step).phases["kernel_ns"].sum()


def test_plots_draw_what_the_frames_hold(trace):
    pytest.importorskip("matplotlib")
    figure = analysis.rank(trace, per_step=True).plot()
    axes = {panel.get_label(): panel for panel in figure.axes}
    assert set(axes) == {"phases", "ranges", "steps"}
    assert sum(bar.get_height() for bar in axes["phases"].patches) == pytest.approx(60.0, abs=0.01)
    assert [round(bar.get_height(), 2) for bar in axes["steps"].patches] == [60.08, 59.92]
    assert len(axes["ranges"].patches) == 10


def test_every_public_name_is_there_and_loads_late():
    code = "import sys, nvtx_kernels as nk; print([m for m in ('torch', 'pandas', 'numpy') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], cwd=REPORT.parents[2], capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"
    assert sorted(nk.PUBLIC) == sorted(nk.__all__)
