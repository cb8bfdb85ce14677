"""Ranges that the autograd engine opens and closes while it runs a backward pass.

Hooks on autograd nodes call in here just before (`Root.before`) or after (`close_part`) a node, on the
thread that runs it. A pass is one run of the engine (`Tensor.backward`, `torch.autograd.grad`, or one of
them within a backward); what it leaves open is closed at its end, also where it fails. A thread of the engine's
own closes what a failed pass left there at its next range.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from . import range_stack
from .open_ranges import DependentRange, Label, OpenRange, Thread, label

next_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_engine = torch.autograd.Variable._execution_engine
_pass_id = torch._C._current_graph_task_id
_current_node: Callable[[], Node] = torch._C._current_autograd_node
# Hooks on what a tensor gets also run where `torch.autograd.grad` asks for that, and the node does not run.
# PyTorch knows for all nodes but the one that a pass begins with.
_is_run: Callable[[Node], bool] = torch._C._will_engine_execute_node
_is_compiling = torch.compiler.is_dynamo_compiling
_NO_PASS = -1
LEAF_NUMBER = 2**64 - 1
_local = range_stack.local
Hooks = OrderedDict[int, Callable[[object], None]]
_RECOMPUTE = label("recompute", None, "model/forward")


class Part:
    """One run of a region, as its backward knows it: a label, and the part around it.

    `running` is true while its forward has not ended: a backward inside it is not its backward.
    """

    __slots__ = ("depth", "label", "parent", "running")

    def __init__(self, label: Label, parent: Part | None) -> None:
        self.label, self.parent, self.running = label, parent, True
        # How many parts are around it.
        self.depth: int = parent.depth + 1 if parent is not None else 0

    def path(self) -> list[Part]:
        """Return the parts whose backward this one's is inside of, outermost first, and this one."""
        parts: list[Part] = []
        part: Part | None = self
        while part is not None:
            if not part.running:
                parts.append(part)
            part = part.parent
        return parts[::-1]


class Places:
    """Which part was innermost at which number of autograd."""

    __slots__ = ("bounds", "hooks", "parts")

    def __init__(self) -> None:
        # The part at the same place is innermost from this number on.
        self.bounds: list[int] = []
        self.parts: list[Part | None] = []
        self.hooks: weakref.ref[Hooks] | None = None

    def enter(self, part: Part | None) -> int:
        """Make this part the innermost from the next number on, and return that."""
        number: int = next_number()
        self.bounds.append(number)
        self.parts.append(part)
        return number

    def enter_at(self, number: int, part: Part | None) -> None:
        """Make this part the innermost from a number on."""
        self.bounds.append(number)
        self.parts.append(part)

    def at(self, number: int) -> Part | None:
        """Return the part that was innermost when a node got its number."""
        return self.parts[bisect_right(self.bounds, number) - 1]

    def remove(self) -> None:
        """Remove the hooks from all nodes."""
        hooks = self.hooks() if self.hooks else None
        if hooks is not None:
            hooks.clear()


class Root:
    """One run of a region that is in no other.

    One hook serves all its nodes: the nodes keep the dictionary `hooks` alive, and that keeps this.
    """

    __slots__ = ("__weakref__", "others", "places", "trail")

    def __init__(self, places: Places) -> None:
        self.places = places
        # Handles of hooks on nodes that may outlive the graph.
        self.others: list[RemovableHandle] = []
        # While the forward runs: what is known of its nodes.
        self.trail: Any = None

    def hooks(self) -> Hooks:
        """Return the dictionary of the one hook that calls in here."""
        hooks: Hooks = OrderedDict()
        hooks[0] = self.before
        self.places.hooks = weakref.ref(hooks)
        return hooks

    def remove(self) -> None:
        """Remove the hooks from all nodes."""
        self.places.remove()
        for handle in self.others:
            handle.remove()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.remove()

    def before(self, _gradient: object) -> None:
        """Make the ranges that this pass has open on this thread the path of the node's part."""
        number = _pass_id()
        if number == _NO_PASS or not range_stack.active or _is_compiling():
            return
        if self.trail is not None:
            self.trail.walk(LEAF_NUMBER)
        reach(self.places.at(_current_node()._sequence_nr()), number, False)


