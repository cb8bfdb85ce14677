"""A process has one recording at a time, which also ends on SIGTERM."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from .trace_file import TraceFileError

_lock = threading.Lock()
_running: tuple[str | Path, int] | None = None


@contextmanager
def alone(path: str | Path) -> Iterator[None]:
    """Refuse a second recording in this process."""
    global _running
    mine = (path, os.getpid())
    with _lock:
        if _running is not None and _running[1] == os.getpid():
            raise TraceFileError(
                f"cannot record to {path}: a recording to {_running[0]} is already running in this process, "
                "and a process can have only one; end that one first"
            )
        _running = mine
    try:
        yield
    finally:
        if _running is mine:
            _running = None


class Termination:
    """Let SIGTERM unwind the program, as Ctrl-C does, if nothing else handles it."""

    def __init__(self) -> None:
        self._is_held = False
        self._is_due = False

    def __enter__(self) -> "Termination":
        in_main = threading.current_thread() is threading.main_thread()
        self._is_ours = in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._is_ours:
            signal.signal(signal.SIGTERM, self._terminate)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a SIGTERM wait until the block has ended."""
        self._is_held = True
        yield
        self._is_held = False
        if self._is_due:
            raise SystemExit(128 + signal.SIGTERM)

    def _terminate(self, number: int, _frame: FrameType | None) -> None:
        self._is_due = True
        if not self._is_held:
            raise SystemExit(128 + number)
