"""Categories of kernels: the table against real names, hostile names and reports of other people."""

import re
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.kernel_names.categories import MEANINGS, categorize, classify
from nvtx_kernels.analysis.kernel_names.category_rules import RULES
from nvtx_kernels.analysis.kernel_names.parts import fused_ops, in_words, split_name

from tests.analysis.making.bundled import SHARED, needs_shared
from tests.analysis.making.real_kernels import NAMES, ROWS, kernels_of

KERNEL_CATEGORIES = set(MEANINGS) - {"other", "memcpy", "memset", "graph"}


def test_names_are_many_distinct_and_of_every_category():
    assert len(set(NAMES)) == len(NAMES) >= 200
    assert {row["category"] for row in ROWS} == KERNEL_CATEGORIES


def test_every_real_name_has_its_category():
    assert dict(zip(NAMES, categorize(NAMES), strict=True)) == {row["name"]: row["category"] for row in ROWS}


def test_gemm_launches_are_gemms_without_their_helpers():
    expected = {row["name"] for row in ROWS if row["gemm_launch"] == "yes"}
    assert {name for name, (_, launch) in zip(NAMES, classify(NAMES), strict=True) if launch} == expected
    helpers = {row["name"] for row in ROWS if row["category"] == "gemm"} - expected
    assert {"splitKreduce" in name for name in helpers} == {True, False}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.category}-{rule.example[:40]}")
def test_rule_is_the_first_that_knows_its_example(rule):
    head, inside = split_name(rule.example)
    text = {True: in_words(head), False: head}
    first = next(
        one
        for one in RULES
        if re.search(one.pattern if one.words else one.head, text[bool(one.words)])
        and re.search(one.inside, inside)
    )
    assert first == rule
    assert classify([rule.example]) == [(rule.category, rule.category == "gemm" and not rule.helper)]


def test_every_category_is_described_and_every_rule_has_one():
    assert all(MEANINGS.values())
    assert {rule.category for rule in RULES} == KERNEL_CATEGORIES


UNKNOWN = ("", " ", "kernel", "my_model_step", "fft_kernel", "triton__0d1d2de", "aten::viewer")
MENTIONING = (
    "void foo<at::native::softmax_op>(gemm*)",
    "void scramble<cutlass::gemm::GemmShape<1, 2, 3> >(flash::Params)",
)


@pytest.mark.parametrize("name", [*UNKNOWN, *MENTIONING])
def test_what_no_rule_knows_is_other(name):
    assert classify([name]) == [("other", False)]


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, Softmax_gemm_op> >(T)", "reduction"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::reduce_conv_gemm>(int)", "elementwise"),
        ("void deep_gemm::transpose_fp32<512, 64>(float const*, float*)", "copy"),
        ("sm80_xmma_dgrad_implicit_gemm_tf32f32", "convolution"),
        ("void flash::flash_fwd_kernel<cutlass::gemm::GemmShape<1> >(flash::Flash_fwd_params)", "attention"),
        ("vllm::rotary_embedding_kernel", "elementwise"),
        ("void at::native::multi_tensor_apply_kernel<M, Copy<long, long> >(T)", "copy"),
        ("aten::_foreach_copy_", "copy"),
        (
            "void at::native::multi_tensor_apply_kernel<M, FusedAdamMathFunctor<float>, reduce_gemm>(T)",
            "optimizer",
        ),
        ("triton_poi_fused_addmm_relu_3", "elementwise"),
        ("triton_poi_fused_convolution_relu_3", "elementwise"),
        ("triton_red_fused_mm_0", "reduction"),
        ("_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIfEEEEEEvT1_", "reduction"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4EZNS0_18direct_copy_kernel_cudaE", "copy"),
    ],
)
def test_function_decides_before_what_its_arguments_mention(name, category):
    assert categorize([name]) == [category]


