"""What we say, and what fails in our own code: neither reaches the program that is recorded.

    try:
        our_own_work()
    except Exception:
        forgive("a call of a module is not annotated")

A handler that the program has for a signal, as SIGALRM's for a timeout, may run and raise while our code does.
This exception is the program's, and goes on to it.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

STANDARD_ERROR = 2
#: Where the exceptions come from that our own code may raise.
OUR_LIBRARIES = frozenset({*sys.stdlib_module_names, "nvtx_kernels", "torch", "numpy", "msgspec", "nvtx"})
_OUR_FOLDER = f"{Path(__file__).parent}{os.sep}"
_said: set[str] = set()
#: Writes JSON as `json.dumps` did before a program replaced that.
json_text: Callable[[object], str] = json.JSONEncoder(ensure_ascii=False).encode


def say(text: str) -> None:
    """Write a line to standard error; write nothing where that is closed, full, or a pipe without a reader."""
    stream = sys.stderr
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    # A pipe without a reader ends a program that leaves SIGPIPE to the system.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        if type(stream) is io.TextIOWrapper and type(raw) is io.FileIO:
            stream.flush()
            _write(raw.fileno(), f"{text}\n".encode(stream.encoding, "backslashreplace"))
        elif stream is not None:
            stream.write(f"{text}\n")
    except BrokenPipeError:
        if signal.SIGPIPE in signal.sigpending() - before:
            signal.sigwait({signal.SIGPIPE})
    except Exception as error:
        if is_the_programs(error):
            raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _write(descriptor: int, line: bytes) -> None:
    """Write past Python's buffer, where what failed would fail again when the program ends.

    A program that has closed its standard error may have opened a file of its own under that number, which
    processes that it starts do not inherit.
    """
    if descriptor != STANDARD_ERROR or os.get_inheritable(descriptor):
        os.write(descriptor, line)


def say_once(text: str) -> None:
    """Say a line the first time in this process."""
    if text not in _said:
        _said.add(text)
        say(text)


def forgive(failure: str, *, once: bool = True) -> None:
    """Report a failure, in the block that handles its exception; raise that again if it is the program's."""
    error = sys.exception()
    if error is not None and is_the_programs(error):
        raise error
    if failure not in _said or not once:
        _said.add(failure)
        say(f"nvtx-kernels: {failure}{' (said once)' if once else ''}: {type(error).__name__}: {error}")


def forgiving(failure: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Return a decorator of functions that a program calls without knowing: where one fails, it returns None."""

    def decorated(function: Callable[P, R]) -> Callable[P, R | None]:
        @functools.wraps(function)
        def forgiven(*args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return function(*args, **kwargs)
            except Exception:
                forgive(failure)
                return None

        return forgiven

    return decorated


class Ignoring:
    """Lets a failure of our own code in its block pass in silence; what is the program's goes on to it."""

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """Return whether an error ends here."""
        return isinstance(error, Exception) and not is_the_programs(error)


def is_the_programs(error: BaseException) -> bool:
    """Return whether a signal's handler raised an error while our own code ran, or another thread sent it.

    Only handlers, and functions that trace a program, are called with a frame. What `PyThreadState_SetAsyncExc`
    sends begins in our code, and is of a class that none of our libraries raises.
    """
    trace, frame = error.__traceback__, None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if not is_ours(frame) and any(isinstance(value, FrameType) for value in _arguments_of(frame)):
            return True
    library = type(error).__module__.partition(".")[0]
    return frame is not None and is_ours(frame) and library not in OUR_LIBRARIES


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of this folder."""
    return frame.f_code.co_filename.startswith(_OUR_FOLDER)


def _arguments_of(frame: FrameType) -> list[object]:
    """Return the values of a frame's arguments, those of `*args` among them."""
    code, count = frame.f_code, frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    if code.co_flags & inspect.CO_VARARGS:
        values += frame.f_locals.get(code.co_varnames[count], ())
    return values
