"""The autograd nodes that one run of an outermost region creates, and which of them get a hook.

A node needs a hook if its gradient comes from outside its gap: the stretch of nodes that one region has to
itself, between the regions inside it. Which of those nodes is the first of its gap to run depends on what is
left unused, so all of them have one. What modules return gets its hook when they return it; all other nodes are
found in one walk at the end, along the edges of the graph. Leaf modules of PyTorch are not walked through:
their arguments and parameters are all that is below them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Module

from . import accelerator, node_hooks
from .engine import LEAF_NUMBER, Hooks, Part, Places, Root, next_number
from .graph import are_plain, collect, collect_arguments, has_modes, older_nodes
from .open_ranges import Label, Thread
from .range_stack import say_failed

MAX_DEPTH = 8


class Trail:
    """What is known of the nodes of a `root` that runs on a `thread`, whose numbers begin at `start`.

    `below` are the older nodes that its own lead to.
    """

    __slots__ = (
        "below",
        "bounds",
        "enter",
        "enter_at",
        "entries",
        "hooked",
        "hooks",
        "oldest",
        "oldest_number",
        "reached",
        "root",
        "seen",
        "start",
        "thread",
    )

    def __init__(self, root: Root, thread: Thread, start: int) -> None:
        self.root, self.thread, self.start = root, thread, start
        root.trail = self
        places = root.places
        self.enter, self.enter_at, self.bounds = places.enter, places.enter_at, places.bounds
        self.hooks: Hooks = root.hooks()
        # The nodes with a hook, each with its number where there is no need to walk on from it, else 0.
        self.hooked: dict[Node, int] = {}
        # Nodes whose gradient comes from another gap, and which of them the walk has reached.
        self.entries: list[Node] = []
        self.reached: set[Node] = set()
        # Nodes that the walk has passed, and the one with the lowest number.
        self.seen: set[Node] = set()
        self.oldest: Node | None = None
        self.oldest_number = LEAF_NUMBER
        self.below: list[Node] = []

    def leaf(
        self,
        label: Label,
        around: Part,
        start: int,
        output: object,
        args: tuple[object, ...],
        module: Module,
    ) -> bool:
        """Add a call of a leaf of PyTorch that began at a number; return whether what it created has hooks.

        A leaf makes its nodes from its arguments and parameters and opens no region, so that it needs no frame.
        """
        end = next_number()
        if end == start:
            return True
        part = Part(label, around)
        part.running = False
        self.enter_at(start, part)
        self.enter_at(end, around)
        return self.add_leaf(output, args, module, start)

    def add_leaf(self, output: object, args: tuple[object, ...], module: Module, start: int) -> bool:
        """Put hooks on what a leaf of PyTorch returned, or changed in place; return whether that was anything."""
        if has_modes() or type(output) is not Tensor:
            return self.add(output, args, start)
        top = output.grad_fn
        if top is None or (number := top._sequence_nr()) < start or output._is_view():
            return self.add(output, args, start)
        below = older_nodes(args, start, self.hooked)
        if below is None:
            return self.add(output, args, start)
        if are_plain(module):
            self._register(top, number)
            for node in below:
                self._lead_to(node)
        else:
            self._register(top)
            self.entries.append(top)
        return True

    def add(self, output: object, args: Iterable[object], start: int) -> bool:
        """Do the same for a module of any kind."""
        found: dict[Node, int] = {}
        try:
            collect(output, MAX_DEPTH, start, found)
            collect_arguments(args, start, found)
        except Exception:  # an instrument must not break what it measures
            say_failed("the return value of a module cannot be inspected")
        return self._add_nodes(found)

    def find(self, value: object, depth: int, start: int) -> dict[Node, int]:
        """Return the nodes of a value that are numbered `start` or higher, for `add_nodes`."""
        found: dict[Node, int] = {}
        try:
            collect(value, depth, start, found)
        except Exception:  # an instrument must not break what it measures
            say_failed("the return value of a region cannot be inspected")
        return found

    def add_nodes(self, founds: Iterable[dict[Node, int]]) -> bool:
        """Do the same for nodes that were found."""
        return sum(self._add_nodes(found) for found in founds) > 0

    def _add_nodes(self, found: dict[Node, int]) -> bool:
        """Put hooks on the nodes, given with their numbers, that this thread created; return whether any is."""
        hooked, any_is_there, end = self.hooked, False, next_number()
        for node, number in found.items():
            if number >= end:
                continue
            any_is_there = True
            self._lead_to(node)
            if node not in hooked:
                self._register(node)
        return any_is_there

    def _lead_to(self, node: Node) -> None:
        """Note that another gap leads to this node; there is nothing to walk to from what is known."""
        number = self.hooked.get(node)
        if not number:
            self.entries.append(node)
        elif number < self.oldest_number:
            self.oldest_number, self.oldest = number, node

    def walk(self, end: int) -> None:
        """Put hooks on all other nodes below `end` whose gradient comes from another gap."""
        entries, reached, start, hooked, seen = self.entries, self.reached, self.start, self.hooked, self.seen
        for node in entries:  # which grows
            if node in reached:
                continue
            reached.add(node)
            number = node._sequence_nr()
            if number < start:
                self.below.append(node)
            elif number < end:
                is_known = hooked.get(node)
                if is_known is None:
                    self._register(node)
                if number < self.oldest_number:
                    self.oldest_number, self.oldest = number, node
                if not is_known and node not in seen:
                    self._walk_within(node, number)
        self.entries = []

    def _walk_within(self, first: Node, number: int) -> None:
        """Walk through the nodes of one gap: edges lead to lower numbers."""
        seen, entries, todo, oldest = self.seen, self.entries, [first], self.oldest_number
        low = self.bounds[bisect_right(self.bounds, number) - 1]
        seen.add(first)
        for node in todo:
            for following, _ in node.next_functions:
                if following is None:
                    continue
                at = following._sequence_nr()
                if at < low:
                    entries.append(following)
                elif at < number and following not in seen:
                    seen.add(following)
                    todo.append(following)
                    if at < oldest:
                        self.oldest_number, self.oldest, oldest = at, following, at

    def last(self) -> list[Node]:
        """Return what the backward ends with: the oldest node, or the leaves that this one feeds."""
        if self.oldest is None:
            return []
        self.seen.clear()
        self._walk_within(self.oldest, self.oldest_number)
        node = self.oldest
        following = [one for one, _ in node.next_functions if one is not None]
        return [one for one in following if one._sequence_nr() == LEAF_NUMBER] or [node]

    def release(self) -> None:
        """End: from now on the nodes keep the root, and nothing of it keeps this."""
        self.root.trail = None

    def _register(self, node: Node, known: int = 0) -> None:
        self.hooked[node] = known
        if self.thread.carried is self.hooks:
            node._register_hook_dict(self.thread.carrier.tensor)
        elif not node_hooks.add(node, self.hooks, self.thread):
            self.root.others.append(node.register_prehook(self.root.before))


def new_trail(thread: Thread, part: Part) -> tuple[Any, int]:
    """Return the trail of a new root, whose outermost part begins now on a thread, and its first number."""
    if _accelerated is not None:
        return _accelerated(thread, part)
    root = Root(Places())
    start = root.places.enter(part)
    return Trail(root, thread, start), start


_library: Any = None
_accelerated: Callable[[Thread, Part], tuple[Any, int]] | None = None
_observers: list[Callable[[Any], None]] = []


def accelerate(library: Any) -> Any:
    """Keep the nodes with a library of `accelerator.load`, or in Python; return what was used before."""
    global _accelerated, _library
    before, _library = _library, library
    _accelerated = accelerator.maker(library) if library is not None else None
    for observer in _observers:
        observer(library)
    return before


def observe(observer: Callable[[Any], None]) -> None:
    """Call `observer` with the library that is used, or None, now and whenever that changes."""
    _observers.append(observer)
    observer(_library)


accelerate(accelerator.load())
