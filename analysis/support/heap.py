"""The memory of this process in glibc: a command keeps what it has, a library gives back what it can."""

from __future__ import annotations

import ctypes
import sys

# The numbers of malloc.h.
TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
#: Arrays from this number of rows on are outside of glibc's pools, and do not reuse free memory in them.
MANY = 1 << 22

_is_kept = False


def keep() -> None:
    """Let arrays use again the memory of those before them, of whatever size and thread, until the process ends.

    Else glibc asks the system for each array of more than 32 MiB, and for a pool for each thread, and the system
    clears all of it first: that took a third of the time of ranking ten million kernels. For commands only: their
    process ends with their task.
    """
    global _is_kept
    for name, value in ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, -1)):
        _call("mallopt", name, value)
    _is_kept = True


def give_back(rows: int) -> None:
    """Return to the system what freed arrays of many rows left in glibc's pools, unless this process keeps it."""
    if rows >= MANY:
        trim()


def trim() -> None:
    """Return to the system what is free in glibc's pools, unless this process keeps it."""
    if not _is_kept:
        _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    """Call a function of glibc, if this is it: musl has none of these."""
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)
        if function is not None:
            function(*arguments)
