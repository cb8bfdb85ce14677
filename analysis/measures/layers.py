"""Which of some nested intervals is the innermost one at a moment."""

from __future__ import annotations

import numpy as np

from ..trace import Int64s

#: Intervals that nest deeper are damaged, and are passed over.
MAX_DEPTH = 1_000


class Layers:
    """Intervals as layers of disjoint ones, outermost first. An interval contains its start, not its end."""

    def __init__(self, start_ns: Int64s, end_ns: Int64s) -> None:
        self._layers: list[tuple[Int64s, Int64s, Int64s]] = []
        rest = np.lexsort((-end_ns, start_ns))
        while len(rest) and len(self._layers) < MAX_DEPTH:
            start, end = start_ns[rest], end_ns[rest]
            reach = np.maximum.accumulate(end)
            is_outer = np.append(True, start[1:] >= reach[:-1])
            self._layers.append((start[is_outer], end[is_outer], rest[is_outer]))
            rest = rest[~is_outer]

    def innermost(self, at_ns: Int64s) -> Int64s:
        """Return the position of the innermost interval that contains each moment; -1 for none: int64 (n,)."""
        found = np.full(len(at_ns), -1, np.int64)
        for start, end, position in self._layers:
            before = np.searchsorted(start, at_ns, "right") - 1
            inside = (before >= 0) & (end[before] > at_ns)
            found[inside] = position[before[inside]]
        return found


def touching(start_ns: Int64s, end_ns: Int64s, from_ns: Int64s, until_ns: Int64s) -> Int64s:
    """Return which intervals share time with one of some others, disjoint and in order: positions (k,)."""
    return np.flatnonzero(np.searchsorted(until_ns, start_ns, "right") < np.searchsorted(from_ns, end_ns, "left"))


def cut_at(cuts_ns: Int64s, from_ns: Int64s, until_ns: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Cut intervals at some times in order: which interval each piece is of, its start and its end (pieces,)."""
    first = np.searchsorted(cuts_ns, from_ns, "right")
    count = np.searchsorted(cuts_ns, until_ns, "left") - first + 1
    interval = np.repeat(np.arange(len(from_ns)), count)
    number = np.arange(len(interval)) - np.repeat(np.cumsum(count) - count, count)
    place, padded = first[interval] + number, np.append(cuts_ns, 0)
    start = np.where(number == 0, from_ns[interval], padded[place - 1])
    is_last = number == count[interval] - 1
    end = np.where(is_last, until_ns[interval], padded[np.minimum(place, len(cuts_ns))])
    return interval, start, end
