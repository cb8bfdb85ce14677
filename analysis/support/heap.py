"""The heap of this process: short, for all that is done with it is to make it smaller."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Return to the system the memory that freed arrays left in glibc's pools, up to a third of the total."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
