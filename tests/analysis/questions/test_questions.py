"""The assignment's questions of one report: the figures of reports/README.md and of the views, and their parts."""

import json

import pytest
from hypothesis import given, settings
from nvtx_kernels.analysis.errors import AnalysisError
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.questions.answers import document
from nvtx_kernels.analysis.questions.of_kernels import named, operations_of
from nvtx_kernels.analysis.questions.sweep import answered
from nvtx_kernels.analysis.readers.marks import FLOPS_MARK
from nvtx_kernels.analysis.support.text import cells
from nvtx_kernels.analysis.vocabulary import FORWARD

from tests.analysis.making.building import MARK, Range
from tests.analysis.making.bundled import needs_shared
from tests.analysis.making.generated import programs
from tests.analysis.making.questioned import WORKING, asked, every_report, figures, keys, made, row, said
from tests.analysis.making.subjects import DATA, by, table, viewed
from tests.analysis.making.traces import trace_of

README = (DATA.parents[1] / "reports" / "README.md").read_text(encoding="utf-8")
BRIEF = settings(max_examples=settings.default.max_examples // 3)


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
        f"{row('b_forward')['kernel_ns'] / 1e6:.3f}, {percent(row('b_forward')['share'])} %"
    ),
    "**(c)** forward kernel time that is not GEMM": lambda: f"{percent(row('c')['other_share'])} %",
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
            theirs = by(viewed("attention", path, per_step=per_step), "ratios", "phase").get(phase)
            if theirs is None:  # no such part of attention: a dash, and a note
                assert row(f"e_{phase}", path)["softmax_to_gemms"] is None
                assert any(note.startswith("(e): ") for note in answer.notes)
                continue
            ours = row(f"e_{phase}", path)
            assert all(ours[key] == theirs[key] for key in ("softmax_ns", "gemm_ns", "softmax_to_gemms"))


def attributed_steps(path):
    return figures(path).steps


@every_report
def test_operations_and_categories_sum_to_all_that_is_no_gemm(path):
    report, answer = figures(path), asked(path, whole=True)
    other = sum(one.kernel_ns - one.gemm_ns for one in report.phases if one.phase == FORWARD)
    if operations_of(report):
        assert sum(operations_of(report).values()) == pytest.approx(other)
        (attention,), (elsewhere,) = table(answer, "c_attention"), table(answer, "c_elsewhere")
        told = [value for row in (attention, elsewhere) for key, value in row.items() if key != "report"]
        assert sum(value or 0 for value in told) == pytest.approx(row("c", path)["other_share"])
    shown = [
        one
        for whole in (answer, asked(path))
        for key in {"c", "d_kinds"} & {*keys(whole)}
        for one in table(whole, key)
    ]
    for found in shown:
        parts = [value for key, value in found.items() if key not in ("report", "gemm_share", "other_share")]
        assert sum(parts) == pytest.approx(found["other_share"])
        assert found["gemm_share"] + found["other_share"] == pytest.approx(1)


@every_report
def test_the_kinds_of_kernel_of_a_step_have_the_gemms_share_of_the_step(path):
    for kinds in table(asked(path), "d_kinds") if "d_kinds" in keys(asked(path)) else ():
        assert kinds["gemm_share"] == pytest.approx(row("d", path)["step_gemm_share"])


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


def test_what_no_range_names_is_told_by_its_place_and_its_kernel(tmp_path):
    layer = [Range("layer 0", 100, 900), Range("ln1", 110, 200), Range("ffn", 500, 600)]
    kernels = [(ADD, 120), (ADD, 300), (ADD, 520), (ADD, 950), (CAST, 310), (COPY, 330), ("sgemm", 530)]
    kernels += [(STRIDED_CAST, 350)]
    report = answered(opened(made(tmp_path, *kernels, ranges=layer)))
    assert operations_of(report) == {"norm": 10, "residual": 10, "casts": 20, "copies": 10, "rest": 20}


def test_outermost_operation_has_the_kernels_and_one_without_kernels_is_zero(tmp_path):
    ranges = [Range("ln1", 100, 300), Range("scale", 150, 200), Range("mask", 400, 500)]
    report = answered(opened(made(tmp_path, (ADD, 160), ranges=ranges)))
    assert {name: time for name, time in operations_of(report).items() if name in ("norm", "scale", "mask")} == {
        "norm": 10, "scale": 0, "mask": 0,
    }  # fmt: skip


def test_a_pass_tells_the_launches_where_no_step_does(tmp_path):
    ranges = [Range("forward", at, at + 900) for at in (2000, 4000)]
    path = made(tmp_path, *[("sgemm", at) for at in (10, 30, 2010, 2030, 4010, 4030)], ranges=ranges)
    found = row("b_forward", path)
    assert (found["launches"], found["made_of"]) == (6, "2 per forward")


def test_a_report_of_a_forward_alone_has_tables_of_nothing_else(tmp_path):
    answer = asked(made(tmp_path, ("sgemm", 10), steps=1))
    assert keys(answer) == ["a_forward", "b", "c", "d", "d_launches"]


def test_a_report_without_a_mark_has_no_flops_and_says_so(tmp_path):
    parts = [Range(name, at, at + 90) for name, at in zip(PARTS, (100, 200, 300), strict=True)]
    path = made(tmp_path, ("sgemm", 110), ("exp", 210), ("sgemm", 310), ranges=parts)
    (found,) = table(asked(path), "e_forward")
    assert (found["softmax_to_gemms"], "flops_ratio" in found) == (0.5, False)
    assert any(note.startswith("(e): FLOPs and bytes were not counted") for note in asked(path).notes)


def test_flops_that_a_step_counted_are_held_against_each_other(tmp_path):
    parts = [Range(name, at, at + 90) for name, at in zip(PARTS, (100, 200, 300), strict=True)]
    flops = zip(PARTS, ({"fp32": 400, "elementwise": 9}, {"elementwise": 50}, {"fp32": 600}), strict=True)
    of_forward = {f"step > {name}": [1, 8, counted] for name, counted in flops}
    mark = Range(
        FLOPS_MARK + json.dumps({"version": 1, "parts": 1, "ranges": {"forward": of_forward}}), 1, None, event=MARK
    )
    path = made(tmp_path, ("sgemm", 110), ("exp", 210), ("sgemm", 310), ranges=[mark, *parts], steps=1)
    (found,) = table(asked(path), "e_forward")
    assert found["flops_ratio"] == (400 + 600) / 50
    assert not any("FLOPs" in note for note in asked(path).notes)


@BRIEF
@given(programs)
def test_any_program_is_answered_or_refused_in_one_sentence(rows):
    try:
        answer = document([("program", answered(opened(trace_of(rows))))], "abcde")
    except AnalysisError:
        return
    assert all(len(row.values) == len(one.columns) for one in answer.tables for row in one.rows)
    assert max(map(cells, said(answer, 400).splitlines())) <= 400


@needs_shared
def test_a_students_850_launches_are_85_in_each_of_its_forwards():
    path = next(path for path in WORKING if path.name.startswith("jsun"))
    assert (row("b_forward", path)["launches"], row("b_forward", path)["made_of"]) == (85, "85")
    assert row("d", path)["forward_gemm_share"] == pytest.approx(0.609, abs=5e-4)