WORDS = {
    "FillKernel": "elementwise",
    "void flashinfer::BatchPrefillKernel<float>(int)": "other",
    "cast_kernel": "copy",
    "forecast_kernel": "other",
    "broadcast_kernel": "other",
    "max_pool2d": "reduction",
    "pooled_output": "other",
    "fused_rope_kernel": "elementwise",
    "europe_kernel": "other",
    "fused_adam_cuda": "optimizer",
    "fast_hadamard_transform_kernel": "linalg",
    "fast_wavelet_transform_kernel": "other",
    "DeviceSegmentedRadixSortKernel": "scan",
    "resorted": "other",
    "gemma_rmsnorm_kernel": "normalization",
    "transformer_engine::dispatch::fp8::cast_fp8_2D_kernel": "copy",
    "flash::flash_fwd_splitkv_combine_kernel": "attention",
    "step::redispatch": "other",
    "my_company::ep::internode_ll::combine": "communication",
    "fused_gdn_gating_kernel": "elementwise",
    "sampler_state": "other",
    "trapezoid_rule": "other",
}


@pytest.mark.parametrize(("name", "category"), WORDS.items())
def test_words_match_as_words_and_never_inside_others(name, category):
    assert categorize([name]) == [category]


NEAR = {
    "__myl_FcCast_myl0_8": "gemm",
    "__myl_FchangeCast_myl0_8": "copy",
    "__myl_MaxSubExp_myl0_9": "elementwise",
    "__myl_MulSumAdd_myl0_9": "reduction",
    "__myl_Resh_myl0_6": "copy",
    "__myl_ReshAdd_myl0_6": "elementwise",
    "nvfuser_none_f0_c0_r0_g0(Tensor<float, 2, 2>, Tensor<float, 2, 2>)": "other",
    "cupy_maximum__float64_float64_float64": "elementwise",
    "cupy_maxwell__float64": "other",
    "cupy_taken": "other",
    "cupy_subtraction_of_means": "other",
    "all-reduced": "other",
    "loop_transpose_add_fusion.1": "elementwise",
    "fft.size": "other",
    "_deepseek_v4_stage_mega_moe_inputs_kernel": "copy",
    "stage_pages": "copy",
    "stage_one": "other",
    "merge_kvs": "other",
    "fused_qkv_split_gdn_prefill_kernel": "copy",
    "gdn_prefill_kernel": "scan",
    "buildAttentionInputMetadataKernel": "index",
    "metadatabase": "other",
    "_prepare_dflash_inputs_kernel": "index",
    "_gemma_norm_rope": "normalization",
    "_gemma_rope": "elementwise",
    "abnormal_rope": "elementwise",
    "gdrift": "other",
    "current_state": "other",
    "fwd_fp8_256t": "attention",
    "fwd_fp8_256threads": "other",
    "pa_bf16_noquant_gqa8_1tg_4w": "attention",
    "spa_bf16_noquant_1tg_4w": "other",
    "bwd_kernel_causality": "other",
    "bwd_kernel_casual": "other",
    "mmvq_q2_k": "gemm",
    "quantize_mmq_q8_1": "copy",
    "fused_moe_aux_loss_w8a8": "reduction",
    "topk_to_block_table": "scan",
    "update_block_table": "index",
    "reshuffled": "other",
    "packet_kernel": "other",
    "transferable": "other",
    "unmasked": "other",
    "linearity": "other",
    "routers_of_packets": "other",
    "mapped_reduce_kernel": "reduction",
    "sender": "other",
    "dsatur": "other",
    "dbiased": "other",
    "fwht_kernel": "linalg",
}


@pytest.mark.parametrize(("name", "category"), NEAR.items())
def test_what_is_near_a_rule_keeps_its_own_category(name, category):
    assert categorize([name]) == [category]


ON_A_CPU = {
    "aten::view": ("copy", False),
    "aten::t": ("copy", False),
    "aten::tt": ("other", False),
    "detach": ("copy", False),
    "detached": ("other", False),
    "aten::empty": ("elementwise", False),
    "aten::empty_cache": ("other", False),
    "aten::lstm": ("gemm", False),
    "aten::lstm_hidden": ("other", False),
    "aten::mkldnn_rnn_layer": ("gemm", True),
    "aten::mkldnn_rnn_layer_backward": ("gemm", True),
    "aten::mkldnn_rnn_layers": ("other", False),
    "AddmmBackward0": ("gemm", False),
    "autograd::engine::evaluate_function: AddmmBackward0": ("gemm", False),
    "autograd::engine::evaluate_function: MkldnnRnnLayerBackward0": ("gemm", False),
    "NativeLayerNormBackward0": ("normalization", False),
    "LogSoftmaxBackward0": ("softmax", False),
    "autograd::engine::evaluate_function: ReluBackward0": ("elementwise", False),
    "MyFunctionBackward": ("other", False),
    "AddmmBackwards_and_more": ("other", False),
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad": ("elementwise", False),
    "## Call CompiledFxGraph f4hlkwd7 ##": ("elementwise", False),
    "## Call my model ##": ("other", False),
    "Torch-Compiled Region: 0/0": ("elementwise", False),
    "record_param_comms": ("communication", False),
    "record_params": ("other", False),
}


