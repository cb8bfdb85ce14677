"""Names in a shared copy: known words stay, others are numbered, and what a name means to the analysis stays."""

import re
from collections import defaultdict
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nvtx_kernels.analysis.kernel_names.categories import MEANINGS, categorize, classify
from nvtx_kernels.analysis.kernel_names.category_rules import RULES
from nvtx_kernels.analysis.scrub import main, meanings
from nvtx_kernels.analysis.scrub.meanings import frame_meaning, kernel_meaning, meaning
from nvtx_kernels.analysis.scrub.names import Names, Role
from nvtx_kernels.analysis.scrub.words import TOKEN, WORD, words_of
from nvtx_kernels.analysis.vocabulary import SETTING_HOOKS, collapsed, without_numbers
from nvtx_kernels.analysis.vocabulary.range_names import PHASE_NAMES, STEP_NAMES

from tests.analysis.making.kineto import Program, Work, operator, write_kineto, write_nsys
from tests.analysis.making.real_kernels import NAMES
from tests.conftest import slice_of

KNOWN = (
    "layer 3", "block_3.attn", "/encoder/layer.0/attention/MatMul", "forward", "computing attention scores",
    "LlamaDecoderLayer", "Conv2d", "tokens: 4096, forward/backward", "FSDP::all_gather (layers.3)", "RMSNorm",
    "step[EXTEND bs=8 toks=1048576]", "autograd::engine::evaluate_function: MmBackward0", "aten::_to_copy",
    "norm + up projection", "recompute", SETTING_HOOKS,
    "nccl:all_reduce", "Optimizer.step#AdamW.step",
)  # fmt: skip


@pytest.mark.parametrize("name", [*KNOWN, *(row.example for row in (*PHASE_NAMES, *STEP_NAMES))])
def test_names_of_known_words_stay(name):
    assert Names().range(name) == name


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("db.internal.acme.com", "name1.internal.name2.name3"),
        ("//home//jdoe", "//name1//name2"),
        ("user=jdoe", "user=name1"),
        ("node17:29500", "name1num1:900001"),
        ("JDOE7Anna7BobE7Eve7CarolA7", "NAME1NUM1Name2num1Name3E7Name4num1Name5A7"),
        ("jdoe7 jdoe8 jdoe anna8", "name1num1 name1num2 name2 name3num1"),
        ("%2Fhome%2Fjdoe", "%2Fname1%2Fname2"),
        ("%6A%64%6F%65", "%name1num1%900001%name2num1%900002"),
        ("a94a8fe5ccb19ba61c4c0873d391e987982fbbd3", "name1num1"),
        ("10.23.45.67", "900001.900002.900003.900004"),
        ("4a170c9a-0f4f-c4f1-a51d-5c938aeb3497", "name1num1-name2num1-name3num1-name4num1-name5num1"),
        ("step 1234567", "step 900001"),
        ("SwishBackward0 JdoeBackward0", "SwishBackward0 Name1Backward0"),
        ("jdoe JDOE Jdoe jdoe", "name1 NAME1 Name1 name1"),
        ("g\0h\0p\0", "name1"),
        ("café", "name1"),
        ("name1", "name1"),
    ],
)
def test_other_words_and_joined_numbers_are_replaced(name, shared):
    assert Names().range(name) == shared
    assert Names(of_copy=True).range(shared) == shared


@pytest.mark.parametrize(
    ("environment", "name", "shared"),
    [
        ("max", "max pool", "name1 pool"),
        ("/home/will/norm", "LayerNorm", "LayerName1"),
        ("python -m train --size large", "large model", "name1 model"),
        ("forward", "forward", "forward"),  # a phase is one under any name
        ("softmax", "computing softmax", "computing softmax"),
        ("/opt/nvidia/nsight-systems/2025.3.2/host-linux-x64", "simt_sgemm_64x64_8x5", "simt_sgemm_64x64_8x5"),
        ("engine", *["autograd::engine::evaluate_function: MmBackward0"] * 2),
    ],
)
def test_words_of_the_environment_are_kept_only_where_figures_depend_on_them(environment, name, shared):
    assert Names(own_words=words_of(environment.split())).range(name) == shared


