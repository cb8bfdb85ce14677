"""Ask whether an operator or block of PyTorch's is open on the calling thread, or may be on another.

PyTorch ends each through a pointer into the profiler's session that saw it begin, so a session should not end
inside one; and nothing in PyTorch lists them. But an operator begins and ends within one call, so that its code is
on the thread's own stack meanwhile, in PyTorch's libraries; and blocks that Python opens are counted or belong to
`torch.compile`, whose functions are on Python's stack.

What another thread does in C cannot be seen, but where in Python it is can: a thread whose innermost function is
the standard library's (a queue, a socket, a lock, as a data loader's threads) is in no operator.
"""

from __future__ import annotations

import ctypes
import re
import sys
import sysconfig
import threading
from functools import cache
from types import FrameType
from typing import Any

import torch

from ..annotate import others
from ..annotate.calls import in_function
from ..annotate.compiled.ranges import in_generated_code
from ..annotate.regions import in_backward
from . import process

MOST_CALLS = 4096
# The library of Python's bindings is there for Dynamo's frames too; the operators among its calls are in others
# as well, except for autograd Functions.
OF_OPERATORS = re.compile(r"(?:lib)?(?:torch|c10)(?!_python)")
# Modules that open blocks of their own around what they compile or run.
OF_COMPILERS = re.compile(r"torch\.(?:_dynamo\.convert_frame|_functorch|_inductor)\b")


_LIBRARY, _INSTALLED = sysconfig.get_path("stdlib"), re.compile(r"[/\\](?:site|dist)-packages[/\\]")


class _Place(ctypes.Structure):
    """C's Dl_info."""

    _fields_ = (
        ("library", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def is_capturing() -> bool:
    """Return whether a CUDA graph captures this thread's current stream: a wait for the GPU would end that."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def is_open() -> bool:
    """Return whether an operator, a block or the capture of a CUDA graph may be open on this thread."""
    if is_capturing() or in_backward() or in_function() or others.in_block() or in_generated_code():
        return True
    frame: Any = sys._getframe()
    while frame is not None:
        if OF_COMPILERS.match(frame.f_globals.get("__name__") or ""):
            return True
        frame = frame.f_back
    system = ctypes.CDLL(None)
    if not hasattr(system, "backtrace"):  # musl's C library has none
        return False
    addresses = (ctypes.c_void_p * MOST_CALLS)()
    count = system.backtrace(addresses, MOST_CALLS)
    return any(OF_OPERATORS.match(_library(address)) for address in set(addresses[:count]))


@cache
def _library(address: int) -> str:
    """Return the file name of the library that has code at an address."""
    place = _Place()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(place))
    return (place.library or b"").decode(errors="replace").rpartition("/")[2]


def may_be_open_elsewhere() -> bool:
    """Return whether an operator or block may be open on another Python thread."""
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != threading.get_ident()}
    return not others.threads_in_blocks().isdisjoint(frames) or not all(map(_waits, frames.values()))


def _waits(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file == process.__file__ or (file.startswith((_LIBRARY, "<frozen")) and not _INSTALLED.search(file))
