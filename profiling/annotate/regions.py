"""Regions: a range around a part of the forward, and one around the backward of that part.

Nothing is added to the program: no operator, no autograd node, no hook. Backward runs nodes in falling order of
their numbers, so a region's backward is one stretch of nodes, nested like its forward. Gradients summed for a
fan-out, and gradients accumulated into a leaf, run right after the node that made them: they count for its region.

    forward   layer 0 [ a  norm[ b c ]  d ]  layer 1 [ ... ]          a, b, c, d: nodes in order of creation
    backward  layer 0 [ d  norm[ c b ]  a ]

What hears of nodes (`nodes.py`) calls `reach` just before one of another part runs, on the thread that runs it.
A pass is one run of the engine (`Tensor.backward`, `torch.autograd.grad`, or one of them within a backward); what
it leaves open is closed at its end, also where it fails. A thread of the engine's own closes what a failed pass
left there at its next range.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.autograd.graph import Node

from . import range_stack
from .places import Call, Within, places_of
from .range_stack import AutomaticRange, Label, OpenRange, Payload, Thread, label, made_once

_engine = torch.autograd.Variable._execution_engine
pass_id = torch._C._current_graph_task_id
current_node: Callable[[], Node] = torch._C._current_autograd_node
_is_run: Callable[[Node], bool] = torch._C._will_engine_execute_node
_is_compiling = torch.compiler.is_dynamo_compiling
_local = range_stack.local
NO_PASS = -1


class Names:
    """The labels of the forward and backward ranges of one part of a model, and of calls without gradient."""

    __slots__ = ("backward", "evaluation", "forward", "no_gradient")

    def __init__(self, name: str, payload: Payload) -> None:
        self.forward = label(name, payload, "model/forward")
        self.backward = label(name, payload, "model/backward")
        self.no_gradient = label(name, payload, "model/no gradient")
        self.evaluation = label(name, payload, "model/evaluation")


names = made_once(Names)


@lru_cache(maxsize=4096)
def _recompute(*interrupts: Label) -> Label:
    return Label("recompute", None, "model/forward", interrupts=interrupts)


class Part:
    """One run of a region: while it runs its forward range, and afterwards what its backward needs.

    `depth` is how many parts are around it. While it is `running`, a backward inside it is not its backward.
    """

    __slots__ = ("call", "depth", "label", "opened", "parent", "recomputation", "running", "thread")

    def __init__(
        self,
        label: Label,
        parent: Part | None,
        opened: OpenRange,
        thread: Thread | None,
    ) -> None:
        self.label = label
        self.parent = parent
        self.running = True
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.opened = opened
        # The thread whose nodes are its; None where no gradients are recorded.
        self.thread = thread
        self.call: Call | None = None
        self.recomputation: Recomputation | None = None


def begin(
    labels: Names,
    opened: OpenRange,
    thread: Thread,
    around: Sequence[Label] = (),
) -> Part:
    """Open a region's forward range; autograd's nodes are its from now on.

    `around` are the labels of the backward of regions known to be around it, from the inside, also where these do
    not run again.
    """
    if not torch.is_grad_enabled():
        range_stack.push(opened)
        return Part(labels.backward, None, opened, None)
    part = Part(labels.backward, running_part(thread), opened, thread)
    if part.parent is None:
        part.call = places_of(thread).begin_call()
        if in_backward():
            part.recomputation = Recomputation(labels.backward, around)
    range_stack.push(opened)
    thread.innermost = part
    thread.places.enter(part)
    return part


def end(part: Part) -> None:
    """Close a region's forward range; autograd's nodes are those of the region around it again."""
    part.running = False
    thread = part.thread if part.thread is _local.thread else None
    if thread is not None:
        thread.innermost = part.parent if thread.innermost is part else running_part(thread)
    range_stack.close(part.opened)
    if part.recomputation is not None:
        part.recomputation.end()
    if thread is not None:
        enter_innermost(thread)
    if part.call is not None:
        part.call.end()
    del part.opened, part.thread, part.recomputation, part.call  # the table of numbers keeps the part alone


def enter_innermost(thread: Thread) -> None:
    """Have a thread's next nodes be of its innermost region, or of the part whose backward runs."""
    part: Part | Within | None = running_part(thread)
    if part is None and (number := pass_id()) != NO_PASS:
        is_hooked = bool(thread.ranges) and thread.ranges[-1].pass_id == number
        part = thread.ranges[-1].part if is_hooked else Within(threading.get_native_id(), time.time_ns())
    thread.places.enter(part)


