"""Runs of autograd's engine that Python starts: each is told when it begins and when it ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..annotate import nodes
from ..annotate.range_stack import OpenRange

#: Which of the engine's arguments after the outputs asks for a graph of the gradients, and which are the inputs.
CREATE_GRAPH, INPUTS = 2, 3


class EngineRun(NamedTuple):
    """What the engine is called with."""

    outputs: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def stores(self) -> bool:
        """Whether it stores gradients in leaves, as Tensor.backward does."""
        return bool(self.options.get("accumulate_grad"))

    def is_of_weights(self) -> bool:
        """Return whether the gradients asked for are those of weights."""
        inputs = self.arguments[INPUTS] if len(self.arguments) > INPUTS else ()
        return any(isinstance(tensor, torch.nn.Parameter) for tensor in inputs)

    def leads_on(self) -> bool:
        """Return whether it hands out gradients that can become part of a loss.

        `torch.func.grad` always makes a graph; at its outermost level that is of use only if something outside it
        requires a gradient.
        """
        makes_graph = len(self.arguments) > CREATE_GRAPH and bool(self.arguments[CREATE_GRAPH])
        if not makes_graph or self.stores:
            return False
        functorch = torch._C._functorch
        if functorch.maybe_current_level() != 1:
            return True
        tensors = [tensor for tensor in self.outputs if isinstance(tensor, torch.Tensor)]
        return any(
            functorch.get_unwrapped(tensor).requires_grad
            for tensor in tensors
            if functorch.is_gradtrackingtensor(tensor)
        )


class OpenRun(NamedTuple):
    """A run that has begun, with its range; `is_phase` unless it is inside another."""

    opened: OpenRange | None
    is_phase: bool


@contextmanager
def told(begins: Callable[[EngineRun], OpenRun | None], ends: Callable[[OpenRun | None], None]) -> Iterator[None]:
    """Tell of every run of autograd's engine that Python starts; `ends` gets what `begins` returned."""
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def told_run(outputs: Any, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return run(outputs, *arguments, **options)
        begun = begins(EngineRun(outputs, arguments, options))
        try:
            return run(outputs, *arguments, **options)
        finally:
            ends(begun)

    with nodes.running_backward(told_run):
        yield
