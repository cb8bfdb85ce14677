"""Attention alone: one case of head dimension, length and kind, measured in this process."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from nvtx_kernels.model.transformer import fused_attention, reference_attention
from torch import Tensor

from ..workload import peaks
from ..workload.environment import environment
from ..workload.model_steps import NoMemoryError, in_memory
from ..workload.settings import AUTOCAST_DTYPE, Settings, SettingsError, apply_precision
from . import results
from .row import out_of_memory

GRID_OF_DEVICE = {
    "cuda": {"dims": [16, 32, 64, 128], "lengths": [256, 1024, 4096, 8192, 16384], "steps": 100},
    "cpu": {"dims": [16, 64], "lengths": [64, 128, 256], "steps": 5},
}

Row = dict[str, Any]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
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
        """Return what identifies the case in a file of results."""
        return asdict(self)

    @property
    def label(self) -> str:
        """Return the case in a few words, for progress."""
        return f"{self.kind} {self.dtype} d {self.d} length {self.length}"

    @property
    def settings(self) -> Settings:
        """Return the settings that decide precision and device."""
        return Settings(size="tiny", dtype=self.dtype, device=self.device)


def _compiled() -> Attend:
    # Each length gets its own graph, as if it were the only one.
    torch.compiler.reset()
    return torch.compile(reference_attention, dynamic=False)


KINDS: dict[str, Callable[[], Attend]] = {
    "reference": lambda: reference_attention,
    "compiled": _compiled,
    "sdpa": lambda: fused_attention,
}


def measure(case: Case) -> Row:
    """Measure a case and return its row: times in ms of every pass, and bytes held between them."""
    apply_precision(case.settings)
    known = {
        "version": results.VERSION,
        "kind": results.ATTENTION,
        "cell": case.key,
        "state": environment(case.settings),
    }
    try:
        return {**known, "status": "ok", **_measured(case)}
    except NoMemoryError as error:
        return {**known, **out_of_memory(error)}
    except Exception as error:
        return {**known, "status": "failed", "message": f"{type(error).__name__}: {error}"}
    finally:
        _free(case.device)


def _free(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def _measured(case: Case) -> Row:
    attend = KINDS[case.kind]()
    with in_memory("making the inputs"):
        *inputs, gradient = _inputs(case)
    steps = list(_passes(case, lambda: attend(*inputs), gradient, inputs))
    with in_memory("forward"):
        held_bytes = peaks.held_after(lambda: attend(*inputs), case.device, (*inputs, gradient))
    return {"warmup": steps[: case.warmup], "measured": steps[case.warmup :], "held_bytes": held_bytes}


def _inputs(case: Case) -> tuple[Tensor, ...]:
    """Return queries, keys, values and the output's gradient."""
    torch.manual_seed(0)
    shape = (case.batch_size, HEADS, case.length, case.d)
    dtype = AUTOCAST_DTYPE.get(case.dtype, torch.float32)
    made = [torch.randn(shape, device=case.device, dtype=dtype) for _ in range(4)]
    return (*(x.requires_grad_() for x in made[:3]), made[3])


def _passes(
    case: Case, forward: Callable[[], Tensor], gradient: Tensor, inputs: list[Tensor]
) -> Iterator[dict[str, float]]:
    """Run forward and backward again and again, and yield the times of each pair in ms."""
    for _ in range(case.warmup + case.steps):
        _synchronize(case.device)
        began_ns = time.perf_counter_ns()
        with in_memory("forward"):
            output = forward()
            _synchronize(case.device)
        between_ns = time.perf_counter_ns()
        with in_memory("backward"):
            output.backward(gradient)  # type: ignore[no-untyped-call]
            _synchronize(case.device)
        ended_ns = time.perf_counter_ns()
        del output
        for x in inputs:
            x.grad = None
        yield {"forward": (between_ns - began_ns) / 1e6, "backward": (ended_ns - between_ns) / 1e6}


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
