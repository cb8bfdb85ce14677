"""Operators of a trace with shapes: which counts, what it costs, how far its kernels are above the least time."""

import numpy as np
import pytest
from nvtx_kernels.analysis.measures.gpu_peaks import peak_of
from nvtx_kernels.analysis.measures.operators import (
    NO_OPERATOR,
    WorkShapes,
    kernels_by_operator,
    operator_rows,
    unknown_rows,
)
from nvtx_kernels.analysis.opened import opened

from tests.analysis.making.shaped import H100, Shaped

IMAGE, WEIGHT = [8, 64, 28, 28], [64, 64, 3, 3]
CONVOLUTION = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
PEAK = peak_of([H100["name"]])


def traced(tmp_path, *parts, trace=None):
    writer = trace or Shaped()
    path = writer.write(tmp_path / "trace.json", *(part(writer) for part in parts))
    return opened(path)


def convolution(t):
    transposes = [
        t.kernel(name, 5) for name in ("nchwToNhwcKernel", "sm80_xmma_fprop_implicit_gemm_f32", "nhwcToNchwKernel")
    ]
    inner = [t.operator("aten::cudnn_convolution", [IMAGE, WEIGHT], inside=transposes)]
    counted = t.operator(
        "aten::convolution", [IMAGE, WEIGHT, [], [], [], [], [], [], []], values=CONVOLUTION, inside=inner
    )
    return t.operator("aten::conv2d", [IMAGE, WEIGHT], inside=[counted])


def product(t, types="c10::BFloat16", us=100, kernel="sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"):
    counted = t.operator("aten::mm", [[1024, 512], [512, 2048]], types, inside=[t.kernel(kernel, us)])
    return t.operator("aten::linear", [[1024, 512], [2048, 512]], types, inside=[counted])


@pytest.mark.parametrize(("inner", "operator"), [(True, "aten::mm"), (False, "aten::linear")])
def test_a_composite_operator_counts_where_none_that_it_calls_does(tmp_path, inner, operator):
    def linear(t):
        own = t.kernel("own", 3)
        inside = [product(t), own] if inner else [own]
        return t.operator("aten::linear", [[1024, 512], [2048, 512]], "c10::BFloat16", inside=inside)

    report = traced(tmp_path, lambda t: t.block("step 0", [linear(t)]))
    computing = [row for row in operator_rows(WorkShapes(report.attribution)) if row.flops]
    assert [(row.operator, row.calls, row.flops) for row in computing] == [(operator, 1, 2 * 1024 * 512 * 2048)]


def test_a_convolution_with_its_transposes_is_one_call_of_one_operator(tmp_path):
    report = traced(tmp_path, lambda t: t.block("step 0", [convolution(t), convolution(t)]))
    (row,) = operator_rows(WorkShapes(report.attribution))
    assert (row.operator, row.calls, row.kernels, row.kernel_ns) == ("aten::convolution", 2, 6, 30_000)
    assert row.flops == 2 * 2 * 8 * 28 * 28 * 64 * 64 * 9
    assert row.shape == "8×64×28×28→64, 3×3"
    kernels = {row.kernel: row.category for row in kernels_by_operator(WorkShapes(report.attribution))}
    assert kernels["nchwToNhwcKernel"] == "copy"
    assert kernels["sm80_xmma_fprop_implicit_gemm_f32"] == "convolution"


def test_kernels_by_operator_add_up_to_kernels_alone(tmp_path):
    report = traced(tmp_path, lambda t: t.block("step 0", [convolution(t), product(t), t.kernel("mystery", 7)]))
    by_operator = kernels_by_operator(WorkShapes(report.attribution))
    assert sum(row.total_ns for row in by_operator) == sum(row.total_ns for row in report.whole.kernels)
    assert {row.operator for row in by_operator} == {"aten::convolution", "aten::mm", NO_OPERATOR}


def test_a_product_is_judged_by_the_peak_that_bounds_it(tmp_path):
    report = traced(tmp_path, lambda t: t.block("step 0", [product(t)]))
    (row,) = operator_rows(WorkShapes(report.attribution))
    flops = 2 * 1024 * 512 * 2048
    assert (row.operator, row.shape, row.dtype, row.flops) == ("aten::mm", "1024×2048×512", "bf16", flops)
    assert row.bound_ns(PEAK) == pytest.approx(1e9 * max(flops / 989.4e12, row.bytes / 3350e9))
    assert row.bound(PEAK) == ("compute" if flops / 989.4e12 > row.bytes / 3350e9 else "memory")


