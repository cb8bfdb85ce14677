"""Regions: a range around a part of the forward, and one around the backward of that part.

Nothing is added to the program: no operator, no autograd node, no hook. Backward runs nodes in falling order of
their numbers, so a region's backward is one stretch of nodes, nested like its forward. Gradients summed for a
fan-out, and gradients accumulated into a leaf, run right after the node that made them: they count for its region.

    forward   layer 0 [ a  norm[ b c ]  d ]  layer 1 [ ... ]          a, b, c, d: nodes in order of creation
    backward  layer 0 [ d  norm[ c b ]  a ]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import range_stack
from .engine import Recomputation, in_backward, pass_id
from .open_ranges import DependentRange, Label, OpenRange, Payload, Thread, label, made_once
from .places import Call, Part, places_of


class Names:
    """The labels of the forward and backward ranges of one part of a model, and of calls without gradient."""

    __slots__ = ("backward", "evaluation", "forward", "no_gradient")

    def __init__(self, name: str, payload: Payload) -> None:
        self.forward = label(name, payload, "model/forward")
        self.backward = label(name, payload, "model/backward")
        self.no_gradient = label(name, payload, "model/no gradient")
        self.evaluation = label(name, payload, "model/evaluation")


names = made_once(Names)


class Frame(Part):
    """A region that is running: its forward range, and, where gradients are recorded, its backward part."""

    __slots__ = ("call", "opened", "recomputation", "thread")

    parent: Frame | None

    def __init__(self, label: Label, parent: Frame | None, opened: OpenRange, thread: Thread | None) -> None:
        super().__init__(label, parent)
        # The thread whose nodes are its; None where no gradients are recorded.
        self.opened, self.thread = opened, thread
        self.call: Call | None = None
        self.recomputation: Recomputation | None = None

    def note_given(self, arguments: object) -> None:
        """Note of the nodes that led to tensors in `arguments` that they are not this region's."""
        if self.call is not None:
            self.call.places.note_given(arguments)

    def hold(self, returned: object) -> None:
        """Keep what is known of the nodes that led to `returned` as long as those."""
        if self.call is not None:
            self.call.places.hold(self.call, returned)


def begin(labels: Names, opened: OpenRange, thread: Thread, around: Sequence[Label] = ()) -> Frame:
    """Open a region's forward range; autograd's nodes are its from now on.

    `around` are the labels of the backward of regions known to be around it, from the inside, also where these do
    not run again.
    """
    if not torch.is_grad_enabled():
        range_stack.push(opened)
        return Frame(labels.backward, None, opened, None)
    frame = Frame(labels.backward, running_frame(thread), opened, thread)
    if frame.parent is None:
        frame.call = places_of(thread).begin_call()
        if in_backward():
            frame.recomputation = Recomputation(labels.backward, around)
    range_stack.push(opened)
    thread.frame = frame
    thread.places.enter(frame)
    return frame


def end(frame: Frame) -> None:
    """Close a region's forward range; autograd's nodes are those of the region around it again."""
    frame.running = False
    thread = frame.thread
    is_here = thread is not None and thread is range_stack.here()
    if thread is not None and is_here:
        thread.frame = frame.parent if thread.frame is frame else running_frame(thread)
    range_stack.close(frame.opened)
    if frame.recomputation is not None:
        frame.recomputation.end()
    if thread is not None and is_here:
        enter_innermost(thread)
    if frame.call is not None:
        frame.call.places.end_call(frame.call)
    del frame.opened, frame.thread, frame.recomputation, frame.call  # the table of numbers keeps the part alone


def enter_innermost(thread: Thread) -> None:
    """Have a thread's next nodes be of its innermost region, or of the part whose backward runs."""
    part: Part | None = running_frame(thread)
    if part is None and thread.ranges and thread.ranges[-1].pass_id == pass_id():
        part = thread.ranges[-1].part
    thread.places.enter(part)


def close_interrupted(thread: Thread) -> None:
    """Close ranges of module calls that were interrupted too hard to close them themselves."""
    for opened in thread.ranges:
        if isinstance(opened, DependentRange) and opened.over:
            range_stack.close(opened)
            break
    if thread.frame is not None:
        thread.frame = running_frame(thread)


def running_frame(thread: Thread) -> Frame | None:
    """Return the innermost region that really runs on a thread."""
    frame: Frame | None = thread.frame
    while frame is not None and (not frame.running or frame.opened.over):
        frame = frame.parent
    return frame
