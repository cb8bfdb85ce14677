"""Ranges that the autograd engine opens and closes while it runs a backward pass.

Hooks on autograd nodes call in here just before (`before_node`) or after (`after_node`) a node, on the
thread that runs it. A pass is one run of the engine (`Tensor.backward`, `torch.autograd.grad`, or one of
them within a backward); what it leaves open is closed at its end, or, if it failed, at its thread's next
range.
"""

from __future__ import annotations

import threading
import weakref

import torch

from profiling import range_stack
from profiling.range_stack import OpenRange, Payload

_engine = torch.autograd.Variable._execution_engine
_pass_id = torch._C._current_graph_task_id
_NO_PASS = -1


class Part:
    """One run of a region, as its backward knows it: a name, a payload, the parts around it.

    `running` says that its forward has not ended: a backward inside it is no backward of it.
    """

    __slots__ = ("__weakref__", "above", "name", "payload", "running")

    def __init__(self, name: str, payload: Payload, parent: Part | None) -> None:
        self.name, self.payload = name, payload
        self.above: tuple[Part, ...] = (*parent.above, parent) if parent else ()
        self.running = True

    def path(self) -> list[Part]:
        """Return the parts whose backward this one's is inside of, outermost first, and this one."""
        return [part for part in (*self.above, self) if not part.running]


class _Pass:
    """One run of the engine on one thread; only the engine holds it, and calls it at the end."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self) -> None:
        range_stack.shrink(_base_of_pass(range_stack.stack(), self.number))


class _Thread(threading.local):
    def __init__(self) -> None:
        self.passes: dict[int, weakref.ref[_Pass]] = {}


_thread = _Thread()


def before_node(part: Part | None, _gradients: object = None) -> None:
    """Make the ranges that this pass has open on this thread the path of `part`."""
    number = _pass_id()
    if not range_stack.active or number == _NO_PASS or torch.compiler.is_compiling():
        return
    ranges = range_stack.stack()
    if ranges and part is not None and ranges[-1].part is part and ranges[-1].pass_id == number:
        return
    range_stack.drop_over()
    alive = _alive(number)
    wanted = part.path() if part else []
    kept = base = _base_of_pass(ranges, number)
    for opened, want in zip(ranges[base:], wanted, strict=False):
        if opened.part is not want:
            break
        kept += 1
    range_stack.shrink(kept)
    for want in wanted[kept - base :]:
        range_stack.push(OpenRange(want.name, want.payload, "model/backward", want, number, alive))


def after_node(part: weakref.ref[Part], _inputs: object = None, _outputs: object = None) -> None:
    """Close the backward range of `part`, if it is open on this thread."""
    ranges = range_stack.stack()
    for index in range(_base_of_pass(ranges, _pass_id()), len(ranges)):
        if ranges[index].part is part():
            range_stack.shrink(index)
            return


class Recomputation:
    """A forward that runs inside a backward (activation checkpointing), kept apart from it.

    The backward ranges make way, from the one of the recomputed region on (else all of this pass), for a
    range `recompute`, and come back when the recomputed region ends.
    """

    def __init__(self, name: str, payload: Payload) -> None:
        ranges, number = range_stack.stack(), _pass_id()
        range_stack.drop_over()
        base = _base_of_pass(ranges, number)
        self._interrupted = ranges[-1].part if len(ranges) > base else None
        same = (at for at in range(base, len(ranges)) if (ranges[at].name, ranges[at].payload) == (name, payload))
        range_stack.shrink(next(same, base))
        self._opened = range_stack.push(OpenRange("recompute", None, "model/forward"))

    @staticmethod
    def is_due() -> bool:
        """Tell whether a forward that begins now, with gradients recorded, is inside a backward."""
        return _pass_id() != _NO_PASS

    def end(self) -> None:
        """Close the range and bring the interrupted backward ranges back."""
        range_stack.close(self._opened)
        if isinstance(self._interrupted, Part):
            before_node(self._interrupted)


def _base_of_pass(ranges: list[OpenRange], number: int) -> int:
    """Return the index from which on the innermost ranges belong to this pass of the engine."""
    base = len(ranges)
    while base and ranges[base - 1].pass_id == number:
        base -= 1
    return base


def _alive(number: int) -> weakref.ref[_Pass]:
    """Return a reference that dies with the pass, however it ends."""
    alive = _thread.passes.get(number)
    if alive is None or alive() is None:
        _thread.passes = {old: ref for old, ref in _thread.passes.items() if ref() is not None}
        current = _Pass(number)
        _engine.queue_callback(current)
        alive = _thread.passes[number] = weakref.ref(current)
    return alive