def test_known_kernels_stay():
    shared, names = Names(), NAMES[::4]
    assert sum(shared.kernel(name) == name for name in names) > 0.85 * len(names)


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("void jdoe_kernel<float>(int)", "other_name_1"),
        ("jdoe_bf16_gemm_kernel", "gemm_bf16_name_1"),
        ("splitKreduce_jdoe", "splitk_reduce_name_1"),
        ("jdoe_all_gather", "ncclDevKernel_all_gather_name_1"),
        ("jdoe_fprop_float_nhwc", "fprop_sgemm_name_1"),
        ("jdoe_sm90_gemm_align2", "gemm_name_1_sm80_align2"),
        ("triton_poi_fused_jdoe_add_3", "triton_poi_fused_name1_add_3"),
        ("triton_poi_fused_jdoesoftmax_3", "softmax_name_2_multi_tensor"),
        ("gemm_name_7", "gemm_name_1"),
    ],
)
def test_kernels_with_unknown_words_keep_their_category(name, shared):
    assert Names().kernel(name) == shared
    assert Names(of_copy=True).kernel(shared) == shared


def test_every_category_has_a_name_for_unknown_kernels():
    known = [f"{name} jdoe" for name in NAMES]
    by_category = defaultdict(list)
    for name, category in zip(known, categorize(known), strict=True):
        by_category[category].append(name)
    names = [name for named in by_category.values() for name in (*named[:3], *slice_of(named[3:], 20))]
    shared = Names()
    assert [name for name in names if kernel_meaning(shared.kernel(name))[:-1] != kernel_meaning(name)[:-1]] == []
    assert {kernel_meaning(name)[0] for name in names} == set(list(MEANINGS)[:-3])


PIECES = (
    "jdoe", "forward", "layer", "step", "optimizer", "warmup", "::", "aten", "Backward0", " ", "_", ".", "3",
    "1234567", "zero_grad", "nccl", "cub", "é", "\0", "Swish", "softmax", "scores", "attention", "epoch", "/",
    "10.2.3.4", "deadbeef01", "Acme", "[pl]", "fwd", "bwd", " + ", "name1", "900001", "*", "cublasLt", "loss", "-",
)  # fmt: skip
texts = st.one_of(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), st.text(max_size=30))


@given(st.lists(texts, min_size=1, max_size=6, unique=True), st.booleans())
@example(["é::x", "jdoesoftmax::", "jdoegemm::Backward0", "nccljdoe::"], False)
@example(["name1", "jdoe"], False)
@example(["step1234567", "step900001", "layer1"], False)
@example(["run 1234567", "run 7654321", "run 1"], False)
def test_copies_keep_what_names_mean_and_which_are_equal(names, of_own):
    own = words_of(["/home/forward/layer", "step"]) if of_own else ()
    sharing = Names(own_words=own)
    shared = [sharing.range(name) for name in names]
    assert [meaning(name) for name in shared] == [meaning(name) for name in names]
    assert len(set(shared)) == len(set(names))
    for alike in (collapsed, without_numbers):
        assert len(set(map(alike, shared))) == len(set(map(alike, names)))
    assert [Names(of_copy=True).range(name) for name in shared] == shared


