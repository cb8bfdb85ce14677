"""The assignment's questions, of one report and of sweeps: the numbers of reports/README.md, and honest dashes."""

import csv
import io
import json
import re
import shutil
import sqlite3
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from analysis import questions
from analysis.attribution import attribute
from analysis.errors import AnalysisError
from analysis.kernel_names import cells
from analysis.presenters import PRESENTERS, as_table
from analysis.question_parts.answered import answered
from analysis.question_parts.document import QUESTIONS, document
from analysis.question_parts.operations import named, operations_of
from analysis.vocabulary import FORWARD
from tests.analysis.building import MAIN, Range, build, launched
from tests.analysis.generated import programs
from tests.analysis.kineto import STEP, write_kineto
from tests.analysis.plain_sql import OURS
from tests.analysis.subjects import DATA, REPORTS, SHARED, attributed, by, table, viewed
from tests.analysis.traces import trace_of

RECORDED, COMPILED = DATA / "h200_recorder.sqlite", DATA / "h200_compiled.sqlite"
README = (DATA.parents[1] / "reports" / "README.md").read_text(encoding="utf-8")
PAGE = (DATA.parents[1] / "docs" / "questions.md").read_text(encoding="utf-8")
WORKING = [path for path in REPORTS if not path.name.startswith(("IhorAtlanov", "YoonKyonghwan"))]
FIGURE = re.compile(r"(?<!\S)[\d,]*\.\d\d+(?!\S)")
BRIEF = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
every_report = pytest.mark.parametrize("path", WORKING, ids=lambda path: path.stem[:24])
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the reports in ../shared")


@cache
def asked(*paths, letters="abcde", include_warm_up=False, whole=False):
    """Answer questions of reports, each read once for all tests."""
    found = [(path.name, answered(attributed(path), include_warm_up=include_warm_up)) for path in paths]
    return document(found, letters, whole=whole)


def row(key, path=OURS, among=()):
    """Return the row of a report, by column."""
    return by(asked(*(among or (path,))), key, "report")[path.name]


def keys(answer):
    return [table.key for table in answer.tables]


def said(answer, width=80):
    return as_table.present(answer, width=width)


def percent(share):
    return f"{100 * share:.1f}"


def ms(*times):
    return " / ".join(f"{time / 1e6:.2f}" for time in times)


def spans(phase):
    one = row(f"a_{phase}")
    return ms(one["cpu_ns"], one["span_ns"], one["kernel_ns"])


def ratios(phase):
    one = row(f"e_{phase}")
    return f"{one['softmax_to_gemms']:.2f}, {one['flops_ratio']:.3g}"


def launches(key, *phases):
    return " / ".join(str(row(key)[f"{phase}_gemms"]) for phase in phases)


# How a row of the README's table begins, and how its figures of small are found here.
PUBLISHED = {
    "**(a)** forward: CPU range": lambda: spans("forward"),
    "backward: the same, ms": lambda: spans("backward"),
    "its launches": lambda: f"{row('b_forward')['launches']} = {row('b_forward')['made_of']}",
    "its time, ms, and share": lambda: (
        f"{ms(row('b_forward')['kernel_ns'])}, {percent(row('b_forward')['share'])} %"
    ),
    "**(c)** forward kernel time that is no GEMM": lambda: f"{percent(row('c')['other_share'])} %",
    "of it elementwise / reduction / copy": lambda: " / ".join(
        percent(row("c")[f"{name}_share"]) for name in ("elementwise", "reduction", "copy")
    ),
    "**(d)** GEMM share of kernel time": lambda: (
        f"{percent(row('d')['forward_gemm_share'])} % → {percent(row('d')['step_gemm_share'])} %"
    ),
    "GEMM launches: forward": lambda: launches("d_launches", "forward", "backward", "optimizer"),
    "**(e)** forward softmax": lambda: ms(row("e_forward")["softmax_ns"], row("e_forward")["gemm_ns"]),
    "ratio of times (softmax : GEMMs)": lambda: ratios("forward"),
    "backward softmax / GEMMs, ms": lambda: ms(row("e_backward")["softmax_ns"], row("e_backward")["gemm_ns"]),
    "ratio of times, ratio of FLOPs": lambda: ratios("backward"),
}


