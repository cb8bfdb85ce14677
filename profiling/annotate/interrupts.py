"""Ctrl-C and SIGTERM wait while something must be done as a whole."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

HELD_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def is_main_thread() -> bool:
    """Return whether this is the thread that handles signals, and alone may say how."""
    return threading.current_thread() is threading.main_thread()


class Held:
    """Let Ctrl-C and SIGTERM wait until the block has ended, if this is the main thread.

    What waits is handled after the block as it would have been before it. At the first signal `notice` is printed;
    at a second Ctrl-C `again` is called.
    """

    def __init__(self, notice: str = "", again: Callable[[], None] | None = None) -> None:
        self._notice, self._again = notice, again
        self._handlers: dict[int, Any] = {}
        self._waiting: list[int] = []

    def __enter__(self) -> Self:
        while True:
            try:
                if is_main_thread():
                    for number in HELD_SIGNALS:
                        handler = signal.getsignal(number)
                        if handler != self._wait and (callable(handler) or handler is signal.SIG_DFL):
                            self._handlers[number] = handler
                            signal.signal(number, self._wait)
                return self
            except KeyboardInterrupt:  # it came before its signal was held
                self._waiting.append(signal.SIGINT)
            except BaseException:  # SIGTERM's own handler raised it
                self._let_go()
                raise

    def __exit__(self, *exception: object) -> None:
        self._let_go()
        for number in self._waiting:
            signal.raise_signal(number)

    def _let_go(self) -> None:
        # A signal may come, and its handler raise, as soon as it is no longer held.
        try:
            self._give_back(signal.SIGTERM)
        finally:
            self._give_back(signal.SIGINT)

    def _give_back(self, number: int) -> None:
        if number in self._handlers and signal.getsignal(number) == self._wait:
            signal.signal(number, self._handlers[number])

    def _wait(self, number: int, _frame: FrameType | None) -> None:
        if self._notice and not self._waiting:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{self._notice}\n".encode())
        if self._again and number == signal.SIGINT and number in self._waiting:
            self._again()
        self._waiting.append(number)
