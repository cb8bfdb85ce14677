"""Regions: a range around a part of the forward, and one around the backward of that part.

Nothing is added to the program: no operator, no autograd node. A region remembers the number that autograd
would give its next node (`start`); what it returns leads to the nodes it created. Backward runs nodes in
falling order of these numbers, so a region's backward is one stretch of nodes, nested like its forward.
Where the innermost region can change along that order, a node gets a hook, run just before the node by the
thread that runs it, which opens and closes ranges until the open ones are that region's path. Gradients
summed for a fan-out, and gradients accumulated into a leaf, run right after the node that made them and
before the next hook, so they count for its region.

    forward   layer 0 [ a  norm[ b c ]  d ]  layer 1 [ ... ]          a, b, c, d: nodes in order of creation
    backward  layer 0 [ d  norm[ c b ]  a ]                           hooks on d, c and a
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from . import node_hooks, range_stack
from .engine import Part, Recomputation, Root, before_others, close_part, next_number
from .open_ranges import DependentRange, Label, OpenRange, Payload, Thread, label
from .trail import MAX_DEPTH, Trail, new_trail

_ROOTS_REMEMBERED = 256
_HANDLES_REMEMBERED = 1024
_HOOKED = "nvtx-kernels"
_local = range_stack.local


class Names:
    """The labels of the forward and backward ranges of one part of a model."""

    __slots__ = ("backward", "forward")

    def __init__(self, name: str, payload: Payload) -> None:
        self.forward = label(name, payload, "model/forward")
        self.backward = label(name, payload, "model/backward")


_names = lru_cache(maxsize=4096, typed=True)(Names)


def names(name: str, payload: Payload) -> Names:
    """Return the labels of a part, the same each time."""
    try:
        return _names(name, payload)
    except TypeError:  # a payload that is not a number
        return Names(name, payload)


class Frame(Part):
    """A region that is running: its forward range, and, where gradients are recorded, its backward part."""

    __slots__ = ("found", "is_named", "opened", "start", "trail")

    parent: Frame | None

    def __init__(self, label: Label, parent: Frame | None, opened: OpenRange, trail: Trail | None) -> None:
        self.label, self.parent, self.running, self.opened = label, parent, True, opened
        self.depth = parent.depth + 1 if parent is not None else 0
        # The nodes of the outermost region that this is part of; None where no gradients are recorded.
        self.trail = trail
        self.start: int = 0
        # The nodes that what this region returns leads to, a piece for each output; whether a call returned any.
        self.found: list[Any] | None = None
        self.is_named = False

    def add_outputs(self, value: object, depth: int = MAX_DEPTH) -> None:
        """Note the tensors in `value` (in containers and dataclasses too) as what this region returns."""
        if self.trail is None:
            return
        if self.found is None:
            self.found = []
        self.found.append(self.trail.find(value, depth, self.start))


class Outermost(Frame):
    """A running region that is in no other; inside a backward, the backward's ranges are closed for it."""

    __slots__ = ("recomputation",)

    def __init__(self, labels: Names, opened: OpenRange, around: Sequence[Label]) -> None:
        super().__init__(labels.backward, None, opened, None)
        self.recomputation = Recomputation(labels.backward, around) if Recomputation.is_due() else None
        range_stack.push(opened)

    def end(self, trail: Trail | None) -> None:
        """Release the trail, and reopen the ranges that were closed."""
        if trail is not None:
            trail.release()
        if self.recomputation is not None:
            self.recomputation.end()


def begin(labels: Names, opened: OpenRange, thread: Thread, around: Sequence[Label] = ()) -> Frame:
    """Open a region's forward range, and remember where its autograd nodes begin.

    `around` are the labels of the backward of regions known to be around it, from the inside, also where these do
    not run again.
    """
    if not torch.is_grad_enabled():
        range_stack.push(opened)
        return Frame(labels.backward, None, opened, None)
    parent = thread.frame
    if parent is not None and not (parent.running and not parent.opened.ended):
        parent = running_frame(thread)
    if parent is not None:
        return begin_inside(parent, labels, opened, thread)
    frame = Outermost(labels, opened, around)
    frame.trail, frame.start = new_trail(thread, frame)
    thread.frame = frame
    return frame


def begin_inside(parent: Frame, labels: Names, opened: OpenRange, thread: Thread) -> Frame:
    """Do the same inside another region."""
    trail = parent.trail
    assert trail is not None
    range_stack.open_in(thread.ranges, opened)
    frame = Frame(labels.backward, parent, opened, trail)
    frame.start = trail.enter(frame)
    thread.frame = frame
    return frame


def add_call(frame: Frame, output: object, arguments: Iterable[object]) -> None:
    """Note what a call of a module returns, and what it changed in place."""
    if frame.trail is not None and next_number() != frame.start:
        frame.is_named = frame.trail.add(output, arguments, frame.start)