@pytest.mark.parametrize("beginning", PUBLISHED)
def test_figures_of_small_are_those_of_the_reports_page(beginning):
    (line,) = (line for line in README.splitlines() if line.startswith(f"| {beginning}"))
    assert PUBLISHED[beginning]() == line.split("|")[2].strip()


def test_longest_kernel_of_the_backward_is_another_with_73_launches():
    found = row("b_backward")
    assert found["kernel"].startswith("cutlass sgemm 256x128_8x4 nt")
    assert (found["launches"], found["made_of"], found["same"]) == (73, "6·12 + 1", "no")
    assert row("b_forward")["kernel"].startswith("sm80_xmma_gemm f32 tn 128x128x8")


@every_report
def test_spans_and_ratios_are_those_of_the_views(path):
    answer, per_step = asked(path), bool(attributed_steps(path))
    if "a_forward" in keys(answer):
        theirs = by(viewed("agreement", path, per_step=per_step), "agreement", "phase")[FORWARD]
        ours = row("a_forward", path)
        assert [ours[key] for key in ours if key != "report"] == [theirs[key] for key in ours if key != "report"]
    for phase in ("forward", "backward"):
        if f"e_{phase}" in keys(answer):
            theirs = by(viewed("attention", path, per_step=per_step), "ratios", "phase")[phase]
            ours = row(f"e_{phase}", path)
            assert all(ours[key] == theirs[key] for key in ("softmax_ns", "gemm_ns", "softmax_to_gemms"))


def attributed_steps(path):
    return answered(attributed(path)).steps


@every_report
def test_operations_and_categories_sum_to_all_that_is_no_gemm(path):
    report, answer = answered(attributed(path)), asked(path, whole=True)
    other = sum(one.kernel_ns - one.gemm_ns for one in report.phases if one.phase == FORWARD)
    if operations_of(report):
        assert sum(operations_of(report).values()) == pytest.approx(other)
        (attention,), (elsewhere,) = table(answer, "c_attention"), table(answer, "c_elsewhere")
        told = [value for row in (attention, elsewhere) for key, value in row.items() if key != "report"]
        assert sum(value or 0 for value in told) == pytest.approx(row("c", path)["other_share"])
    for found in table(answer, "c") + table(asked(path), "c") if "c" in keys(answer) else ():
        parts = [value for key, value in found.items() if key not in ("report", "gemm_share", "other_share")]
        assert sum(parts) == pytest.approx(found["other_share"])
        assert found["gemm_share"] + found["other_share"] == pytest.approx(1)


def test_softmax_is_the_same_among_operations_and_in_attention():
    share, kernels = row("c_attention")["softmax_share"], row("a_forward")["kernel_ns"]
    assert share * kernels == pytest.approx(row("e_forward")["softmax_ns"])


PARTS = ("computing attention scores", "computing softmax", "final matmul")
NAMES = {
    "norm": (
        "attention norm",
        "ffn_norm",
        "input_layernorm",
        "RMSNorm",
        "ln1",
        "ln_final",
        "layers.0.ln2",
        "norm1",
    ),
    "rope": ("rope", "RoPE", "q rope", "rotary embedding"),
    "softmax": ("computing softmax", ":softmax"),
    "activation": ("activation", "SwiGLU", "silu", "act_fn"),
    "residual": ("residual", "residual add", "attention residual"),
    "loss": ("loss", "cross_entropy", "lm loss"),
    "": ("attention", "normalize", "scaled dot product attention", "europe", "ffn", "lm head", "forward", "gloss"),
}


@pytest.mark.parametrize(("operation", "name"), [(key, name) for key, names in NAMES.items() for name in names])
def test_ranges_are_known_by_their_names(operation, name):
    assert named(name) == operation


ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3>>"
CAST = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIterator&)>"
)
STRIDED_CAST = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda>>"
)
COPY = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"


def made(tmp_path, *kernels, ranges=(), name="report.sqlite", steps=0):
    """Build a report of kernels (name, start of the launch), each of 10 ns, in a forward of 1000 ns."""
    ranges = [Range("forward", 0, 1000), *ranges, *(Range("step", 0, 1000) for _ in range(steps))]
    parts = [launched((at, at + 5), name=kernel, first=at) for kernel, at in kernels]
    rows = {key: [row for part in parts for row in part[key]] for key in parts[0]}
    return build(tmp_path, ranges=ranges, **rows).rename(tmp_path / name)


