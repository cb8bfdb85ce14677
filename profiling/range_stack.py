"""Every thread's stack of open ranges, and the one place that speaks NVTX.

A range is popped by the thread that pushed it, innermost first, whatever the program does: a range that
ends out of turn takes the forward ranges above it off and puts them back, and one that ends on another
thread is popped by its own at its next range. Backward ranges belong to one pass of the autograd engine
(a *task*); when that pass is over, they never outlive the next event of their thread.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import nvtx

DOMAIN = "nvtx-kernels"
OFF_SWITCH = "NVTX_KERNELS_OFF"

Payload = int | float | None
T = TypeVar("T")

# Colours of ranges in a timeline, by the range's name, else by its category.
COLOURS = {
    "phase": 0x4C72B0,
    "model/forward": 0x2CA02C,
    "model/backward": 0xFF7F0E,
    "forward": 0x2CA02C,
    "backward": 0xFF7F0E,
    "optimizer": 0x9467BD,
    "warmup": 0x9E9E9E,
    "measure": 0x1F77B4,
    "step": 0x17BECF,
}

log = logging.getLogger("profiling.annotate")


class Listener(Protocol):
    """What hears every range, on the thread where it happens, while `listen` is active."""

    def push(self, name: str, payload: Payload) -> None:
        """Hear that a range begins."""

    def pop(self) -> None:
        """Hear that the range begun last on this thread ends."""

    def mark(self, message: str) -> None:
        """Hear an instantaneous mark."""


class OpenRange:
    """One range that is open on one thread; a backward range also has its part and its engine pass."""

    __slots__ = (
        "alive",
        "category",
        "ended",
        "in_tool",
        "listeners",
        "name",
        "part",
        "pass_id",
        "payload",
        "returns",
    )

    def __init__(
        self,
        name: str,
        payload: Payload,
        category: str,
        part: object = None,
        pass_id: int | None = None,
        alive: weakref.ref[Any] | None = None,
    ) -> None:
        self.name, self.payload, self.category = name, payload, category
        self.part, self.pass_id, self.alive = part, pass_id, alive
        # Whether it is put back when a range below it ends first.
        self.returns = pass_id is None
        self.ended, self.in_tool = False, False
        self.listeners: tuple[Listener, ...] = ()

    @property
    def over(self) -> bool:
        """Tell whether nothing will close this range any more."""
        return self.ended or (self.alive is not None and self.alive() is None)


class Running(Generic[T]):
    """What one object has open, on each thread that uses it, innermost last."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[tuple[int, T]] = []

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: T) -> None:
        """Take in what this thread has just opened."""
        self._items.append((threading.get_ident(), item))

    def innermost(self) -> T | None:
        """Return what this thread opened last; if it opened nothing, what any thread did."""
        entry = self._innermost()
        return entry[1] if entry else None

    def take(self) -> T | None:
        """Remove and return the innermost."""
        entry = self._innermost()
        if entry is None:
            return None
        with suppress(ValueError):  # another thread took it
            self._items.remove(entry)
        return entry[1]

    def _innermost(self) -> tuple[int, T] | None:
        me, latest = threading.get_ident(), None
        for entry in reversed(self._items.copy()):
            if entry[0] == me:
                return entry
            latest = latest or entry
        return latest


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack: list[OpenRange] = []


_thread = _Thread()
_listeners: tuple[Listener, ...] = ()
_listeners_lock = threading.Lock()
_said: set[str] = set()

off = os.environ.get(OFF_SWITCH, "0") not in ("", "0")
_domain = nvtx.get_domain(DOMAIN)
# Without a tool, nvtx hands out a stand-in that has no handle and does nothing.
_tool = not off and nvtx.enabled() and hasattr(_domain, "handle")
active = _tool


def stack() -> list[OpenRange]:
    """Return this thread's open ranges, outermost first."""
    return _thread.stack


def push(opened: OpenRange) -> OpenRange:
    """Open a range on this thread, after popping what is over."""
    drop_over()
    _open(_thread.stack, opened)
    return opened


def drop_over() -> None:
    """Pop this thread's innermost ranges that nothing else will close."""
    ranges = _thread.stack
    while ranges and ranges[-1].over:
        _pop(ranges)


def close(opened: OpenRange) -> None:
    """End a range: it, the backward ranges left open in it, and nothing else."""
    ranges = _thread.stack
    if ranges and ranges[-1] is opened:
        _pop(ranges)
        return
    if opened not in ranges:
        opened.ended = True
        return
    above: list[OpenRange] = []
    while ranges[-1] is not opened:
        above.append(_pop(ranges))
    _pop(ranges)
    for other in reversed(above):
        if other.returns and not other.ended:
            _open(ranges, other)
        else:
            other.ended = True


def shrink(length: int) -> None:
    """Pop this thread's innermost ranges until `length` are left."""
    ranges = _thread.stack
    while len(ranges) > length:
        _pop(ranges)


def mark(message: str) -> None:
    """Put one mark on the timeline."""
    if _tool:
        _domain.mark(_domain.get_event_attributes(_text(message), COLOURS["phase"]))
    for listener in _listeners:
        try:
            listener.mark(message)
        except Exception:
            _drop_failed(listener)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Send every push, pop and mark of every thread to `listener` too, on the thread where it happens.

    A range that was open before is not told, and its pop is not told either. A listener that raises is
    dropped with one logged line: the annotated program goes on.
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


def _open(ranges: list[OpenRange], opened: OpenRange) -> None:
    ranges.append(opened)
    opened.in_tool = _tool
    if _tool:
        _domain.push_range(_attributes(opened.name, _payload(opened.payload), opened.category))
    opened.listeners = _listeners
    for listener in opened.listeners:
        try:
            listener.push(opened.name, opened.payload)
        except Exception:
            _drop_failed(listener)


def _pop(ranges: list[OpenRange]) -> OpenRange:
    opened = ranges.pop()
    if opened.in_tool:
        _domain.pop_range()
    for listener in opened.listeners:
        try:
            if listener in _listeners:
                listener.pop()
        except Exception:
            _drop_failed(listener)
    return opened


@lru_cache(maxsize=4096, typed=True)
def _attributes(name: str, payload: Payload, category: str) -> Any:
    colour = COLOURS.get(name, COLOURS[category]) if category == "phase" else COLOURS[category]
    return _domain.get_event_attributes(_text(name), colour, _domain.get_category_id(category), payload)


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
    active = _tool or bool(_listeners)


def _drop(listener: Listener) -> None:
    with _listeners_lock:
        _set_listeners(tuple(other for other in _listeners if other is not listener))


def _forget_listeners() -> None:
    """Begin a forked child without its parent's recorder, and without a lock that its parent may hold."""
    global _listeners_lock
    _listeners_lock = threading.Lock()
    _set_listeners(())


os.register_at_fork(after_in_child=_forget_listeners)
