"""The tables of range names: which open a phase, and which are a step, as programs and frameworks write them.

A row's pattern matches a whole name, without its domain, the marks around it (`## forward ##`) and regardless of
case. Every row has a name that it matches and a similar one that it does not; the tests try both, and
docs/names.md lists them. A range that is only a *part* of its phase, such as FSDP's gathering, gives its work that
phase, but does not begin the phase.
"""

from __future__ import annotations

from typing import NamedTuple


class NamePattern(NamedTuple):
    """One row: names that `pattern` matches as a whole mean `means`."""

    means: str
    pattern: str
    source: str
    example: str
    near_miss: str
    part: bool = False


def _rows(
    means: str, *rows: tuple[str, str, str, str] | tuple[str, str, str, str, bool]
) -> tuple[NamePattern, ...]:
    """Return rows of names that mean the same."""
    return tuple(NamePattern(means, *row) for row in rows)


# What may precede a phase's word, and join it: `train/forward`, `iter_3_forward`, `1_forward`.
_JOIN = r"(?:[-_ ./>|]+|:{1,2} ?)"
_BATCH = r"(?:(?:micro|mini)[-_ ]?)?batch"
_AGENT = r"generator|discriminator|actor|critic|policy|reward|ref(?:erence)?|teacher|student|[dg]"
_SCOPE = (
    r"(?:model|module|net|network|train(?:ing|er)?|eval(?:uation)?|val(?:id(?:ation)?)?|test|infer(?:ence)?|epoch"
    rf"|step|iter(?:ation)?|{_BATCH}|mb|stage|loop|main|full|ddp|fsdp|engine|accelerator|strategy|fabric"
    rf"|booster|gan|{_AGENT})(?:[-_ #:=]*\d+)?"
)
_BEFORE = rf"(?:\d+{_JOIN})?(?:{_SCOPE}{_JOIN})*"
# What may follow it: words that say how it is run, a number, a remark.
_HOW = (
    r"(?:pass(?:es)?|prop|propagation|steps?|compute|computation|call|phase|stage|only|loop|run|time|total|all|and|with"
    rf"|loss|{_BATCH}|mb|chunk|iter(?:ation)?|model|module|net|network|{_AGENT})"
)
_NUMBER = r"\d+(?: ?(?:/|of) ?\d+)?"
_REMARK = rf"(?:[-_ .#=:/]*{_NUMBER})?(?:(?: ?[(\[{{@,|]|: ).*)?"
_AFTER = rf"(?:[-_ .+&]+{_HOW})*{_REMARK}"
_STAGED = r"(?: \(.*\))?"  # FSDP2 adds the module's path

_OPTIMIZERS = (
    r"(?:\w*(?:optimi[sz]er|adam|sgd|lamb|lars|lion|muon|adagrad|adadelta|adafactor|rmsprop|shampoo|soap|lbfgs|sophia)\w*"
    r"|opt(?:im)?|param(?:eter)?s? optim|(?:grad_?)?scaler)"
)
_CALLED = r"(?:\(.*\))?"
_LOSS = (
    r"(?:(?:compute|calc(?:ulate)?)[-_ ])?(?:loss|losses|criterion|cross[-_ ]?entropy)"
    r"(?:[-_ ](?:fn|func(?:tion)?|comput(?:e|ation)|calc(?:ulation)?))?"
)
_OF_LOSS = r"(?:(?:loss|losses|total_loss|scaled_loss|scaler\.scale\(\w*\))\.)?"
_BACKWARD = r"(?:backwards?|bwd|bw|back[-_ ]?prop(?:agation)?)"
_ITS = r"(?:[-_ .]+(?:updates?|zero[-_ ]?grads?|apply|inner|adamw?|sgd|lion|muon)){0,2}"
_WEIGHTS = r"(?:model|param(?:eter)?s?|weights?)"
_CLIP = (
    r"(?:grad(?:ient)?s?[-_ ]?clip(?:ping)?|clip(?:ping)?[-_ ]?grad(?:ient)?s?(?:[-_ ](?:norm|value)_?)?"
    r"|(?:scaler\.)?unscale_?(?:[-_ ]grad(?:ient)?s?)?|configure_gradient_clipping)"
)
_COMPONENT = (
    r"(?:(?:attn|attention|mla|mlp|ffn|moe|experts?|gate|router|dispatch|combine|embed(?:ding)?s?|norm|head|layer|block|chunk"
    r"|stage|shared(?:_experts?)?|pp|send|recv)(?:[-_ .]?\d+)?)?"
)
_HOOK = r"\[pl\](?:\[profile\])?(?:\[\w+\])?(?:\w+\.)?"
_TOKENS = r"(?:\([\w+*. ]*\))?"

