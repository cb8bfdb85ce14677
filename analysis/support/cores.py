"""How many cores this process may use, and numpy of them: two facts, for all that reads or ranks reports.

A container or `taskset` can allow it fewer than the machine has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def cores() -> int:
    """Return the number of cores, at least 1."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_thread_of_blas() -> Iterator[None]:
    """Let numpy start no threads for linear algebra if it is imported here: nothing of this package uses them.

    OpenBLAS starts one for each core, which costs more processor time than ranking a small report.
    """
    before = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[BLAS_THREADS]
