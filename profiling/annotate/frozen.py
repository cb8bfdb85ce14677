"""Which modules of annotated models are frozen: no parameter requires a gradient, and none changes.

a model is annotated      some numbers of each such module are copied
the steps have ended      those whose numbers are the same are frozen; an average of weights has changed
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from ..harmless import forgiving
from .untrained import MOST, Part

#: Of how many of a module's largest parameters numbers are compared, and how many of each: rows of an embedding
#: that no batch uses do not change.
LARGEST, NUMBERS = 4, 16


class _Sample(NamedTuple):
    """Numbers of a module's largest parameters, when the model was annotated."""

    part: Part
    weights: tuple[weakref.ref[torch.Tensor], ...]
    numbers: tuple[torch.Tensor, ...]


class _Watched(NamedTuple):
    """The parts of a model that one annotation has, and the samples of them."""

    parts: tuple[Part, ...]
    samples: tuple[_Sample, ...]


_models: weakref.WeakKeyDictionary[nn.Module, list[_Watched]] = weakref.WeakKeyDictionary()


@forgiving("frozen modules are not known")
def watch(model: nn.Module, parts: tuple[Part, ...]) -> None:
    """Keep numbers of the outermost modules without gradients of a model; those that hold others come first."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        samples = tuple(islice(_outermost(parts), MOST))
    _models.setdefault(model, []).append(_Watched(parts, samples))


def unwatch(model: nn.Module, parts: tuple[Part, ...]) -> None:
    """Undo one `watch`."""
    left = [watched for watched in _models.get(model, ()) if watched.parts is not parts]
    if left:
        _models[model] = left
    else:
        _models.pop(model, None)


@forgiving("frozen modules are not known")
def frozen() -> dict[str, list[str]]:
    """Return the fact of a run: the paths of the outermost frozen modules; missing where there are none."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        samples = [sample for models in _models.values() for watched in models for sample in watched.samples]
        paths = [sample.part.path for sample in samples if _is_same(sample)]
    return {"frozen": paths[:MOST]} if paths else {}


def _outermost(parts: tuple[Part, ...]) -> Iterator[_Sample]:
    outer = ""
    for part in parts:
        is_inside = bool(outer) and part.path.startswith(f"{outer}/")
        module = part.module()
        largest = [] if module is None or is_inside else _largest(module)
        if largest:
            outer = part.path
            numbers = tuple(_numbers(weight).clone() for weight in largest)
            yield _Sample(part, tuple(map(weakref.ref, largest)), numbers)


def _largest(module: nn.Module) -> list[nn.Parameter]:
    """Return the largest parameters of a module; none if one requires a gradient or is spread over processes."""
    weights = list(nn.Module.parameters(module))
    if any(weight.requires_grad or type(weight) is not nn.Parameter for weight in weights):
        return []
    return sorted(weights, key=torch.Tensor.numel)[-LARGEST:]


def _numbers(weight: torch.Tensor) -> torch.Tensor:
    """Return some numbers from all over a parameter."""
    every = max(weight.numel() // NUMBERS, 1)
    return weight.detach().flatten()[::every][:NUMBERS]


def _is_same(sample: _Sample) -> bool:
    module = sample.part.module()
    largest = [] if module is None else _largest(module)
    if [id(weight) for weight in largest] != [id(reference()) for reference in sample.weights]:
        return False
    pairs = zip(largest, sample.numbers, strict=True)
    return all(torch.equal(_numbers(weight), numbers.to(weight)) for weight, numbers in pairs)
