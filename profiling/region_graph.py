"""Which autograd nodes a region created, found from what it returned.

Autograd numbers its nodes in the order of their creation, on each thread, and runs them in falling order.
Leaves have a number above all others, and run as soon as their gradient is there.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import islice

import torch
from torch.autograd.graph import Node

next_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
LEAF_NUMBER = 2**64 - 1
_MAX_ITEMS = 1000


@dataclasses.dataclass(slots=True, eq=False)
class Span:
    """A finished region: its numbers (`end` excluded), the nodes it returned, and the older ones below."""

    start: int
    end: int
    tops: set[Node]
    below: list[Node]


def collect(value: object, depth: int, outputs: list[tuple[Node, bool]]) -> None:
    """Append (node, whether the tensor is a view) for every tensor in `value` that has a backward.

    Containers and dataclasses are searched `depth` levels deep.
    """
    if isinstance(value, torch.Tensor):
        node = _node_of(value)
        if node is not None:
            outputs.append((node, value._is_view()))
    elif depth:
        for item in _items(value):
            collect(item, depth - 1, outputs)


def _node_of(tensor: torch.Tensor) -> Node | None:
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view that autograd forbids to use after an in-place operation
        return None


def _items(value: object) -> Iterable[object]:
    if isinstance(value, list | tuple | set | frozenset):
        return islice(value, _MAX_ITEMS)
    if isinstance(value, Mapping):
        return islice(value.values(), _MAX_ITEMS)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return ()


def created(outputs: Iterable[tuple[Node, bool]], start: int, end: int) -> set[Node]:
    """Return the nodes of `outputs` that are numbered from `start` to `end`.

    An in-place operation on a returned view replaces the view's node, so the one behind it counts too.
    """
    tops = set[Node]()
    for node, is_view in outputs:
        if start <= node._sequence_nr() < end:
            tops.add(node)
            if is_view:
                tops.update(_next_within(node, start, end))
    return tops


def walk(tops: Iterable[Node], start: int) -> list[Node]:
    """Return the nodes older than `start` that the backward of `tops` leads to."""
    below: list[Node] = []
    todo = list(tops)
    seen = set(todo)
    for node in todo:
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                if following._sequence_nr() >= start:
                    todo.append(following)
                else:
                    below.append(following)
    return below


def walk_around(spans: list[Span], start: int, end: int, tops: set[Node]) -> tuple[set[Node], list[Node]]:
    """Return where a region's own stretches of backward can begin, and the nodes older than the region.

    Its own nodes stand in the gaps between the regions inside it, the `spans`. A node whose gradient comes
    from another gap, a region inside, or outside can be the first of its gap to run; which of them is,
    depends on what is left unused, so all are returned.
    """
    starts = [span.start for span in spans]
    firsts, seen = set[Node](), set[Node]()
    below: dict[Node, None] = {}
    edges = [(node, -1) for node in (*tops, *(node for span in spans for node in span.below))]
    for node, from_gap in edges:
        number = node._sequence_nr()
        gap = bisect_right(starts, number)
        if number < start:
            below[node] = None
        elif number < end and not (gap and number < spans[gap - 1].end):
            if gap != from_gap:
                firsts.add(node)
            if node not in seen:
                seen.add(node)
                edges.extend((following, gap) for following, _ in node.next_functions if following)
    return firsts, list(below)


def last_of(span: Span) -> list[Node]:
    """Return what a region's backward ends with: its oldest node, or the leaves that this one feeds."""
    nodes = list(span.tops)
    for node in nodes:
        nodes += [following for following in _next_within(node, span.start, span.end) if following not in nodes]
    oldest = min(nodes, key=lambda node: node._sequence_nr())
    return _next_within(oldest, LEAF_NUMBER, LEAF_NUMBER + 1) or [oldest]


def _next_within(node: Node, start: int, end: int) -> list[Node]:
    following = [following for following, _ in node.next_functions if following is not None]
    return [one for one in following if start <= one._sequence_nr() < end]
