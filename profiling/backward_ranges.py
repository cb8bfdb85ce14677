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

import logging
import threading
import weakref
from collections import deque
from functools import partial

import torch
from torch.autograd.graph import Node

from profiling import range_stack, region_graph
from profiling.engine_ranges import Part, Recomputation, after_node, before_node
from profiling.range_stack import OpenRange, Payload
from profiling.region_graph import Span

MAX_DEPTH = 8
_ROOTS_REMEMBERED = 256

log = logging.getLogger("profiling.annotate")


class Frame:
    """A region that is running: its forward range, and, where gradients are recorded, its backward part."""

    __slots__ = ("ended", "opened", "outputs", "parent", "part", "recomputation", "spans", "start", "thread")

    def __init__(self, opened: OpenRange, part: Part | None, parent: Frame | None) -> None:
        self.opened, self.part, self.parent = opened, part, parent
        self.recomputation: Recomputation | None = None
        self.outputs: list[tuple[Node, bool]] = []
        self.spans: list[Span] = []
        self.start: int = region_graph.next_number() if part else 0
        self.thread = threading.get_ident()
        self.ended = False

    def add_outputs(self, value: object, depth: int = MAX_DEPTH) -> None:
        """Note the tensors in `value` (in containers and dataclasses too) as what this region returns."""
        if self.part is not None:
            region_graph.collect(value, depth, self.outputs)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frame: Frame | None = None
        # Numbers (start, end) of the latest regions that stood in no other.
        self.roots: deque[tuple[int, int]] = deque(maxlen=_ROOTS_REMEMBERED)


_thread = _Thread()


def begin(name: str, payload: Payload) -> Frame:
    """Open a region's forward range, and remember where its autograd nodes begin."""
    if not torch.is_grad_enabled():
        return Frame(range_stack.push(OpenRange(name, payload, "model/forward")), None, None)
    parent = _running_frame()
    recomputation = Recomputation(name, payload) if parent is None and Recomputation.is_due() else None
    opened = range_stack.push(OpenRange(name, payload, "model/forward"))
    frame = Frame(opened, Part(name, payload, parent.part if parent else None), parent)
    frame.recomputation = recomputation
    _thread.frame = frame
    return frame


def end(frame: Frame, *, failed: bool = False) -> None:
    """Close a region's forward range, and hook its nodes so that its backward gets one too."""
    frame.ended = True
    try:
        if frame.part is not None:
            frame.part.running = False
            if frame.thread == threading.get_ident():
                _thread.frame = _running_frame()
                if not failed:
                    _hook(frame, frame.part)
    except Exception:  # an instrument must not break what it measures
        log.exception("region %r has no backward range", frame.opened.name)
    finally:
        frame.outputs, frame.spans = [], []
        range_stack.close(frame.opened)
        if frame.recomputation is not None:
            frame.recomputation.end()


def _running_frame() -> Frame | None:
    frame = _thread.frame
    while frame is not None and (frame.ended or frame.opened.ended):
        frame = frame.parent
    return frame


def _hook(frame: Frame, part: Part) -> None:
    """Put a hook on every node with which a stretch of this region's own backward can begin."""
    end = region_graph.next_number()
    if end == frame.start:
        return
    tops = region_graph.created(frame.outputs, frame.start, end)
    if not tops:
        _say_unnamed(part)
        tops = set[Node]().union(*(span.tops for span in frame.spans))
    if not tops:
        return
    if frame.spans:
        firsts, below = region_graph.walk_around(frame.spans, frame.start, end, tops)
    else:
        firsts, below = tops, region_graph.walk(tops, frame.start)
    hook = partial(before_node, part)
    for node in firsts:
        node.register_prehook(hook)
    _leave(frame, part, Span(frame.start, end, tops, below))


def _say_unnamed(part: Part) -> None:
    range_stack.say_once(
        f"no output: {part.name}",
        "region %r created autograd nodes but named no output that leads to them, so its own work has no "
        "backward range: pass what it returns to its output()",
        part.name,
    )


def _leave(frame: Frame, part: Part, span: Span) -> None:
    """Hand a finished region to the one around it; with none around, see that its backward range closes."""
    if frame.parent is not None and not frame.parent.ended:
        frame.parent.spans.append(span)
        return
    roots = _thread.roots
    just_before = roots[-1][0] if roots and roots[-1][1] == span.start else span.start - 1
    touches = False
    for node in span.below:
        number = node._sequence_nr()
        touches |= number >= just_before
        if not _in_a_root(roots, number):
            node.register_prehook(partial(before_node, None))
    if not touches:
        _close_after(part, region_graph.last_of(span))
    roots.append((span.start, span.end))


def _in_a_root(roots: deque[tuple[int, int]], number: int) -> bool:
    for start, end in reversed(roots):
        if start <= number:
            return number < end
    return False


def _close_after(part: Part, nodes: list[Node]) -> None:
    # A leaf's node can outlive the graph: it must neither keep the part alive nor collect dead hooks.
    closing = partial(after_node, weakref.ref(part))
    for node in nodes:
        weakref.finalize(part, node.register_hook(closing).remove).atexit = False