@pytest.mark.parametrize(
    ("frame", "shared"),
    [
        ("train.py(12): main", "train.py(12): main"),
        ("jdoe_net.py(3): jdoe", "name1_net.py(3): name1"),
        ("/home/jdoe/x/train.py(3): step", "name1/train.py(3): step"),
        ("C:\\Users\\jdoe\\train.py(3): step", "name1/train.py(3): step"),
        ("/home/jdoe/lib/python3.12/site-packages/torch/optim/adamw.py(9): step", "torch/optim/adamw.py(9): step"),
        ("/home/jdoe/jdoe_data_loader.py(3): f", "name1/name2_data_loader.py(3): f"),
        ("jdoedataloader.py(3): f", "name2/other_load_batch.py(0): name2"),
        ("nn.Module: JdoeNet_0", "nn.Module: Name1Net_0"),
        ("<built-in method jdoe of type>", "<built-in method name1 of type>"),
    ],
)
def test_functions_keep_known_words_and_what_they_do(frame, shared):
    assert Names().frame(frame) == shared
    assert frame_meaning(shared) == frame_meaning(frame)
    assert Names(of_copy=True).frame(shared) == shared


@pytest.mark.parametrize(
    ("role", "text", "shared"),
    [
        (Role.MODULE, "model.layers.0.1.mlp", "model.layers.0.1.mlp"),
        (Role.MODULE, "jdoe.layers.0.1 (outputs)", "name1.layers.0.1 (outputs)"),
        (Role.FILE, "src/jdoe/train.py", "src/name1/train.py"),
        (Role.FACT, "nsys 2025.3.2", "nsys 2025.3.2"),
        (Role.FACT, "nvtx-kernels recorder 0.1.0", "nvtx-kernels recorder 0.1.0"),
        (Role.FACT, "jdoe 10.2.3.4", "name1 900001.900002.900003.900004"),
        (Role.NOTE, "1.25 ms was lost at 10.2.3.4.", "1.25 ms was lost at 900001.900002.900003.900004."),
        (Role.NOTE, "Interrupted by JdoeError; the last step may be incomplete.",
         "Interrupted by Name1Error; the last step may be incomplete."),
        (Role.THREAD, "jdoe, pt_autograd_0, python3", "pt_autograd_0, python3"),
        (Role.DOMAIN, "nvtx-kernels", "nvtx-kernels"),
        (Role.PATH, "forward > JdoeNet > layer *", "forward > Name1Net > layer *"),
    ],
)  # fmt: skip
def test_texts_keep_what_their_role_allows(role, text, shared):
    assert Names().shared(role, text) == shared
    assert Names(of_copy=True).shared(role, shared) == shared


RULE_WORDS = sorted(
    {word for rule in RULES for find in (TOKEN.findall, WORD.findall) for word in find(rule.example)}
)
of_rules = st.lists(st.sampled_from(RULE_WORDS) | st.sampled_from(["Jdoe", "jdoe7"]), min_size=1, max_size=3)
AROUND = (
    "{}", "{}Backward0", "void {}_kernel<float>", "triton_poi_fused_{}_0", "cublasLt{}", "cublasLt{}Backward0",
    "nccl{}", "nccl:{}Backward0", "aten::{}", "acme::{}", "acme::{}Backward0", "cub{}Backward0",
)  # fmt: skip


NUMBERS = (2, 3, 7, 16, 32, 64, 80, 128, 512, 884, 1688, 12345)


def test_a_category_does_not_depend_on_the_numbers_in_a_copy():
    readable = [name for name in (*NAMES, *(rule.example for rule in RULES)) if not name.startswith("_Z")]
    names = slice_of(readable, 20)
    shared = [Names().kernel(f"{name} jdoe") for name in names]
    shared += [
        f"{name[: word.start()]}name1{name[word.end() :]}" for name in names for word in WORD.finditer(name)
    ]
    numbered = [re.sub(r"(?<=name|ame_)1$|(?<=name)1", str(n), name) for name in shared for n in (1, *NUMBERS)]
    found = classify(numbered)
    for first in range(0, len(found), 1 + len(NUMBERS)):
        assert len({*found[first : first + 1 + len(NUMBERS)]}) == 1, numbered[first]


