"""What names mean: phases, warm-up, steps, operators, libraries, threads, and names without their numbers."""

import re

import pytest
from nvtx_kernels.analysis import vocabulary
from nvtx_kernels.analysis.vocabulary import AUTOGRAD_THREADS, BACKWARD_OPERATORS, LIBRARY_RANGES, WORKER_THREADS
from nvtx_kernels.analysis.vocabulary.range_names import PHASE_NAMES, STEP_NAMES

from benchmarks import list_names

# Names beside the tables' own, by the phase that they say.
PHASES = {
    "forward": """
        forward | Forward | :forward | ## forward ## | forward pass | fwd_step 3 | Forward-2 | model forward |
        train/forward | step.forward | 1_forward | iter_3_forward | fw | forward + loss | loss | [pl]GPT: forward
        | FSDP::root_pre_forward | step[TARGET_VERIFY bs=4] | [Executor] _forward_step 3: 0 ctx reqs, 0 gen reqs
        | [Executor] _forward_step 3: 2 ctx reqs, 7 gen reqs""",
    "backward": """
        backward | Backward Pass | bwd | loss.backward() | backward prop""",
    "optimizer": """
        optimizer | optimizer step | Optimizer.step#AdamW.step | optim_step | opt.step() | AdamW.step | update |
        param optim | optimizer.zero_grad | zero_grad | [pl]optimizer_step""",
    None: """
        _flash_attn_forward | flash_attn::_flash_attn_forward | forward_fill | update_metrics |
        backwards compatible | attention forward | lr_scheduler.step | loss scaling | forwarding | fwdbwd |
        megatron.core.fusions.fused_bias_swiglu.BiasSwiGLUFunction.forward |
        megatron.core.transformer.transformer_layer.TransformerLayer._forward_mlp.mlp |
        TERowParallelLinearForward | execute_new_2_cached_3 | forward_backward | forward/backward |
        forward (and backward) | backward and optimizer step | optimization | attention""",
    "decode": """
        step[DECODE bs=64]""",
}


@pytest.mark.parametrize(
    ("name", "phase"),
    [("", None), *((name.strip(), phase) for phase, names in PHASES.items() for name in names.split("|"))],
)
def test_whole_name_says_the_phase(name, phase):
    assert vocabulary.phase_of(name) == phase


@pytest.mark.parametrize("row", PHASE_NAMES, ids=lambda row: row.example)
def test_row_of_phases_knows_its_example_and_not_the_near_name(row):
    assert re.fullmatch(row.pattern, row.example.strip("# ").lower())
    assert vocabulary.phase_of(row.example) == row.means
    assert vocabulary.opens_phase(row.example) is not row.part
    assert vocabulary.phase_of(row.near_miss) is None
    assert not vocabulary.is_step(row.example) or row.source.startswith(("SGLang", "vLLM", "ATOM"))


@pytest.mark.parametrize("row", STEP_NAMES, ids=lambda row: row.example)
def test_row_of_steps_knows_its_example_and_not_the_near_name(row):
    assert re.fullmatch(row.pattern, row.example.lower())
    assert vocabulary.is_step(row.example)
    assert not vocabulary.is_step(row.near_miss)
    assert vocabulary.phase_of(row.example) in (None, "forward", "prefill")


NAMED = (("forward", "fit *"), ("backward", "bp"))


@pytest.mark.parametrize(
    ("name", "meaning"),
    {
        "fit batch": ("forward", False),
        "BP": ("backward", False),
        "forward": (None, False),
        "loss": ("forward", True),
        "optimizer": ("optimizer", False),
    }.items(),
)
def test_names_that_are_given_take_the_place_of_the_usual_ones(name, meaning):
    assert vocabulary.phase_matcher(NAMED)(name) == meaning


AUTOGRADS = "pt_autograd_0 | pt_autograd_12 | python, pt_autograd_0"
WORKERS = """
    pt_data_worker | pt_data_pin | pt_nccl_watchdg | pt_nccl_heartbt | pin_memory | pt_inductor_1 | ptxas |
    cuda-EvtHandlr | [NSys] | CUPTI worker th | DALI_prefetch"""