def test_what_no_range_names_is_told_by_its_place_and_its_kernel(tmp_path):
    layer = [Range("layer 0", 100, 900), Range("ln1", 110, 200), Range("ffn", 500, 600)]
    kernels = [(ADD, 120), (ADD, 300), (ADD, 520), (ADD, 950), (CAST, 310), (COPY, 330), ("sgemm", 530)]
    kernels += [(STRIDED_CAST, 350)]
    report = answered(attributed(made(tmp_path, *kernels, ranges=layer)))
    assert operations_of(report) == {"norm": 10, "residual": 10, "casts": 20, "copies": 10, "rest": 20}


def test_outermost_operation_has_the_kernels_and_one_without_kernels_is_zero(tmp_path):
    ranges = [Range("ln1", 100, 300), Range("scale", 150, 200), Range("mask", 400, 500)]
    report = answered(attributed(made(tmp_path, (ADD, 160), ranges=ranges)))
    assert {name: time for name, time in operations_of(report).items() if name in ("norm", "scale", "mask")} == {
        "norm": 10, "scale": 0, "mask": 0,
    }  # fmt: skip


def marked(folder, name, **settings):
    """Copy our report, with other settings in its mark."""
    path = folder / f"{name}.sqlite"
    shutil.copy(OURS, path)
    database = sqlite3.connect(path)
    place, text = database.execute(
        "SELECT id, value FROM StringIds WHERE value LIKE 'nvtx-kernels.run %'"
    ).fetchone()
    word, mark = text.split(" ", 1)
    changed = f"{word} {json.dumps(json.loads(mark) | settings)}"
    database.execute("UPDATE StringIds SET value = ? WHERE id = ?", (changed, place))
    database.commit()
    database.close()
    return path


