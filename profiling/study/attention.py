"""Attention alone: one case of head dimension, length and kind, measured in this process."""

import gc
import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from nvtx_kernels.model.transformer import fused_attention, reference_attention
from torch import Tensor

from . import memory, results
from .environment import environment
from .results import Row
from .settings import AUTOCAST_DTYPE, Settings, SettingsError, apply_precision, check_device, default_device
from .studies import KINDS
from .workload import NoMemoryError, in_memory, timed

GRID_OF_DEVICE: Mapping[str, Mapping[str, Any]] = {
    "cuda": {"dims": [16, 32, 64, 128], "lengths": [256, 1024, 4096, 8192, 16384], "steps": 100},
    "cpu": {"dims": [16, 64], "lengths": [64, 128, 256], "steps": 5},
}
HEADS = 1


@dataclass(frozen=True)
class Case:
    """What is measured: queries, keys and values of shape (batch, 1, length, d), causal.

    `dtype` tf32 lets FP32 products use TF32; bf16 and fp16 are the type of the tensors themselves.
    """

    d: int
    length: int
    kind: str
    dtype: str
    batch_size: int
    warmup: int
    steps: int
    device: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingsError(f"kind must be one of {', '.join(KINDS)}, not {self.kind}")
        if min(self.d, self.length, self.batch_size, self.steps) < 1 or self.warmup < 0:
            raise SettingsError("dims, lengths, batch size and steps must be ≥ 1, warm-up ≥ 0")

    @property
    def key(self) -> Row:
        """Return the values that identify the case in a file of results."""
        return asdict(self)

    @property
    def label(self) -> str:
        """Return the case in a few words, for progress."""
        return f"{self.kind} {self.dtype} d {self.d} length {self.length}"

    @property
    def settings(self) -> Settings:
        """Return the settings that decide precision and device."""
        return Settings(size="tiny", dtype=self.dtype, device=self.device)


def cases_of(options: Mapping[str, Any]) -> list[Case]:
    """Return the grid that a command's options ask for, completed by the device's."""
    device = options["device"] or default_device()
    check_device(device)
    kind_of_device, _, _ = device.partition(":")
    defaults = GRID_OF_DEVICE[kind_of_device]
    grid = {name: options[name] or default for name, default in defaults.items()}
    shared = {name: options[name] for name in ("batch_size", "warmup")}
    return [
        Case(
            d=d,
            length=length,
            kind=kind,
            dtype=dtype,
            steps=grid["steps"],
            device=device,
            **shared,
        )
        for kind, dtype, d, length in itertools.product(
            options["kinds"], options["dtypes"], grid["dims"], grid["lengths"]
        )
    ]


def measure(case: Case) -> Row:
    """Measure a case and return its row: times in ms of every pass, and bytes held between them."""
    apply_precision(case.settings)
    row = {"version": results.VERSION, "kind": results.ATTENTION, "cell": case.key}
    row["state"] = environment(case.settings)
    try:
        return {**row, "status": "ok", **_measured(case)}
    except NoMemoryError as error:
        return {**row, **error.row}
    except Exception as error:
        return {**row, "status": "failed", "message": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()
        if case.device.startswith("cuda"):
            torch.cuda.empty_cache()


def function_of(kind: str) -> Callable[..., Tensor]:
    """Return the attention of a kind: from queries, keys and values to what they give."""
    if kind != "compiled":
        return fused_attention if kind == "sdpa" else reference_attention
    # Each length gets its own graph, as if it were the only one.
    torch.compiler.reset()
    return torch.compile(reference_attention, dynamic=False)


def _measured(case: Case) -> Row:
    """Run forward and backward again and again: times of each pair in ms, and bytes held between the two."""
    attend = function_of(case.kind)
    torch.manual_seed(0)
    shape = (case.batch_size, HEADS, case.length, case.d)
    dtype = AUTOCAST_DTYPE.get(case.dtype, torch.float32)
    with in_memory("making the inputs"):
        *inputs, gradient = (torch.randn(shape, device=case.device, dtype=dtype) for _ in range(4))
        inputs = [x.requires_grad_() for x in inputs]
    passes = []
    for _ in range(case.warmup + case.steps):
        times: dict[str, float] = {}
        if case.device.startswith("cuda"):
            torch.cuda.synchronize(case.device)
        with in_memory("forward"), timed(case.device, "forward", times):
            output = attend(*inputs)
        with in_memory("backward"), timed(case.device, "backward", times):
            output.backward(gradient)  # type: ignore[no-untyped-call]
        del output
        for x in inputs:
            x.grad = None
        passes.append(times)
    with in_memory("forward"):
        held_bytes = memory.held_after(partial(attend, *inputs), case.device, (*inputs, gradient))
    return {"warmup": passes[: case.warmup], "measured": passes[case.warmup :], "held_bytes": held_bytes}
