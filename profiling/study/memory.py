"""Where a training step's memory goes: the peak of each phase, and what each layer keeps for its backward.

    check("snapshot.pickle", settings)
    with snapshot("snapshot.pickle"):            # PyTorch's own record of every allocation, on a GPU
        measure(workload, capture, on_step)
    peaks = phase_peaks(workload)

Bytes are those of tensors: what PyTorch's allocator handed out, not what it keeps in reserve.
"""

import itertools
import os
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from nvtx_kernels.analysis.support.files import replacing
from nvtx_kernels.model.transformer import cross_entropy
from torch import Tensor

from ..recorder.allocation_marks import allocations_of
from ..recorder.session import Session
from .settings import Settings, SettingsError, autocast
from .workload import Workload, run_phases

# The events that a snapshot keeps; a step of the largest model here makes some 20,000.
MOST_EVENTS = 1_000_000
OUTSIDE = "outside the layers"


@contextmanager
def snapshot(path: str | Path | None) -> Iterator[None]:
    """Record every allocation of the block for pytorch.org/memory_viz, also of a block that raises.

    The file is written next to it and renamed; None records nothing. Raises OSError if it cannot be written.
    """
    if path is None:
        yield
        return
    torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS)
    try:
        yield
    finally:
        try:
            with replacing(Path(path)) as file:
                pickle.dump(torch.cuda.memory._snapshot(), file)
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)


def check(path: str | Path | None, settings: Settings) -> None:
    """Raise SettingsError, before any work, if no snapshot of this run can be written to `path`."""
    if path is None:
        return
    if settings.device_type != "cuda":
        raise SettingsError("a memory snapshot needs a CUDA GPU: PyTorch records only its CUDA allocator")
    if not os.access(Path(path).absolute().parent, os.W_OK):
        raise SettingsError(f"{path} cannot be written")


def phase_peaks(workload: Workload) -> dict[str, int]:
    """Run one more step and return the most bytes that tensors held in each of its phases."""
    settings = workload.settings
    peaks: dict[str, int] = {}
    if settings.device_type == "cuda":

        @contextmanager
        def noting_peak(phase: str) -> Iterator[None]:
            torch.cuda.reset_peak_memory_stats(settings.device)
            yield
            peaks[phase] = torch.cuda.max_memory_allocated(settings.device)

        run_phases(workload, noting_peak)
        return peaks

    span_of_phase: dict[str, tuple[int, int]] = {}

    @contextmanager
    def noting_span(phase: str) -> Iterator[None]:
        began_ns = time.time_ns()
        yield
        span_of_phase[phase] = (began_ns, time.time_ns())

    with _allocations() as changes:
        # The profiler sees no end of what was allocated before it: let a step replace all that a step does.
        run_phases(workload, noting_span)
        held_bytes = sum(_bytes_of(held_tensors(workload)).values())
        began_ns = time.time_ns()
        run_phases(workload, noting_span)
    for phase, (phase_ns, ended_ns) in span_of_phase.items():
        before = held_bytes + sum(change for at_ns, change in changes if began_ns <= at_ns < phase_ns)
        inside = [change for at_ns, change in changes if phase_ns <= at_ns <= ended_ns]
        peaks[phase] = max(itertools.accumulate(inside, initial=before))
    return peaks


def held_after(run: Callable[[], object], device: str, before: Iterable[Tensor]) -> int:
    """Return the bytes that tensors hold once `run` has returned, while its result lives.

    On a CPU those are `before` and what `run` left; on a GPU everything in this process.
    """
    if device.startswith("cuda"):
        output = run()
        held_bytes = torch.cuda.memory_allocated(device)
        del output
        return held_bytes
    with _allocations() as changes:
        output = run()
    del output
    return sum(_bytes_of(before).values()) + sum(change for _, change in changes)


@contextmanager
def _allocations() -> Iterator[list[tuple[int, int]]]:
    """Yield a list that the block's allocations and frees on a CPU end up in: (time in ns, bytes)."""
    changes: list[tuple[int, int]] = []
    session = Session(on_gpu=False, memory=True)
    try:
        yield changes
    finally:
        seen = allocations_of(session, on_gpu=False)
        changes += zip(seen.at_ns.tolist(), seen.bytes.tolist(), strict=True)


def held_tensors(workload: Workload) -> Iterator[Tensor]:
    """Yield the tensors that live from step to step: weights, buffers, the batch, the optimizer's state."""
    yield from workload.model.parameters()
    yield from workload.model.buffers()
    yield from (workload.inputs_BT, workload.targets_BT)
    for state in workload.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def _bytes_of(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the size of every storage behind these tensors, by its address."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def layer_memory(workload: Workload) -> dict[str, tuple[int, int]]:
    """Run one step's forward and backward, and return the bytes of `layer 0`, ... and of `outside the layers`.

    They are what each keeps for its backward (activations, or residuals), and its parameters' gradients. Kept is
    every storage that autograd saves, counted once, in the first layer that saves it; weights, buffers and the
    batch are held anyway and do not count. Of a compiled model this is what it keeps when it runs eagerly.
    """
    layers = {f"layer {index}": layer for index, layer in enumerate(workload.model.layers)}
    counted = set(_bytes_of(held_tensors(workload)))
    kept_bytes: dict[str, int] = defaultdict(int)
    running = OUTSIDE

    def enter(name: str, *_: Any) -> None:
        nonlocal running
        running = name

    def pack(tensor: Tensor) -> Tensor:
        for address, size in _bytes_of([tensor]).items():
            if address not in counted:
                counted.add(address)
                kept_bytes[running] += size
        return tensor

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.callback(layer.register_forward_pre_hook(partial(enter, name)).remove)
            hooks.callback(layer.register_forward_hook(partial(enter, OUTSIDE)).remove)
        hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved))
        with autocast(workload.settings):
            loss = cross_entropy(workload.model(workload.inputs_BT), workload.targets_BT)
    loss.backward()  # type: ignore[no-untyped-call]
    parts = {**layers, OUTSIDE: workload.model}
    gradient_bytes = {}
    for name, part in parts.items():
        gradients = (weight.grad for weight in part.parameters() if weight.grad is not None)
        gradient_bytes[name] = sum(gradient.nbytes for gradient in gradients)
    gradient_bytes[OUTSIDE] -= sum(gradient_bytes[name] for name in layers)
    workload.model.zero_grad()
    return {name: (kept_bytes[name], size) for name, size in gradient_bytes.items()}
