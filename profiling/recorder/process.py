"""What a recording does to its process: there is one at a time, and signals wait while it begins and ends."""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Self

from ..annotate.interrupts import is_main_thread, program_handler, set_handler, set_program_handler
from ..harmless import forgive
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


class _LikeDefault(int):
    """A handler of SIGTERM that a program takes for SIG_DFL, which it equals, and does not keep."""

    call: Callable[[], None]

    def __new__(cls, call: Callable[[], None]) -> Self:
        handler = super().__new__(cls, signal.SIG_DFL)
        handler.call = call
        return handler

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's
        self.call()


class Termination:
    """Calls a function when SIGTERM is about to end this process, as it does where a program does not handle it.

    Afterwards the signal ends the process as if nothing had been recorded: no `finally` and no function of atexit
    runs. A forked child ends at once.
    """

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._process = os.getpid()
        self._handler = _LikeDefault(self._end)

    def begin(self) -> None:
        """Take the signal over, if this is the main thread, and the program leaves it to the system."""
        global _terminating
        handler = program_handler(signal.SIGTERM) if is_main_thread() else None
        if handler == signal.SIG_DFL and not callable(handler):
            set_program_handler(signal.SIGTERM, self._handler)
            _terminating = self

    def close(self) -> None:
        """Leave the signal to the system again, unless the program has a handler by now."""
        global _terminating
        if _terminating is self and is_main_thread():
            _terminating = None
            if program_handler(signal.SIGTERM) is self._handler:
                set_program_handler(signal.SIGTERM, signal.SIG_DFL)

    def _end(self) -> None:
        try:
            if self._process == os.getpid():
                self._before()
        except Exception:
            forgive("the report is not written before SIGTERM ends the program")
        finally:
            set_handler(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


_terminating: Termination | None = None
_forking = threading.local()


def _before_fork() -> None:
    """Let SIGTERM wait until a forked child no longer has our handler."""
    if _terminating is not None:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    mask = vars(_forking).pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    if _terminating is not None:
        _terminating.close()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


@contextmanager
def reminding(call: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call a function on the main thread every so often, between two of its instructions.

    The thread that waits is not one of `threading`'s, and is not waited for when the interpreter ends.
    """
    is_over = _thread.allocate_lock()
    is_over.acquire()

    def wait() -> None:
        while not is_over.acquire(timeout=every_s):
            _add_pending_call(_is_true, _reminder)

    _reminded.append(call)
    _thread.start_new_thread(wait, ())
    try:
        yield
    finally:
        _reminded.remove(call)
        is_over.release()


_reminded: list[Callable[[], None]] = []


class _Reminder:
    """Makes the calls when Python asks for its truth, which raises what a signal's handler raises meanwhile."""

    def __bool__(self) -> bool:
        for call in (*_reminded,):
            try:
                call()
            except Exception:
                forgive("a reminder of the recording failed")
        return False


# One for all recordings: the interpreter may still ask it when a recording is over. The function is one of C, as
# functions of ours that ctypes calls cannot raise.
_reminder = _Reminder()
_python = ctypes.PyDLL(None)
_is_true = ctypes.cast(_python.PyObject_IsTrue, ctypes.c_void_p)
_add_pending_call = _python.Py_AddPendingCall
_add_pending_call.argtypes = (ctypes.c_void_p, ctypes.py_object)


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
