"""Signals wait while something must be done as a whole, and a block is left however a signal interrupts it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, Self

from ..harmless import say

#: They wait also where the system handles them, by ending the process.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
NUMBERS = sorted(map(int, signal.valid_signals()))
# That of the module `signal` shows a handler of ours as SIG_DFL, which it is like.
handler_of: Callable[[int], Any] = _signal.getsignal


def is_main_thread() -> bool:
    """Return whether this is the thread that handles signals, and alone may say how."""
    return threading.current_thread() is threading.main_thread()


def set_handler(number: int, handler: Any) -> None:
    """Set a signal's handler as `handler_of` returned it."""
    _signal.signal(number, handler if callable(handler) else int(handler))


def program_handler(number: int) -> Any:
    """Return how the program handles a signal, also while that waits."""
    holder = _holder_of(number)
    return handler_of(number) if holder is None else holder._handlers[number]


def set_program_handler(number: int, handler: Any) -> None:
    """Set how the program handles a signal: at once, or after what it waits for."""
    holder = _holder_of(number)
    if holder is None:
        set_handler(number, handler)
    else:
        holder._handlers[number] = handler


def _holder_of(number: int) -> Held | None:
    """Return the outermost block in which a signal waits."""
    holder, handler = None, handler_of(number)
    while isinstance(getattr(handler, "__self__", None), Held):
        holder = handler.__self__
        handler = holder._handlers.get(number)
    return holder


class Held:
    """Let signals that Python handles, and SIGTERM, wait until the block has ended, if this is the main thread.

    What waits is handled after the block as it would have been before it, each signal once. At the first Ctrl-C or
    SIGTERM `notice` is said; at a second Ctrl-C `again` is called.
    """

    def __init__(self, notice: str = "", again: Callable[[], None] | None = None) -> None:
        self._notice, self._again = notice, again
        self._handlers: dict[int, Any] = {}
        self._waiting: list[int] = []

    def __enter__(self) -> Self:
        while True:
            try:
                if is_main_thread():
                    for number, handler in [*zip(NUMBERS, map(handler_of, NUMBERS), strict=True)]:
                        self._hold(number, handler)
                return self
            except KeyboardInterrupt:  # it came before its signal was held
                self._waiting.append(signal.SIGINT)
            except BaseException:  # a handler of the program's raised it
                self._let_go()
                raise

    def __exit__(self, *exception: object) -> None:
        self._let_go()
        with ExitStack() as raised:  # the handler of one may raise, and the others are handled all the same
            for number in dict.fromkeys(reversed(self._waiting)):
                raised.callback(signal.raise_signal, number)

    def _hold(self, number: int, handler: Any) -> None:
        is_ending = number in ENDING_SIGNALS and handler == signal.SIG_DFL
        if handler != self._wait and (callable(handler) or is_ending):
            self._handlers[number] = handler
            set_handler(number, self._wait)

    def _let_go(self) -> None:
        # A signal may come, and its handler raise, as soon as it is no longer held.
        try:
            while self._handlers:
                number, handler = next(iter(self._handlers.items()))
                if handler_of(number) == self._wait:
                    set_handler(number, handler)
                del self._handlers[number]
        finally:
            if self._handlers:
                self._let_go()

    def _wait(self, number: int, _frame: FrameType | None) -> None:
        is_ending = number in ENDING_SIGNALS
        if self._notice and is_ending and not any(other in ENDING_SIGNALS for other in self._waiting):
            say(self._notice)
        if self._again and number == signal.SIGINT and number in self._waiting:
            self._again()
        self._waiting.append(number)


class Surely:
    """Makes a function the `__exit__` of a block, which is called however a with statement over the block ends.

    An exception of a signal's handler may come when `__enter__` has done everything and the block has not begun,
    or when `__exit__` has done nothing yet: Python then calls `__exit__` no more. But the statement looks it up
    before it calls `__enter__`, and holds what it gets until it is over.

        __exit__ is looked up ── __enter__ ── the block ── __exit__ is called ── what was looked up is dropped
    """

    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave

    def __get__(self, block: Any, kind: type) -> Callable[..., None]:
        if block is None:
            return self._leave
        leaving = Leaving(self._leave, block)
        vars(block)["_looked_up"] = weakref.ref(leaving)
        return leaving


class Leaving:
    """An `__exit__` that was looked up; the one that its with statement holds is called when that drops it."""

    _is_held = False

    def __init__(self, leave: Callable[..., None], block: object) -> None:
        self._leave, self._block = leave, block

    def __call__(self, *exception: object) -> None:
        """Leave the block."""
        self._leave(self._block, *exception)
        self._is_held = False

    def hold(self) -> None:
        """Note that the block is entered, and that this is dropped when its statement is over."""
        self._is_held = True

    def __del__(self) -> None:
        if self._is_held:
            try:
                self._leave(self._block, None, None, None)
            except Exception as error:
                say(str(error))


def entering(block: object) -> None:
    """Have the block that is being entered be left with the with statement that looked its `__exit__` up."""
    looked_up = vars(block).pop("_looked_up", lambda: None)()
    if looked_up is not None:
        looked_up.hold()
