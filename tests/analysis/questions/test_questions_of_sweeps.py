"""The assignment's questions of several reports: what tells their rows apart, and what stands for no answer."""

import re

import pytest
from nvtx_kernels.analysis.support.text import cells

from tests.analysis.making.building import MAIN, Range, build, launched
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.questioned import COMPILED, FIGURE, RECORDED, asked, made, marked, row, said
from tests.analysis.making.subjects import by, table


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three reports of two sizes and two contexts, whose names sort otherwise."""
    folder = tmp_path_factory.mktemp("sweep")
    sizes = {"a": ("medium", 2, 512), "b": ("small", 1, 1024), "c": ("small", 1, 512)}
    return tuple(
        marked(folder, name, size=size, parameters=parameters, context_length=context)
        for name, (size, parameters, context) in sizes.items()
    )


def test_rows_are_told_apart_by_the_settings_that_differ_and_sorted_by_them(sweep):
    answer = asked(*sweep)
    firsts = [tuple(one.values[:2]) for one in answer.tables[0].rows]
    assert [column.key for column in answer.tables[0].columns[:3]] == ["size", "context_length", "ranges"]
    assert firsts == [("small", 512), ("small", 1024), ("medium", 512)]
    assert [one["report"] for one in table(answer, "reports")] == ["c.sqlite", "b.sqlite", "a.sqlite"]


def test_what_all_reports_share_is_in_the_heading_only(sweep):
    heading = asked(*sweep).heading
    assert heading.startswith("3 of 3 reports · NVIDIA H200 · nsys 2025.3.2 · train · batch 4 · fp32")
    assert "small" not in heading
    assert "context" not in heading


def test_equal_settings_are_told_apart_by_the_files_names(sweep, tmp_path):
    again = marked(tmp_path, "again", size="small", parameters=1, context_length=512)
    answer = asked(*sweep, again)
    assert [column.key for column in answer.tables[0].columns[:3]] == ["report", "size", "context_length"]
    assert "report" not in [column.key for column in answer.tables[-2].columns[1:]]


def test_a_report_without_a_mark_keeps_all_in_the_order_given(sweep, tmp_path):
    unmarked = made(tmp_path, ("sgemm", 10), name="unmarked.sqlite", steps=1)
    answer = asked(*sweep, unmarked)
    assert [one["report"] for one in table(answer, "d")] == [path.name for path in (*sweep, unmarked)]
    assert by(answer, "d", "report")["unmarked.sqlite"]["size"] is None


def test_reports_with_and_without_steps_say_over_what_each_row_is_counted(tmp_path):
    stepless = made(tmp_path, ("sgemm", 10), ("sgemm", 30), name="stepless.sqlite")
    answer = asked(OURS, stepless)
    counted = {name: one["counted"] for name, one in by(answer, "d", "report").items()}
    assert counted == {OURS.name: "per step", "stepless.sqlite": "total"}
    assert all("per step or total" in one.title for one in answer.tables if one.key != "reports")


def test_ranges_of_a_compiled_model_leave_dashes_and_a_note():
    answer = asked(OURS, COMPILED)
    for key in ("c_attention", "c_elsewhere", "e_forward", "e_backward"):
        compiled = by(answer, key, "compile")["yes"]
        assert {value for name, value in compiled.items() if name != "compile"} == {None}
    for letter in "ce":
        assert any(note.startswith(f"({letter}) of {COMPILED.name}: No range") for note in answer.notes)


def test_phases_that_a_report_lacks_are_dashes_beside_those_of_others(tmp_path):
    forward = made(tmp_path, ("sgemm", 10), name="forward.sqlite", steps=1)
    answer = asked(OURS, forward)
    assert by(answer, "b_backward", "report")["forward.sqlite"]["kernel"] is None
    assert by(answer, "d", "report")["forward.sqlite"]["both_gemm_share"] is None
    assert by(answer, "d", "report")["forward.sqlite"]["step_gemm_share"] == 1
    assert "(a), (b) of forward.sqlite: There are no backward kernels." in answer.notes


def test_work_outside_the_steps_is_in_no_figure(tmp_path):
    beyond = made(tmp_path, ("sgemm", 10), ("sgemm", 2000), name="beyond.sqlite", steps=1)
    within = made(tmp_path, ("sgemm", 10), name="within.sqlite", steps=1)
    assert asked(beyond).tables[0].rows == asked(within).tables[0].rows


def on_cpu(tmp_path):
    """Build the recording of a CPU."""
    calls = launched((10, 20, MAIN), (30, 40, MAIN), name="aten::bmm")
    ranges = [Range("step", 0, 100), Range("forward", 5, 90)]
    return build(tmp_path, ranges=ranges, metadata={"NVTX_KERNELS_WORK": "CPU"}, **calls).rename(
        tmp_path / "cpu.sqlite"
    )


def test_a_recording_of_a_cpu_speaks_of_operators_alone_and_is_dashes_beside_a_gpu(tmp_path):
    path = on_cpu(tmp_path)
    alone = said(asked(path)).split("\n\n", 1)[1]
    assert "Slowest operator" in alone
    assert not re.search(r"\b(kernels?|launch\w*|GPU)\b", alone)
    without = build(tmp_path, metadata={"NVTX_KERNELS_WORK": "CPU"}, **launched((10, 20), name="aten::bmm"))
    assert (
        "(a), (c), (d): No operator is known to be of forward: other operators are in no phase, and can be."
        in asked(without).notes
    )
    beside = asked(path, OURS)
    assert set(by(beside, "a_forward", "report")["cpu.sqlite"].values()) == {"cpu.sqlite", None}
    assert by(beside, "a_forward", "report")[OURS.name] == {"report": OURS.name, **row("a_forward")}
    assert any(note.startswith("cpu.sqlite: The figures are a CPU's") for note in beside.notes)


def test_work_that_runs_on_after_its_range_is_said_once_for_all_reports(tmp_path):
    paths = [made(tmp_path, ("sgemm", 989), name=f"{name}.sqlite", steps=1) for name in "ab"]
    (note,) = (note for note in asked(*paths).notes if "worked on" in note)
    assert note.startswith("(a): The GPU worked on after forward ranges had closed")


def test_one_kernel_has_one_name_whatever_recorded_it():
    rows = table(asked(OURS, RECORDED, whole=True), "b_backward")
    assert len({one["kernel"] for one in rows}) == 1


def test_units_show_the_shortest_time_beside_the_longest(tmp_path):
    short = made(tmp_path, ("sgemm", 10), ("sgemm", 400), name="short.sqlite", steps=1)
    text = said(asked(OURS, short, letters="a"))
    assert "≈0" not in text
    assert not re.search(r"short\.sqlite\s.*\s0\.00\s", text)
    assert "18.44" in said(asked(OURS, RECORDED, letters="a"))


def test_a_sweep_of_settings_fits_60_columns(sweep):
    narrow = said(asked(*sweep), 60)
    assert max(map(cells, narrow.splitlines())) <= 60
    assert sorted(FIGURE.findall(narrow)) == sorted(FIGURE.findall(said(asked(*sweep), 400)))


HOSTILE = {"size": ["small"], "context_length": "\x1b[31m512", "dtype": {"a": 1}, "mode": None, "compile": 2.5}


def test_a_mark_of_anything_is_shown_and_drives_no_terminal(tmp_path):
    paths = [marked(tmp_path, "plain"), marked(tmp_path, "odd", **HOSTILE, parameters="many")]
    text = said(asked(*paths), 400)
    assert "\x1b" not in text
    assert "['small']" not in text  # no text, so it is ignored
