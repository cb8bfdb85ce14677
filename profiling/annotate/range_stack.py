"""Every thread's stack of open ranges, and the only module that calls NVTX.

A range is popped by the thread that pushed it, innermost first, whatever the program does: a range that
ends out of turn takes the forward ranges above it off and puts them back, and one that ends on another
thread is popped by its own at its next range, or when it ends. Backward ranges belong to one pass of the
autograd engine (a *task*); when that pass is over, they never outlive the next event of their thread.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import nvtx

from nvtx_kernels import DOMAIN

from .open_ranges import Label, Listener, OpenRange, Payload, Thread

OFF_SWITCH = "NVTX_KERNELS_OFF"

# Colours of ranges in a timeline, by the range's name, else by its category.
COLOURS = {
    "phase": 0x4C72B0,
    "timeline": 0x4C72B0,
    "gradient": 0xFF7F0E,
    "model/forward": 0x2CA02C,
    "model/no gradient": 0x2CA02C,
    "model/evaluation": 0x2CA02C,
    "model/backward": 0xFF7F0E,
    "forward": 0x2CA02C,
    "backward": 0xFF7F0E,
    "optimizer": 0x9467BD,
    "warmup": 0x9E9E9E,
    "measure": 0x1F77B4,
    "step": 0x17BECF,
}

# What the category of a range says of it; analysis/readers/written.py reads these.
FORWARD_CATEGORIES = ("model/forward", "model/no gradient", "model/evaluation")
CATEGORIES = (*FORWARD_CATEGORIES, "model/backward", "phase", "gradient", "timeline")

log = logging.getLogger("profiling.annotate")


class _Ending:
    """Pops what a thread has left open when it ends; only the thread's own storage holds it."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: list[OpenRange]) -> None:
        self._ranges = ranges

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end there is nothing left to pop with, not even the name `sys`.
        while self._ranges and not is_finalizing():
            pop(self._ranges)


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = Thread()
        self.ending = _Ending(self.thread.ranges)


local = _Local()
_listeners: tuple[Listener, ...] = ()
_listeners_lock = threading.Lock()
_said: set[str] = set()

off = os.environ.get(OFF_SWITCH, "0") not in ("", "0")
_domain = nvtx.get_domain(DOMAIN)
# Without a tool, nvtx returns a dummy domain that has no handle and does nothing.
_tool = not off and nvtx.enabled() and hasattr(_domain, "handle")
active = _tool


_push_to_tool: Callable[[Any], object] = _domain.push_range if _tool else lambda _: None
_pop_from_tool: Callable[[], object] = _domain.pop_range if _tool else lambda: None
# Called with whether anything receives the ranges, when that changes.
_observers: list[Callable[[bool], None]] = []


def has_tool() -> bool:
    """Return whether a tool, as nsys, receives NVTX."""
    return _tool


def here() -> Thread:
    """Return what is kept of this thread."""
    return local.thread


def stack() -> list[OpenRange]:
    """Return this thread's open ranges, outermost first."""
    return local.thread.ranges


def push(opened: OpenRange) -> OpenRange:
    """Open a range on this thread, after popping what is over."""
    ranges = local.thread.ranges
    if ranges and ranges[-1].over:
        drop_over()
    open_in(ranges, opened)
    return opened


def drop_over() -> None:
    """Pop this thread's innermost ranges that nothing else will close."""
    ranges = local.thread.ranges
    while ranges and ranges[-1].over:
        pop(ranges)


def close(opened: OpenRange) -> None:
    """End a range: it, the backward ranges left open in it, and nothing else."""
    opened.ended = True
    ranges = local.thread.ranges
    if ranges and ranges[-1] is opened:
        pop(ranges)
        return
    if opened not in ranges:
        return
    above: list[OpenRange] = []
    while ranges[-1] is not opened:
        above.append(pop(ranges))
    pop(ranges)
    for other in reversed(above):
        if other.returns and not other.ended:
            open_in(ranges, other)
        else:
            other.ended = True


def shrink(length: int) -> None:
    """Pop this thread's innermost ranges until `length` are left."""
    ranges = local.thread.ranges
    while len(ranges) > length:
        pop(ranges)


def draw(label: Label) -> object:
    """Begin a range on no thread, which may cross others, a picture on a tool's timeline; return its handle."""
    return _domain.start_range(label.attributes or _described(label)) if _tool else None


