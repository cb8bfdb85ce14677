"""Which autograd nodes a region created, found from what it returned.

Autograd numbers its nodes in the order of their creation, on each thread, and runs them in falling order.
Leaves have a number above all others, and run as soon as their gradient is there.

What a program returns is its own: only what can be looked into without running the program's code is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Module, Parameter

from .engine import LEAF_NUMBER
from .range_stack import say_failed

_MAX_ITEMS = 1000
has_modes = torch._C._len_torch_function_stack
# How to look into a container without its own methods, which may be the program's.
_READS = {list: list.__iter__, tuple: tuple.__iter__, set: set.__iter__, frozenset: frozenset.__iter__}
WITHOUT = {type(None), bool, int, float, str, torch.dtype, torch.device, Parameter}


def collect(value: object, depth: int, start: int, found: dict[Node, int]) -> None:
    """Add the node of every tensor in `value` whose backward is numbered `start` or higher, and its number.

    Containers and dataclasses are searched `depth` levels deep.
    """
    kind = type(value)
    if kind is Tensor and not has_modes():
        add_node(value, start, found)
    elif kind in WITHOUT:
        return
    elif issubclass(kind, Tensor):
        with torch._C.DisableTorchFunction():
            add_node(value, start, found)
    elif depth:
        for item in _items(value, kind):
            collect(item, depth - 1, start, found)


def collect_arguments(values: Iterable[Any], start: int, found: dict[Node, int]) -> None:
    """Do the same for the arguments of a call, which mostly are plain tensors or contain none."""
    is_seen = has_modes()
    for value in values:
        kind = type(value)
        if kind in WITHOUT:
            continue
        if kind is Tensor and not is_seen:
            add_node(value, start, found)
        else:
            collect(value, 1, start, found)


def older_nodes(values: Iterable[Any], start: int, known: dict[Node, int]) -> list[Node] | None:
    """Return the nodes of the tensors that a call was given; None if it changed one, or got more than those.

    Nodes that are `known` are older than the call.
    """
    nodes: list[Node] = []
    for value in values:
        kind = type(value)
        if kind is Tensor:
            try:
                node = value.grad_fn
            except RuntimeError:  # a view that autograd forbids to use after an in-place operation
                return None
            if node is not None:
                if node not in known and node._sequence_nr() >= start:
                    return None
                nodes.append(node)
        elif kind not in WITHOUT:
            return None
    return nodes


def are_plain(module: Module) -> bool:
    """Return whether all parameters of a module are just that, and not computed by the program."""
    for weight in module._parameters.values():
        if weight is not None and type(weight) is not Parameter:
            return False
    return True


def add_node(tensor: Any, start: int, found: dict[Node, int]) -> None:
    """Add the node of a tensor, if it is numbered `start` or higher."""
    try:
        node = tensor.grad_fn
    except RuntimeError:  # a view that autograd forbids to use after an in-place operation
        return
    if node is None:
        return
    number = node._sequence_nr()
    if number < start:
        return
    found[node] = number
    if tensor._is_view():
        # An in-place operation on a returned view replaces the view's node: the one behind it counts too.
        for following, _ in node.next_functions:
            if following is not None and start <= (number := following._sequence_nr()) < LEAF_NUMBER:
                found[following] = number


def _items(value: Any, kind: type) -> Iterable[object]:
    if issubclass(kind, dict):
        return islice(dict.values(value), _MAX_ITEMS)
    for base, items in _READS.items():
        if issubclass(kind, base):
            return islice(items(value), _MAX_ITEMS)
    if issubclass(kind, Mapping) or hasattr(kind, "__dataclass_fields__"):
        return _attributes(value, kind)
    return ()


def _attributes(value: object, kind: type) -> Iterable[object]:
    try:
        return list(object.__getattribute__(value, "__dict__").values())[:_MAX_ITEMS]
    except AttributeError:  # a dataclass with slots
        names = getattr(kind, "__dataclass_fields__", ())
        return [getattr(value, name, None) for name in names]


def items_of(value: object) -> list[object]:
    """Return what a container or dataclass contains, without running the program's code; [] for all else."""
    try:
        return list(_items(value, type(value)))
    except Exception:  # an instrument must not break what it measures
        say_failed("the return value of a module cannot be inspected")
        return []
