"""Ranges around what the engine adds to parameters' gradients after generated code has computed these.

The generated code of a backward returns gradients; one node of autograd's per parameter (`AccumulateGrad`) then
stores each, which copies it where its layout is not the parameter's, or adds it to an earlier one. These nodes run
outside the generated code. They get the path of the graph node that computed the gradient: the outputs of a
backward graph are in the order of the node's `next_functions`. Where numbers of elements say otherwise, no node
gets a range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

#: Per output of a backward graph, the number of its path and its number of elements; None for no gradient.
Leaves = Sequence[tuple[int, int] | None]
_engine = torch.autograd.Variable._execution_engine
_ANY = -1


class Pending:
    """The hooks on the leaves of one call of generated code; the engine holds it, and so ends it with the pass."""

    def __init__(self) -> None:
        self.handles: list[RemovableHandle] = []

    def __call__(self) -> None:
        """Take the hooks off."""
        while self.handles:
            self.handles.pop().remove()

    def __del__(self) -> None:
        self()


def follow(leaves: Leaves, move: Callable[[int], None], nowhere: int) -> None:
    """Call `move` with a path's number before each leaf of the node that now runs, and with `nowhere` after it."""
    with suppress(RuntimeError):  # the code does not run inside autograd's engine
        node = torch._C._current_autograd_node()
        following = [function for function, _ in node.next_functions] if node is not None else []
        matched = _matched(leaves, following)
        if matched:
            pending = Pending()
            for function, number in matched:
                pending.handles.append(function.register_prehook(partial(_moved, move, number)))
                pending.handles.append(function.register_hook(partial(_moved, move, nowhere)))
            _engine.queue_callback(pending)


def _moved(move: Callable[[int], None], number: int, *_gradients: object) -> None:
    move(number)


def _matched(leaves: Leaves, following: Sequence[Any]) -> list[tuple[Any, int]]:
    """Return the nodes of leaves with the numbers of their paths; [] where they are not those of the graph."""
    if len(leaves) != len(following):
        return []
    matched = []
    for leaf, function in zip(leaves, following, strict=True):
        variable = getattr(function, "variable", None)
        if variable is None:
            continue
        if leaf is None or leaf[1] not in (_ANY, variable.numel()):
            return []
        matched.append((function, leaf[0]))
    return matched
