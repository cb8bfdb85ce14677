"""Replace attributes of modules and classes while a block runs.

Blocks over one attribute may begin and end in any order. Each value that is put over another calls that one:

    ours A over PyTorch's      A → PyTorch's
    ours B over A              B → A → PyTorch's
    A's block ends             B → A → PyTorch's, and B's block will put PyTorch's back
    B's block ends             PyTorch's

So what is put here must pass everything on once its block is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_MISSING = object()


@dataclass(slots=True, eq=False)
class _Layer:
    """A value that is put over an object's attribute, and what was there before, unless that is over by now."""

    target: Any
    value: Any
    before: Any


#: By the object's id and the attribute's name, from the bottom.
_layers: dict[tuple[int, str], list[_Layer]] = {}


@contextmanager
def replaced(*attributes: tuple[Any, str, Any]) -> Iterator[None]:
    """Set attributes, each an object, a name and a value; afterwards put back those that nobody has set since."""
    put = [(name, _put(target, name, value)) for target, name, value in attributes]
    try:
        yield
    finally:
        for name, layer in put:
            _take_off(name, layer)


def is_on_top(target: Any, name: str) -> bool:
    """Return whether an attribute is what was put there last, and not what somebody else has put over it."""
    layers = _layers.get((id(target), name), [])
    return any(vars(target).get(name) is layer.value for layer in layers[-1:])


def _put(target: Any, name: str, value: Any) -> _Layer:
    layer = _Layer(target, value, vars(target).get(name, _MISSING))
    _layers.setdefault((id(target), name), []).append(layer)
    setattr(target, name, value)
    return layer


def _take_off(name: str, layer: _Layer) -> None:
    target = layer.target
    layers = _layers[id(target), name]
    place = layers.index(layer)
    del layers[place]
    if not layers:
        del _layers[id(target), name]
    if place < len(layers):
        layers[place].before = layer.before
    elif vars(target).get(name) is layer.value:
        if layer.before is _MISSING:
            delattr(target, name)
        else:
            setattr(target, name, layer.before)