OTHER_THREADS = " | python | python3 | train.py | main"
#: By what is asked of a name, those that are so, and similar ones that are not.
KINDS = {
    "warm-up": (
        vocabulary.is_warm_up,
        "warmup | warm-up | warm_up | Warm-up | WARMUP 3 | warmup step | :warmup | warmup (3 steps)",
        """measure | after warmup | warm | swarmup | lukewarm_up | warmup_lr | WarmupCosineSchedule.step""",
    ),
    "step": (
        vocabulary.is_step,
        """step | Step 3 | step_17 | step:4 | train_step | train step 5 | ProfilerStep#3 | iteration 12 | iter |
        step[EXTEND bs=8] | epoch 0 step 3 | global_step 7 | step=3 | step3/100 | batch 3""",
        "optimizer step | optimizer_step | steps | step size | stepwise | iterator | batch",
    ),
    "operator": (
        vocabulary.is_operator,
        """aten::mm | c10d::alltoall_base_ | autograd::engine::evaluate_function: MmBackward0 | SoftmaxBackward0 |
        torch::autograd::AccumulateGrad | torch.nn.functional.linear | record_param_comms | nccl:all_reduce |
        detach_""",
        "layer 3 | computing softmax | Backward | FSDP::post_forward (blocks.8)",
    ),
    "backward operator": (
        BACKWARD_OPERATORS.match,
        """autograd::engine::evaluate_function: AddBackward0 | MmBackward0 | torch::autograd::MyFunctionBackward |
        FlashAttnFuncBackward""",
        "aten::_softmax_backward_data | aten::mm | Backward",
    ),
    "library's domain": (
        vocabulary.is_library_domain,
        "NCCL | nccl | cuBLAS | cuBLASLt | CCCL | TensorRT | cuDNN | libcudf",
        " | default | nvtx-kernels | my NCCL tests | PyTorch",
    ),
    "library's range in a nameless domain": (
        LIBRARY_RANGES.match,
        "ncclAllReduce | cublasLtMatmul | cub::DeviceScan",
        "nccl | layer 3",
    ),
    "autograd's thread": (AUTOGRAD_THREADS.search, AUTOGRADS, f"{WORKERS} | {OTHER_THREADS}"),
    "worker's thread": (WORKER_THREADS.search, WORKERS, f"{AUTOGRADS} | {OTHER_THREADS}"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_known_and_similar_ones_are_not(kind):
    is_so, known, similar = KINDS[kind]
    assert [name for name in map(str.strip, known.split("|")) if not is_so(name)] == []
    assert [name for name in map(str.strip, similar.split("|")) if is_so(name)] == []


SUFFIXED = {
    "aten::mm, seq = 12, op_id = 7, sizes = [[2, 3], [3, 4]]": ("aten::mm", 12),
    "aten::mm, seq = 12": ("aten::mm", 12),
    "aten::empty, op_id = 3, sizes = [[]]": ("aten::empty", -1),
    "aten::zeros, sizes = [[], []]": ("aten::zeros", -1),
    "aten::add, seq = 0, op_id = 4, sizes = [[], []], input_op_ids = [(1,0), (2,0)]": ("aten::add", 0),
    "MmBackward0, seq = 987654321098": ("MmBackward0", 987654321098),
    "aten::mm": ("aten::mm", -1),
    "layer 3": ("layer 3", -1),
    "tokens, seq": ("tokens, seq", -1),
    "": ("", -1),
}


@pytest.mark.parametrize(("name", "split"), SUFFIXED.items())
def test_pytorchs_suffixes_come_off_and_leave_the_number(name, split):
    assert vocabulary.without_suffixes(name) == split


@pytest.mark.parametrize(
    ("name", "collapsed"),
    {
        "layer 3": "layer *",
        "layer 11": "layer *",
        "step_17": "step_*",
        "block_3.attn": "block_*.attn",
        "layers.0.mlp.2": "layers.*.mlp.*",
        "ProfilerStep#3": "ProfilerStep#*",
        "conv2d": "conv2d",
        "fp32": "fp32",
        "attention": "attention",
    }.items(),
)
def test_indices_collapse_and_numbers_within_words_stay(name, collapsed):
    assert vocabulary.collapsed(name) == collapsed


def test_page_of_names_is_made_of_the_tables():
    assert list_names.PAGE.read_text(encoding="utf-8") == list_names.page()


def test_a_name_beyond_all_reason_is_left_as_it_is():
    assert vocabulary.collapsed("layer 3 " * 9_000) == "layer 3 " * 9_000
    assert vocabulary.collapsed("layer 3 " * 8_000) == "layer * " * 8_000
