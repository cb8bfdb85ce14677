"""Every thread's stack of open ranges; the only module that calls NVTX.

A range is popped by the thread that pushed it, innermost first, whatever the program does: a range that
ends out of turn takes the forward ranges above it off and puts them back, and one that ends on another
thread is popped by its own at its next range, or when it ends. Backward ranges belong to one pass of the
autograd engine (a *task*); when that pass is over, they never outlive the next event of their thread.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from nvtx_kernels import DOMAIN

from ..harmless import forgive
from . import nvtx_package

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

# The categories of ranges; analysis/readers/written.py reads them.
FORWARD_CATEGORIES = ("model/forward", "model/no gradient", "model/evaluation")
CATEGORIES = (*FORWARD_CATEGORIES, "model/backward", "phase", "gradient", "timeline")

Payload = int | float | None
T = TypeVar("T")
P = ParamSpec("P")


class Listener(Protocol):
    """What hears every range, on the thread where it happens, while `listen` is active."""

    def push(self, name: str, payload: Payload) -> None:
        """Handle the start of a range."""

    def pop(self) -> None:
        """Handle the end of the range that began last on this thread."""

    def mark(self, message: str) -> None:
        """Handle an instantaneous mark."""


@runtime_checkable
class PassListener(Listener, Protocol):
    """One that can make the ranges of a backward pass itself, later, of what it sees of autograd's nodes."""

    def sees_nodes(self) -> bool:
        """Return whether it sees the nodes of a pass that this thread begins now."""

    def pass_begins(self, running: Any, *, is_hooked: bool) -> Any:
        """Handle that this thread begins a pass, while this part runs; return what `pass_ends` is called with.

        The ranges of one that `is_hooked` are pushed as any other.
        """

    def pass_ends(self, begun: Any) -> None:
        """Handle that a pass has ended."""


@dataclass(slots=True, eq=False)
class Label:
    """What ranges of one kind say: a name, a payload, a category; made once, and pushed as often as wanted.

    `interrupts` are the labels of a module's backward, and of those around it from the inside: a range of this
    kind ends theirs while it is open.
    """

    name: str
    payload: Payload
    category: str
    attributes: Any = None  # as NVTX wants them, from the first push to a tool on
    interrupts: tuple[Label, ...] = ()


def made_once(make: Callable[P, T]) -> Callable[P, T]:
    """Return a function that makes something of a name and a payload, the same each time."""
    cached = lru_cache(maxsize=4096, typed=True)(make)

    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return cached(*args, **kwargs)  # type: ignore[arg-type]
        except TypeError:  # a payload that is not a number, and cannot be looked up either
            return make(*args, **kwargs)

    return made


label = made_once(Label)


