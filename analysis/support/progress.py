"""Progress of long work: rows read of those expected, or reports ranked of several."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

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
    for listener in _listeners:
        listener(rows, 0)


def advance(rows: int) -> None:
    """Count this many further rows as read; may be called from any thread."""
    for listener in _listeners:
        listener(0, rows)


def now(task_name: str) -> None:
    """Show what is being done at the moment."""
    for bar in _bars:
        bar.name(task_name)


def each(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yield the items, `count` in all, and show the progress after each."""
    expect(count)
    for item in items:
        advance(1)
        yield item


@contextmanager
def listening(listener: Callable[[int, int], None]) -> Iterator[None]:
    """Call a function with (further rows expected, further rows read)."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def stage(task_name: str) -> Iterator[None]:
    """Name the work of this block differently, with its own count."""
    before = [(bar, bar.name(task_name, anew=True)) for bar in _bars]
    try:
        yield
    finally:
        for bar, earlier in before:
            bar.name(earlier, anew=True)


@contextmanager
def on_screen(task_name: str = "reading rows") -> Iterator[None]:
    """Draw the progress of `task_name` on stderr, with an estimate, once a terminal has waited for a second."""
    if _quiet or not sys.stderr.isatty():
        yield
        return
    bar = _Bar(task_name)
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
    """Counts rows, also from several threads, and draws their numbers from `show` to `hide`."""

    def __init__(self, task_name: str) -> None:
        self._lock = threading.Lock()
        self._task_name = task_name
        self._expected = 0
        self._read = 0
        self._over = False
        self._drawn: Progress | None = None

    def tell(self, expected: int, read: int) -> None:
        with self._lock:
            self._expected, self._read = self._expected + expected, self._read + read
            self._draw()

    def name(self, task_name: str, *, anew: bool = False) -> str:
        """Count something else, from zero on if `anew`; return what was counted."""
        with self._lock:
            before = self._task_name
            self._task_name = task_name
            if anew:
                self._expected = 0
                self._read = 0
            self._draw()
        return before

    def _draw(self) -> None:
        if self._drawn:
            (task,) = self._drawn.task_ids
            total = max(self._expected, self._read)
            self._drawn.update(task, description=self._task_name, total=total, completed=self._read)

    def show(self) -> None:
        from rich.console import Console  # deferred: most reports are read before this is needed
        from rich.progress import MofNCompleteColumn, Progress

        with self._lock:
            if not self._over:
                columns = (*Progress.get_default_columns(), MofNCompleteColumn())
                self._drawn = Progress(*columns, console=Console(stderr=True), transient=True)
                self._drawn.add_task(self._task_name, total=None)
                self._drawn.start()
                self._draw()

    def hide(self) -> None:
        with self._lock:
            self._over = True
            if self._drawn:
                self._drawn.stop()