_TRAINING_LOOPS = "training loops, among them NVIDIA's and PyTorch's examples"
_LIGHTNING = "Lightning, pytorch/profilers/pytorch.py"
_FSDP = "PyTorch 2.11, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_state.py"
_PIPELINING = "PyTorch 2.11, torch/distributed/pipelining/schedules.py"
_DUAL_PIPE = "DeepSeek's DualPipe, deepseek-ai/profile-data"
_OLD_FSDP = "PyTorch 2.11, torch/distributed/fsdp/_runtime_utils.py"
_SGLANG = "SGLang, python/sglang/srt/utils/profile_utils.py"
_VLLM = "vLLM, vllm/v1/worker/gpu_worker.py"
_TRT_LLM = "TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/py_executor.py and model_engine.py"
_ATOM = "ATOM, ROCm's engine, by TraceLens/TraceUtils/annotation_utils.py"
# A batch padded to a CUDA graph's, and what follows the tokens: context lengths, and numbers.
_PADDED, _ATOM_MORE = r"(?:/\d+)?", r"(?: (?:ctx|[pd]|spec|sqsq|sqsk|sk|tbo)=[\d, \[\].+]+)*"
_TORCHREC = "TorchRec, torchrec/distributed/train_pipeline/train_pipelines.py"
_DEEPSPEED = "DeepSpeed, deepspeed/utils/nvtx.py: the qualified names of functions"

# Of a range that is only a part of its phase.
_PART = True

