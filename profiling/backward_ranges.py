"""Ranges around the backward of a region, opened by the thread that runs it.

Nothing is added to the program: no operator, no autograd node. A region remembers the sequence number that
autograd would give its next node (`start`); what it returns leads to the nodes it created (numbers from
`start` to `end`). Backward runs nodes in falling order of these numbers, so a region's backward is one
stretch of nodes, nested like its forward. Whenever the innermost region changes along that order, the first
node of the new stretch gets a hook, run just before the node by the thread that runs it, which opens and
closes ranges until the open ones are that region's path. Gradients summed for a fan-out, and gradients
accumulated into a leaf, run right after the node that made them and before the next hook, in its region.

    forward   layer 0 [ a  norm[ b c ]  d ]  layer 1 [ ... ]          a, b, c, d: nodes in order of creation
    backward  layer 0 [ d  norm[ c b ]  a ]                           hooks on d, c and a

What a backward leaves open (an exception, gradients of a few inputs only) is closed when the engine's pass
ends, or when the enclosing range ends, and never outlives its thread's next event (`range_stack`).
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from operator import itemgetter

import torch
from torch.autograd.graph import Node

from profiling import range_stack
from profiling.range_stack import OpenRange, Payload

_MAX_DEPTH = 8
_ROOTS_REMEMBERED = 256
_next_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_engine = torch.autograd.Variable._execution_engine
_pass_id = torch._C._current_graph_task_id


class Part:
    """One run of a region, as its backward knows it: a name, a payload and the parts around it."""

    __slots__ = ("name", "path", "payload")

    def __init__(self, name: str, payload: Payload, parent: Part | None) -> None:
        self.name, self.payload = name, payload
        self.path: tuple[Part, ...] = (*(parent.path if parent else ()), self)


class Span:
    """What a finished region leaves to the one around it: its numbers, its lowest node, the nodes below."""

    __slots__ = ("below", "end", "lowest", "start")

    def __init__(self, start: int, end: int, below: list[Node], lowest: Node | None) -> None:
        self.start, self.end, self.below, self.lowest = start, end, below, lowest


class Frame:
    """A region that is running: its forward range, and, where gradients are recorded, its backward part."""

    __slots__ = ("ended", "opened", "outputs", "parent", "part", "spans", "start", "thread")

    def __init__(self, opened: OpenRange, part: Part | None, parent: Frame | None) -> None:
        self.opened, self.part, self.parent = opened, part, parent
        self.start: int = _next_number() if part else 0
        self.outputs: list[tuple[Node, bool]] = []
        self.spans: list[Span] = []
        self.thread = threading.get_ident()
        self.ended = False

    def add_outputs(self, value: object) -> None:
        """Note the nodes behind the tensors in `value` (nested containers and dataclasses included)."""
        if self.part is not None:
            self.outputs.extend(_nodes_behind(value, _MAX_DEPTH))


class _Pass:
    """One run of the autograd engine on one thread; the engine holds it, and calls it at the end."""

    __slots__ = ("__weakref__",)

    def __call__(self) -> None:
        ranges = range_stack.stack()
        range_stack.shrink(len(ranges) - _open_in_pass(ranges, self))


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frame: Frame | None = None
        self.roots: deque[tuple[int, int]] = deque(maxlen=_ROOTS_REMEMBERED)
        self.passes: weakref.WeakValueDictionary[int, _Pass] = weakref.WeakValueDictionary()


_thread = _Thread()


def begin(name: str, payload: Payload) -> Frame:
    """Open a region's forward range, and remember where its autograd nodes begin."""
    opened = range_stack.push(OpenRange(name, payload, "model/forward"))
    if not torch.is_grad_enabled():
        return Frame(opened, None, None)
    parent = _running_frame()
    frame = Frame(opened, Part(name, payload, parent.part if parent else None), parent)
    _thread.frame = frame
    return frame


def end(frame: Frame, *, failed: bool = False) -> None:
    """Close a region's forward range, and hook its nodes so that its backward gets one too."""
    frame.ended = True
    try:
        if frame.part is not None and frame.thread == threading.get_ident():
            _thread.frame = _running_frame()
            if not failed:
                _hook(frame, frame.part)
    finally:
        frame.outputs, frame.spans = [], []
        range_stack.close(frame.opened)


def _running_frame() -> Frame | None:
    frame = _thread.frame
    while frame is not None and frame.ended:
        frame = frame.parent
    return frame


def _nodes_behind(value: object, depth: int) -> Iterator[tuple[Node, bool]]:
    """Yield (node, whether the tensor is a view) for every tensor in `value` that has a backward."""
    if isinstance(value, torch.Tensor):
        node = _node_of(value)
        if node is not None:
            yield node, value._is_view()
    elif depth:
        for item in _items(value):
            yield from _nodes_behind(item, depth - 1)


def _node_of(tensor: torch.Tensor) -> Node | None:
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view that autograd forbids to use after an in-place operation
        return None


