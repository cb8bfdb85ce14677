"""How many cores this process may use: a container or `taskset` can allow it fewer than the machine has."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the number of cores, at least 1."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