#: The kernel's name, its time, and the arithmetic whose peak bounds it, TFLOP/s.
ARITHMETIC = [
    ("ampere_sgemm_128x64_nn", 100, 67),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn", 100, 494.7),
    ("nvjet_sss_128x64", 100, 67),  # names that do not tell: fp32 …
    ("nvjet_sss_128x64", 10, 494.7),  # … unless it is faster than fp32 can be
]


@pytest.mark.parametrize(("kernel", "us", "tflops"), ARITHMETIC)
def test_names_of_kernels_tell_tf32_from_fp32(tmp_path, kernel, us, tflops):
    report = traced(tmp_path, lambda t: t.block("step 0", [product(t, "float", us, kernel)]))
    (row,) = operator_rows(WorkShapes(report.attribution))
    assert row.bound_ns(PEAK) == pytest.approx(max(row.flops / tflops / 1e3, 1e9 * row.bytes / PEAK.bytes))


def test_places_and_sizes_are_rows_of_their_own_and_layers_one_by_name(tmp_path):
    def layers(t):
        return t.block("step 0", [t.block(f"layer {n}", [product(t), product(t, us=50)]) for n in range(3)])

    report = traced(tmp_path, layers)
    shapes = WorkShapes(report.attribution)
    assert [row.calls for row in operator_rows(shapes)] == [2, 2, 2]
    (row,) = operator_rows(
        shapes, lambda path: tuple("layer *" if name.startswith("layer") else name for name in path)
    )
    assert (row.path, row.calls, row.kernel_ns) == (("step 0", "layer *"), 6, 450_000)


def test_types_of_lists_follow_from_the_kernels(tmp_path):
    name = (
        "void at::native::multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float, 1, 1, 0>>"
    )

    def update(t):
        return t.operator(
            "aten::_foreach_mul_", [[[64, 64], [64]], []], ["TensorList", "Scalar"], inside=[t.kernel(name, 3)]
        )

    (row,) = operator_rows(WorkShapes(traced(tmp_path, lambda t: t.block("step 0", [update(t)])).attribution))
    assert (row.bytes, row.shape) == (2 * 4 * (64 * 64 + 64), "2 tensors, 4,160 numbers")


def test_what_shapes_do_not_tell_is_unknown_and_communication_is_not(tmp_path):
    def experts(t):
        return t.operator(
            "vllm::moe_forward", [[888, 3072], [888, 128], []], inside=[t.kernel("bmm_MxE4m3_sm100f", 60)]
        )

    def gathered(t):
        return t.operator("c10d::_allgather_base_", [[8], [4]], inside=[t.kernel("ncclDevKernel_AllGather", 9)])

    report = traced(tmp_path, lambda t: t.block("step 0", [experts(t), gathered(t), product(t)]))
    (row,) = unknown_rows(operator_rows(WorkShapes(report.attribution)))
    assert (row.operator, row.kernel_ns) == ("vllm::moe_forward", 60_000)


def test_rules_can_mark_work_by_its_call_and_ask_for_its_least_time(tmp_path):
    def odd(t):
        return t.operator(
            "aten::mm", [[1024, 511], [511, 2048]], "c10::BFloat16", inside=[t.kernel("gemm_align1", 40)]
        )

    report = traced(tmp_path, lambda t: t.block("step 0", [product(t), odd(t), t.kernel("mystery", 7)]))
    shapes = WorkShapes(report.attribution)
    names = np.array(report.trace.names)[report.trace.work.name_id]
    unaligned = shapes.marked(lambda call, cost: cost.is_aligned is False)
    assert names[unaligned].tolist() == ["gemm_align1"]
    least_ns = shapes.least_ns(PEAK)
    assert np.isnan(least_ns[names == "mystery"]).all()
    assert (least_ns[names == "gemm_align1"] < 40_000).all()


def test_a_part_of_the_rows_can_be_wanted(tmp_path):
    report = traced(
        tmp_path, lambda t: t.block("step 0", [t.block("a", [product(t)]), t.block("b", [product(t)])])
    )
    rows = operator_rows(WorkShapes(report.attribution), wanted=lambda path, phase: "a" in path)
    assert [row.path for row in rows] == [("step 0", "a")]
