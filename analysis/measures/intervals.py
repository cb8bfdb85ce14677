"""Disjoint intervals of time, and how much of others they cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
        before_ns = np.concatenate([[0], np.cumsum(self.end_ns - self.start_ns)])
        return self._until(end_ns, before_ns) - self._until(start_ns, before_ns)

    def shared_with(self, other: Intervals) -> int:
        """Return how long both cover, ns."""
        return int(self.covered(other.start_ns, other.end_ns).sum())

    def _until(self, time_ns: Int64s, before_ns: Int64s) -> Int64s:
        """Return how much they cover before each time, given how much the intervals before each of them do, ns."""
        after = np.searchsorted(self.start_ns, time_ns, "right")
        beyond = np.maximum(self.end_ns[after - 1] - time_ns, 0) if len(self) else np.zeros_like(time_ns)
        return np.where(after > 0, before_ns[after] - beyond, 0)


def union(start_ns: Int64s, end_ns: Int64s) -> Intervals:
    """Join intervals that touch or overlap."""
    order = np.argsort(start_ns, kind="stable")
    start, reach = start_ns[order], np.maximum.accumulate(end_ns[order])
    first = np.flatnonzero(np.concatenate([[True], start[1:] > reach[:-1]])) if len(start) else order
    last = np.append(first[1:], len(start))[: len(first)] - 1
    return Intervals(start[first], reach[last])