def end_inside(frame: Frame, thread: Thread, output: object, arguments: tuple[object, ...]) -> None:
    """End a call of a module inside another region, mostly the shortest way."""
    parent, trail, start = frame.parent, frame.trail, frame.start
    if parent is None or trail is None or not parent.running or thread.frame is not frame or frame.found:
        add_call(frame, output, arguments)
        end(frame)
        return
    if next_number() != start and not trail.add(output, arguments, start):
        say_unnamed(frame.label)
    frame.running = False
    trail.enter(parent)
    thread.frame, frame.trail = parent, None
    range_stack.close(frame.opened)


def end(frame: Frame, *, failed: bool = False) -> None:
    """Close a region's forward range, and hook its nodes so that its backward gets one too."""
    frame.running = False
    trail = frame.trail
    try:
        if trail is not None and trail.thread is _local.thread:
            _end_part(frame, trail, failed=failed)
    except Exception:  # an instrument must not break what it measures
        range_stack.say_failed("a region has no backward range")
    finally:
        # The root keeps its frames until its backward is over: nothing of them may keep the root.
        frame.found = frame.trail = None
        range_stack.close(frame.opened)
        if type(frame) is Outermost:
            frame.end(trail)


def _end_part(frame: Frame, trail: Trail, *, failed: bool) -> None:
    thread = trail.thread
    around = thread.frame = frame.parent if thread.frame is frame else running_frame(thread)
    number = trail.enter(around if around is not None and around.trail is trail else None)
    if number != frame.start and not failed:
        is_named = frame.is_named or (frame.found and trail.add_nodes(frame.found))
        if not is_named:
            say_unnamed(frame.label)
    if frame.parent is None or not frame.parent.running:
        node_hooks.let_go(thread)
        _end_of_outermost(trail, frame, number)


def close_interrupted(thread: Thread) -> None:
    """Close ranges of module calls that were interrupted too hard to close them themselves."""
    for one in thread.ranges:
        if isinstance(one, DependentRange) and one.over:
            range_stack.close(one)
            break
    if thread.frame is not None:
        thread.frame = running_frame(thread)


def running_frame(thread: Thread) -> Frame | None:
    """Return the innermost region that really runs on a thread."""
    frame: Frame | None = thread.frame
    while frame is not None and (not frame.running or frame.opened.over):
        frame = frame.parent
    return frame


def say_unnamed(label: Label) -> None:
    """Log once that a region has no backward range."""
    range_stack.say_once(
        f"no output: {label.name}",
        "region %r created autograd nodes but named no output that leads to them, so its own work has no "
        "backward range: pass what it returns to its output()",
        label.name,
    )


def _end_of_outermost(trail: Trail, frame: Frame, end: int) -> None:
    """Put hooks on what is left, and see that the backward range closes when its last node has run."""
    trail.walk(end)
    last, thread = trail.last(), trail.thread
    if not last:
        return
    if thread.roots is None:
        thread.roots = deque(maxlen=_ROOTS_REMEMBERED)
    roots: deque[tuple[int, int]] = thread.roots
    just_before = roots[-1][0] if roots and roots[-1][1] == trail.start else trail.start - 1
    touches = False
    for node in trail.below:
        number = node._sequence_nr()
        touches |= number >= just_before
        if not _in_a_root(roots, number):
            _hook_once(node)
    if not touches:
        _close_after(trail.root, frame, last)
    roots.append((trail.start, end))


def _in_a_root(roots: deque[tuple[int, int]], number: int) -> bool:
    for start, end in reversed(roots):
        if start <= number:
            return number < end
    return False


class _Closings:
    """Hooks on nodes that are older than all regions, one on each, for a node can outlive many steps."""

    def __init__(self) -> None:
        self._mark = object()
        self._handles: list[RemovableHandle] = []
        self._limit = _HANDLES_REMEMBERED

    def add(self, node: Node) -> None:
        """Close backward ranges before this node, if they are not already closed."""
        known: Any = node.metadata
        if known.get(_HOOKED) is self._mark:
            return
        known[_HOOKED] = self._mark
        self._handles.append(node.register_prehook(before_others))
        if len(self._handles) > self._limit:
            self._handles = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
            self._limit = max(_HANDLES_REMEMBERED, 2 * len(self._handles))

    def remove(self) -> None:
        """Remove all of them."""
        handles, self._handles, self._mark = self._handles, [], object()
        for handle in handles:
            handle.remove()


_closings = _Closings()
_hook_once, remove_closings = _closings.add, _closings.remove


def _close_after(root: Root, part: Part, nodes: list[Node]) -> None:
    # A leaf's node can outlive the graph: it must neither keep the root alive nor collect dead hooks.
    closing = partial(close_part, part)
    root.others += [node.register_hook(closing) for node in nodes]
