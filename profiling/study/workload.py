"""The work that is measured: a model, a batch and an optimizer, run in named phases.

    workload = Workload(settings)
    for times in timed_steps(workload, 10):
        print(times["forward"])

Ranges: `step` holds `forward`, `backward` and `optimizer`, as the mode asks. Each phase ends with a
synchronization inside its range, so that a phase's CPU time is real time. `optimizer` holds the step and
the dropping of gradients (no kernel); in mode forward-backward they are dropped after the last phase.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from nvtx_kernels.analysis.support import progress
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from torch import Tensor
from torch.optim import AdamW, Optimizer

from .. import annotate
from ..recorder.beside import Follower
from .settings import Settings, apply_precision, autocast

ADAMW: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
# What PyTorch's CPU allocator says; on a GPU it raises torch.OutOfMemoryError.
BYTES_OF = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
NO_CPU_MEMORY = ("can't allocate memory", "not enough memory")


class NoMemoryError(Exception):
    """The workload does not fit in the device's memory; the text is a sentence for the user.

    `row` is what a row of results has of it: the phase that ran, and the bytes of the allocation that failed, None
    if these are not known.
    """

    def __init__(self, phase: str, reason: str) -> None:
        request = re.search(rf"allocate ([\d.]+) ({'|'.join(BYTES_OF)})", reason)
        size = None
        words = ""
        if request is not None:
            amount, unit = request.groups()
            size = round(float(amount) * BYTES_OF[unit])
            words = f": could not allocate another {size / (1 << 30):.2f} GiB"
        self.row = {"status": "oom", "phase": phase, "requested_bytes": size}
        super().__init__(f"out of memory in {phase}{words}")


class ReferenceAdamW(Optimizer):
    """AdamW as the Stanford CS336 course writes it: a Python loop over tensors, 16 kernels for each.

    Per tensor and step: 14 elementwise kernels, and two fills for the zeros that `state.get` is given as
    default and drops on every step but the first. Weight decay comes first, as in the 2026 course.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, ADAMW)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; a closure is called first and its loss returned."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                gradient = parameter.grad.data
                t = state.get("t", 1)
                m = state.get("m", torch.zeros_like(gradient))
                v = state.get("v", torch.zeros_like(gradient))
                parameter.data -= lr * group["weight_decay"] * parameter.data
                m = beta1 * m + (1 - beta1) * gradient
                v = beta2 * v + (1 - beta2) * torch.square(gradient)
                corrected_lr = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
                parameter.data -= corrected_lr * m / (torch.sqrt(v) + group["eps"])
                state["m"], state["v"], state["t"] = m, v, t + 1
        return loss


# The AdamWs that a training step can use, by the name of how they launch their kernels.
OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "reference": ReferenceAdamW,
    "forloop": partial(AdamW, **ADAMW, foreach=False),
    "foreach": partial(AdamW, **ADAMW, foreach=True),
    "fused": partial(AdamW, **ADAMW, fused=True),
}


class Workload:
    """A model on its device, one batch of random tokens, and an optimizer.

    NoMemoryError is raised here and in every phase when the device is out of memory.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        apply_precision(settings)
        torch.manual_seed(settings.seed)
        with in_memory("building the model"), torch.device(settings.device):
            self.model = TransformerLM(settings.config, settings.context_length, attention=settings.attention)
            shape = (2, settings.batch_size, settings.context_length)
            self.inputs_BT, self.targets_BT = torch.randint(settings.config.vocabulary, shape)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.optimizer = OPTIMIZERS[settings.optimizer](self.model.parameters())
        self._call: Callable[[Tensor], Tensor] = self.model
        if settings.compile:
            if settings.device_type == "cpu":
                # Inductor's C++ loops are operators of a recording only if they say when they run.
                torch._inductor.config.cpp.enable_kernel_profile = True
            mode = settings.compile if isinstance(settings.compile, str) else None
            self._call = torch.compile(self.model, mode=mode)

    def forward(self) -> Tensor:
        """Return the loss, or the logits (without recording gradients) in mode forward."""
        with torch.set_grad_enabled(self.settings.mode != "forward"), autocast(self.settings):
            logits = self._call(self.inputs_BT)
            return logits if self.settings.mode == "forward" else cross_entropy(logits, self.targets_BT)


def timed_steps(workload: Workload, count: int, follower: Follower | None = None) -> Iterator[dict[str, float]]:
    """Run steps, and after each yield its times: ms per phase, and of the whole as `step`.

    A follower gets their phases and ends.
    """
    for index in range(count):
        times: dict[str, float] = {}
        with annotate.range("step", payload=index), timed(workload.settings.device, "step", times):
            run_phases(workload, partial(timed_phase, workload, times, follower=follower))
        if follower is not None:
            follower.end()
        progress.advance(1)
        yield times


def run_phases(workload: Workload, phase: Callable[[str], AbstractContextManager[object]]) -> None:
    """Run the phases of one step, each in the context that `phase` returns for its name.

    Gradients are dropped at its end, so that the next backward writes instead of adding.
    """
    phases = workload.settings.phases
    with phase("forward"):
        output = workload.forward()
    if "backward" in phases:
        with phase("backward"):
            output.backward()  # type: ignore[no-untyped-call]
    del output
    if "optimizer" in phases:
        with phase("optimizer"):
            workload.optimizer.step()
            workload.model.zero_grad()
    else:
        workload.model.zero_grad()


@contextmanager
def in_memory(phase: str) -> Iterator[None]:
    """Turn PyTorch's ways to say that memory is full into NoMemoryError with the phase."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_known = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not is_known and not any(words in str(error) for words in NO_CPU_MEMORY):
            raise
        raise NoMemoryError(phase, str(error)) from error


@contextmanager
def timed_phase(
    workload: Workload,
    times: dict[str, float],
    phase: str,
    follower: Follower | None = None,
) -> Iterator[None]:
    """Open a phase's range, wait for its work and note its time in ms; tell it to a follower."""
    followed = nullcontext() if follower is None else _followed(workload, follower, phase)
    device = workload.settings.device
    with followed, annotate.range(phase), timed(device, phase, times), in_memory(phase):
        yield


@contextmanager
def _followed(workload: Workload, follower: Follower, phase: str) -> Iterator[None]:
    if phase == "forward":
        with torch.set_grad_enabled(workload.settings.mode != "forward"):
            follower.forward(workload.inputs_BT)
    elif phase == "backward":
        follower.backward()
    else:
        follower.update()
    yield
    if phase == "optimizer":
        follower.updated(phase)
    follower.leave()


@contextmanager
def timed(device: str, name: str, times: dict[str, float]) -> Iterator[None]:
    """Note the time of the block in ms, the device's work included."""
    began_ns = time.perf_counter_ns()
    yield
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    times[name] = (time.perf_counter_ns() - began_ns) / 1e6
