"""Ranges that the autograd engine opens and closes while it runs a backward pass.

What hears of nodes (`nodes.py`) calls `reach` just before one of another part runs, on the thread that runs it.
A pass is one run of the engine (`Tensor.backward`, `torch.autograd.grad`, or one of them within a backward); what
it leaves open is closed at its end, also where it fails. A thread of the engine's own closes what a failed pass
left there at its next range.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence

import torch
from torch.autograd.graph import Node

from . import range_stack
from .open_ranges import DependentRange, Label, OpenRange, Thread, label
from .places import Part, places_of

_engine = torch.autograd.Variable._execution_engine
pass_id = torch._C._current_graph_task_id
current_node: Callable[[], Node] = torch._C._current_autograd_node
_is_run: Callable[[Node], bool] = torch._C._will_engine_execute_node
_is_compiling = torch.compiler.is_dynamo_compiling
_local = range_stack.local
NO_PASS = -1
_RECOMPUTE = label("recompute", None, "model/forward")


def in_backward() -> bool:
    """Return whether this thread runs a node of autograd's."""
    return pass_id() != NO_PASS


def reach(part: Part | None, number: int, is_sure: bool = False) -> None:
    """Make the ranges that a pass has open on this thread the path of a part, whose node surely runs or may."""
    if not range_stack.active or _is_compiling():
        return
    thread = _local.thread
    if torch.is_grad_enabled():  # what this node makes is of its part, too
        places_of(thread).enter(part)
    ranges = thread.ranges
    top = ranges[-1] if ranges else None
    if part is None:
        _open_path(thread, number, [])
        return
    last: Part | None = top.part if top is not None and top.pass_id == number else None
    parent = part.parent
    if last is part or not (is_sure or _is_run(current_node())):
        return
    if top is None or last is None:
        _open_path(thread, number, part.path())
    elif parent is None or part.running or not (last is parent or last.parent is parent):
        _move(thread, number, part)
    else:  # mostly one module comes after another of the same parent
        if last is not parent:
            range_stack.pop(ranges)
        range_stack.open_in(ranges, BackwardRange(part, number, top.alive))


def _move(thread: Thread, number: int, part: Part) -> None:
    """Close and open ranges on the way from the innermost to that of `part`."""
    ranges, parts_to_open, closed = thread.ranges, [], 0
    top = ranges[-1]
    last: Part | None = top.part
    outer_part: Part | None = part
    while outer_part is not last:
        if outer_part is None or last is None or outer_part.running or last.running:
            _open_path(thread, number, part.path())
            return
        if last.depth >= outer_part.depth:
            last, closed = last.parent, closed + 1
        else:
            parts_to_open.append(outer_part)
            outer_part = outer_part.parent
    if outer_part is None or outer_part.running:
        _open_path(thread, number, part.path())
        return
    for _ in range(closed):
        range_stack.pop(ranges)
    for part_to_open in reversed(parts_to_open):
        range_stack.open_in(ranges, BackwardRange(part_to_open, number, top.alive))


class BackwardRange(DependentRange):
    """A range around the backward of a part, in one pass of the engine."""

    __slots__ = ("part", "pass_id")

    def __init__(self, part: Part, pass_id: int, alive: weakref.ref[_Pass]) -> None:
        self.label, self.alive = part.label, alive
        self.ended = self.in_tool = False
        self.listeners = ()
        self.part: Part = part
        self.pass_id: int = pass_id


class _Pass:
    """One run of the engine on one thread; only the engine holds it, and calls it at the end if nothing failed.

    One that failed releases it on the thread that called backward.
    """

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self) -> None:
        range_stack.shrink(_base_of_pass(range_stack.stack(), self.number))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self()


def _open_path(thread: Thread, number: int, parts: list[Part]) -> None:
    ranges = thread.ranges
    range_stack.drop_over()
    kept_count = base = _base_of_pass(ranges, number)
    for opened, part in zip(ranges[base:], parts, strict=False):
        if opened.part is not part:
            break
        kept_count += 1
    range_stack.shrink(kept_count)
    missing = parts[kept_count - base :]
    if missing:
        alive = _alive(thread, number)
        for part in missing:
            range_stack.open_in(ranges, BackwardRange(part, number, alive))


class Recomputation:
    """A forward that runs inside a backward (activation checkpointing), kept apart from it.

    The backward ranges of the recomputed region are closed for a range `recompute`, and opened again when the
    recomputed region ends. If it has none open, those of the region around it stay, and all others are closed.
    """

    def __init__(self, label: Label, around: Sequence[Label]) -> None:
        """Begin, given the label of the region's backward, and those of the regions around it, from the inside."""
        ranges, self._pass = range_stack.stack(), pass_id()
        range_stack.drop_over()
        base = _base_of_pass(ranges, self._pass)
        labels = [opened.label for opened in ranges[base:]]
        index_of_label = [labels.index(label)] if label in labels else []
        outside = index_of_label or [labels.index(outer) + 1 for outer in around if outer in labels]
        self._kept = base + (outside[0] if outside else 0)
        self._interrupted = ranges[self._kept :]
        range_stack.shrink(self._kept)
        self._opened = range_stack.push(OpenRange(_RECOMPUTE))

    def end(self) -> None:
        """Close the range and bring the interrupted backward ranges back."""
        range_stack.close(self._opened)
        ranges = range_stack.stack()
        if len(ranges) == self._kept and pass_id() == self._pass:
            for interrupted in self._interrupted:
                range_stack.open_in(ranges, BackwardRange(interrupted.part, self._pass, interrupted.alive))


def _base_of_pass(ranges: list[OpenRange], number: int) -> int:
    """Return the index from which on the innermost ranges belong to this pass of the engine."""
    base = len(ranges)
    while base and ranges[base - 1].pass_id == number:
        base -= 1
    return base


def _alive(thread: Thread, number: int) -> weakref.ref[_Pass]:
    """Return a reference that dies with the pass, however it ends."""
    alive: weakref.ref[_Pass] | None = thread.passes.get(number)
    if alive is None or alive() is None:
        thread.passes = {old: ref for old, ref in thread.passes.items() if ref() is not None}
        current = _Pass(number)
        _engine.queue_callback(current)
        alive = thread.passes[number] = weakref.ref(current)
    return alive