@pytest.fixture
def sweep(tmp_path):
    """Three reports of two sizes and two contexts, whose names sort otherwise."""
    sizes = {"a": ("medium", 2, 512), "b": ("small", 1, 1024), "c": ("small", 1, 512)}
    return tuple(
        marked(tmp_path, name, size=size, parameters=parameters, context_length=context)
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
    assert counted == {OURS.name: "per step", "stepless.sqlite": "in all"}
    assert all("per step or in all" in one.title for one in answer.tables if one.key != "reports")


def test_a_pass_tells_the_launches_where_no_step_does(tmp_path):
    ranges = [Range("forward", at, at + 900) for at in (2000, 4000)]
    path = made(tmp_path, *[("sgemm", at) for at in (10, 30, 2010, 2030, 4010, 4030)], ranges=ranges)
    (found,) = table(asked(path), "b_forward")
    assert (found["launches"], found["made_of"]) == (6, "2 per forward")


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


def test_a_report_of_a_forward_alone_has_tables_of_nothing_else(tmp_path):
    answer = asked(made(tmp_path, ("sgemm", 10), steps=1))
    assert keys(answer) == ["a_forward", "b_forward", "c", "d", "d_launches"]


def test_a_report_without_a_mark_has_no_flops_and_says_so(tmp_path):
    parts = [Range(name, at, at + 90) for name, at in zip(PARTS, (100, 200, 300), strict=True)]
    path = made(tmp_path, ("sgemm", 110), ("exp", 210), ("sgemm", 310), ranges=parts)
    (found,) = table(asked(path), "e_forward")
    assert (found["softmax_to_gemms"], "flops_ratio" in found) == (0.5, False)
    assert any(note.startswith("(e): The report does not hold the run's own mark") for note in asked(path).notes)


def test_work_outside_the_steps_is_said_of_each_of_several_reports(tmp_path):
    path = made(tmp_path, ("sgemm", 10), ("sgemm", 2000), name="beyond.sqlite", steps=1)
    assert "beyond.sqlite: Work outside the measured steps is counted too, and divided by the steps." in (
        asked(path, OURS).notes
    )
    assert not any("Work outside" in note for note in asked(path).notes)


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
    assert "Longest operator of the forward" in alone
    assert not re.search(r"\b(kernels?|launch\w*|GPU)\b", alone)
    without = build(tmp_path, metadata={"NVTX_KERNELS_WORK": "CPU"}, **launched((10, 20), name="aten::bmm"))
    assert "(a), (c), (d): There are no forward operators." in asked(without).notes
    beside = asked(path, OURS)
    assert set(by(beside, "a_forward", "report")["cpu.sqlite"].values()) == {"cpu.sqlite", None}
    assert by(beside, "a_forward", "report")[OURS.name] == row("a_forward")
    assert any(note.startswith("cpu.sqlite: The figures are a CPU's") for note in beside.notes)


def test_work_that_runs_on_after_its_range_is_said_once_for_all_reports(tmp_path):
    paths = [made(tmp_path, ("sgemm", 989), name=f"{name}.sqlite", steps=1) for name in "ab"]
    (note,) = (note for note in asked(*paths).notes if "worked on" in note)
    assert note.startswith("(a): The GPU worked on after forward ranges had closed")


def test_warm_up_is_left_out_unless_asked_for(tmp_path, capsys):
    path = made(tmp_path, ("sgemm", 10), ("sgemm", 700), ranges=[Range("warmup", 0, 500)])
    counts = [table(asked(path, include_warm_up=included), "d_launches")[0] for included in (False, True)]
    assert [count["step_gemms"] for count in counts] == [1, 2]
    arguments = (path, "--questions", "d", "--format", "csv", "--include-warmup")
    assert called(capsys, *arguments)[1].splitlines()[-1].endswith(",2")


def test_one_kernel_has_one_name_whatever_recorded_it():
    rows = table(asked(OURS, RECORDED, whole=True), "b_backward")
    assert len({one["kernel"] for one in rows}) == 1


def test_units_show_the_shortest_time_beside_the_longest(tmp_path):
    short = made(tmp_path, ("sgemm", 10), ("sgemm", 400), name="short.sqlite", steps=1)
    text = said(asked(OURS, short, letters="a"))
    assert "≈0" not in text
    assert not re.search(r"short\.sqlite\s.*\s0\.00\s", text)
    assert "18.44" in said(asked(OURS, RECORDED, letters="a"))


@every_report
@pytest.mark.parametrize("width", [60, 80])
def test_no_line_is_wider_than_the_screen_and_no_figure_is_cut(path, width):
    narrow, wide = said(asked(path), width), said(asked(path), 400)
    assert max(map(cells, narrow.splitlines())) <= width
    assert sorted(FIGURE.findall(narrow)) == sorted(FIGURE.findall(wide))


def test_a_sweep_of_settings_fits_60_columns(sweep):
    narrow = said(asked(*sweep), 60)
    assert max(map(cells, narrow.splitlines())) <= 60
    assert sorted(FIGURE.findall(narrow)) == sorted(FIGURE.findall(said(asked(*sweep), 400)))


@every_report
def test_every_table_has_rows_columns_and_says_what_its_shares_are_of(path):
    answer = asked(path)
    for number, one in enumerate(answer.tables):
        assert one.rows
        shares = [column for column in one.columns if column.kind == "share"]
        captions = [later.caption for later in answer.tables[number:] if later.key[0] == one.key[0]]
        assert not shares or any("% is of" in caption for caption in captions)
        assert len(one.columns) > 1


@pytest.mark.parametrize("letters", [*QUESTIONS, "be"])
def test_only_the_questions_asked_are_answered(letters):
    assert sorted({key[0] for key in keys(asked(OURS, letters=letters))}) == list(letters)


def called(capsys, *words):
    """Run the command here; return its status, output and complaints."""
    status = questions.main([str(word) for word in words])
    return (status, *capsys.readouterr())


def test_reports_that_cannot_be_read_cost_their_rows_only(tmp_path, capsys):
    shutil.copy(OURS, tmp_path / "good.sqlite")
    (tmp_path / "bad.sqlite").write_bytes(b"")
    status, out, err = called(capsys, tmp_path, "--questions", "d")
    assert (status, err) == (0, "")
    assert out.startswith("1 of 2 reports")
    assert "Note: bad.sqlite is left out: " in " ".join(out.split())


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
def test_no_report_that_can_be_read_is_an_error(names, tmp_path, capsys):
    for name in names:
        (tmp_path / f"{name}.sqlite").write_bytes(b"")
    status, out, err = called(capsys, tmp_path)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "is empty" in err


def test_a_question_that_no_report_answers_is_an_error_that_says_why(tmp_path, capsys):
    status, out, err = called(capsys, made(tmp_path, ("sgemm", 10)), "--questions", "e")
    assert (status, out) == (1, "")
    assert "computing softmax" in err


@pytest.mark.parametrize("letters", ["f", "", "a,x"])
def test_unknown_questions_are_wrong_usage(letters, capsys):
    with pytest.raises(SystemExit) as stopped:
        questions.main([str(OURS), "--questions", letters])
    assert stopped.value.code == 2


def test_questions_are_read_in_any_order_and_spelling(capsys):
    assert called(capsys, OURS, "--questions", "D, a")[1] == called(capsys, OURS, "--questions", "ad")[1]


@pytest.mark.parametrize("format_", PRESENTERS)
def test_every_format_goes_to_a_file_as_to_the_screen(format_, tmp_path, capsys):
    status, out, _ = called(capsys, OURS, "--format", format_)
    assert called(capsys, OURS, "--format", format_, "-o", tmp_path / "answers") == (0, "", "")
    assert (status, (tmp_path / "answers").read_text(encoding="utf-8")) == (0, out)
    assert "51.2" in out or "51.19" in out


def test_no_answer_is_written_over_a_report(tmp_path, capsys):
    shutil.copy(OURS, tmp_path / "report.sqlite")
    assert called(capsys, tmp_path / "report.sqlite", "-o", tmp_path / "report.sqlite")[0] == 2


def test_programs_get_full_names_and_every_category(capsys):
    _, out, _ = called(capsys, OURS, "--questions", "b,c", "--format", "csv")
    tables = [list(csv.DictReader(io.StringIO(text))) for text in out.split("\n\n")]
    assert tables[0][0]["kernel"].endswith("_execute_kernel__5x_cublas")
    assert {"index_share", "casts_share"} <= {key for one in tables for key in one[0]}


def test_a_trace_of_pytorch_answers_too(tmp_path, capsys):
    status, out, err = called(capsys, write_kineto(tmp_path / "rank0.pt.trace.json", STEP))
    assert (status, err) == (0, "")
    assert "(b) Longest kernel of the backward" in out


@BRIEF
@given(programs)
def test_any_program_is_answered_or_refused_in_one_sentence(rows):
    try:
        answer = document([("program", answered(attribute(trace_of(rows))))], "abcde")
    except AnalysisError:
        return
    assert all(len(row.values) == len(one.columns) for one in answer.tables for row in one.rows)
    assert max(map(cells, said(answer, 400).splitlines())) <= 400


HOSTILE = {"size": ["small"], "context_length": "\x1b[31m512", "dtype": {"a": 1}, "mode": None, "compile": 2.5}


def test_a_mark_of_anything_is_shown_and_drives_no_terminal(tmp_path):
    paths = [marked(tmp_path, "plain"), marked(tmp_path, "odd", **HOSTILE, parameters="many")]
    text = said(asked(*paths), 400)
    assert "\x1b" not in text
    assert "['small']" in text


@needs_shared
def test_a_students_850_launches_are_85_in_each_forward():
    path = next(path for path in WORKING if path.name.startswith("jsun"))
    assert (row("b_forward", path)["launches"], row("b_forward", path)["made_of"]) == (850, "85 per forward")
    assert row("d", path)["forward_gemm_share"] == pytest.approx(0.609, abs=5e-4)


def test_the_page_shows_what_is_printed():
    (shown,) = (text for text in re.findall(r"^```\n(.*?)\n```$", PAGE, re.M | re.S) if "3 of 3 reports" in text)
    printed = [text.rstrip("\n") for text in said(asked(RECORDED, OURS, COMPILED)).split("\n\n")]
    assert [part for part in shown.split("\n\n") if part not in printed] == []


def test_one_name_in_two_folders_is_told_apart(tmp_path, capsys):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        shutil.copy(OURS, tmp_path / folder / "report.sqlite")
    _, out, _ = called(capsys, tmp_path / "one", tmp_path / "two", "--questions", "d", "--format", "json")
    names = [Path(one["report"]).parent.name for one in json.loads(out)["tables"][0]["rows"]]
    assert names == ["one", "two"]
