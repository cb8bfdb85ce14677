"""Which modules of annotated models are frozen: no parameter requires a gradient, and none changes.

a model is annotated      some numbers of each such module are copied
the steps have ended      those whose numbers are the same are frozen; an average of weights has changed
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ..harmless import forgiving
from .untrained import MOST, Part

#: How many numbers of a module's largest parameter are compared.
NUMBERS = 16


class _Sample(NamedTuple):
    part: Part
    weight: weakref.ref[torch.Tensor]
    numbers: torch.Tensor


_samples: weakref.WeakKeyDictionary[nn.Module, list[_Sample]] = weakref.WeakKeyDictionary()


@forgiving("frozen modules are not known")
def watch(model: nn.Module, parts: tuple[Part, ...]) -> None:
    """Keep numbers of the outermost modules without gradients of a model; those that hold others come first."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        _samples[model] = list(_outermost(parts))[:MOST]


def unwatch(model: nn.Module) -> None:
    """Undo `watch`."""
    _samples.pop(model, None)


@forgiving("frozen modules are not known")
def frozen() -> dict[str, list[str]]:
    """Return the fact of a run: the paths of the outermost frozen modules; missing where there are none."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        paths = [sample.part.path for samples in _samples.values() for sample in samples if _is_same(sample)]
    return {"frozen": paths[:MOST]} if paths else {}


def _outermost(parts: tuple[Part, ...]) -> Iterator[_Sample]:
    outer = ""
    for part in parts:
        is_inside = bool(outer) and part.path.startswith(f"{outer}/")
        module = part.module()
        largest = None if module is None or is_inside else _largest(module)
        if largest is not None:
            outer = part.path
            yield _Sample(part, weakref.ref(largest), _numbers(largest).clone())


def _largest(module: nn.Module) -> torch.Tensor | None:
    """Return the largest parameter of a module, none of which requires a gradient or is spread over processes."""
    weights = list(nn.Module.parameters(module))
    if not weights or any(weight.requires_grad or type(weight) is not nn.Parameter for weight in weights):
        return None
    return max(weights, key=torch.Tensor.numel)


def _numbers(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().flatten()[:NUMBERS]


def _is_same(sample: _Sample) -> bool:
    module = sample.part.module()
    weight = sample.weight()
    if module is None or weight is None or _largest(module) is not weight:
        return False
    return torch.equal(_numbers(weight), sample.numbers.to(weight))
