"""Keep the ranges and marks that `profiling.annotate` opens, as rows of a report.

Times are `time.time_ns`, the clock of torch.profiler's events. Each thread has its own stack; whatever
is still open at the end is closed then, so that every range written has both its ends.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from profiling.trace_file import Row, TraceFile, global_tid

RANGE, MARK, DOMAIN_CREATED = 59, 34, 75
DOMAIN_ID = 1
INT64 = range(-(1 << 63), 1 << 63)

Payload = int | float | None


class Event(NamedTuple):
    """A range, or a mark when `end_ns` is None; times in ns on the clock of `time.time_ns`."""

    start_ns: int
    end_ns: int | None
    thread: int
    name: str
    payload: Payload


class RangeLog:
    """Listen to `annotate`; call `on_pop` with the depth that remains after each range of this thread."""

    def __init__(self, on_pop: Callable[[int], None]) -> None:
        self.dropped = 0
        self.is_full = False
        self._on_pop = on_pop
        self._thread = threading.get_native_id()
        self._open: dict[int, list[Event]] = {}
        self._done: deque[Event] = deque()

    def push(self, name: str, payload: Payload = None) -> None:
        """Open a range on the calling thread."""
        thread = threading.get_native_id()
        stack = self._open.setdefault(thread, [])
        stack.append(Event(time.time_ns(), None, thread, name, payload))

    def pop(self) -> None:
        """Close the calling thread's innermost range; one opened before recording began is unknown."""
        now, thread = time.time_ns(), threading.get_native_id()
        stack = self._open.get(thread)
        if not stack:
            return
        self._keep(stack.pop()._replace(end_ns=now))
        if thread == self._thread:
            self._on_pop(len(stack))

    def mark(self, message: str) -> None:
        """Note a moment on the calling thread."""
        self._keep(Event(time.time_ns(), None, threading.get_native_id(), message, None))

    def close_all(self, now_ns: int) -> None:
        """Close every open range, innermost first."""
        for stack in list(self._open.values()):
            while stack:
                self._keep(stack.pop()._replace(end_ns=now_ns))

    def take(self) -> Iterator[Event]:
        """Yield what was finished since the last call, and forget it."""
        while self._done:
            yield self._done.popleft()

    def _keep(self, event: Event) -> None:
        if self.is_full:
            self.dropped += 1
        else:
            self._done.append(event)


def domain_row(name: str, thread: int) -> Row:
    """Return the row that names the domain of all our ranges."""
    return {
        "start": 0,
        "eventType": DOMAIN_CREATED,
        "text": name,
        "globalTid": global_tid(os.getpid(), thread),
        "domainId": DOMAIN_ID,
    }


def range_row(trace: TraceFile, event: Event, origin_ns: int) -> Row:
    """Return the row of a range or mark; its name is a registered string, as nvtx's are."""
    return {
        "start": event.start_ns - origin_ns,
        "end": None if event.end_ns is None else event.end_ns - origin_ns,
        "eventType": MARK if event.end_ns is None else RANGE,
        "globalTid": global_tid(os.getpid(), event.thread),
        "textId": trace.text_id(event.name),
        "domainId": DOMAIN_ID,
        **_payload(event.payload),
    }


def _payload(value: Payload) -> Row:
    if isinstance(value, int) and value in INT64:
        return {"int64Value": int(value)}
    return {"doubleValue": value} if isinstance(value, float) else {}
