"""Intervals that nest: which is the innermost one at a moment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Intervals that nest deeper are damaged, and are passed over.
MAX_DEPTH = 1_000
Int64s = NDArray[np.int64]


class Layers:
    """Intervals as layers of disjoint ones, outermost first. An interval contains its start, not its end."""

    def __init__(self, start_ns: Int64s, end_ns: Int64s) -> None:
        self._layers: list[tuple[Int64s, Int64s, Int64s]] = []
        inner = np.lexsort((-end_ns, start_ns))
        while len(inner) and len(self._layers) < MAX_DEPTH:
            start = start_ns[inner]
            end = end_ns[inner]
            reach = np.maximum.accumulate(end)
            is_outer = np.append(True, start[1:] >= reach[:-1])
            self._layers.append((start[is_outer], end[is_outer], inner[is_outer]))
            inner = inner[~is_outer]

    def innermost(self, at_ns: Int64s) -> Int64s:
        """Return the position of the innermost interval that contains each moment; -1 for none: int64 (n,)."""
        innermost = np.full(len(at_ns), -1, np.int64)
        for start, end, position in self._layers:
            before = np.searchsorted(start, at_ns, "right") - 1
            inside = (before >= 0) & (end[before] > at_ns)
            innermost[inside] = position[before[inside]]
        return innermost
