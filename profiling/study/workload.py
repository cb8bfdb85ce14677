"""The work that is measured: a model, a batch and an optimizer, run in named phases.

    workload = Workload(settings)
    for times in timed_steps(workload, 10):
        print(times["forward"])

Ranges: `step` holds `forward`, `backward` and `optimizer`, as the mode asks. Each phase ends with a
synchronization inside its range, so that a phase's CPU time is real time. `optimizer` holds the step and
the dropping of gradients (no kernel); in mode forward-backward they are dropped after the last phase.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from torch import Tensor

from .. import annotate
from .adamw import OPTIMIZERS
from .settings import Settings, apply_precision, autocast

# What PyTorch's CPU allocator says; on a GPU it raises torch.OutOfMemoryError.
GIB_OF = {"bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 1024.0}
NO_CPU_MEMORY = ("can't allocate memory", "not enough memory")


class NoMemoryError(Exception):
    """The workload does not fit in the device's memory; the text is a sentence for the user.

    `phase` is what was running, `requested_gib` the size of the allocation that failed, if known.
    """

    def __init__(self, phase: str, reason: str) -> None:
        request = re.search(rf"allocate ([\d.]+) ({'|'.join(GIB_OF)})", reason)
        self.phase = phase
        self.requested_gib = None if request is None else float(request[1]) * GIB_OF[request[2]]
        size = "" if self.requested_gib is None else f": could not allocate another {self.requested_gib:.2f} GiB"
        super().__init__(f"out of memory in {phase}{size}")


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

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def optimizer_step(self) -> None:
        """Update the parameters and drop the gradients."""
        self.optimizer.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Free the gradients, so that the next backward writes instead of adding."""
        self.model.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        if self.settings.device_type == "cuda":
            torch.cuda.synchronize(self.settings.device)


def timed_steps(workload: Workload, count: int) -> Iterator[dict[str, float]]:
    """Run steps, and after each yield its times: ms per phase, and of the whole as `step`."""
    for index in range(count):
        times: dict[str, float] = {}
        with annotate.range("step", payload=index), timed(workload, "step", times):
            run_phases(workload, partial(timed_phase, workload, times))
        yield times


def run_phases(workload: Workload, phase: Callable[[str], AbstractContextManager[object]]) -> None:
    """Run the phases of one step, each in the context that `phase` returns for its name."""
    phases = workload.settings.phases
    with phase("forward"):
        result = workload.forward()
    if "backward" in phases:
        with phase("backward"):
            workload.backward(result)
    del result
    if "optimizer" in phases:
        with phase("optimizer"):
            workload.optimizer_step()
    else:
        workload.drop_gradients()


@contextmanager
def in_memory(phase: str) -> Iterator[None]:
    """Turn PyTorch's ways to say that memory is full into NoMemoryError with the phase."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise NoMemoryError(phase, str(error)) from error
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_CPU_MEMORY):
            raise
        raise NoMemoryError(phase, str(error)) from error


@contextmanager
def timed_phase(workload: Workload, times: dict[str, float], phase: str) -> Iterator[None]:
    """Open a phase's range, wait for its work and note its time in ms."""
    with annotate.range(phase), timed(workload, phase, times), in_memory(phase):
        yield


@contextmanager
def timed(workload: Workload, name: str, times: dict[str, float]) -> Iterator[None]:
    """Note the time of the block in ms, the device's work included."""
    began_ns = time.perf_counter_ns()
    yield
    workload.synchronize()
    times[name] = (time.perf_counter_ns() - began_ns) / 1e6
