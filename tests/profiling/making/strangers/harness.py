"""One run of a stranger's program: its bits, its errors, its operators, and what it leaves behind."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import calls, range_stack
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import TorchDispatchMode

from tests.profiling.making.hearing import Heard


class Operators(TorchDispatchMode):
    """Lists the operators that this thread calls, in their order."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def profiled():
    """List the operators that all threads call, sorted."""
    found = SimpleNamespace(names=[])
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, experimental_config=everywhere) as profiler:
        yield found
    found.names += sorted(event.name for event in profiler.events() if event.name.startswith("aten::"))


@dataclasses.dataclass
class Outcome:
    """What a run of a program shows: results, weights and gradients as bits; an error; ranges left open."""

    result: Any = None
    error: Any = None
    weights: Any = None
    gradients: Any = None
    left_open: list[str] = dataclasses.field(default_factory=list)
    ranges: int = 0


def outcome(program, *, annotated, heard=None):
    """Run a program, with its models annotated and a listener where asked for."""
    torch.manual_seed(0)
    random.seed(0)
    models, annotations, found, heard = [], [], Outcome(), heard or Heard()

    def mark(model):
        models.append(model)
        if annotated:
            annotations.append(annotate.annotate_modules(model))
        return model

    with annotate.listen(heard) if annotated else contextlib.nullcontext():
        try:
            found.result = bits(program.run(mark))
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            found.error = described(error)
        found.weights = [bits(model.state_dict()) for model in models]
        found.gradients = [bits([one.grad for one in model.parameters()]) for model in models]
        for one in annotations:
            one.remove()
    found.left_open, found.ranges = heard.left_open(), len(heard.paths)
    return found


def described(error):
    """Return what a program can tell of an exception: its type, arguments, notes and what led to it."""
    if error is None:
        return None
    notes = getattr(error, "__notes__", None)
    return (
        type(error), str(error), notes, error.__suppress_context__,
        described(error.__cause__), described(error.__context__),
    )  # fmt: skip


def bits(value, depth=12):
    """Return a value as plain data that is equal only to that of a value of the same bits."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if depth and isinstance(value, dict):
        return type(value).__name__, [(key, bits(item, depth - 1)) for key, item in dict.items(value)]
    if depth and isinstance(value, list | tuple):
        return type(value).__name__, [bits(item, depth - 1) for item in value]
    if value is None or isinstance(value, bool | int | str | bytes | torch.dtype):
        return value
    if isinstance(value, float):
        return value.hex()
    raise TypeError(f"a program returns a {type(value)}")


def of_tensor(value):
    """Return all that a tensor is: its class, layout, history, and bits."""
    known = [type(value).__name__, str(value.dtype), tuple(value.shape), value.requires_grad, value.device.type]
    if value.device.type == "meta":
        return known
    if hasattr(value, "full_tensor"):
        return [*known, str(value.placements), of_tensor(value.full_tensor())]
    if value.layout == torch.sparse_coo:
        whole = value.detach().coalesce()
        return [*known, of_tensor(whole.indices()), of_tensor(whole.values())]
    if value.is_quantized:
        return [*known, value.q_scale(), of_tensor(value.int_repr())]
    node = value.grad_fn.name() if value.grad_fn is not None else None
    flat = value.detach().contiguous().reshape(-1)
    if type(value) is not torch.Tensor:
        flat = flat.as_subclass(torch.Tensor)
    return [*known, node, value.stride(), flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""]


@contextlib.contextmanager
def left_alive():
    """Count the objects of annotation that are made meanwhile and outlive it, except labels, which are kept.

    What is there already is frozen, for looking at it takes long; the caller unfreezes it after all programs.
    """
    found = Counter()
    gc.collect()
    gc.freeze()
    yield found
    gc.collect()
    kinds = [type(one) for one in gc.get_objects()]
    ours = [one for one in kinds if str(one.__module__).startswith("nvtx_kernels.profiling.annotate")]
    found.update(one.__name__ for one in ours if one.__name__ not in ("Label", "Names"))


def installed():
    """Return what annotation puts into PyTorch and keeps for itself while something is annotated."""
    return (
        nn.Module.__call__ is calls._annotated,
        dict(calls._plans),
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
        [one.label.name for one in range_stack.stack()],
    )