# A row that is more particular stands before the one that it is a part of: the first match wins.
PHASE_NAMES: tuple[NamePattern, ...] = (
    *_rows(
        "forward",
        (rf"{_BEFORE}(?:forwards?|fwd|fw){_AFTER}", _TRAINING_LOOPS, "train/forward", "forward_fill"),
        (rf"forward{_REMARK}", _TORCHREC, "## forward ##", "## item_forward ##"),
        (r"forward \d+", _PIPELINING, "Forward 3", "Forward hook 3"),
        (r"pp:\d+f\d+", f"{_PIPELINING}: stage, action, microbatch", "PP:0F3", "PP:0UNSHARD"),
        (rf"{_COMPONENT}\(f\)", _DUAL_PIPE, "dispatch(F)", "dispatch(Final)"),
        (r"pp:\d+(?:send|recv)_f\d+", _PIPELINING, "PP:0SEND_F3", "PP:0RESHARD", _PART),
        (
            r"(?:distributed|fullysharded)?dataparallel\.forward",
            "PyTorch 2.11, torch/nn/parallel/distributed.py",
            "DistributedDataParallel.forward",
            "transformer_engine._Linear.forward",
        ),
        (r"deepspeedengine\.forward", _DEEPSPEED, "DeepSpeedEngine.forward", "Attention.forward"),
        (
            r"\[pl\](?:\[profile\])?(?:\[strategy\]|\[lightningmodule\])\w+\.(?:training|validation|test|predict)_step",
            _LIGHTNING,
            "[pl][profile][Strategy]DDPStrategy.training_step",
            "[pl][profile][LightningModule]GPT.on_train_batch_start",
        ),
        (
            r"\[pl\](?:.*(?:: |[\].]))?forward",
            _LIGHTNING,
            "[pl][profile]model: forward",
            "[pl][module]torch.nn.Linear: forward_net",
        ),
        (
            r"(?:v2_)?gpu_model_runner: forward",
            "vLLM, vllm/v1/worker/gpu_model_runner.py",
            "gpu_model_runner: forward",
            "gpu_model_runner: sample",
        ),
        (
            r"step\[(?!extend\b|decode\b)[a-z_]+(?: \w+=\d+)*\]",
            f"{_SGLANG}: modes that mix both",
            "step[MIXED bs=2 c=1 g=1]",
            "step[0].mlp",
        ),
        (
            rf"execute_(?:\d+_)?context_[1-9]\d*{_TOKENS}_generation_[1-9]\d*{_TOKENS}",
            f"{_VLLM}: prompts and tokens together",
            "execute_8192_context_9(8155)_generation_37(37)",
            "execute_context_0(0)_generation_0(0)",
        ),
        (
            rf"(?:eager_)?decode\[bs=\d+{_PADDED} tok=\d+ p=[1-9]\d*{_ATOM_MORE}\]",
            f"{_ATOM}: prompts and tokens together",
            "decode[bs=128 tok=384 p=2 d=126]",
            "decode[bs=128 tok=384 p=]",
        ),
    ),
    *_rows(
        "prefill",
        (r"step\[extend(?: \w+=\d+)*\]", _SGLANG, "step[EXTEND bs=8 toks=4096]", "extend[8]"),
        (
            rf"execute_(?:\d+_)?context_[1-9]\d*{_TOKENS}_generation_0{_TOKENS}",
            _VLLM,
            "execute_context_1(512)_generation_0(0)",
            "execute_context_0(0)_generation_0(0)",
        ),
        (
            rf"prefill\[bs=\d+ tok=\d+{_ATOM_MORE}\]",
            _ATOM,
            "prefill[bs=2 tok=14721 ctx=[7803, 6918]]",
            "prefill[0]",
        ),
        (
            r"(?:\[executor\] )?_forward_step(?: \d+)?: [1-9]\d* ctx reqs, 0 gen reqs",
            _TRT_LLM,
            "[Executor] _forward_step 12: 2 ctx reqs, 0 gen reqs",
            "_prefill_attention",
        ),
    ),
    *_rows(
        "decode",
        (r"step\[decode(?: \w+=\d+)*\]", _SGLANG, "step[DECODE bs=64]", "decode[64]"),
        (
            rf"execute_(?:\d+_)?context_0{_TOKENS}_generation_[1-9]\d*{_TOKENS}",
            _VLLM,
            "execute_context_0(0)_generation_63(63)",
            "execute_context_0(0)_generation_0(0)",
        ),
        (
            rf"(?:eager_)?decode\[bs=\d+{_PADDED} tok=\d+{_ATOM_MORE}\]",
            _ATOM,
            "decode[bs=117/128 tok=117 d=117]",
            "decode[bs=64]",
        ),
        (
            r"(?:\[executor\] )?_forward_step(?: \d+)?: 0 ctx reqs, [1-9]\d* gen reqs",
            _TRT_LLM,
            "[Executor] _forward_step 12: 0 ctx reqs, 64 gen reqs",
            "decode_image",
        ),
    ),
    *_rows(
        "forward",
        (
            r"(?:\[executor\] )?_forward_step(?:_inter_pp|_mm_encoder_only)?(?: \d+)?(?::.*)?",
            _TRT_LLM,
            "[Executor] _forward_step 12: 1 ctx reqs, 63 gen reqs",
            "_flash_attn_forward",
        ),
        (rf"{_LOSS}{_REMARK}", _TRAINING_LOOPS, "compute_loss", "loss scaling", _PART),
        (
            rf"\w*fsdp::(?:root_)?(?:pre|post)_forward{_STAGED}",
            _FSDP,
            "FSDP::pre_forward (layers.3)",
            "FSDP::all_gather (layers.3)",
            _PART,
        ),
        (
            r"fullyshardeddataparallel\._(?:root_)?(?:pre|post)_forward\w*",
            _OLD_FSDP,
            "FullyShardedDataParallel._pre_forward",
            "FullyShardedDataParallel._to_kwargs",
            _PART,
        ),
    ),
    *_rows(
        "backward",
        (rf"{_BEFORE}{_OF_LOSS}{_BACKWARD}{_AFTER}", _TRAINING_LOOPS, "loss.backward()", "backwards compatible"),
        (rf"backward{_REMARK}", _TORCHREC, "## backward ##", "## op1.backward ##"),
        (r"backward \d+", _PIPELINING, "Backward 3", "Backward hook 3"),
        (r"pp:\d+[biw]\d+", f"{_PIPELINING}: whole, of inputs, of weights", "PP:1B2", "PP:(1F2;1B1)OVERLAP_F_B"),
        (rf"{_COMPONENT}\([bw]\)", f"{_DUAL_PIPE}: of inputs, of weights", "mlp(W)", "mlp(Warm)"),
        (r"pp:\d+(?:(?:send|recv)_b\d+|reduce_grad)", _PIPELINING, "PP:1RECV_B2", "PP:1UNSHARD", _PART),
        (
            r"deepspeed(?:engine|zerooptimizer\w*)\.backward",
            _DEEPSPEED,
            "DeepSpeedZeroOptimizer_Stage3.backward",
            "PreBackwardFunction.backward",
        ),
        (
            rf"{_HOOK}(?:run_)?backward",
            _LIGHTNING,
            "[pl][profile][Strategy]DDPStrategy.backward",
            "[pl][profile][LightningModule]GPT.on_after_backward",
        ),
        (
            rf"\w*fsdp::(?:root_)?(?:pre|post)_backward\w*{_STAGED}",
            _FSDP,
            "FSDP::post_backward_reduce (layers.3)",
            "FSDP::all_gather_copy_out (layers.3)",
            _PART,
        ),
        (
            r"fullyshardeddataparallel\._(?:pre|post)_backward\w*",
            _OLD_FSDP,
            "FullyShardedDataParallel._post_backward_hook",
            "FullyShardedDataParallel._reduce_grad_hook",
            _PART,
        ),
    ),
    *_rows(
        "optimizer",
        (
            rf"{_BEFORE}(?:optimi[sz]er|(?:param(?:eter)?s? )?optim)s?{_ITS}{_AFTER}",
            _TRAINING_LOOPS,
            "optimizer step",
            "optimizer_state_dict",
        ),
        (rf"optimizer(?:[-_ ]step)?{_REMARK}", _TORCHREC, "## optimizer ##", "## prefetch ##"),
        (
            r"optimizer\.step#\w+\.step",
            "PyTorch 2.11, torch/optim/optimizer.py",
            "Optimizer.step#AdamW.step",
            "ProfilerStep#3",
        ),
        (
            rf"{_BEFORE}(?:\w+\.)*{_OPTIMIZERS}(?:\.|[-_ ]|::)(?:step|update){_CALLED}{_REMARK}",
            "training loops that name a range by the call in it",
            "opt.step()",
            "lr_scheduler.step",
        ),
        (
            rf"(?:{_WEIGHTS}[-_ ])?updates?(?:[-_ ](?:step|{_WEIGHTS})){{0,2}}{_REMARK}",
            _TRAINING_LOOPS,
            "update",
            "update_metrics",
        ),
        (
            r"deepspeedengine\.(?:step|_take_model_step)",
            _DEEPSPEED,
            "DeepSpeedEngine.step",
            "DeepSpeedEngine.allreduce_gradients",
        ),
        (
            rf"{_HOOK}optimizer_step",
            _LIGHTNING,
            "[pl]optimizer_step",
            "[pl][profile][LightningModule]GPT.lr_scheduler_step",
        ),
        (
            r"(?:optimizer\.zero_grad#\w+\.zero_grad|(?:\[pl\].*)?optimizer_zero_grad)",
            "PyTorch 2.11, torch/optim/optimizer.py, and Lightning's hook of that name",
            "Optimizer.zero_grad#AdamW.zero_grad",
            "Optimizer.add_param_group#AdamW",
            _PART,
        ),
        (
            rf"{_BEFORE}(?:\w+\.)?zero[-_ ]?grads?{_CALLED}{_REMARK}",
            _TRAINING_LOOPS,
            "zero_grad",
            "zero_gradient_check",
            _PART,
        ),
        (
            rf"(?:{_HOOK}|{_BEFORE}(?:\w+\.)*){_CLIP}{_CALLED}{_REMARK}",
            _TRAINING_LOOPS,
            "clip_grad_norm_",
            "clip_embeddings",
            _PART,
        ),
    ),
)

