"""What a recording does to its process: there is one at a time, and signals wait while it begins and ends."""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ..annotate.interrupts import HELD_SIGNALS, Held, is_main_thread
from .trace_file import TraceFileError

_lock = threading.Lock()
_running: tuple[str | Path, int] | None = None


@contextmanager
def alone(path: str | Path) -> Iterator[None]:
    """Refuse a second recording in this process."""
    global _running
    recording = (path, os.getpid())
    with _lock:
        if _running is not None and _running[1] == os.getpid():
            raise TraceFileError(
                f"cannot record to {path}: a recording to {_running[0]} is already running in this process, "
                "and a process can have only one; end that one first"
            )
        _running = recording
    try:
        yield
    finally:
        if _running is recording:
            _running = None


class Terminated(SystemExit):
    """SIGTERM ended the program."""


class Unwinding:
    """Ctrl-C and SIGTERM unwind the program from `begin` on, and wait while one of the functions runs.

    A with statement has moments, as when its `__exit__` has begun and done nothing, in which an exception would
    leave the block without what leaving does. What waits is handled at the end of this block, or by `deliver`. A
    SIGTERM that the program does not handle raises Terminated.
    """

    def __init__(self, *functions: Callable[..., object]) -> None:
        self._codes = {function.__code__ for function in functions}
        self._handlers: dict[int, Any] = {}
        self._waiting: list[int] = []

    def begin(self) -> None:
        """Take the signals over, if this is the main thread, which handles them, and no other has done so."""
        if is_main_thread():
            for number in HELD_SIGNALS:
                handler = signal.getsignal(number)
                is_default = number == signal.SIGTERM and handler is signal.SIG_DFL
                is_taken = isinstance(getattr(handler, "__self__", None), Held | Unwinding)
                if (callable(handler) and not is_taken) or is_default:
                    self._handlers[number] = handler
                    signal.signal(number, self._handle)

    def deliver(self) -> None:
        """Handle the signals that waited."""
        while self._waiting:
            self._pass_on(self._waiting.pop(0), None)

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._handlers.items() if is_main_thread() else ():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self.deliver()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        caller = frame
        while caller is not None and caller.f_code not in self._codes:
            caller = caller.f_back
        if caller is not None:
            self._waiting.append(number)
        else:
            self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        handler = self._handlers[number]
        if not callable(handler):
            raise Terminated(128 + number)
        handler(number, frame)


@contextmanager
def reminding(call: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call a function that raises nothing on the main thread every so often, between two of its instructions.

    The thread that waits is not one of `threading`'s, and is not waited for when the interpreter ends.
    """
    is_over = _thread.allocate_lock()
    is_over.acquire()

    def wait() -> None:
        while not is_over.acquire(timeout=every_s):
            ctypes.pythonapi.Py_AddPendingCall(_pending, None)

    _reminded.append(call)
    _thread.start_new_thread(wait, ())
    try:
        yield
    finally:
        _reminded.remove(call)
        is_over.release()


_reminded: list[Callable[[], None]] = []


# One for all recordings: the interpreter may still call it when a recording is over.
def _remind(_: object) -> int:
    for call in (*_reminded,):
        try:
            call()
        except Exception as error:  # what a callback from C raises, the program never sees
            sys.stderr.write(f"recording: {error!r}\n")
        except BaseException as error:  # a signal's handler raised it: it comes again
            number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
            _thread.start_new_thread(_thread.interrupt_main, (number,))
    return 0


_pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_remind)


def collect_early() -> None:
    """Have Python look through all objects now, and not in a measured step, for what annotation allocates."""
    if gc.isenabled():
        gc.collect()


def resident_bytes() -> int:
    """Return the memory that this process has now; where the system does not say, the most that it had."""
    try:
        return int(STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def allowed_bytes() -> int:
    """Return the memory that this process may have: the machine's, or its control group's if that is less."""
    allowed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            allowed = min(allowed, int(Path(file).read_text()))
    return allowed


STATM = Path("/proc/self/statm")
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
