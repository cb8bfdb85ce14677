"""What the rest of this room does with columns: sums up to a position, medians."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...support.small_numbers import medians
from ...trace import Int64s

Floats: TypeAlias = NDArray[np.float64]


def sums_before(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of the values (n,) before each position, and of all of them last: (n + 1,)."""
    sums = np.cumsum(values)
    return np.concatenate([sums[:0], [0], sums]).astype(sums.dtype)


def first_of_each(counts: Int64s) -> Int64s:
    """Return where each group (k,) begins if groups of these sizes follow one another: int64 (k,)."""
    return np.cumsum(counts) - counts


def reach_before(end_ns: Int64s, otherwise: Int64s) -> Int64s:
    """Return until when all before each position (n,) lasts, int64 (n,); before the first it is otherwise (1,)."""
    reach_ns = np.maximum.accumulate(end_ns)
    return np.concatenate([otherwise, reach_ns[:-1]])


def middle(values: Int64s) -> int:
    """Return the median of some integers, rounded down; 0 of none."""
    if not len(values):
        return 0
    return int(medians(values))


def within(values: Int64s, low: float, high: float) -> Int64s:
    """Return the values (n,) from low to high."""
    is_inside = values >= low
    is_inside &= values <= high
    inside: Int64s = values[is_inside]
    return inside
