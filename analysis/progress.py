"""Progress of long reading, by rows: whoever reads calls `advance`, whoever has a screen listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[int], None]] = []


def advance(rows: int) -> None:
    """Say that this many further rows were read; called from any thread."""
    for listener in _listeners:
        listener(rows)


@contextmanager
def listening(listener: Callable[[int], None]) -> Iterator[None]:
    """Have a function called at every advance."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