class OpenRange:
    """One range that is open on one thread.

    With `alive` it lasts no longer than what that refers to, such as the call or the pass that it is part of.
    """

    __slots__ = ("alive", "ended", "in_tool", "label", "listeners")

    # What backward ranges have: the part of the model, and the number of the engine's pass.
    part: Any = None
    pass_id: int | None = None
    # Whether it is put back when a range below it ends first.
    returns = True

    def __init__(self, label: Label, alive: Callable[[], Any] | None = None) -> None:
        self.label, self.alive = label, alive
        self.ended = self.in_tool = False
        self.listeners: tuple[Listener, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing will close this range any more."""
        return self.ended or (self.alive is not None and self.alive() is None)


class AutomaticRange(OpenRange):
    """A range that the program did not open itself; it ends with the range around it."""

    __slots__ = ()
    returns = False


@dataclass(slots=True, eq=False)
class Thread:
    """What is kept of one thread: its open ranges, and what regions, module calls and passes keep there.

    `blocks` counts the open blocks of record_function, `generated` those of code that Inductor generated.
    """

    ranges: list[OpenRange] = field(default_factory=list)
    # Dies with the outermost call of an annotated module that runs here, however that call ends.
    calls: Callable[[], Any] = lambda: None
    module_calls: int = 0  # that run in one another, annotated or not
    # The category of the ranges of a compiled model's forward that runs here.
    compiled_call: str = "model/forward"
    innermost: Any = None  # the part that runs
    step: OpenRange | None = None
    optimizer: OpenRange | None = None
    passes: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    places: Any = None
    blocks: int = 0
    generated: int = 0


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
#: The same tuple until the listeners change; empty in silence, which those that were asked for outlast.
listeners: tuple[Listener, ...] = ()
_asked_for: tuple[Listener, ...] = ()
_is_silent = False
#: Those of the listeners that may see autograd's nodes.
pass_listeners: tuple[PassListener, ...] = ()
_listeners_lock = threading.Lock()

off = os.environ.get(OFF_SWITCH, "0") not in ("", "0")
if not off:
    nvtx_package.require_nvtx(os.environ)
_domain: Any = None if off else nvtx_package.domain(DOMAIN)
# Whether a tool, as nsys, receives NVTX.
has_tool = _domain is not None
#: Whether anything receives the ranges; `observers` are called with it when that changes.
active = has_tool
observers: list[Callable[[bool], None]] = []

_push_to_tool: Callable[[Any], object] = _domain.push_range if has_tool else lambda _: None
_pop_from_tool: Callable[[], object] = _domain.pop_range if has_tool else lambda: None


def here() -> Thread:
    """Return this thread's state."""
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
    """Pop this thread's innermost ranges that no other code will close."""
    ranges = local.thread.ranges
    while ranges and ranges[-1].over:
        pop(ranges)


def close(opened: OpenRange | None) -> None:
    """End a range, unless it has ended, with the backward ranges left open in it."""
    if opened is None:
        return
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


def open_in(ranges: list[OpenRange], opened: OpenRange) -> None:
    """Open a range on top of this thread's `ranges`.

    Python runs signal handlers after calls, so what is noted just before a call is true of it even where
    Ctrl-C arrives: a range is in the tool if and only if `in_tool` says so.
    """
    ranges.append(opened)
    if has_tool:
        attributes = opened.label.attributes or _described(opened.label)
        opened.in_tool = True
        _push_to_tool(attributes)
    if listeners:
        opened.listeners = listeners
        for listener in listeners:
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
        receivers, opened.listeners = opened.listeners, ()
        for listener in receivers:
            try:
                if listener in _asked_for:
                    listener.pop()
            except Exception:
                _drop_failed(listener)
    return opened


def mark(message: str) -> None:
    """Put one mark on the timeline."""
    if has_tool:
        _domain.mark(_domain.get_event_attributes(_text(message), COLOURS["phase"]))
    for listener in listeners:
        try:
            listener.mark(message)
        except Exception:
            _drop_failed(listener)


def draw(label: Label) -> object:
    """Begin a range on no thread, which may cross others, a picture on a tool's timeline; return its handle."""
    return _domain.start_range(label.attributes or _described(label)) if has_tool else None


def drawn(handle: object) -> None:
    """End a range that was drawn, given its handle."""
    if handle is not None:
        _domain.end_range(handle)


def category() -> str:
    """Return the category of the range opened last on this thread, for a listener that has just received it."""
    ranges = local.thread.ranges
    return ranges[-1].label.category if ranges else ""


def category_numbers() -> dict[str, int]:
    """Return how NVTX numbers the categories, by their names; empty if no tool listens."""
    return {name: int(_domain.get_category_id(name)) for name in CATEGORIES} if has_tool else {}


def _described(label: Label) -> Any:
    colour, payload = COLOURS[label.category], label.payload
    if label.category in ("phase", "timeline"):
        colour = COLOURS.get(label.name, colour)
    # NVTX can only carry an integer of 64 bits or a float.
    if isinstance(payload, int):
        payload = int(payload) if -(2**63) <= payload < 2**63 else float(payload)
    elif type(payload) is not float:
        payload = None
    number = _domain.get_category_id(label.category)
    label.attributes = _domain.get_event_attributes(_text(label.name), colour, number, payload)
    return label.attributes


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Send every push, pop and mark of every thread to `listener` too, on the thread where it happens.

    Ranges that were already open are not sent, nor are their pops. A listener that raises is dropped with
    one logged line, and the annotated program continues.
    """
    with _listeners_lock:
        _set_listeners((*_asked_for, listener))
    try:
        yield
    finally:
        _drop(listener)


@contextmanager
def silence() -> Iterator[None]:
    """Send nothing that begins while the block runs, to no listener and no tool: annotation then costs nothing."""
    global has_tool, _is_silent
    with _listeners_lock:
        before, has_tool, _is_silent = has_tool, False, True
        _set_listeners(_asked_for)
    try:
        yield
    finally:
        with _listeners_lock:
            has_tool, _is_silent = before, False
            _set_listeners(_asked_for)


def _drop(listener: Listener) -> None:
    with _listeners_lock:
        _set_listeners(tuple(other for other in _asked_for if other is not listener))


def _drop_failed(listener: Listener) -> None:
    """Drop a listener whose exception is being handled, unless that is the program's."""
    forgive("a listener of ranges failed and is dropped", once=False)
    _drop(listener)


def _set_listeners(new: tuple[Listener, ...]) -> None:
    global listeners, pass_listeners, active, _asked_for
    _asked_for = () if off else new
    listeners = () if _is_silent else _asked_for
    pass_listeners = tuple(listener for listener in listeners if isinstance(listener, PassListener))
    was, active = active, has_tool or bool(listeners)
    if was != active:
        for observer in observers:
            observer(active)


def _forget_listeners() -> None:
    """Begin a forked child without its parent's recorder, and without a lock that its parent may hold."""
    global _listeners_lock
    _listeners_lock = threading.Lock()
    _set_listeners(())


os.register_at_fork(after_in_child=_forget_listeners)
