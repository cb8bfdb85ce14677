"""Kernels whose names tell nothing have the category of the operator, or of the function, that launched them."""

import pytest
from nvtx_kernels.analysis.attribution.kernel_categories import category_of
from nvtx_kernels.analysis.opened import opened

from tests.analysis.making.shaped import Shaped

MYSTERY = "kernel_0d1d2d"


def category(tmp_path, around):
    """The category of a kernel of an unknown name, launched in these parts, the outermost first."""
    trace = Shaped()
    part = trace.kernel(MYSTERY, 5)
    for kind, name in reversed(around):
        part = (trace.frame if kind == "frame" else trace.operator)(name, inside=[part])
    path = trace.write(tmp_path / "trace.json", trace.block("step 0", [part]))
    return {row.category for row in opened(path).whole.kernels}


CASES = {
    "of the operator": ([("", "aten::convolution")], "convolution"),
    "of the outermost": ([("", "aten::convolution"), ("", "aten::copy_")], "convolution"),
    "of what a composite operator calls": ([("", "aten::scaled_dot_product_attention")], "attention"),
    "of a node": ([("", "autograd::engine::evaluate_function: ConvolutionBackward0")], "convolution"),
    "of a library's operator": ([("", "mmcv::nms")], "scan"),
    "of another library's": ([("", "flash_attn::_flash_attn_varlen_forward")], "attention"),
    "of splats": ([("", "gsplat::spherical_harmonics_fwd")], "elementwise"),
    "of the function": ([("frame", "unsloth/kernels/rms_layernorm.py(45): forward")], "normalization"),
    "of the innermost function that tells": (
        [("frame", "fla/layers/attn.py(7): forward"), ("frame", "fla/ops/cross_entropy.py(3): forward"),
         ("frame", "triton/runtime/jit.py(5): run")], "softmax",
    ),
    "of none in a compiled region": ([("", "Torch-Compiled Region: 0/0")], "other"),
    "of nothing": ([], "other"),
}  # fmt: skip


@pytest.mark.parametrize(("around", "expected"), CASES.values(), ids=CASES)
def test_category_follows_from_the_launch(tmp_path, around, expected):
    assert category(tmp_path, around) == {expected}


def test_a_name_that_tells_keeps_its_category(tmp_path):
    trace = Shaped()
    inside = [trace.kernel("nchwToNhwcKernel", 4), trace.kernel(MYSTERY, 5)]
    part = trace.operator("aten::convolution", inside=inside)
    report = opened(trace.write(tmp_path / "trace.json", trace.block("step 0", [part])))
    assert {row.kernel: row.category for row in report.whole.kernels} == {
        "nchwToNhwcKernel": "copy",
        MYSTERY: "convolution",
    }
    parts = {part.what for gpu in report.whole.account.gpus for part in gpu.parts if part.kind == "compute"}
    assert parts == {"copy", "convolution"}


def test_of_several_operators_the_one_with_the_most_time_decides(tmp_path):
    trace = Shaped()
    parts = [
        trace.operator("mmcv::nms", inside=[trace.kernel(MYSTERY, 5)]),
        trace.operator("aten::convolution", inside=[trace.kernel(MYSTERY, 9)]),
    ]
    report = opened(trace.write(tmp_path / "trace.json", trace.block("step 0", parts)))
    assert {row.category for row in report.whole.kernels} == {"convolution"}


def test_operators_without_a_category_have_none():
    assert category_of("vllm::moe_forward_xyz") == "other"
    assert category_of("aten::_scaled_dot_product_flash_attention_backward") == "attention"
