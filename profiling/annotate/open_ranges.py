"""What is kept of open ranges: what each says, what it lasts no longer than, and what a thread has open."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

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


class Label:
    """What ranges of one kind say: a name, a payload, a category; made once, and pushed as often as wanted."""

    __slots__ = ("attributes", "category", "name", "payload")

    def __init__(self, name: str, payload: Payload, category: str) -> None:
        self.name, self.payload, self.category = name, payload, category
        self.attributes: Any = None


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
    """One range that is open on one thread."""

    __slots__ = ("ended", "in_tool", "label", "listeners")

    # What backward ranges have: the part of the model, and the number of the engine's pass.
    part: Any = None
    pass_id: int | None = None
    alive: Any = None
    # Whether it is put back when a range below it ends first.
    returns = True

    def __init__(self, label: Label) -> None:
        self.label = label
        self.ended = self.in_tool = False
        self.listeners: tuple[Listener, ...] = ()

    @property
    def over(self) -> bool:
        """Whether nothing will close this range any more."""
        return self.ended


class DependentRange(OpenRange):
    """A range that lasts no longer than something else, such as the call or the pass that it is part of."""

    __slots__ = ("alive",)
    returns = False

    def __init__(self, label: Label, alive: weakref.ref[Any]) -> None:
        self.label, self.alive = label, alive
        self.ended = self.in_tool = False
        self.listeners = ()

    @property
    def over(self) -> bool:
        """Whether nothing will close this range any more."""
        return self.ended or self.alive() is None


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


class _Nothing:
    pass


_nothing = weakref.ref(_Nothing())


class Thread:
    """What is kept of one thread: its open ranges, and what regions, module calls and passes keep there."""

    __slots__ = ("calls", "compiled_call", "frame", "optimizer", "passes", "places", "ranges", "step")

    def __init__(self) -> None:
        self.ranges: list[OpenRange] = []
        # Dies with the outermost call of an annotated module that runs here, however that call ends.
        self.calls: weakref.ref[Any] = _nothing
        # The category of the ranges of a compiled model's forward that runs here.
        self.compiled_call = "model/forward"
        self.frame: Any = None
        self.step: OpenRange | None = None
        self.optimizer: OpenRange | None = None
        self.passes: dict[int, weakref.ref[Any]] = {}
        self.places: Any = None