def close_interrupted(thread: Thread) -> None:
    """Close ranges of module calls that were interrupted too hard to close them themselves."""
    for opened in thread.ranges:
        if opened.alive is not None and opened.over:
            range_stack.close(opened)
            break
    thread.innermost = running_part(thread)


def running_part(thread: Thread) -> Part | None:
    """Return the innermost region that really runs on a thread."""
    part: Part | None = thread.innermost
    while part is not None and (not part.running or part.opened.over):
        part = part.parent
    return part


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
    last: Part | None = top.part if top is not None and top.pass_id == number else None
    if part is not None and (last is part or not (is_sure or _is_run(current_node()))):
        return
    if last is None:
        range_stack.drop_over()
    # Up from both, until they are the same: what is open is closed, and what is not is opened.
    outer = part
    still_open = len(ranges)
    parts_to_open = []
    while True:
        last = ranges[still_open - 1].part if still_open and ranges[still_open - 1].pass_id == number else None
        if last is outer:
            break
        if outer is None or (last is not None and last.depth >= outer.depth):
            still_open -= 1
            continue
        if not outer.running:
            parts_to_open.append(outer)
        outer = outer.parent
    while len(ranges) > still_open:
        range_stack.pop(ranges)
    if parts_to_open:
        alive = _alive(thread, number)
        for part_to_open in reversed(parts_to_open):
            range_stack.open_in(ranges, BackwardRange(part_to_open, number, alive))


class BackwardRange(AutomaticRange):
    """A range around the backward of a part, in one pass of the engine."""

    __slots__ = ("part", "pass_id")

    def __init__(
        self,
        part: Part,
        pass_id: int,
        alive: Callable[[], Any] | None,
    ) -> None:
        self.label, self.alive = part.label, alive  # not by the base class, which would take as long again
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


def _alive(thread: Thread, number: int) -> weakref.ref[_Pass]:
    """Return a reference that dies with the pass, however it ends."""
    alive: weakref.ref[_Pass] | None = thread.passes.get(number)
    if alive is None or alive() is None:
        thread.passes = {old: ref for old, ref in thread.passes.items() if ref() is not None}
        current = _Pass(number)
        _engine.queue_callback(current)
        alive = thread.passes[number] = weakref.ref(current)
    return alive


def _base_of_pass(ranges: list[OpenRange], number: int) -> int:
    """Return the index from which on the innermost ranges belong to this pass of the engine."""
    base = len(ranges)
    while base and ranges[base - 1].pass_id == number:
        base -= 1
    return base


class Recomputation:
    """A forward that runs inside a backward (activation checkpointing), kept apart from it.

    The backward ranges of the recomputed region are closed for a range `recompute`, and opened again when the
    recomputed region ends. If it has none open, those of the region around it stay, and all others are closed.
    """

    def __init__(self, label: Label, around: Sequence[Label]) -> None:
        """Begin, given the label of the region's backward, and those of the regions around it, from the inside."""
        ranges = range_stack.stack()
        self._pass = pass_id()
        range_stack.drop_over()
        base = _base_of_pass(ranges, self._pass)
        labels = [opened.label for opened in ranges[base:]]
        self._kept = base
        innermost = next((outer for outer in (label, *around) if outer in labels), None)
        if innermost is not None:
            self._kept += labels.index(innermost) + (innermost is not label)
        self._interrupted = ranges[self._kept :]
        range_stack.shrink(self._kept)
        self._opened = range_stack.push(OpenRange(_recompute(label, *around)))

    def end(self) -> None:
        """Close the range and bring the interrupted backward ranges back."""
        range_stack.close(self._opened)
        ranges = range_stack.stack()
        if len(ranges) == self._kept and pass_id() == self._pass:
            for interrupted in self._interrupted:
                range_stack.open_in(ranges, BackwardRange(interrupted.part, self._pass, interrupted.alive))
