"""What the code that Inductor generated calls: one open path at a time, moved from kernel call to kernel call.

    ranges = Ranges((("layer 0", "ffn"), ("layer 0", "ffn", "norm + up projection")), "model/forward")
    with ranges.opened() as at:
        at(0)               # the next kernel call belongs to this path
        ...
        at(-1)              # and the next one to none

Moving closes and opens as few ranges as it takes. The block closes what is open, also when it raises. If no
path contains the model's own call, the block opens the range of that call, unless it is open already. With no tool
and no listener, nothing is opened, and a move costs a call of an empty function.

The generated code of a backward returns gradients; one node of autograd's per parameter (`AccumulateGrad`) then
stores each, which copies it where its layout is not the parameter's, or adds it to an earlier one. These nodes run
outside the generated code. They get the path of the graph node that computed the gradient: the outputs of a
backward graph are in the order of the node's `next_functions`. Where numbers of elements say otherwise, no node
gets a range.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from types import FrameType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from .. import range_stack
from ..range_stack import AutomaticRange, Label, OpenRange, label
from .names import Names, shared

NOWHERE = -1
#: Whether generated code has run whose backward looks whether a range of its model is open around it.
looks_around = False
FORWARD, BACKWARD = "model/forward", "model/backward"

#: Per output of a backward graph, the number of its path and its number of elements (-1: not known); None for no
#: gradient.
Leaves = Sequence[tuple[int, int] | None]
#: How many ranges stay open between two paths, and what is opened after them.
Change = tuple[int, list[Label]]

_engine = torch.autograd.Variable._execution_engine


def in_generated_code() -> bool:
    """Return whether this thread is inside generated code: PyTorch has blocks of its own open around it."""
    return range_stack.here().generated > 0


def in_compiled_function() -> bool:
    """Return whether this thread is inside a function that torch.compile runs, in or between its graphs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch._dynamo.eval_frame":
            return True
        frame = frame.f_back
    return False


class CompiledCall(AutomaticRange):
    """The range of a call of a compiled model."""

    __slots__ = ()


class Ranges:
    """The paths of one generated module, by their number in its code; for a backward, those of its gradients.

    `model` is the name of the model whose forward the code is of, if that is in none of the paths.
    """

    def __init__(
        self,
        paths: Sequence[Names],
        category: str,
        leaves: Leaves = (),
        model: str | None = None,
    ) -> None:
        self.paths = tuple(paths)
        self.category = category
        self.leaves = leaves
        self._model = model
        self.model_label = None if model is None else label(model, None, category)
        names = {name for path in self.paths for name in path}
        self.labels = {name: label(name, None, category) for name in names}
        self._changes: dict[tuple[int, int], Change] = {}
        self._in_calls: dict[tuple[str, str], Ranges] = {}

    def opened(self) -> Opened:
        """Return the block in which a call of the generated code runs; its ranges say if that has no gradient.

        Where the call of a compiled model has a range, that is the model's.
        """
        global looks_around
        looks_around |= self._model is not None
        category = range_stack.here().compiled_call
        stack = range_stack.stack()
        innermost = stack[-1] if stack else None
        called = innermost.label.name if isinstance(innermost, CompiledCall) else ""
        if self.category != FORWARD or (category == FORWARD and not called):
            return Opened(self)
        key = category, called
        if key not in self._in_calls:
            below = tuple(path[1:] if called and path[:1] == (called,) else path for path in self.paths)
            self._in_calls[key] = Ranges(below, category, model=None if called else self._model)
        return Opened(self._in_calls[key])

    @cached_property
    def below_model(self) -> Ranges:
        """The same paths, with the range of the model's call above each."""
        if self._model is None:
            return self
        return Ranges([(self._model, *path) for path in self.paths], self.category)

    def change(self, old: int, new: int) -> Change:
        """Return how many ranges both paths have in common, and the labels of the others of the new one."""
        change = self._changes.get((old, new))
        if change is None:
            before = self.paths[old] if old != NOWHERE else ()
            after = self.paths[new] if new != NOWHERE else ()
            common = len(shared((before, after)))
            labels = [self.labels[name] for name in after[common:]]
            change = self._changes[old, new] = (common, labels)
        return change


class Opened:
    """The ranges of one call of generated code, on the thread that runs it."""

    __slots__ = ("_at", "_model", "_of", "_opened")

    def __init__(self, ranges: Ranges) -> None:
        self._of = ranges
        self._at = NOWHERE
        self._opened: list[OpenRange] = []
        self._model: OpenRange | None = None

    def __enter__(self) -> Callable[[int], None]:
        range_stack.here().generated += 1
        if not range_stack.active:
            return lambda _number: None
        if self._of.model_label is not None and not self._is_in_model():
            self._model = range_stack.push(AutomaticRange(self._of.model_label))
        return self._move

    def _is_in_model(self) -> bool:
        """Return whether the call of a model, or the backward of its part, has a range around the block."""
        stack = range_stack.stack()
        if self._of.category == BACKWARD:
            return bool(stack) and stack[-1].label.category == BACKWARD
        return range_stack.here().calls() is not None

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._shrink(0, range_stack.stack())
        paths = self._of
        if self._model is not None:
            range_stack.close(self._model)
            paths = paths.below_model
        range_stack.here().generated -= 1
        if self._of.leaves and kind is None and range_stack.active:
            _follow(self._of.leaves, Opened(paths)._move)

    def _move(self, number: int) -> None:
        """Close and open what differs; it runs before each kernel call, and so takes the stack's shortest ways."""
        if number == self._at:
            return
        common, labels = self._of.change(self._at, number)
        opened, stack = self._opened, range_stack.stack()
        self._shrink(common, stack)
        for range_label in labels:
            if stack and (not opened or stack[-1] is not opened[-1]):
                range_stack.drop_over()
            opened.append(AutomaticRange(range_label))
            range_stack.open_in(stack, opened[-1])
        self._at = number

    def _shrink(self, count: int, stack: list[OpenRange]) -> None:
        opened = self._opened
        while len(opened) > count:
            opened_range = opened[-1]
            if stack and stack[-1] is opened_range:
                opened_range.ended = True
                range_stack.pop(stack)
            else:
                range_stack.close(opened_range)
            opened.pop()


class _Hooks:
    """The hooks on the leaves of one call of generated code; the engine holds it, and so ends it with the pass."""

    def __init__(self) -> None:
        self.handles: list[RemovableHandle] = []

    def __call__(self) -> None:
        while self.handles:
            self.handles.pop().remove()

    __del__ = __call__


def _follow(leaves: Leaves, move: Callable[[int], None]) -> None:
    """Call `move` with a path's number before each leaf of the node that now runs, and with NOWHERE after it."""
    with suppress(RuntimeError):  # the code does not run inside autograd's engine
        node = torch._C._current_autograd_node()
        if node is None:
            return
        following = [function for function, _ in node.next_functions]
        matched = _matched(leaves, following)
        if not matched:
            return
        hooks = _Hooks()
        for function, number in matched:
            hooks.handles.append(function.register_prehook(partial(_moved, move, number)))
            hooks.handles.append(function.register_hook(partial(_moved, move, NOWHERE)))
        _engine.queue_callback(hooks)


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
        if leaf is None or leaf[1] not in (-1, variable.numel()):
            return []
        matched.append((function, leaf[0]))
    return matched
