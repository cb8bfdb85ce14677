"""Progress of long work: rows read of those expected, or reports ranked of several."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")

_listeners: list[Callable[[int, int], None]] = []
_bars: list[_Bar] = []

SILENT_S = 1.0

_quiet = False


def be_quiet() -> None:
    """Draw nothing from now on: this process is one of many that share a screen."""
    global _quiet
    _quiet = True


def expect(rows: int) -> None:
    """Add this many rows (or reports) to those expected."""
    _tell(rows, 0)


def advance(rows: int) -> None:
    """Count this many further rows as read; may be called from any thread."""
    _tell(0, rows)


def now(what: str) -> None:
    """Show what is being done at the moment."""
    for bar in _bars:
        bar.name(what)


def each(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yield items of which there are going to be `count`, each a piece of the progress."""
    expect(count)
    for item in items:
        advance(1)
        yield item


def _tell(expected: int, read: int) -> None:
    for listener in _listeners:
        listener(expected, read)


@contextmanager
def listening(listener: Callable[[int, int], None]) -> Iterator[None]:
    """Call a function with (further rows expected, further rows read)."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Name the work of this block differently, with its own count."""
    before = [(bar, bar.begin(what)) for bar in _bars]
    try:
        yield
    finally:
        for bar, earlier in before:
            bar.begin(earlier)


@contextmanager
def on_screen(what: str = "reading rows") -> Iterator[None]:
    """Draw the progress of `what` on stderr, with an estimate, once a terminal has waited for a second."""
    if _quiet or not sys.stderr.isatty():
        yield
        return
    bar = _Bar(what)
    _bars.append(bar)
    timer = threading.Timer(SILENT_S, bar.show)
    timer.daemon = True
    timer.start()
    try:
        with listening(bar.tell):
            yield
    finally:
        timer.cancel()
        _bars.remove(bar)
        bar.hide()


class _Bar:
    def __init__(self, what: str) -> None:
        self._lock, self._what = threading.Lock(), what
        self._expected, self._read, self._over = 0, 0, False
        self._draw: Callable[[int, int], None] | None = None
        self._stop: Callable[[], None] = lambda: None
        self._rename: Callable[[str], None] = lambda what: None  # noqa: ARG005

    def tell(self, expected: int, read: int) -> None:
        with self._lock:
            self._expected, self._read = self._expected + expected, self._read + read
            if self._draw:
                self._draw(self._expected, self._read)

    def begin(self, what: str) -> str:
        """Count something else from zero on; return what was counted."""
        with self._lock:
            before, self._what, self._expected, self._read = self._what, what, 0, 0
            self._rename(what)
        return before

    def name(self, what: str) -> None:
        with self._lock:
            self._what = what
            self._rename(what)

    def show(self) -> None:
        from rich.console import Console  # deferred: most reports are read before this is needed
        from rich.progress import MofNCompleteColumn, Progress

        with self._lock:
            if self._over:
                return
            columns = (*Progress.get_default_columns(), MofNCompleteColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            task = bar.add_task(self._what, total=None)
            bar.start()
            self._draw = lambda expected, read: bar.update(task, total=max(expected, read), completed=read)
            self._stop = bar.stop
            self._rename = lambda what: bar.update(task, description=what)
            self._draw(self._expected, self._read)

    def hide(self) -> None:
        with self._lock:
            self._over = True
            self._stop()
