"""Which part of a model every autograd node is of, by the node's number.

Autograd numbers its nodes in the order of their creation, on each thread. So it is enough to know which part was
innermost from which number on: nothing is looked into or hooked in forward, and no tensor is kept for it.

    number    0      1      2      3      4      5      6
    node      a      b      c      d      e      f      g
    entered   layer 0              norm   layer 0       None

What a thread has entered is kept as long as a graph may need it: the nodes that an outermost call returned hold a
`Call` in the dictionary that PyTorch keeps for each node, and entries older than all calls so held are dropped.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from .given import elements_of
from .range_stack import Thread

Node = Any  # PyTorch's class of that name says that `metadata` were a method

# Entries per thread. RECENT are always kept, for graphs whose nodes are not found in a call's result. MOST is the
# limit: backward of older graphs has no ranges.
RECENT, MOST = 2**12, 2**17
# Tables are kept for this many threads, even after the threads have ended.
THREADS = 64
# A number above those of all nodes but leaves.
LEAF_NUMBER = 2**64 - 1
_MADE_IN, _NOT_MADE_BY = "nvtx-kernels made in", "nvtx-kernels not made by"
_MOST_LEVELS = 4
# What has no tensors.
_WITHOUT = {type(None), bool, int, float, str}
next_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]


#: Numbers in rising order, and the parts that were innermost from each on.
Columns = tuple[list[int], list[Any]]


class Within:
    """The part whose backward a thread ran at a moment: whoever sees its nodes finds out which.

    Threads are the operating system's ids, times ns of `time.time_ns`.
    """

    __slots__ = ("at_ns", "part", "thread")

    def __init__(self, thread: int, at_ns: int) -> None:
        self.thread, self.at_ns = thread, at_ns
        self.part: Any = None


class Table:
    """Which part was innermost from which number on, on the thread that made the table."""

    __slots__ = ("columns", "thread")

    def __init__(self) -> None:
        self.thread = thread_number()
        # One tuple, so that other threads read both of the same moment.
        self.columns: Columns = ([], [])
        self._note_columns()

    def enter(self, part: object) -> None:
        """Make this part the innermost from this thread's next number on."""
        number = next_number()
        bounds, parts = self.columns
        if parts and parts[-1] is part:
            return
        if bounds and bounds[-1] == number:
            parts[-1] = part
            return
        if len(bounds) >= MOST:
            self.forget(number, MOST // 2)
            bounds, parts = self.columns
        parts.append(part)
        bounds.append(number)

    def forget(self, number: int, recent: int) -> None:
        """Drop the entries below a number, except for the latest ones."""
        bounds, parts = self.columns
        count = min(bisect_left(bounds, number), len(bounds) - recent)
        if count > 0:
            self.columns = (bounds[count:], parts[count:])
            self._note_columns()

    def part_of(self, number: int) -> Any:
        """Return the part that was innermost when a node got its number."""
        return part_in(self.columns, number)

    def covers(self, number: int) -> bool:
        """Return whether a node of this number was made here once the first part had run, if it was made here."""
        bounds, _ = self.columns
        return bool(bounds) and bounds[0] <= number

    def _note_columns(self) -> None:
        """Keep the columns, which grow, for whoever asked for all."""
        if kept is not None:
            kept.append((self.thread, self.columns))

    def __len__(self) -> int:
        return len(self.columns[0])


def part_in(columns: Columns, number: int) -> Any:
    """Return the part that was innermost when a node got its number."""
    bounds, parts = columns
    index = bisect_right(bounds, number) - 1
    part = parts[index] if index >= 0 else None
    return part.part if type(part) is Within else part


class Places:
    """What is kept of one thread's nodes."""

    __slots__ = ("__weakref__", "_full", "calls", "enter", "has_unseen", "table")

    def __init__(self) -> None:
        self.table = Table()
        self.enter: Callable[[object], None] = self.table.enter
        self.calls: deque[weakref.ref[Call]] = deque()  # those that nodes hold
        self._full = RECENT + RECENT // 8
        # Whether a call has made nodes and none was found in what it returned.
        self.has_unseen = False
        everywhere.add(self)
        _latest.append(self)

    def begin_call(self) -> Call:
        """Begin an outermost call, and forget what no graph needs any more."""
        call = Call(self, next_number())
        while self.calls and self.calls[0]() is None:
            self.calls.popleft()
        if len(self.table) >= self._full:
            oldest = self.calls[0]() if self.calls else None
            self.table.forget(oldest.start if oldest is not None else call.start, RECENT)
            self._full = len(self.table) + max(RECENT, len(self.table)) // 8
        return call


class Call:
    """An outermost call: what is kept of its thread, and its first number; the nodes that it returned hold it."""

    __slots__ = ("__weakref__", "is_held", "places", "start")

    def __init__(self, places: Places, start: int) -> None:
        self.places = places
        self.start = start
        self.is_held = False

    def note_given(self, arguments: object) -> None:
        """Note of what the call is given that another thread made it, unless this one is known to have."""
        places = self.places
        is_alone = len(everywhere) == 1 and threading.get_ident() == threading.main_thread().ident
        if is_alone:
            return
        for node in _nodes_in(arguments, 0):
            maker = call_that_returned(node)
            if maker is None or maker.places is not places:
                note_not_made_by(node, places)

    def hold(self, returned: object) -> None:
        """Have the nodes that the call made and returned hold it."""
        nodes = [node for node in _nodes_in(returned, 0) if node._sequence_nr() >= self.start]
        for node in nodes:
            node.metadata.setdefault(_MADE_IN, self)
        if nodes and not self.is_held:
            self.is_held = True
            self.places.calls.append(weakref.ref(self))

    def end(self) -> None:
        """Note whether the call made nodes that are not known to hold it."""
        self.places.has_unseen |= not self.is_held and self.start < next_number()


def forget() -> None:
    """Forget the parts of all nodes: nothing is annotated any more."""
    for places in tuple(everywhere):
        places.table.forget(LEAF_NUMBER, 0)
        places.has_unseen = False
    _latest.clear()


def call_that_returned(node: Node) -> Call | None:
    """Return the outermost call that made and returned the output of a node, where that is known."""
    call: Call | None = node.metadata.get(_MADE_IN)
    return call


def note_not_made_by(node: Node, maker: Places | Call) -> None:
    """Note that this thread, or this call, did not make a node."""
    node.metadata.setdefault(_NOT_MADE_BY, weakref.WeakSet()).add(maker)


def is_made_elsewhere(node: Node, maker: Places | Call) -> bool:
    """Return whether it is known that another thread, or another call, made a node."""
    return maker in node.metadata.get(_NOT_MADE_BY, ())


def places_of(thread: Thread) -> Places:
    """Return this thread's table of nodes."""
    places: Places | None = thread.places
    if places is None:
        places = thread.places = Places()
    return places


def _number_of_thread() -> Callable[[], int] | None:
    """Return PyTorch's function for its number of this thread, which nodes keep; None if it has another name."""
    try:
        function: Any = ctypes.PyDLL(torch._C.__file__)._ZN2at14RecordFunction15currentThreadIdEv
    except (AttributeError, OSError):
        return None
    function.restype = ctypes.c_uint64
    return function  # type: ignore[no-any-return]


_function = _number_of_thread()
#: Whether threads have the numbers by which nodes name the thread that made them.
are_numbered = _function is not None
thread_number: Callable[[], int] = _function or (lambda: 0)
#: Where a recording asks for it: PyTorch's number of each thread, and its entries, also those that are forgotten.
kept: list[tuple[int, Columns]] | None = None


def keep(*, more: bool) -> list[tuple[int, Columns]]:
    """Return the places kept since the last call, and keep everything from now on, or no longer."""
    global kept
    before, kept = kept, None
    if more:
        kept = [(places.table.thread, places.table.columns) for places in tuple(everywhere)]
    return before or []


os.register_at_fork(after_in_child=partial(keep, more=False))
everywhere: weakref.WeakSet[Places] = weakref.WeakSet()
_latest: deque[Places] = deque(maxlen=THREADS)


def _nodes_in(value: Any, level: int) -> Iterator[Node]:
    """Yield the nodes of the tensors in a value and in the containers in it."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        node: Node | None = None
        with torch._C.DisableTorchFunction(), suppress(RuntimeError):  # a view that may no longer be used
            node = value.grad_fn
        if node is not None:  # not in the block: what a handler raises where a generator closes is lost
            yield node
    elif level < _MOST_LEVELS and kind not in _WITHOUT:
        for element in elements_of(value):
            yield from _nodes_in(element, level + 1)
