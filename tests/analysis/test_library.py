"""The package as a library: what notebooks and scripts get."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from nvtx_kernels.analysis import compare, kernels, view
from nvtx_kernels.analysis.agent.answers import Reports
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.frames.milliseconds import Frame
from nvtx_kernels.analysis.frames.plots import COLOURS
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page.contents import contents
from nvtx_kernels.analysis.report.account import COMMUNICATION
from nvtx_kernels.analysis.views.registry import VIEWS

import nvtx_kernels as nk
from nvtx_kernels import analysis
from tests.analysis.making.allocated import with_memory
from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.communicating import communicating
from tests.analysis.making.shown_page import numbers

REPORT = Path(__file__).parents[1] / "data" / "h200_train_fp32.sqlite"


@pytest.fixture(scope="module")
def trace():
    return analysis.read(REPORT)


def test_per_step_of_a_report_without_steps_is_refused(tmp_path):
    with pytest.raises(ReportError, match=r"No steps are known: .* Push a range named 'step'"):
        analysis.rank(build(tmp_path, **launched((10, 20))), per_step=True)


def test_notebook_shows_the_ranges_and_escapes_their_names(trace):
    html = analysis.rank(trace)._repr_html_()
    assert "layer * &gt; ffn &gt; down projection" in html
    assert "layer * > ffn" not in html


def test_a_path_is_as_good_as_a_trace(trace):
    assert analysis.rank(REPORT).report == analysis.rank(str(REPORT)).report == analysis.rank(trace).report


def test_repr_is_short_and_names_the_frames(trace):
    assert repr(analysis.rank(trace, per_step=True)).splitlines() == [
        "Ranking of h200_train_fp32.sqlite: 60.21 ms of work per step",
        "  phases: forward 18.44 ms, backward 36.23 ms, optimizer 5.33 ms",
        "  frames: .phases (3 rows), .ranges (469), .kernels (1409), .totals",
        "  screens: .show(), .plot()",
    ]


def test_a_ranking_is_in_total_and_without_warm_up_unless_that_is_asked_for(tmp_path):
    ranges = [Range("warm-up", 0, 90), Range("step", 100, 190), Range("step", 200, 290)]
    path = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 120), (210, 220)))
    total, mean, everything = (
        nk.rank(path, **asked) for asked in ({}, {"per_step": True}, {"include_warm_up": True})
    )
    assert [int(one.kernels["total_ns"].sum()) for one in (total, mean, everything)] == [20, 10, 30]
    assert ["over 2 steps" in repr(one).splitlines()[0] for one in (total, mean)] == [True, False]
    assert total.step_times["own_ns"].tolist() == [row.own_ns for row in total.report.account.rows]
    assert total.step_ns == total.step_times["own_ns"][1] == 100
    without = nk.rank(build(tmp_path, **launched((10, 20))))
    assert (repr(without).splitlines()[0][-5:], len(without.step_times), without.step_ns) == ("total", 0, None)


def test_shown_is_the_overview_of_the_command(trace, capsys):
    analysis.rank(trace, per_step=True).show(width=80)
    shown = capsys.readouterr().out.splitlines()
    assert kernels.main([str(REPORT), "--per-step"], prog="nvtx-kernels rank") == 0
    *typed, empty, more, _ = capsys.readouterr().out.splitlines()  # what to type next is in place of rows
    assert (typed, empty, more[:5]) == (shown[: len(typed)], "", "More:")


def records(frames):
    return {
        key: frame.astype(object).where(frame.notna(), None).to_dict("records") for key, frame in frames.items()
    }


def tables_of(command, capsys, *words):
    """Return the tables that a command writes as JSON, or the sentence with which it refuses."""
    status, (out, err) = command.main([*map(str, words), "--format", "json"]), capsys.readouterr()
    if status:
        return err.removeprefix("error: ").strip()
    return {table["key"]: table["rows"] for table in json.loads(out)["tables"]}


def frames_of(name, *sources, per_step):
    try:
        return records(getattr(nk, {"fix": "fixes"}.get(name, name))(*sources, per_step=per_step))
    except ReportError as error:
        return str(error)


def beyond_steps(folder):
    ranges = [Range("step", 0, 100), Range("forward", 5, 90), Range("forward", 200, 290)]
    return build(folder, ranges=ranges, **launched((10, 12), (30, 32), (205, 207), (230, 232), (260, 262)))


MADE = {"memory": lambda _: with_memory(), "communication": lambda _: communicating()}


@pytest.mark.parametrize("per_step", [False, True], ids=["totals", "per step"])
@pytest.mark.parametrize("make", [beyond_steps, lambda _: REPORT, None], ids=["work in no step", "h200", "own"])
@pytest.mark.parametrize("name", VIEWS)
def test_frames_of_a_view_are_what_the_command_writes_for_machines(name, make, per_step, tmp_path, capsys):
    path = (make or MADE.get(name, beyond_steps))(tmp_path)
    kernel = ["gemm"] if name == "kernels" else []
    words = [name, path, "--per-step" if per_step else "--totals", *(w for k in kernel for w in ("--kernel", k))]
    assert frames_of(name, path, *kernel, per_step=per_step) == tables_of(view, capsys, *words)


@pytest.mark.parametrize("per_step", [False, True], ids=["totals", "per step"])
def test_frames_of_a_comparison_are_what_the_command_writes_for_machines(per_step, tmp_path, capsys):
    a, b = beyond_steps(tmp_path), REPORT
    compare.main([str(a), str(b), "--per-step" if per_step else "--totals", "--format", "json"])
    rows = json.loads(capsys.readouterr().out)["by"]["kernel"]
    same = ("kernel", "category", "a_ns", "b_ns", "a_spread_ns", "b_spread_ns", "a_count", "b_count")
    frame = frames_of("compare", a, b, per_step=per_step)["by_kernel"]
    assert [[row[key] for key in same] for row in frame] == [[row[key] for key in same] for row in rows]


@pytest.mark.parametrize("words", [[], ["--per-step"]])
def test_ranking_is_what_the_command_writes_for_machines(words, tmp_path, capsys):
    path = beyond_steps(tmp_path)
    kernels.main([str(path), "--format", "json", *words])
    answer, ranking = json.loads(capsys.readouterr().out), analysis.rank(path, per_step=bool(words))
    tables = {name: getattr(ranking, name) for name in ("phases", "ranges", "kernels")}
    assert records(tables) == {name: answer[name] for name in tables}


def test_steps_decide_what_library_page_and_agent_count(tmp_path):
    path = beyond_steps(tmp_path)
    tables = Reports(tmp_path).view(path.name, "idle")["tables"]
    agent = next(table["rows"] for table in tables if table["key"] == "limits")
    page = contents([opened(path)]).reports[0]
    assert analysis.rank(path, per_step=None).totals["work_ns"] == sum(numbers(page["data"]["rows"]["ns"])) == 20
    assert [row[1] for row in agent] == [*nk.idle(path, per_step=None)["limits"]["time_ns"]]


def test_a_notebook_is_told_nothing_to_type_on_a_command_line(trace, tmp_path):
    ranges = [Range("warm-up", 0, 90), Range("step", 100, 190), Range("step", 200, 290)]
    path = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 120), (210, 220)))
    answers = [analysis.rank(trace, per_step=True), nk.idle(trace), nk.agreement(trace)]
    answers += [nk.fixes(trace), nk.idle(path, per_step=True)]
    assert "of warm-up" in answers[-1]._repr_html_()
    for answer in answers:
        assert not re.search(r"--[a-z]", answer._repr_html_())
        assert "nvtx-kernels view" not in answer._repr_html_()
    assert "the view idle shows why the GPU is idle" in nk.agreement(trace)._repr_html_()


def headings_of(html):
    return [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<th.*?</th>", html)]


def test_a_notebook_has_times_in_ms_and_the_unit_in_each_heading(trace):
    idle = nk.idle(trace, per_step=True)._repr_html_()
    assert [name for name in headings_of(idle) if "idle" in name] == ["idle, ms", "idle, ms", "idle, ms"]
    assert "<caption>What limits each phase, per step</caption>" in idle
    first = analysis.rank(trace, per_step=True)._repr_html_()
    assert "<caption>A step, 80.3 ms</caption>" in first
    assert {"ms", "Slowest ranges, own kernel time", "forward, ms", "sum, ms"} <= set(headings_of(first))
    assert "{unit}" not in idle + first


def test_short_and_long_times_of_a_notebook_are_in_ms(tmp_path):
    path = build(tmp_path, ranges=[Range("step", 0, 4_000_000_000)], **launched((0, 2_500), (10, 3_000_000_000)))
    assert "3,000.00" in analysis.rank(path, per_step=True)._repr_html_()
    short = nk.kernels(build(tmp_path, **launched((0, 2_500), (10_000, 11_500))))._repr_html_()
    assert "0.00002" in short
    assert not {name for name in headings_of(short) if name.endswith((" ns", "µs"))}


def test_a_frame_is_shown_in_ms_and_keeps_its_ns(trace):
    phases = analysis.rank(trace).phases
    assert phases["kernel_ns"].tolist() == [36882841, 72460528, 10659234]
    for shown in (phases, phases.head(2), phases[phases["phase"] == "forward"]):
        assert "kernel, ms" in repr(shown)
        assert "36.8828" in shown._repr_html_()
        assert "kernel_ns" not in repr(shown) + shown._repr_html_()
    assert phases.in_ms()["kernel, ms"].tolist() == [36.8828, 72.4605, 10.6592]
    totals = analysis.rank(trace).totals
    assert (totals["kernel_ns"], repr(totals).splitlines()[1]) == (120002603, "kernel, ms       120.0026")


def test_frames_without_times_or_values_are_shown_as_they_are(trace):
    frame = Frame({"a_ns": [None, None], 3: [1, 2]})
    assert list(frame.in_ms().columns) == ["a, ms", 3]
    assert repr(Frame({"n": [1]})) == repr(pd.DataFrame({"n": [1]}))
    by_phase = analysis.rank(trace).kernels.groupby(["phase", "kind"])[["total_ns"]].sum()
    assert list(by_phase.in_ms().columns) == ["total, ms"]
    assert by_phase.in_ms().index.names == ["phase", "kind"]
    pieces = nk.idle(trace, pieces=True)
    assert {"start, ms", "end, ms"} <= set(pieces.in_ms().columns)


def test_plots_draw_what_the_frames_hold(trace):
    pytest.importorskip("matplotlib")
    figure = analysis.rank(trace, per_step=True).plot()
    axes = {panel.get_label(): panel for panel in figure.axes}
    assert set(axes) == {"step", "phases", "ranges", "steps"}
    assert sum(bar.get_width() for bar in axes["step"].patches) == pytest.approx(80.3, abs=0.1)
    assert figure._repr_png_().startswith(b"\x89PNG"), "a notebook shows the picture"
    assert sum(bar.get_height() for bar in axes["phases"].patches) == pytest.approx(60.0, abs=0.01)
    assert [round(bar.get_height(), 2) for bar in axes["steps"].patches] == [60.08, 59.92]
    assert len(axes["ranges"].patches) == 10
    assert "optimizer" in [text.get_text() for text in axes["ranges"].get_yticklabels()]
    assert [text.get_text() for text in axes["steps"].get_xticklabels()] == ["0", "1"]
    figure.draw_without_rendering()
    assert all(panel.xaxis.label.get_window_extent().x1 <= figure.bbox.x1 for panel in axes.values())


def test_a_plot_tells_communication_of_a_phase_from_its_computing():
    to_rgba = pytest.importorskip("matplotlib.colors").to_rgba
    shown = analysis.rank(communicating(), per_step=True).plot()
    colours = {bar.get_label(): bar.patches[0].get_facecolor() for bar in shown.axes[0].containers}
    assert colours["communication forward"] == to_rgba(COLOURS[COMMUNICATION])


def test_every_public_name_is_there_and_loads_late():
    code = "import sys, nvtx_kernels as nk; print([m for m in ('torch', 'pandas', 'numpy') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], cwd=REPORT.parents[2], capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"
    assert sorted(nk.PUBLIC) == sorted(nk.__all__)
