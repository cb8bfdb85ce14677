"""Find the ranges of a thread that contain a moment, or a whole interval.

On a thread whose ranges nest, each has one parent, and those that contain an interval are a chain of parents:

```
thread    ├ step ──────────────────────────────┤
            ├ forward ──────┤├ backward ─────┤
              ├ softmax ─┤
                           L
```

The last range to begin before `L` is softmax: a binary search. It ended before `L` did, so its parent is next, and
forward ends late enough. L's *node* is forward's, and its path is step > forward.

NVTX keeps a stack for each thread *and domain*, so ranges of two domains may cross. Then the ranges are divided
into *lanes* without crossings. An interval has one chain in each lane, and its path is these merged in the order
of their starts. Almost every report has one lane.

```
lane 0    ├ batch ─────────────┤
lane 1         ├ copy ──────────────────┤
            L1          L2           L3          batch, batch > copy, copy
```

All threads share these searches: on one clock, each thread's times follow those of the thread before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TooTangled
from ..moments import Clock
from ..support.small_numbers import distinct, grouped_rows
from ..support.threads import in_pieces, positions
from ..trace import Bools, Int32s, Int64s, Ranges, Spots
from .forest import Forest

MAX_DEPTH = 1_000
MAX_LANES = 200
# Fewer nodes than these, for any report and for each range, are not looked at before all are there.
FEW_NODES = 20_000
FEW_NODES_PER_RANGE = 4


class Nesting:
    """The ranges of a trace, indexed to find those that contain an interval on a thread.

    `forest` has the nodes; `home[r]` is range r's own node, below all ranges of its thread that contain it.
    `clock` has the times of all threads in one order.
    """

    def __init__(self, ranges: Ranges) -> None:
        self.clock = Clock(ranges)
        start = self.clock.at(ranges.thread, ranges.start_ns)
        end = self.clock.at(ranges.thread, ranges.end_ns)
        self._lanes, parent = _lanes(ranges, start, end)
        self.forest = Forest(parent)
        self.home = np.arange(len(ranges), dtype=np.int32)
        if len(self._lanes) > 1:
            above = np.full(len(ranges), -1, np.int32)
            for lane in self._lanes:  # of equal spans, the range that comes first is the outer one
                begun = np.searchsorted(lane.rows, self.home)
                above = self.forest.merge(above, self._innermost(lane, begun, start, end))
                self._stop_early()
            is_moved = np.flatnonzero(above != parent)
            self.home[is_moved] = self.forest.add(above[is_moved], self.home[is_moved])
            self._stop_early()

    def _stop_early(self) -> None:
        if len(self.forest) > FEW_NODES + FEW_NODES_PER_RANGE * len(self.home):
            self.forest.require_drawable(len(self.home))

    def containing(self, spots: Spots) -> Int32s:
        """Return the node of the ranges on its thread that contain each interval; -1 for none: int32 (n,)."""
        start, end = (in_pieces(self.clock.at, spots.thread, ns) for ns in (spots.start_ns, spots.end_ns))
        node = np.full(len(start), -1, np.int32)
        for lane in self._lanes:
            begun = positions(lane.start, start, "right")
            node = self.forest.merge(node, self._innermost(lane, begun, start, end))
            self._stop_early()
        return node

    def _innermost(self, lane: Lane, begun: NDArray[Any], start: Int64s, end: Int64s) -> Int32s:
        """Return the innermost of the lane's first `begun` ranges that contains each interval, or -1."""
        node = in_pieces(lane.climb, begun, end)
        # An instant on the boundary of two ranges is in both.
        seams = np.flatnonzero(start == end)
        if len(seams):
            begun_before = np.searchsorted(lane.start, start[seams], "left")
            node[seams] = self.forest.merge(node[seams], lane.climb(begun_before, end[seams]))
        return node


