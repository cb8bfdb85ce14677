"""Large arrays on several cores: numpy and Arrow release Python's lock while they work on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from .cores import cores

T = TypeVar("T")

MAX_THREADS = 16
#: Work on this number of rows takes longer than starting a thread.
LARGE = 1 << 16


def threads() -> int:
    """Return how many threads to use at once."""
    return min(cores(), MAX_THREADS)


def at_once(calls: Sequence[Callable[[], T]], rows: int) -> list[T]:
    """Return the results of calls; calls that work on many rows run at the same time, and may call this again.

    If no thread has begun a call when its result is needed, it runs in the thread that needs it, so that threads
    never wait for a call that no thread runs. Raises the first of the calls' errors.
    """
    if rows < LARGE or min(len(calls), threads()) < 2:
        return [call() for call in calls]
    workers = min(len(calls), threads()) - 1
    with nullcontext(_kept) if _kept is not None else ThreadPoolExecutor(workers) as pool:
        others = [(call, pool.submit(call)) for call in calls[1:]]
        try:
            return [calls[0](), *(call() if later.cancel() else later.result() for call, later in others)]
        finally:
            wait([later for _, later in others if not later.cancel()])


@contextmanager
def kept() -> Iterator[None]:
    """Keep the threads that work in this block until its end, as a thread takes long to start: for commands.

    A library leaves none behind: other parts of a program count threads, our recorder among them.
    """
    global _kept
    before = _kept
    with ThreadPoolExecutor(max(1, threads() - 1)) as _kept:
        try:
            yield
        finally:
            _kept = before


_kept: ThreadPoolExecutor | None = None


def _forget() -> None:
    global _kept
    _kept = None


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_forget)


def in_pieces(function: Callable[..., NDArray[Any]], *columns: NDArray[Any]) -> NDArray[Any]:
    """Return function(*columns) of columns (n,), computed for pieces of the rows at the same time.

    The function returns an array (n,), whose values may depend on the columns' values in their row alone.
    """
    rows = len(columns[0])
    count = min(threads(), rows // LARGE)
    if count < 2:
        return function(*columns)
    split = zip(*(np.array_split(column, count) for column in columns), strict=True)
    return np.concatenate(at_once([partial(function, *piece) for piece in split], rows))


def positions(ordered: NDArray[Any], values: NDArray[Any], side: Literal["left", "right"]) -> NDArray[np.int64]:
    """Return where values (n,) belong among ordered ones, as np.searchsorted does, in pieces: int64 (n,)."""

    def search(piece: NDArray[Any]) -> NDArray[Any]:
        return np.searchsorted(ordered, piece, side)

    return in_pieces(search, values)
