"""The heap of this process: short, for all that is done with it is to keep it small."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
SELDOM = 300_000  # new objects
MANY = 1 << 22  # rows: arrays of so many are outside of glibc's pools, and do not use again what is free in them


def give_back(rows: int) -> None:
    """Return to the system the memory that freed arrays left in glibc's pools, up to a third of the total.

    It is slow to get memory again: that is not worth it after work on arrays of few rows.
    """
    if rows >= MANY:
        _call("malloc_trim", 0)


def share() -> None:
    """Let threads take memory from one pool, where one reuses what another freed: glibc makes pools for each.

    Threads that start after this then wait for each other while they allocate, which arrays seldom do.
    """
    _call("mallopt", ARENA_MAX, 1)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for cycles of objects seldom in this block: most objects of a command stay until its end.

    With Python's own threshold, that takes a tenth of the time of ranking a small report.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(SELDOM, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _call(name: str, *arguments: int) -> None:
    """Call a function of glibc, if this is it: musl has none of them."""
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)
        if function is not None:
            function(*arguments)