def reach(part: Part | None, number: int, is_sure: bool) -> None:
    """Make the ranges that a pass has open on this thread the path of a part, whose node surely runs or may."""
    if not range_stack.active or _is_compiling():
        return
    thread = _local.thread
    ranges = thread.ranges
    top = ranges[-1] if ranges else None
    if top is None or top.pass_id != number or part is None:
        _open_path(thread, number, part.path() if part else [])
    elif top.part is not part and (is_sure or _is_run(_current_node())):
        last, parent = top.part, part.parent
        if parent is None or part.running or not (last is parent or last.parent is parent):
            _move(thread, number, part)
            return
        # Mostly one module comes after another of the same parent.
        if last is not parent:
            range_stack.pop(ranges)
        range_stack.open_in(ranges, BackwardRange(part, number, top.alive))


def _move(thread: Thread, number: int, part: Part) -> None:
    """Close and open ranges on the way from the innermost to that of `part`."""
    ranges, wanted, closed = thread.ranges, [], 0
    top = ranges[-1]
    last: Part | None = top.part
    one: Part | None = part
    while one is not last:
        if one is None or last is None or one.running or last.running:
            _open_path(thread, number, part.path())
            return
        if last.depth >= one.depth:
            last, closed = last.parent, closed + 1
        else:
            wanted.append(one)
            one = one.parent
    if one is None or one.running:
        _open_path(thread, number, part.path())
        return
    for _ in range(closed):
        range_stack.pop(ranges)
    for want in reversed(wanted):
        range_stack.open_in(ranges, BackwardRange(want, number, top.alive))


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

    One that failed lets go of it on the thread that called backward.
    """

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self) -> None:
        range_stack.shrink(_base_of_pass(range_stack.stack(), self.number))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self()


def before_others(_gradients: object = None) -> None:
    """Close the ranges that this pass has open on this thread, because the next node has no region."""
    number = _pass_id()
    if number != _NO_PASS and range_stack.active and not _is_compiling():
        _open_path(range_stack.here(), number, [])


def close_part(part: Part, _inputs: object = None, _outputs: object = None) -> None:
    """Close the backward range of `part`, if it is open on this thread."""
    ranges = range_stack.stack()
    for index in range(_base_of_pass(ranges, _pass_id()), len(ranges)):
        if ranges[index].part is part:
            range_stack.shrink(index)
            return


def _open_path(thread: Thread, number: int, wanted: list[Part]) -> None:
    ranges = thread.ranges
    range_stack.drop_over()
    kept = base = _base_of_pass(ranges, number)
    for opened, want in zip(ranges[base:], wanted, strict=False):
        if opened.part is not want:
            break
        kept += 1
    range_stack.shrink(kept)
    missing = wanted[kept - base :]
    if missing:
        alive = _alive(thread, number)
        for want in missing:
            range_stack.open_in(ranges, BackwardRange(want, number, alive))


class Recomputation:
    """A forward that runs inside a backward (activation checkpointing), kept apart from it.

    The backward ranges of the recomputed region are closed for a range `recompute`, and opened again when the
    recomputed region ends. If it has none open, those of the region around it stay, and all others are closed.
    """

    def __init__(self, label: Label, around: Sequence[Label]) -> None:
        """Begin, given the label of the region's backward, and those of the regions around it, from the inside."""
        ranges, self._pass = range_stack.stack(), _pass_id()
        range_stack.drop_over()
        base = _base_of_pass(ranges, self._pass)
        labels = [opened.label for opened in ranges[base:]]
        own = [labels.index(label)] if label in labels else []
        outside = own or [labels.index(one) + 1 for one in around if one in labels]
        self._kept = base + (outside[0] if outside else 0)
        self._interrupted = ranges[self._kept :]
        range_stack.shrink(self._kept)
        self._opened = range_stack.push(OpenRange(_RECOMPUTE))

    @staticmethod
    def is_due() -> bool:
        """Return whether a forward that begins now, with gradients recorded, is inside a backward."""
        return _pass_id() != _NO_PASS

    def end(self) -> None:
        """Close the range and bring the interrupted backward ranges back."""
        range_stack.close(self._opened)
        ranges = range_stack.stack()
        if len(ranges) == self._kept and _pass_id() == self._pass:
            for one in self._interrupted:
                range_stack.open_in(ranges, BackwardRange(one.part, self._pass, one.alive))


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