# What a step's word may follow and be followed by.
_OF = (
    r"(?:(?:train(?:ing|er)?|eval(?:uation)?|val(?:id(?:ation)?)?|test(?:ing)?|infer(?:ence)?|generation|decod(?:e|ing)|prefill"
    r"|profiler?|global|local|measured?|timed|bench(?:mark)?|main|outer)[-_ /.:]*)?"
)
_COUNT = r"(?:[-_ #:=]*\d+(?: ?(?:/|of) ?\d+)?)"
_EPOCH = rf"(?:epoch{_COUNT}[-_ ,/:]*)?"

STEP_NAMES = _rows(
    "step",
    (rf"{_EPOCH}{_OF}(?:step|iter|iteration){_COUNT}?", _TRAINING_LOOPS, "epoch 0 step 3", "step size"),
    (r"profilerstep#\d+", "PyTorch 2.11, torch/profiler/profiler.py", "ProfilerStep#3", "profiler step size"),
    (
        rf"{_EPOCH}{_OF}(?:batch|(?:batch|step|iter)[-_ ]?(?:idx|id|no|num)){_COUNT}",
        _TRAINING_LOOPS,
        "batch 3",
        "batch norm 3",
    ),
    (r"(?:run_)?train(?:ing)?_batch", _TRAINING_LOOPS, "train_batch", "train_batch_sampler"),
    (
        r"\[pl\](?:\[profile\])?run_training_batch",
        _LIGHTNING,
        "[pl][profile]run_training_batch",
        "[pl][profile]run_training_epoch",
    ),
    (r"step\[[a-z_]+(?: \w+=\d+)*\]", _SGLANG, "step[EXTEND bs=8 toks=4096]", "step[0].mlp"),
    (
        rf"execute_(?:new_\d+_cached_\d+|(?:\d+_)?context_\d+{_TOKENS}_generation_\d+{_TOKENS})",
        _VLLM,
        "execute_context_1(512)_generation_63(63)",
        "execute_model",
    ),
    (
        rf"(?:prefill|(?:eager_)?decode)\[bs=\d+{_PADDED} tok=\d+{_ATOM_MORE}\]",
        _ATOM,
        "prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]",
        "decode[bs=64]",
    ),
)

