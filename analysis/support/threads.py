"""Large arrays on several cores: numpy and Arrow release Python's lock while they work on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .cores import cores

T = TypeVar("T")

MAX_THREADS = 16
#: A piece of work on so many rows takes longer than a thread takes to start.
LARGE = 1 << 16


def threads() -> int:
    """Return how many threads to use at once."""
    return min(cores(), MAX_THREADS)


def at_once(calls: Sequence[Callable[[], T]], rows: int) -> list[T]:
    """Return what each call returns; calls that work on many rows run at the same time.

    Raises the first of their errors, in the order of the calls, after all of them have ended.
    """
    if rows < LARGE or min(len(calls), threads()) < 2:
        return [call() for call in calls]
    with ThreadPoolExecutor(min(len(calls), threads())) as pool:
        return [running.result() for running in [pool.submit(call) for call in calls]]


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
