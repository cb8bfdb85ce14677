"""What a recording does to its process: there is one at a time, and signals wait while it begins and ends."""

from __future__ import annotations

import _thread
import ctypes
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

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


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """Let SIGTERM unwind the program, as Ctrl-C does, unless the program handles it."""

    def terminate(number: int, _frame: FrameType | None) -> None:
        raise Terminated(128 + number)

    in_main = threading.current_thread() is threading.main_thread()
    is_ours = in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_ours:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if is_ours and signal.getsignal(signal.SIGTERM) is terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
        call()
    return 0


_pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_remind)


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
