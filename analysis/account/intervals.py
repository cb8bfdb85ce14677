"""Intervals of time: disjoint ones, nested ones, and how to cut them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..support.small_numbers import positions_between
from ..trace import Columns, Int64s


@dataclass(frozen=True, slots=True)
class Intervals(Columns):
    """Disjoint intervals in the order of time."""

    start_ns: Int64s
    end_ns: Int64s

    @property
    def total_ns(self) -> int:
        """Their total length."""
        return int((self.end_ns - self.start_ns).sum())

    def covered(self, start_ns: Int64s, end_ns: Int64s) -> Int64s:
        """Return how much of each given interval they cover, ns."""
        lengths_ns = self.end_ns - self.start_ns
        before_ns = np.concatenate([[0], np.cumsum(lengths_ns)])
        return self._until(end_ns, before_ns) - self._until(start_ns, before_ns)

    def contain(self, time_ns: Int64s) -> NDArray[np.bool_]:
        """Mark the moments at which one of them has begun and not ended."""
        before = np.searchsorted(self.start_ns, time_ns, "right") - 1
        if not len(self):
            return np.zeros(len(time_ns), np.bool_)
        inside: NDArray[np.bool_] = (before >= 0) & (self.end_ns[before] > time_ns)
        return inside

    def shared_with(self, other: Intervals) -> int:
        """Return how long both cover, ns."""
        return int(self.covered(other.start_ns, other.end_ns).sum())

    def joined_with(self, other: Intervals) -> Intervals:
        """Return when either of them covers."""
        start_ns = np.concatenate([self.start_ns, other.start_ns])
        end_ns = np.concatenate([self.end_ns, other.end_ns])
        return union(start_ns, end_ns)

    def _until(self, time_ns: Int64s, before_ns: Int64s) -> Int64s:
        """Return how much they cover before each time, given how much the intervals before each of them do, ns."""
        if not len(self):
            return np.zeros_like(time_ns)
        after = np.searchsorted(self.start_ns, time_ns, "right")
        beyond_ns = np.maximum(self.end_ns[after - 1] - time_ns, 0)
        return np.where(after > 0, before_ns[after] - beyond_ns, 0)


def union(start_ns: Int64s, end_ns: Int64s) -> Intervals:
    """Join intervals that touch or overlap."""
    if (start_ns[1:] < start_ns[:-1]).any():
        order = np.argsort(start_ns, kind="stable")
        start_ns = start_ns[order]
        end_ns = end_ns[order]
    reach_ns = np.maximum.accumulate(end_ns)
    is_apart = start_ns[1:] > reach_ns[:-1]
    first = np.flatnonzero(np.concatenate([[len(start_ns) > 0], is_apart]))
    behind = np.append(first[1:], len(start_ns))[: len(first)]
    return Intervals(start_ns[first], reach_ns[behind - 1])


def touching(start_ns: Int64s, end_ns: Int64s, others: Intervals) -> Int64s:
    """Return which intervals share time with one of some others: positions (k,)."""
    first = np.searchsorted(others.end_ns, start_ns, "right")
    behind = np.searchsorted(others.start_ns, end_ns, "left")
    return np.flatnonzero(first < behind)


def cut_at(cuts_ns: Int64s, from_ns: Int64s, until_ns: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Cut intervals at some times in order: which interval each piece is of, its start and its end (pieces,)."""
    first = np.searchsorted(cuts_ns, from_ns, "right")
    count = np.searchsorted(cuts_ns, until_ns, "left") - first + 1
    interval, place = positions_between(first, first + count)
    number = place - first[interval]
    padded = np.append(cuts_ns, 0)
    start = np.where(number == 0, from_ns[interval], padded[place - 1])
    is_last = number == count[interval] - 1
    end = np.where(is_last, until_ns[interval], padded[np.minimum(place, len(cuts_ns))])
    return interval, start, end
