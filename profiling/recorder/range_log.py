"""Keep the ranges and marks of a program, our own and others'.

Times are `time.time_ns`, the clock of torch.profiler's events. Each thread has its own stack in each NVTX
domain; whatever is still open at the end is closed then, so that every range written has both its ends.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .. import annotate
from ..annotate import DOMAIN
from ..annotate.others import DEFAULT_DOMAIN

OUR_DOMAIN_ID = 1
STEP, OPTIMIZER = "step", "optimizer"
# How the category of a module's range begins; a module may have any name, `step` too.
OF_A_MODULE = "model/"

Payload = int | float | None


class Event(NamedTuple):
    """A range, whose `end_ns` is None while it is open, or a mark; times in ns on the clock of `time.time_ns`."""

    start_ns: int
    end_ns: int | None
    thread: int
    name: str
    payload: Payload
    domain: str = DOMAIN
    category: str = ""
    is_mark: bool = False


class RangeLog:
    """Listen to `annotate` and to the program's own NVTX ranges.

    `on_end` is called after each range of this thread, and after its outermost record_function blocks, with the
    depth that remains and whether it was an update of an optimizer. `steps` counts the ended ranges `step`.
    """

    def __init__(self, on_end: Callable[[int, bool], None]) -> None:
        self.dropped = 0
        self.is_full = False
        # The numbers of the ranges' categories, from which a range's phase follows.
        self.categories: dict[str, int] = {}
        self._on_end = on_end
        self._thread = threading.get_native_id()
        self._open: dict[int, dict[str, list[Event]]] = {}
        self.domains = {DEFAULT_DOMAIN: 0, DOMAIN: 1}
        self.steps = 0
        self._done: deque[Event] = deque()
        self._optimizers: list[Event] = []

    def push(self, name: str, payload: Payload = None, domain: str = DOMAIN) -> None:
        """Open a range on the calling thread."""
        thread = threading.get_native_id()
        stack = self._open.setdefault(thread, {}).setdefault(domain, [])
        self.domains.setdefault(domain, len(self.domains))
        category = annotate.category() if domain == DOMAIN else ""
        if category:
            self.categories.setdefault(category, len(self.categories) + 1)
        stack.append(Event(time.time_ns(), None, thread, name, payload, domain, category))

    def pop(self, domain: str = DOMAIN) -> None:
        """Close the calling thread's innermost range; one opened before recording began is unknown."""
        now, thread = time.time_ns(), threading.get_native_id()
        stack = self._open.get(thread, {}).get(domain)
        if not stack:
            return
        ended = stack.pop()._replace(end_ns=now)
        self._keep(ended)
        self._ended(is_update=_is_update(ended))

    def block_began(self, name: str) -> None:
        """Handle the start of a record_function block, which the profiler's events have."""

    def block_ended(self, *, is_outermost: bool) -> None:
        """Handle the end of a record_function block."""
        if is_outermost:
            self._ended(is_update=False)

    def _ended(self, *, is_update: bool) -> None:
        thread = threading.get_native_id()
        if thread == self._thread:
            self._on_end(sum(map(len, self._open.get(thread, {}).values())), is_update)

    def mark(self, message: str) -> None:
        """Note a moment on the calling thread."""
        self._keep(Event(time.time_ns(), None, threading.get_native_id(), message, None, is_mark=True))

    def still_open(self) -> list[Event]:
        """Return the ranges that have not ended."""
        stacks = [stack for of_thread in list(self._open.values()) for stack in list(of_thread.values())]
        return [event for stack in stacks for event in stack]

    def close_all(self, now_ns: int) -> None:
        """Close every open range, innermost first."""
        for stack in [stack for stacks in self._open.values() for stack in stacks.values()]:
            while stack:
                self._keep(stack.pop()._replace(end_ns=now_ns))

    def tells_optimizer(self, thread: int, start_ns: int, end_ns: int) -> bool:
        """Return whether a range `optimizer` that was not taken yet, or is still open, was open at some time."""
        still_open = (event for event in self._open.get(thread, {}).get(DOMAIN, ()) if event.name == OPTIMIZER)
        return any(
            event.thread == thread and event.start_ns <= end_ns and start_ns <= (event.end_ns or end_ns)
            for event in (*self._optimizers, *still_open)
        )

    def take(self) -> Iterator[Event]:
        """Yield the events finished since the last call, and drop them."""
        self._optimizers.clear()
        while self._done:
            yield self._done.popleft()

    def _keep(self, event: Event) -> None:
        if self.is_full:
            self.dropped += 1
            return
        self._done.append(event)
        if event.category.startswith(OF_A_MODULE):
            return
        self.steps += event.name == STEP and event.end_ns is not None
        if _is_update(event):
            self._optimizers.append(event)


def _is_update(event: Event) -> bool:
    return event.name == OPTIMIZER and not event.category.startswith(OF_A_MODULE)
