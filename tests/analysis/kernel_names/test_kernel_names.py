"""Short kernel names: readable, distinct, safe to print and cut to a width."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.kernel_names.parts import mangled_words, split_name, template_arguments
from nvtx_kernels.analysis.kernel_names.short import distinct_short_names, short_name
from nvtx_kernels.analysis.support.text import cells, fit, printable

from tests.analysis.making.bundled import SHARED, needs_shared
from tests.analysis.making.real_kernels import NAMES, kernels_of

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"
SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute"
SHORT = {
    "ampere_sgemm_128x64_tn": "ampere_sgemm_128x64_tn",
    "aten::_softmax": "aten::_softmax",
    f"{SGEMM}_kernel__5x_cublas": "sm80_xmma_gemm f32 tn 128x128x8 stage3",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(T1::Params)": (
        "cutlass sgemm 256x128_8x4 nt align1"
    ),
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8>(T1::Params)": (
        "cutlass tensorop bf16 s16816gemm relu bf16 128x64_64x3 tn align8"
    ),
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, true>(int)": "splitKreduce 32 16 i32 f32",
    "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, float, (bool)1, (int)7>(T9)": (
        "gemvx i32 f32 7"
    ),
    f"{ELEMENTWISE}BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>>(int)": (
        "elementwise mul f32 (vec4)"
    ),
    f"{ELEMENTWISE}BUnaryFunctor<long, long, long, at::native::binary_internal::DivFunctor<long>>>(int)": (
        "elementwise div scalar i64 (vec4)"
    ),
    f"{ELEMENTWISE}CUDAFunctorOnSelf_add<c10::Half>, std::array<char *, 2>>(int)": (
        "elementwise add scalar f16 (vec4)"
    ),
    f"{ELEMENTWISE}FillFunctor<c10::BFloat16>, std::array<char*, 1ul> >(int)": "elementwise fill bf16 (vec4)",
    f"{ELEMENTWISE}exp_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 2)]::operator ()() const::"
    "[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)": (
        "elementwise exp f32 (vec4)"
    ),
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
    "(anonymous namespace)::masked_fill_kernel(at::TensorIterator&)::{lambda(float, bool)#1}>(int)>(int)": (
        "elementwise masked_fill f32 (strided)"
    ),
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(T)::[lambda(float)], "
    "at::native::memory::LoadWithCast<1>>(int)": "elementwise direct_copy f32 (unrolled, cast)",
    "void at::native::reduce_kernel<512, (int)1, at::native::ReduceOp<float, at::native::MaxOps<float>>>(T)": (
        "reduce max f32 (512x1)"
    ),
    "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, "
    "at::native::<unnamed>::TernaryOpScalarFunctor<float>, at::native::LerpFunctor<float>>(T1)": (
        "multi_tensor ternary_op_scalar lerp f32"
    ),
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, cutlass::bfloat16_t>>(T)": (
        "flash_fwd bf16 128x128x64"
    ),
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Mainloop<2, cute::tuple<"
    "cute::C<128>, cute::C<80>, cute::C<256> >, cutlass::half_t>>>>(T)": (
        "cutlass flash_attn_fwd_sm90 128x80x256 f16"
    ),
    "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEE": "cutlass gemm_universal",
    "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)4, float, float, float, LogSoftMaxBackward>(T2)": (
        "cunn_SoftMaxBackward 4 f32 LogSoftMaxBackward"
    ),
    "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_10": "triton to_copy add mean mul pow rsqrt (per 10)",
    "triton_poi_fused_0": "triton (poi 0)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)": "ncclDevKernel_SendRecv",
}


@pytest.mark.parametrize(("name", "short"), SHORT.items(), ids=[*SHORT.values()])
def test_short_name_says_operation_type_and_shape(name, short):
    assert short_name(name) == short


def test_short_names_of_real_kernels_are_short_and_mostly_their_own():
    short = [short_name(name) for name in NAMES]
    assert all(0 < len(text) <= 100 and text.isprintable() for text in short)
    long_names = [name for name in NAMES if len(name) > 100]
    assert sum(len(short_name(name)) for name in long_names) < 0.2 * sum(map(len, long_names))
    assert len(set(short)) > 0.85 * len(NAMES)


def test_distinct_short_names_are_distinct_and_in_order():
    short = distinct_short_names(NAMES)
    assert len(set(short)) == len(NAMES)
    assert distinct_short_names(NAMES[::-1]) == short[::-1]
    alone = Counter(map(short_name, NAMES))
    assert all(
        text == short_name(name) for name, text in zip(NAMES, short, strict=True) if alone[short_name(name)] == 1
    )


def test_equal_names_keep_one_short_name():
    assert distinct_short_names(["a<1>(x)", "b", "a<1>(x)"]) == ["a 1", "b", "a 1"]


def test_names_made_to_collide_with_the_numbering_stay_distinct():
    names = ["k<1>(a)", "k<1>(b)", "k 1 #1", "k 1 #2"]
    assert distinct_short_names(names) == ["k 1 #3", "k 1 #4", "k 1 #1", "k 1 #2"]


@needs_shared
def test_few_kernels_of_one_shared_report_share_a_short_name():
    for report in [*SHARED.glob("h200/*_fp32.sqlite"), *SHARED.glob("corpus/*small*.sqlite")]:
        names = kernels_of(report)
        assert len(names) - len(set(map(short_name, names))) <= 2


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain<int>", "plain<int>"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("Schicht ä 漢", "Schicht ä 漢"),
    ],
)
def test_nothing_printed_can_drive_a_terminal(raw, shown):
    assert printable(raw) == shown
    assert printable(raw).isprintable()


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefgh", 6, "abc…gh"),
        ("abcdefgh", 1, "…"),
        ("abcdefgh", 0, ""),
        ("abcdefgh", -3, ""),
        ("漢字漢字漢", 7, "漢…字漢"),
        ("漢字漢字漢", 10, "漢字漢字漢"),
        ("a\x1bb", 6, "a\\x1bb"),
    ],
)
def test_fit_leaves_out_the_middle(name, width, shown):
    assert fit(name, width) == shown


@given(st.text(max_size=80), st.integers(-2, 60))
def test_fit_never_exceeds_its_width(name, width):
    text = fit(name, width)
    assert cells(text) <= max(width, 0)
    assert text.isprintable()


@given(st.text(max_size=200) | st.text("<>(),:_Zabc19 ", max_size=200))
def test_any_name_has_a_short_printable_name(name):
    assert short_name(name).isprintable()
    assert cells(short_name(name)) <= 100


@pytest.mark.parametrize("piece", ["a", "<", "x<a::", "lambda(", "1", "e\u0301", "_ZN1a", "cutlass_80_1x1_", "(a"])
def test_megabyte_of_anything_has_a_short_name(piece):
    text = short_name("void at::native::elementwise_kernel<" + piece * (1_000_000 // len(piece)))
    assert cells(text) <= 100
    assert cells(short_name(piece * (1_000_000 // len(piece)))) <= 100


@pytest.mark.parametrize(
    ("name", "head", "inside"),
    [
        ("void at::native::(anonymous namespace)::f<1>(int)", "at::native::f", "<1>(int)"),
        ("void <unnamed>::f<(int)1>(T1)", "f", "<(int)1>(T1)"),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(T)",
            "internal::gemvx::kernel",
            "<int>(T)",
        ),
        ("std::enable_if<T2>(int)0&&v::_t<T1>::exists, void>::type vllm::f<T1>(T)", "vllm::f", "<T1>(T)"),
        ("_ZN2at6native12_GLOBAL__N_14copyILi4EEvv", "at::native::copy", "ILi4EEvv"),
        ("triton_poi_fused_0", "triton_poi_fused_0", ""),
    ],
)
def test_name_splits_into_function_and_arguments(name, head, inside):
    assert split_name(name) == (head, inside)


def test_template_arguments_are_those_of_the_top_level():
    assert template_arguments("<a<b, c>, (int)4, f(x, y)>(z, w)") == ["a<b, c>", "(int)4", "f(x, y)"]
    assert template_arguments("<a<b, c>, cut<off") == ["a<b, c>", "cut<off"]
    assert template_arguments("(int)") == template_arguments("") == []


def test_mangled_words_skip_substitutions():
    name = "INS_4gemm9GemmShapeILi64ELi128EEENS1_1_ES2_T_E"
    assert mangled_words(name) == ["gemm", "GemmShape", "64", "128", "_"]
