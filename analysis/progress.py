"""Progress of long reading, by rows: readers say how many there are and how many were read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[int, int], None]] = []

SILENT_S = 1.0

_quiet = False


def be_quiet() -> None:
    """Draw nothing from now on: this process is one of many that share a screen."""
    global _quiet
    _quiet = True


def expect(rows: int) -> None:
    """Say that this many more rows are going to be read."""
    _tell(rows, 0)


def advance(rows: int) -> None:
    """Say that this many further rows were read; called from any thread."""
    _tell(0, rows)


def _tell(expected: int, read: int) -> None:
    for listener in _listeners:
        listener(expected, read)


@contextmanager
def listening(listener: Callable[[int, int], None]) -> Iterator[None]:
    """Have a function called with (further rows expected, further rows read)."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def on_screen() -> Iterator[None]:
    """Draw progress on stderr, with an estimate, once a terminal has been left waiting for a second."""
    if _quiet or not sys.stderr.isatty():
        yield
        return
    bar = _Bar()
    timer = threading.Timer(SILENT_S, bar.show)
    timer.daemon = True
    timer.start()
    try:
        with listening(bar.tell):
            yield
    finally:
        timer.cancel()
        bar.hide()


class _Bar:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected, self._read, self._over = 0, 0, False
        self._draw: Callable[[int, int], None] | None = None
        self._stop: Callable[[], None] = lambda: None

    def tell(self, expected: int, read: int) -> None:
        with self._lock:
            self._expected, self._read = self._expected + expected, self._read + read
            if self._draw:
                self._draw(self._expected, self._read)

    def show(self) -> None:
        from rich.console import Console  # deferred: most reports are read before this is needed
        from rich.progress import Progress

        with self._lock:
            if self._over:
                return
            bar = Progress(*Progress.get_default_columns(), console=Console(stderr=True), transient=True)
            task = bar.add_task("reading rows", total=None)
            bar.start()
            self._draw = lambda expected, read: bar.update(task, total=max(expected, read), completed=read)
            self._stop = bar.stop
            self._draw(self._expected, self._read)

    def hide(self) -> None:
        with self._lock:
            self._over = True
            self._stop()
