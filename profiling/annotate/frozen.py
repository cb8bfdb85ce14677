"""Which modules of annotated models are frozen: no parameter requires a gradient, and none changes.

warm-up nearly ends       some numbers of each such module are copied, between two steps
the steps have ended      those whose numbers are the same are frozen; an average of weights has changed
"""

from __future__ import annotations

import weakref
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from ..harmless import forgiving
from .untrained import MOST, Part, annotated, outermost

#: Of how many of a module's largest parameters numbers are compared, and how many of each: rows of an embedding
#: that no batch uses do not change.
LARGEST, NUMBERS = 4, 16


class _Sample(NamedTuple):
    """Numbers of a module's largest parameters, as they were in warm-up."""

    part: Part
    weights: tuple[weakref.ref[torch.Tensor], ...]
    numbers: tuple[torch.Tensor, ...]


_samples: list[_Sample] = []


@forgiving("frozen modules are not known")
def sample() -> None:
    """Copy numbers of the outermost modules of annotated models of which no parameter requires a gradient."""
    still = (found for parts in annotated() for found in outermost(parts, _largest))
    _samples[:] = [_sampled(part, largest) for part, largest in islice(still, MOST)]


@forgiving("frozen modules are not known")
def frozen() -> dict[str, list[str]]:
    """Return the fact of a run: the paths of the modules that are frozen since `sample`; missing without any."""
    samples, _samples[:] = [*_samples], []
    paths = [each.part.path for each in samples if _is_same(each)]
    return {"frozen": paths} if paths else {}


def _sampled(part: Part, largest: list[nn.Parameter]) -> _Sample:
    numbers = tuple(_numbers(weight).clone() for weight in largest)
    return _Sample(part, tuple(map(weakref.ref, largest)), numbers)


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