#: The steps that serving engines name by what each held: all of them are steps of one kind.
ENGINE_STEP_NAMES = tuple(row for row in STEP_NAMES if row.source in (_SGLANG, _VLLM, _ATOM))

_ROUNDS = r"(?:steps?|iters?|iterations?|rounds?|runs?|pass(?:es)?|loop|phase|batch(?:es)?|epochs?)"
WARM_UP_NAMES = _rows(
    "warm-up", (rf"warm[-_ ]?ups?(?:[-_ ]+{_ROUNDS})?{_REMARK}", _TRAINING_LOOPS, "warm-up 3", "warmup_lr")
)

# Names of steps that say what these held: requests and tokens of prompts (prefill), and of tokens (decode). A
# decoding step of SGLang's computes one token a request, unless it says how many (g_sq). Of vLLM's and SGLang's
# detailed names, sq is the number of tokens, and the others are for rooflines.
_SUMS = r"(?:sk\d+sqsq\d+sqsk\d+)?"
SERVED_NAMES = (
    r"step\[extend bs=(?P<prefill_requests>\d+) toks=(?P<prefill_tokens>\d+)(?: \w+=\d+)*\]",
    r"step\[decode bs=(?P<decode_requests>\d+) g_sq=(?P<decode_tokens>\d+)(?: \w+=\d+)*\]",
    r"step\[decode bs=(?P<decode_requests>(?P<decode_tokens>\d+))(?: \w+=\d+)*\]",
    r"step\[mixed bs=\d+ c=(?P<prefill_requests>\d+) g=(?P<decode_requests>\d+)"
    r"(?: c_sq=(?P<prefill_tokens>\d+)(?: c_\w+=\d+)* g_sq=(?P<decode_tokens>\d+)(?: g_\w+=\d+)*)?\]",
    rf"execute_(?:\d+_)?context_(?P<prefill_requests>\d+)\((?:sq)?(?P<prefill_tokens>\d+){_SUMS}\)"
    rf"_generation_(?P<decode_requests>\d+)\((?:sq)?(?P<decode_tokens>\d+){_SUMS}\)",
    r"(?:\[executor\] )?_forward_step(?: \d+)?: (?P<prefill_requests>\d+) ctx reqs, "
    r"(?P<decode_requests>\d+) gen reqs",
    rf"prefill\[bs=(?P<prefill_requests>\d+) tok=(?P<prefill_tokens>\d+){_ATOM_MORE}\]",
    rf"(?:eager_)?decode\[bs=\d+{_PADDED} tok=\d+ p=(?P<prefill_requests>[1-9]\d*) d=(?P<decode_requests>\d+)"
    rf"{_ATOM_MORE}\]",
    rf"(?:eager_)?decode\[bs=(?P<decode_requests>\d+){_PADDED} tok=(?P<decode_tokens>\d+){_ATOM_MORE}\]",
)