def _items(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        return iter(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return iter(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return iter(vars(value).values()) if hasattr(value, "__dict__") else iter(())
    return iter(())


def _hook(frame: Frame, part: Part) -> None:
    """Put a hook on the first node of every stretch of backward that is this region's own."""
    limit = _next_number()
    if limit == frame.start:
        return
    if not frame.outputs:
        range_stack.say_once(
            f"no output: {part.name}",
            "region %r created autograd nodes but named no output that needs a gradient: "
            "only its forward has a range",
            part.name,
        )
    own, below = _walk(frame, limit)
    _hook_stretches(frame, part, own)
    if own or frame.spans:
        _leave(frame, part, Span(frame.start, limit, below, _lowest(own, frame.spans)))


def _walk(frame: Frame, limit: int) -> tuple[dict[int, Node], list[Node]]:
    """Return this region's own nodes by number, and the older nodes that its backward leads to."""
    own: dict[int, Node] = {}
    below: list[Node] = []
    starts = [span.start for span in frame.spans]
    seen: set[object] = set()
    todo = [node for node, _ in frame.outputs] or [node for span in frame.spans for node in span.below]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        number = node._sequence_nr()
        if number < frame.start:
            below.append(node)
        elif number < limit:
            span = _span_at(frame.spans, starts, number)
            if span is None:
                own[number] = node
                todo.extend(following for following, _ in node.next_functions if following is not None)
            elif span not in seen:
                seen.add(span)
                todo.extend(span.below)
    return own, below


def _span_at(spans: list[Span], starts: list[int], number: int) -> Span | None:
    index = bisect_right(starts, number) - 1
    return spans[index] if index >= 0 and number < spans[index].end else None


def _lowest(own: dict[int, Node], spans: list[Span]) -> Node | None:
    lowest = [own[min(own)]] if own else []
    lowest += [span.lowest for span in spans if span.lowest is not None]
    return min(lowest, key=lambda node: node._sequence_nr(), default=None)


def _hook_stretches(frame: Frame, part: Part, own: dict[int, Node]) -> None:
    """Put a hook on the highest own node of every gap between inner regions."""
    starts = [span.start for span in frame.spans]
    behind_views = {
        following for node, is_view in frame.outputs if is_view for following, _ in node.next_functions
    }
    gap = None
    for number, node in sorted(own.items(), key=itemgetter(0), reverse=True):
        inner_after = bisect_right(starts, number)
        # An in-place operation on a returned view replaces the view's node, so the one behind it counts too.
        if inner_after != gap or node in behind_views:
            node.register_prehook(partial(_before_node, part))
        gap = inner_after


def _leave(frame: Frame, part: Part, span: Span) -> None:
    """Hand a finished region to the one around it; with none around, see that its backward range closes."""
    if frame.parent is not None and not frame.parent.ended:
        frame.parent.spans.append(span)
        return
    roots = _thread.roots
    touching = bool(roots) and roots[-1][1] == span.start
    for node in span.below:
        number = node._sequence_nr()
        touching |= number == span.start - 1
        if not _in_a_root(roots, number):
            node.register_prehook(partial(_before_node, None))
    if not touching and span.lowest is not None:
        span.lowest.register_hook(partial(_after_node, part))
    roots.append((span.start, span.end))


def _in_a_root(roots: deque[tuple[int, int]], number: int) -> bool:
    for start, limit in reversed(roots):
        if start <= number:
            return number < limit
    return False


def _before_node(part: Part | None, _gradients: object) -> None:
    """Make the ranges that this pass has open on this thread the path of `part`."""
    if not range_stack.active or torch.compiler.is_compiling():
        return
    ranges = range_stack.stack()
    range_stack.drop_over()
    current = _current_pass()
    wanted = part.path if part else ()
    count = _open_in_pass(ranges, current)
    kept = 0
    for opened, want in zip(ranges[len(ranges) - count :], wanted, strict=False):
        if opened.part is not want:
            break
        kept += 1
    range_stack.shrink(len(ranges) - count + kept)
    for want in wanted[kept:]:
        range_stack.push(OpenRange(want.name, want.payload, "model/backward", want, weakref.ref(current)))


def _after_node(part: Part, _inputs: object, _outputs: object) -> None:
    """Close the backward range of `part`, if it is open on this thread."""
    ranges = range_stack.stack()
    count = _open_in_pass(ranges, _current_pass())
    for index in range(len(ranges) - count, len(ranges)):
        if ranges[index].part is part:
            range_stack.shrink(index)
            return


def _open_in_pass(ranges: list[OpenRange], current: _Pass) -> int:
    """Count the innermost ranges that belong to this pass of the engine."""
    count = 0
    for opened in reversed(ranges):
        if opened.task is None or opened.task() is not current:
            break
        count += 1
    return count


def _current_pass() -> _Pass:
    number = _pass_id()
    current = _thread.passes.get(number)
    if current is None:
        current = _thread.passes[number] = _Pass()
        _engine.queue_callback(current)
    return current