def drawn(handle: object) -> None:
    """End a range that was drawn, given its handle."""
    if handle is not None:
        _domain.end_range(handle)


def mark(message: str) -> None:
    """Put one mark on the timeline."""
    if _tool:
        _domain.mark(_domain.get_event_attributes(_text(message), COLOURS["phase"]))
    for listener in _listeners:
        try:
            listener.mark(message)
        except Exception:
            _drop_failed(listener)


def listeners() -> tuple[Listener, ...]:
    """Return the listeners, as the same tuple until they change."""
    return _listeners


def category() -> str:
    """Return the category of the range opened last on this thread, for a listener that has just received it."""
    ranges = local.thread.ranges
    return ranges[-1].label.category if ranges else ""


def category_numbers() -> dict[str, int]:
    """Return how NVTX numbers the categories, by their names; empty if no tool listens."""
    return {name: int(_domain.get_category_id(name)) for name in CATEGORIES} if _tool else {}


def observe(observer: Callable[[bool], None]) -> None:
    """Call `observer` with whether anything receives the ranges, whenever that changes."""
    _observers.append(observer)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Send every push, pop and mark of every thread to `listener` too, on the thread where it happens.

    Ranges that were already open are not sent, nor are their pops. A listener that raises is dropped with
    one logged line, and the annotated program continues.
    """
    with _listeners_lock:
        _set_listeners((*_listeners, listener))
    try:
        yield
    finally:
        _drop(listener)


def say_once(key: str, message: str, *values: object) -> None:
    """Log a warning the first time `key` is seen in this process."""
    if key not in _said:
        _said.add(key)
        log.warning(message, *values)


def say_failed(message: str) -> None:
    """Log the exception that is being handled, once for each message."""
    if message not in _said:
        _said.add(message)
        log.exception("%s (logged once)", message)


def open_in(ranges: list[OpenRange], opened: OpenRange) -> None:
    """Open a range on top of this thread's `ranges`.

    Python runs signal handlers after calls, so what is noted just before a call is true of it even where
    Ctrl-C arrives: a range is in the tool if and only if `in_tool` says so.
    """
    ranges.append(opened)
    if _tool:
        attributes = opened.label.attributes or _described(opened.label)
        opened.in_tool = True
        _push_to_tool(attributes)
    if _listeners:
        _tell(opened)


def _tell(opened: OpenRange) -> None:
    opened.listeners = _listeners
    for listener in opened.listeners:
        try:
            listener.push(opened.label.name, opened.label.payload)
        except Exception:
            _drop_failed(listener)


def pop(ranges: list[OpenRange]) -> OpenRange:
    """Close the innermost of this thread's `ranges`."""
    opened = ranges[-1]
    if opened.in_tool:
        opened.in_tool = False
        _pop_from_tool()
    ranges.pop()
    if opened.listeners:
        _tell_end(opened)
    return opened


def _tell_end(opened: OpenRange) -> None:
    listeners, opened.listeners = opened.listeners, ()
    for listener in listeners:
        try:
            if listener in _listeners:
                listener.pop()
        except Exception:
            _drop_failed(listener)


def _described(label: Label) -> Any:
    colour = COLOURS[label.category]
    if label.category in ("phase", "timeline"):
        colour = COLOURS.get(label.name, colour)
    number = _domain.get_category_id(label.category)
    label.attributes = _domain.get_event_attributes(_text(label.name), colour, number, _payload(label.payload))
    return label.attributes


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _payload(payload: Payload) -> Payload:
    """Return what NVTX can carry: an integer of 64 bits or a float, else nothing."""
    if isinstance(payload, int):
        return int(payload) if -(2**63) <= payload < 2**63 else float(payload)
    return payload if type(payload) is float else None


def _drop_failed(listener: Listener) -> None:
    _drop(listener)
    log.exception("a listener of ranges failed and is dropped")


def _set_listeners(listeners: tuple[Listener, ...]) -> None:
    global _listeners, active
    _listeners = () if off else listeners
    was, active = active, _tool or bool(_listeners)
    if was != active:
        for observer in _observers:
            observer(active)


def _drop(listener: Listener) -> None:
    with _listeners_lock:
        _set_listeners(tuple(other for other in _listeners if other is not listener))


def _forget_listeners() -> None:
    """Begin a forked child without its parent's recorder, and without a lock that its parent may hold."""
    global _listeners_lock
    _listeners_lock = threading.Lock()
    _set_listeners(())


os.register_at_fork(after_in_child=_forget_listeners)