@pytest.mark.parametrize("shape", [*meanings.RANGE_SHAPES, *product(meanings.LIBRARIES, meanings.KERNEL_WORDS)])
def test_a_ranges_meaning_does_not_depend_on_the_numbers_in_a_copy(shape):
    shapes = [shape]
    if isinstance(shape, tuple):
        library, category = shape
        shapes = [
            f"{library}{word}_{{}}{node}" for word in meanings.KERNEL_WORDS[category] for node in ("", "Backward0")
        ]
    for each in shapes:
        for indices in ("", " 1", " 1 1 1"):
            like = meaning(f"{each.format('name1')}{indices}")
            for number in NUMBERS:
                new = f"{each.format(f'name{number}')}{indices.replace('1', str(number))}"
                assert meaning(new) == like, new


MANY = {
    "kernels": (Role.KERNEL, "jdoe{0}_kernel"),
    "compiled kernels": (Role.KERNEL, "triton_poi_fused_jdoe{0}x_add_{0}"),
    "operators": (Role.RANGE, "jdoe{0}::jdoe_op_{0}"),
    "operators whose category is in unknown words": (Role.RANGE, "jdoe{0}x::xgemm_{0}"),
    "nodes": (Role.RANGE, "autograd::engine::evaluate_function: Jdoe{0}xBackward0"),
}


@pytest.mark.parametrize("what", MANY)
@pytest.mark.parametrize("write", [write_kineto, write_nsys])
def test_a_copy_of_thousands_of_unknown_names_is_made_at_once(tmp_path, monkeypatch, what, write):
    role, form = MANY[what]
    asked, named = [], [form.format(number) for number in range(3_000)]
    monkeypatch.setattr(meanings, "classify", lambda names: asked.append(len(names)) or classify(names))
    meanings.CLASSIFIED.clear()
    meanings.meaning.cache_clear()
    program = Program(
        [operator(name, 9 * n, 9 * n + 8, seq=n) for n, name in enumerate(named) if role is Role.RANGE],
        work=[Work(n, 9 * n, 9 * n + 8, name) for n, name in enumerate(named, 1) if role is Role.KERNEL],
    )
    report = write(tmp_path / f"a{'.sqlite' if write is write_nsys else '.json'}", program)
    assert main([str(report), "-o", str(tmp_path / "copy.sqlite")]) == 0
    assert sum(asked) >= 3_000
    assert len(asked) < 100


@pytest.mark.parametrize("what", MANY)
def test_names_that_were_expected_are_replaced_as_others(what):
    role, form = MANY[what]
    uses = [(role, form.format(number)) for number in range(300)]
    shared, expecting = Names(), Names()
    expecting.expect(uses)
    assert [expecting.shared(*use) for use in uses] == [shared.shared(*use) for use in uses]


@given(of_rules, st.sampled_from(["", "_", "::"]), st.sampled_from(AROUND))
@example(["softmax"], "", "cublasLt{}Backward0")
@example(["x", "reduction", "ncclbroadcast"], "", "nccl:{}")
@example(["From", "topk", "GatingSoftmax", "reshape_kernel"], "", "aten::{}")
def test_names_of_the_rules_words_keep_their_category(words, separator, around):
    sharing, name = Names(), around.format(separator.join(words))
    kernel, of_range = sharing.kernel(name), sharing.range(name)
    assert kernel_meaning(kernel)[:-1] == kernel_meaning(name)[:-1]
    assert meaning(of_range) == meaning(name)
    assert "jdoe" not in (kernel + of_range).lower()
    of_copy = Names(of_copy=True)
    assert (of_copy.kernel(kernel), of_copy.range(of_range)) == (kernel, of_range)


def test_a_program_s_own_operator_still_fits_its_node():
    sharing = Names()
    assert sharing.range("acme::swirl_norm") == "name1::name2_norm"
    assert sharing.range("SwirlNormBackward0") == "Name2NormBackward0"


@pytest.mark.parametrize(
    ("thread", "kept"),
    [("planted_thread", ""), ("jdoe_autograd_x", "autograd"), ("pt_autograd_0", "pt_autograd_0")],
)
def test_threads_keep_known_words_only(thread, kept):
    assert Names().shared(Role.THREAD, thread) == kept