@dataclass(frozen=True, slots=True)
class Lane:
    """Ranges that nest: positions in `Ranges`, bounds on the clock of all threads, and parents' positions here."""

    rows: Int32s
    start: Int64s
    end: Int64s
    parent: Int32s

    def climb(self, begun: NDArray[Any], end: Int64s) -> Int32s:
        """Go up from the last of the first `begun` ranges to one that ends late enough, or -1: int32 (n,)."""
        node = np.full(len(end), -1, np.int32)
        todo = np.flatnonzero(begun > 0)
        candidate = begun[todo] - 1
        while len(todo):
            encloses = self.end[candidate] >= end[todo]
            node[todo[encloses]] = self.rows[candidate[encloses]]
            todo = todo[~encloses]
            candidate = self.parent[candidate[~encloses]]
            todo = todo[candidate >= 0]
            candidate = candidate[candidate >= 0]
        return node


def _lanes(ranges: Ranges, start: Int64s, end: Int64s) -> tuple[list[Lane], Int32s]:
    """Divide all ranges into lanes; return these, and each range's parent in its lane, -1 for none."""
    parent, crossing = _parents(start, end)
    if len(start) and not len(crossing) and (start < end).all():
        return [Lane(np.arange(len(start), dtype=np.int32), start, end, parent)], parent
    lane_of = _guessed_lanes(ranges, crossing, start == end)
    lanes: list[Lane] = []
    while len(lanes) <= lane_of.max(initial=-1):
        if len(lanes) == MAX_LANES:
            raise TooTangled(f"More than {MAX_LANES} ranges cross each other on one thread: it is damaged.")
        rows = np.flatnonzero(lane_of == len(lanes))
        further_lane = lane_of.max() + 1
        inside, crossing = _parents(start[rows], end[rows])
        while len(crossing):
            lane_of[rows[crossing]] = further_lane
            rows = np.delete(rows, crossing)
            inside, crossing = _parents(start[rows], end[rows])
        lanes.append(Lane(rows.astype(np.int32), start[rows], end[rows], inside))
        parent[rows] = np.where(inside >= 0, rows[inside], -1) if len(rows) else inside
    return lanes, parent


def _guessed_lanes(ranges: Ranges, crossing: Int64s, is_instant: Bools) -> Int32s:
    """Return lane 0 for all, but on threads with crossing ranges one for each domain, and one for all instants.

    Instants are separate because one on the boundary of two ranges is inside both, and has no single parent.
    """
    lane_of = np.zeros(len(ranges), np.int32)
    if len(crossing):
        tangled = np.flatnonzero(np.isin(ranges.thread, distinct(ranges.thread[crossing])))
        (thread, _), pair = grouped_rows(ranges.thread[tangled], ranges.domain[tangled])
        domain_of_thread = np.arange(len(thread)) - np.searchsorted(thread, thread)
        lane_of[tangled] = domain_of_thread[pair]
    lane_of[is_instant] = lane_of.max(initial=-1) + 1
    return lane_of


def _parents(start: Int64s, end: Int64s) -> tuple[Int32s, Int64s]:
    """Find the parents of ranges in the order of (start, longest first), level by level from the outside.

    Return the parents' positions, -1 for none, and the positions of ranges that cross an earlier one. If
    there are any, the parents must not be used.
    """
    parent = np.full(len(start), -1, np.int32)
    remaining = np.arange(len(start))
    outer = np.empty(0, np.int64)
    crossing = [outer]
    while len(remaining):
        if len(crossing) > MAX_DEPTH:
            raise TooTangled(
                f"Its ranges nest more than {MAX_DEPTH} deep on one thread, as pushes without their pops do."
            )
        reach = np.maximum.accumulate(end[remaining])
        is_outermost = np.concatenate([[True], end[remaining[1:]] > reach[:-1]])
        level = remaining[is_outermost]
        crossing.append(level[1:][start[level[1:]] < end[level[:-1]]])
        if len(outer):
            parent[level] = outer[np.searchsorted(start[outer], start[level], "right") - 1]
        remaining = remaining[~is_outermost]
        outer = level
    return parent, np.concatenate(crossing)
