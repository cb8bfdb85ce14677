"""Which modules of annotated models no optimizer trains, though backward computes gradients of their parameters.

    optimizer ──► student.parameters()      no optimizer has the teacher's parameters, and they require gradients:
                  teacher.parameters()      backward computes these in vain

It is looked up once, when the measured steps have ended, so that no call of a module notes anything.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from ..harmless import forgiving
from . import optimizers

Finding = TypeVar("Finding")

#: How many modules are named.
MOST = 64


class Part(NamedTuple):
    """A module of a model: its path of ranges, which begins with the model's name, joined by `/`."""

    path: str
    module: weakref.ref[nn.Module]


_models: weakref.WeakKeyDictionary[nn.Module, list[tuple[Part, ...]]] = weakref.WeakKeyDictionary()


def watch(model: nn.Module, parts: tuple[Part, ...]) -> None:
    """Name the modules of a model by these parts from now on; those that hold others come first."""
    _models.setdefault(model, []).append(parts)


def unwatch(model: nn.Module, parts: tuple[Part, ...]) -> None:
    """Undo one `watch`."""
    left = [watched for watched in _models.get(model, ()) if watched is not parts]
    if left:
        _models[model] = left
    else:
        _models.pop(model, None)


def annotated() -> Iterator[tuple[Part, ...]]:
    """Yield the parts of each annotated model; those that hold others come first."""
    for watched in _models.values():
        yield from watched


@forgiving("modules that no optimizer trains are not known")
def untrained() -> dict[str, list[str]]:
    """Return the fact of a run: the paths of the outermost modules whose parameters no optimizer has.

    All parameters of such a module require gradients. The fact is missing where there is no such module, and where
    no optimizer that updated has a parameter of an annotated model: it may have copies, as in mixed precision.
    """
    with torch._C.DisableTorchFunction():
        updated = _held_by(optimizers.updated())
        owned = {id(weight) for model in _models for weight in nn.Module.parameters(model)}
        if not owned & updated.keys():
            return {}
        copies = sum(weight.numel() for key, weight in updated.items() if key not in owned)
        if not _paths(updated.keys(), copies):
            return {}
        # An optimizer may update later than the recording ends. To search for it takes a while.
        existing = [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer)]
        paths = _paths(updated.keys() | _held_by(existing).keys(), copies)
        return {"untrained": paths[:MOST]} if paths else {}


def _held_by(among: Iterable[Optimizer]) -> dict[int, torch.Tensor]:
    """Return the tensors that optimizers update, by their identities."""
    groups = [group for optimizer in among for group in getattr(optimizer, "param_groups", ())]
    return {id(weight): weight for group in groups for weight in group["params"]}


def _paths(trained: Iterable[int], copies: int) -> list[str]:
    """Return the paths of the outermost modules without a trained parameter.

    Tensors with `copies` elements are trained that are no parameters; larger parameters have no copies among them.
    """
    ids = frozenset(trained)
    paths: dict[str, None] = {}
    for parts in annotated():
        untrained_parts = outermost(parts, lambda module: _is_untrained(module, ids, copies))
        paths |= dict.fromkeys(part.path for part, _ in untrained_parts)
    return list(paths)


def outermost(parts: tuple[Part, ...], find: Callable[[nn.Module], Finding]) -> Iterator[tuple[Part, Finding]]:
    """Yield the parts of a model in whose modules something is found, inside of no other such part; with that."""
    outer = ""
    for part in parts:
        is_inside = bool(outer) and part.path.startswith(f"{outer}/")
        module = part.module()
        finding = find(module) if module is not None and not is_inside else None
        if finding:
            outer = part.path
            yield part, finding


def _is_untrained(module: nn.Module, trained: frozenset[int], copies: int) -> bool:
    largest = 0
    for weight in nn.Module.parameters(module):
        if not weight.requires_grad or id(weight) in trained:
            return False
        largest = max(largest, weight.numel())
    return largest > copies
