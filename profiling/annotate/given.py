"""Look into what a model is given and returns without running the program's code, and without leaving a trace.

A tensor of a class of its own may do anything when it is asked for its shape, and a mapping when it is asked for
its values. Where `torch.jit.trace` follows a program, asking a plain tensor adds an operator to what is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import torch

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
#: How many elements of a container are looked at.
MOST_ITEMS = 1000
# How to look into a container without its own methods, which may be the program's.
_READERS: dict[type, Callable[[Any], Iterable[object]]] = {
    dict: dict.values,
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
}


class Shape(NamedTuple):
    """The sizes and the type of a plain tensor."""

    sizes: tuple[int, ...]
    dtype: torch.dtype


def is_traced() -> bool:
    """Return whether `torch.jit.trace` follows what this thread does."""
    return torch._C._get_tracing_state() is not None


def shape_of(value: Any) -> Shape | None:
    """Return the shape of a plain tensor; None of all else, of nested ones, and while `torch.jit.trace` traces."""
    if type(value) not in PLAIN or is_traced():
        return None
    with torch._C.DisableTorchFunction():
        if value.is_nested:
            return None
        sizes = tuple(value.shape)
        return Shape(sizes, value.dtype) if all(type(size) is int for size in sizes) else None


def count_values(value: object, depth: int, most: int) -> int:
    """Return the number of values in the plain tensors of a call's arguments; of containers in the first ones."""
    if isinstance(value, torch.Tensor):
        shape = shape_of(value)
        return prod(shape.sizes) if shape is not None else 0
    if not depth:
        return 0
    return sum(count_values(part, depth - 1, most) for part in islice(elements_of(value), most))


def elements_of(container: Any) -> Iterable[object]:
    """Return the first elements of a container or dataclass; nothing of everything else."""
    kind = type(container)
    for base, read in _READERS.items():
        if issubclass(kind, base):
            return islice(read(container), MOST_ITEMS)
    if issubclass(kind, Mapping) or hasattr(kind, "__dataclass_fields__"):
        with suppress(AttributeError):  # a dataclass with slots
            return list(object.__getattribute__(container, "__dict__").values())[:MOST_ITEMS]
    return ()
