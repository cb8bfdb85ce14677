"""The table of levers: what can be changed in a running program, and which suggestion each carries out.

A new rule of `view fix` that a lever can carry out is one word in that lever's `rules`; a new lever is a row here
and a patch in `patches`. docs/try.md shows this table.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from . import patches
from .loader_patches import Pinned, Workers
from .patch import Patch
from .patches import WithOptions, WithoutCalls

#: The arm of `--against`, which is no lever.
AGAINST = "against"


class Numbers(Enum):
    """What a change does to numbers: by how much the first step's loss, and the weights' norm, may differ."""

    SAME = "same", 1e-7, 1e-7
    ROUNDED = "rounding", 1e-4, 1e-3
    RANDOM = "other random numbers", 5e-2, 1e-2
    LOWER = "lower precision", 2e-2, 1e-2

    def __init__(self, text: str, of_loss: float, of_weights: float) -> None:
        self.text = text
        self.of_loss = of_loss
        self.of_weights = of_weights


@dataclass(frozen=True)
class Lever:
    """A change: its name, how tables call it, and the line to write; and how and where it is applied.

    `rules` are those whose suggestion it carries out. `danger` is what may go wrong, and how that is seen. Who
    uses one that is not `is_safe` must check the accuracy. Of levers of one `kind` only one can be used. One that
    `can_switch` goes on and off between steps, the others take processes of their own.
    """

    name: str
    rules: tuple[str, ...]
    change: str
    patch: Callable[[], Patch]
    numbers: Numbers
    danger: str
    write: str
    is_safe: bool = False
    kind: str = ""
    can_switch: bool = True
    only_on_gpu: bool = False
    only_by_name: bool = False


def _is_false(option: str, options: dict[str, object]) -> bool:
    return options.get(option) is False


def _ddp(option: str, value: object) -> Callable[[], Patch]:
    """Return the patch by which DistributedDataParallel gets an option."""
    place = (nn.parallel.DistributedDataParallel, "__init__")
    return lambda: WithOptions(place, value={option: value}, applies=lambda options: options.get(option) != value)


_CLIPPING = (nn.utils, "clip_grad_norm_"), (nn.utils.clip_grad, "clip_grad_norm_")
_EMPTYING = (torch.cuda, "empty_cache"), (torch.cuda.memory, "empty_cache")

LEVERS: tuple[Lever, ...] = (
    Lever(
        "workers",
        ("host_pause", "loader"),
        "loader with workers",
        Workers,
        Numbers.RANDOM,
        "random augmentation draws other numbers: losses",
        "DataLoader(…, num_workers=N, persistent_workers=True)",
        is_safe=True,
        can_switch=False,
    ),
    Lever(
        "pinned",
        ("pageable_copy",),
        "pinned memory",
        Pinned,
        Numbers.SAME,
        "a buffer that is written to before its copy ran: losses",
        "DataLoader(…, pin_memory=True); batch.to(device, non_blocking=True)",
        is_safe=True,
        can_switch=False,
        only_on_gpu=True,
    ),
    Lever(
        "tf32",
        ("fp32", "fp64"),
        "TF32",
        patches.tf32,
        Numbers.LOWER,
        "less exact products: losses",
        'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True',
        kind="precision",
        only_on_gpu=True,
    ),
    Lever(
        "bf16",
        ("fp32",),
        "bf16 autocast",
        patches.Bf16,
        Numbers.LOWER,
        "code that takes no bf16 fails; less exact: losses",
        'with torch.autocast("cuda", torch.bfloat16): …',
        kind="precision",
        only_on_gpu=True,
    ),
    Lever(
        "fused",
        ("optimizer",),
        "fused optimizer",
        lambda: patches.Fused("SGD Adam AdamW", {"fused": True, "foreach": False}, patches.may_be_fused),
        Numbers.ROUNDED,
        "load_state_dict puts the old flag back: counted in each step",
        "fused=True in the optimizer",
        is_safe=True,
        kind="optimizer",
    ),
    Lever(
        "foreach",
        ("optimizer",),
        "foreach optimizer",
        lambda: patches.OfGroups("SGD Adam AdamW RMSprop", {"foreach": True}, partial(_is_false, "foreach")),
        Numbers.ROUNDED,
        "more memory: shown",
        "no foreach=False in the optimizer",
        is_safe=True,
        kind="optimizer",
    ),
    Lever(
        "compile",
        ("launching", "compile"),
        "torch.compile",
        patches.Compiled,
        Numbers.RANDOM,
        "recompiles and a cold start: shown; no graph: counted",
        "model.compile()",
        kind="compile",
    ),
    Lever(
        "graphs",
        ("launching",),
        "compile, CUDA graphs",
        partial(patches.Compiled, mode="reduce-overhead"),
        Numbers.RANDOM,
        "outputs that are kept over steps fail; shapes that change; memory: shown",
        'model.compile(mode="reduce-overhead")',
        kind="compile",
        only_on_gpu=True,
    ),
    Lever(
        "read_late",
        ("scalar_read", "forward_read"),
        "numbers read late",
        patches.ReadLate,
        Numbers.SAME,
        "a number that decides something: losses. It measures; the code is yours",
        "read numbers (.item()) every N steps",
        only_on_gpu=True,
    ),
    Lever(
        "sdpa",
        ("attention",),
        "sdpa attention",
        patches.Sdpa,
        Numbers.ROUNDED,
        "models that return attention fail",
        'from_pretrained(…, attn_implementation="sdpa")',
    ),
    Lever(
        "anomaly",
        ("anomaly",),
        "no anomaly detection",
        patches.Anomaly,
        Numbers.SAME,
        "a NaN in backward is not reported",
        "no detect_anomaly",
        is_safe=True,
    ),
    Lever(
        "empty_cache",
        ("allocating",),
        "no empty_cache()",
        lambda: WithoutCalls(*_EMPTYING),
        Numbers.SAME,
        "out of memory: does not fit",
        "no torch.cuda.empty_cache()",
        is_safe=True,
        only_on_gpu=True,
    ),
    Lever(
        "synchronize",
        ("device_sync",),
        "no synchronize()",
        lambda: WithoutCalls((torch.cuda, "synchronize")),
        Numbers.SAME,
        "copies that do not wait, read on the CPU: losses. It measures; the code is yours",
        "no torch.cuda.synchronize(); time with CUDA events",
        only_on_gpu=True,
    ),
    Lever(
        "collect",
        (),
        "no gc.collect()",
        lambda: WithoutCalls((gc, "collect"), result=0),
        Numbers.SAME,
        "memory grows",
        "no gc.collect() in the loop",
        is_safe=True,
        kind="collector",
    ),
    Lever(
        "no_gc",
        (),
        "gc.freeze()",
        patches.WithoutCollector,
        Numbers.SAME,
        "cycles of objects hold memory longer",
        "after warm-up: gc.collect(); gc.freeze(); gc.disable(); then gc.collect(1) every 100 steps",
        is_safe=True,
        kind="collector",
    ),
    Lever(
        "zero_grad",
        (),
        "gradients to None",
        lambda: patches.ZeroGrad((Optimizer, "zero_grad"), (nn.Module, "zero_grad")),
        Numbers.SAME,
        "code that reads .grad as zeros fails",
        "zero_grad()",
        is_safe=True,
    ),
    Lever(
        "checkpoint",
        ("recompute",),
        "no checkpointing",
        lambda: patches.WithoutCheckpoints((torch.utils.checkpoint, "checkpoint")),
        Numbers.ROUNDED,
        "out of memory: does not fit; memory: shown",
        "no checkpoint(…)",
        is_safe=True,
    ),
    Lever(
        "deterministic",
        (),
        "not deterministic",
        patches.not_deterministic,
        Numbers.ROUNDED,
        "runs are not reproducible",
        "no use_deterministic_algorithms(True)",
    ),
    Lever(
        "cudnn_benchmark",
        (),
        "cudnn.benchmark",
        patches.cudnn_benchmark,
        Numbers.ROUNDED,
        "shapes that change are slower; runs are not reproducible",
        "torch.backends.cudnn.benchmark = True",
        only_on_gpu=True,
    ),
    Lever(
        "clip_foreach",
        (),
        "foreach clipping",
        lambda: WithOptions(*_CLIPPING, value={"foreach": True}, applies=partial(_is_false, "foreach")),
        Numbers.ROUNDED,
        "more memory: shown",
        "clip_grad_norm_(…) without foreach=False",
        is_safe=True,
    ),
    Lever(
        "float32",
        ("fp64",),
        "float32",
        patches.Float32,
        Numbers.LOWER,
        "targets and buffers may stay float64",
        "model.float(), and float32 data",
        can_switch=False,
    ),
    Lever(
        "channels_last",
        ("layouts",),
        "channels_last",
        patches.ChannelsLast,
        Numbers.ROUNDED,
        "code that views images as rows fails; layers without such kernels convert back",
        "model.to(memory_format=torch.channels_last), and the images too",
        can_switch=False,
    ),
    Lever(
        "ddp_view",
        (),
        "DDP buckets as gradients",
        _ddp("gradient_as_bucket_view", True),
        Numbers.SAME,
        "code that detaches gradients fails",
        "DistributedDataParallel(…, gradient_as_bucket_view=True)",
        is_safe=True,
        can_switch=False,
    ),
    Lever(
        "ddp_bucket",
        (),
        "DDP buckets of 100 MB",
        _ddp("bucket_cap_mb", 100),
        Numbers.ROUNDED,
        "more memory: shown",
        "DistributedDataParallel(…, bucket_cap_mb=100)",
        is_safe=True,
        can_switch=False,
    ),
    Lever(
        "ddp_static",
        (),
        "DDP with a static graph",
        _ddp("static_graph", True),
        Numbers.SAME,
        "a graph that changes gets wrong gradients",
        "DistributedDataParallel(…, static_graph=True)",
        can_switch=False,
        only_by_name=True,
    ),
)

BY_NAME = {lever.name: lever for lever in LEVERS}
