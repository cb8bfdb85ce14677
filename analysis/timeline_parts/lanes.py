"""On which of a track's lanes a slice is drawn: slices of one lane nest, or do not overlap at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.trace import Int32s, Int64s


def drawing_order(group: NDArray[Any], start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Return the order in which slices are written: by group and start, outer before inner; else as they were."""
    return np.lexsort((-end_ns, start_ns, group))


def lanes(group: NDArray[Any], start_ns: Int64s, end_ns: Int64s, *, nest: bool) -> Int32s:
    """Return the first lane of its group on which each slice has room; the rows are in drawing order.

    With `nest` a slice may lie inside an earlier one; without, any overlap moves it to another lane. A slice that
    crosses another is thus never cut or stretched.
    """
    lane = np.zeros(len(group), np.int32)
    opened: list[list[int]] = []  # per lane the ends of the slices that are open, outermost first
    last_group = None
    rows = zip(group.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True)
    for row, (of, start, end) in enumerate(rows):
        if of != last_group:
            opened, last_group = [], of
        number = next((n for n, ends in enumerate(opened) if _has_room(ends, start, end, nest)), len(opened))
        if number == len(opened):
            opened.append([])
        opened[number].append(end)
        lane[row] = number
    return lane


def _has_room(ends: list[int], start: int, end: int, nest: bool) -> bool:
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or (nest and end <= ends[-1])