@pytest.mark.parametrize(("name", "expected"), ON_A_CPU.items())
def test_operators_and_nodes_of_a_cpu_are_known(name, expected):
    assert classify([name]) == [expected]


PRODUCTS = (
    "aiter",
    "cupy",
    "cupy_kernel",
    "__myl_",
    "flashinfer::run",
    "vllm::step",
    "deep_gemm::run",
    "tensorrt_llm::run",
)


@pytest.mark.parametrize("product", PRODUCTS)
def test_name_of_a_product_alone_says_nothing(product):
    assert classify([product]) == [("other", False)]


def test_categories_do_not_depend_on_company():
    alone = [categorize([name])[0] for name in NAMES[::9]]
    assert categorize(NAMES[::9]) == alone
    assert categorize([]) == []


@given(st.lists(st.text(max_size=60)))
def test_any_text_has_a_category_of_the_list(names):
    found = categorize(names)
    assert len(found) == len(names)
    assert set(found) <= set(MEANINGS)


PIECES = (
    "a",
    "<",
    "void <",
    "gemm\n",
    "_ZN1a",
    "triton_poi_fused_",
    "std::enable_if<",
    "\x1b[2J",
    "\ud800",
    "漢",
    "\0",
)


@pytest.mark.parametrize("piece", PIECES)
def test_megabyte_of_anything_takes_no_time(piece):
    began = time.process_time()
    categorize([piece * (1_000_000 // len(piece))] * 3)
    assert time.process_time() - began < 2


def test_many_distinct_names_take_time_in_proportion():
    names = [f"{NAMES[number % len(NAMES)]}{number}" for number in range(40_000)]
    began = time.process_time()
    categories = Counter(categorize(names))
    assert time.process_time() - began < 8
    assert sum(categories.values()) == 40_000


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("triton_poi_fused_0", ()),
        ("triton_poi_fused__to_copy_1", ("to_copy",)),
        ("triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_10", ("to_copy", "add", "mean", "mul", "pow", "rsqrt")),
        ("triton_red_fused__log_softmax_backward_data_add_2", ("log_softmax_backward_data", "add")),
        (
            "triton_poi_fused_native_dropout_relu_threshold_backward_4",
            ("native_dropout", "relu", "threshold_backward"),
        ),
        ("triton_tem_fused_addmm_relu_3.kd", ("addmm", "relu")),
        ("cpp_fused_add_mul_3", ("add", "mul")),
        ("ampere_sgemm_128x64_tn", ()),
    ],
)
def test_compiled_kernel_lists_its_operators(name, operators):
    assert fused_ops(name) == operators


@needs_shared
def test_under_one_percent_of_any_shared_report_is_other():
    for kernels in filter(None, map(kernels_of, SHARED.glob("*/*.sqlite"))):
        spent_ns = Counter()
        for category, (_, kernel_ns) in zip(categorize([*kernels]), kernels.values(), strict=True):
            spent_ns[category] += kernel_ns
        assert spent_ns["other"] < 0.01 * spent_ns.total()


@needs_shared
@pytest.mark.parametrize(
    ("report", "launches", "helpers"), [("h200/forward_fp32.sqlite", 327, 0), ("h200/train_fp32.sqlite", 654, 96)]
)
def test_gemms_of_the_reference_model_are_counted_exactly(report, launches, helpers):
    kernels = kernels_of(SHARED / report)
    counted = Counter()
    for (count, _), (category, is_gemm) in zip(kernels.values(), classify([*kernels]), strict=True):
        counted[category, is_gemm] += count
    assert (counted["gemm", True], counted["gemm", False]) == (launches, helpers)
