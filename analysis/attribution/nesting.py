"""Find the ranges that contain a moment, fast, and exactly even if ranges cross.

NVTX keeps a stack per thread *and domain*, so the ranges of one domain nest while those of two may cross. A *lane*
is a set of ranges without crossings: any two on one thread nest or do not overlap. Almost every report is one
lane. Within a lane the ranges that contain an interval are a chain of parents, found by one binary search; the
chains of several lanes are merged by start. Everything is vectorised over rows.

A *node* is a place in the resulting forest: a range, and the node above it. The first nodes are the ranges in
their lanes; merging, adoption and linking append further ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import AGAIN, TooTangled
from ..support.small_numbers import distinct, grouped_rows
from ..support.threads import in_pieces, positions
from ..trace import Bools, Int32s, Int64s, Ranges, Spots

MAX_DEPTH = 1_000
MAX_LANES = 200
# All nodes' depths together, for any report and more for each range: 30 reports had at most 17 for each range.
MAX_DEPTHS, MAX_DEPTHS_PER_RANGE = 2_000_000, 60
# Fewer nodes than these, for any report and for each range, are not looked at before all are there.
FEW_NODES, FEW_NODES_PER_RANGE = 20_000, 4

Step = Callable[[Int32s, Int32s], tuple[Int32s, Int32s, Int32s]]


class Forest:
    """Nodes as two growing int32 columns: the range of each node, and the node above it (-1 at the top)."""

    def __init__(self, parent: Int32s) -> None:
        self.parent = parent
        self.range = np.arange(len(parent), dtype=np.int32)
        self._levels: list[Int32s] = []

    def __len__(self) -> int:
        return len(self.parent)

    def add(self, parent: Int32s, range_: Int32s) -> Int32s:
        """Append nodes, given their ranges and parents (n,), and return their ids (n,)."""
        first = len(self.parent)
        self.parent = np.concatenate([self.parent, parent])
        self.range = np.concatenate([self.range, range_])
        return np.arange(first, len(self.parent), dtype=np.int32)

    def above(self, node: Int32s) -> Int32s:
        """Return the node above each node; -1 stays -1: int32 (n,)."""
        return np.where(node >= 0, self.parent[node], np.int32(-1)) if len(self) else node

    def depth(self) -> Int32s:
        """Return how many nodes are above each node, by doubling jumps: int32 (nodes,)."""
        depth, jump = (self.parent >= 0).astype(np.int32), self.parent.copy()
        while (jump >= 0).any():
            depth += np.where(jump >= 0, depth[jump], 0).astype(np.int32)
            jump = np.where(jump >= 0, jump[jump], -1)
        return depth

    def by_depth(self) -> list[Int32s]:
        """Return the nodes of each depth, outermost first; worked out again only after nodes were added."""
        if sum(map(len, self._levels)) < len(self) or not self._levels:
            depth = self.depth()
            order = np.argsort(depth, kind="stable").astype(np.int32)
            self._levels = np.split(order, np.cumsum(np.bincount(depth))[:-1])
        return self._levels

    def require_drawable(self, ranges: int) -> None:
        """Raise TooTangled if the paths of this many crossing or nested ranges would fill the memory."""
        depths = sum(depth * len(nodes) for depth, nodes in enumerate(self.by_depth()))
        if depths > MAX_DEPTHS + MAX_DEPTHS_PER_RANGE * ranges:
            raise TooTangled(
                f"Its {ranges:,} ranges cross, or nest without end: {len(self):,} paths lead through them, and no "
                f"program's ranges do that. {AGAIN}"
            )

    def nearest(self, values: Int32s) -> Int32s:
        """Return each node's value, or if that is -1, the nearest above it, or -1: int32 (nodes + 1,).

        As in `below` and `around`, the last entry is for node -1.
        """
        nearest = np.append(values, np.int32(-1))
        for nodes in self.by_depth()[1:]:
            nearest[nodes] = np.where(nearest[nodes] >= 0, nearest[nodes], nearest[self.parent[nodes]])
        return nearest

    def below(self, nodes: Bools) -> Bools:
        """Mark some nodes and all below them: bool (nodes + 1,)."""
        marked = np.append(nodes, False)
        for level in self.by_depth()[1:]:
            marked[level] |= marked[self.parent[level]]
        return marked

    def around(self, nodes: Bools) -> Bools:
        """Mark some nodes and all above them: bool (nodes + 1,)."""
        marked = np.append(nodes, False)
        for level in self.by_depth()[:0:-1]:
            marked[self.parent[level[marked[level]]]] = True
        return marked

    def folded(self, key: Int32s) -> tuple[Forest, Int32s, Int32s]:
        """Make nodes one whose paths have the same keys, (nodes,), non-negative.

        Return their forest, in the order of depth, parent and key, whose `range` are the keys; the new node of
        each node, and of -1 last: int32 (nodes + 1,); and one of the nodes of each new one.
        """
        of_node = np.full(len(self) + 1, -1, np.int32)
        levels = [np.empty((3, 0), np.int32)]
        count = 0
        for nodes in self.by_depth():
            pair = (of_node[self.parent[nodes]].astype(np.int64) + 1) << 32 | key[nodes]
            distinct, first, back = np.unique(pair, return_index=True, return_inverse=True)
            of_node[nodes] = count + back
            levels.append(np.stack([(distinct >> 32) - 1, distinct & 0xFFFFFFFF, nodes[first]]).astype(np.int32))
            count += len(distinct)
        parent, keys, example = np.concatenate(levels, axis=1)
        folded = Forest(parent)
        folded.range = keys
        return folded, of_node, example

    def copied(self, node: Int32s, keeps: Callable[[Int32s], Bools]) -> Int32s:
        """Return copies (n,) at the top level of the paths of nodes (n,), with those of their nodes that are kept.

        `keeps` marks them, given a node of each path, or -1: bool (n,).
        """
        levels = [node]
        while (levels[-1] >= 0).any():
            levels.append(self.above(levels[-1]))
        copy = np.full(len(node), -1, np.int32)
        for level in reversed(levels):
            added = (level >= 0) & keeps(level)
            copy[added] = self.add(copy[added], self.range[level[added]])
        return copy

    def merge(self, a: Int32s, b: Int32s) -> Int32s:
        """Return nodes (n,) whose paths contain the ranges of both paths, ordered by start.

        Ranges are numbered in the order of their starts, so the later of two ranges is the inner one.
        """

        def step(a: Int32s, b: Int32s) -> tuple[Int32s, Int32s, Int32s]:
            first, second = self.range[a], self.range[b]
            above_a = np.where(first >= second, self.parent[a], a)
            above_b = np.where(second >= first, self.parent[b], b)
            return above_a, above_b, np.maximum(first, second)

        return self.combine(a, b, step)

    def graft(self, base: Int32s, below: Int32s) -> Int32s:
        """Return nodes (n,) whose paths are the base's path followed by that of the nodes below."""
        return self.combine(base, below, lambda base, below: (base, self.parent[below], self.range[below]))

    def combine(self, a: Int32s, b: Int32s, step: Step) -> Int32s:
        """Combine node ids a and b, int32 (n,), into one node each, int32 (n,); if one is -1, it is the other.

        `step` takes distinct pairs of nodes (k,); it returns the pairs that make the path above, and the range
        to put below it, int32 (k,), -1 for none.
        """
        pending = []
        while True:
            node, both = np.where(a < 0, b, a), (a >= 0) & (b >= 0) & (a != b)
            if not both.any():
                break
            (first, second), back = grouped_rows(a[both], b[both])
            a, b, range_ = step(first, second)
            pending.append((node, both, back, range_))
        for outer, both, back, range_ in reversed(pending):
            below, named = node.copy(), range_ >= 0
            below[named] = self.add(node[named], range_[named])
            outer[both] = below[back]
            node = outer
        return node


@dataclass(frozen=True, slots=True)
class Lane:
    """Ranges that nest: positions in `Ranges`, bounds on the stretched clock, and parents' positions here."""

    rows: Int32s
    start: Int64s
    end: Int64s
    parent: Int32s


class Nesting:
    """The ranges of a trace, indexed to find those that contain an interval on a thread.

    `forest` has the nodes; `home[r]` is range r's own node, below all ranges of its thread that contain it.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._clock = _Clock(ranges)
        start = self._clock.at(ranges.thread, ranges.start_ns)
        end = self._clock.at(ranges.thread, ranges.end_ns)
        self._lanes, parent = _lanes(ranges, start, end)
        self.forest = Forest(parent)
        self.home = np.arange(len(ranges), dtype=np.int32)
        if len(self._lanes) > 1:
            above = np.full(len(ranges), -1, np.int32)
            for lane in self._lanes:  # of equal spans, the range that comes first is the outer one
                last = np.searchsorted(lane.rows, self.home)
                above = self.forest.merge(above, self._chain(lane, last, start, end))
                self._stop_early()
            moved = np.flatnonzero(above != parent)
            self.home[moved] = self.forest.add(above[moved], self.home[moved])
            self._stop_early()

    def _stop_early(self) -> None:
        if len(self.forest) > FEW_NODES + FEW_NODES_PER_RANGE * len(self.home):
            self.forest.require_drawable(len(self.home))

    def containing(self, spots: Spots) -> Int32s:
        """Return the node of the ranges on its thread that contain each interval; -1 for none: int32 (n,)."""
        start, end = (in_pieces(self._clock.at, spots.thread, ns) for ns in (spots.start_ns, spots.end_ns))
        node = np.full(len(start), -1, np.int32)
        for lane in self._lanes:
            last = positions(lane.start, start, "right")
            node = self.forest.merge(node, self._chain(lane, last, start, end))
            self._stop_early()
        return node

    def _chain(self, lane: Lane, last: NDArray[Any], start: Int64s, end: Int64s) -> Int32s:
        """Return the innermost of the lane's first `last` ranges that contains each interval, or -1."""
        node = in_pieces(partial(_climb, lane), last, end)
        # An instant on the boundary of two ranges is in both.
        seams = np.flatnonzero(start == end)
        if len(seams):
            before = np.searchsorted(lane.start, start[seams], "left")
            node[seams] = self.forest.merge(node[seams], _climb(lane, before, end[seams]))
        return node


class _Clock:
    """Maps each thread's times to an interval of its own, so that one sort order serves all threads."""

    def __init__(self, ranges: Ranges) -> None:
        self._first = int(ranges.start_ns.min()) - 1 if len(ranges) else -1
        self._last = int(ranges.end_ns.max()) + 1 if len(ranges) else 1
        self._threads = int(ranges.thread.max(initial=-1)) + 1
        self._stride = self._last - self._first + 1
        if self._stride * (self._threads + 2) >= 2**63:
            raise TooTangled(
                f"Its ranges span {self._last - self._first} ns on {self._threads} threads: the times are "
                f"damaged. {AGAIN}"
            )

    def at(self, thread: Int32s, time_ns: Int64s) -> Int64s:
        """Return stretched times, int64 (n,); times before or after all ranges stay outside every range."""
        within = np.clip(time_ns, self._first, self._last) - self._first
        return np.minimum(thread, self._threads).astype(np.int64) * self._stride + within


def _climb(lane: Lane, last: NDArray[Any], end: Int64s) -> Int32s:
    """From the last of the ranges that start early enough, go up to the first that ends late enough."""
    node = np.full(len(end), -1, np.int32)
    todo = np.flatnonzero(last > 0)
    candidate = last[todo] - 1
    while len(todo):
        encloses = lane.end[candidate] >= end[todo]
        node[todo[encloses]] = lane.rows[candidate[encloses]]
        todo, candidate = todo[~encloses], lane.parent[candidate[~encloses]]
        todo, candidate = todo[candidate >= 0], candidate[candidate >= 0]
    return node


def _lanes(ranges: Ranges, start: Int64s, end: Int64s) -> tuple[list[Lane], Int32s]:
    """Put every range in a lane; return the lanes, and each range's parent within its own."""
    parent, crossing = _parents(start, end)
    if len(start) and not len(crossing) and (start < end).all():
        return [Lane(np.arange(len(start), dtype=np.int32), start, end, parent)], parent
    number = _first_guess(ranges, crossing, start == end)
    lanes: list[Lane] = []
    while len(lanes) <= number.max(initial=-1):
        if len(lanes) == MAX_LANES:
            raise TooTangled(f"More than {MAX_LANES} ranges cross each other on one thread: it is damaged.")
        rows, overflow = np.flatnonzero(number == len(lanes)), number.max() + 1
        inside, offenders = _parents(start[rows], end[rows])
        while len(offenders):
            number[rows[offenders]] = overflow
            rows = np.delete(rows, offenders)
            inside, offenders = _parents(start[rows], end[rows])
        lanes.append(Lane(rows.astype(np.int32), start[rows], end[rows], inside))
        parent[rows] = np.where(inside >= 0, rows[inside], -1) if len(rows) else inside
    return lanes, parent


def _first_guess(ranges: Ranges, offenders: Int64s, instant: Bools) -> Int32s:
    """Return lane 0 for all, but on threads with crossing ranges one per domain, and one for all instants.

    Instants are separate because one on the boundary of two ranges is inside both, and has no single parent.
    """
    number = np.zeros(len(ranges), np.int32)
    if len(offenders):
        tangled = np.flatnonzero(np.isin(ranges.thread, distinct(ranges.thread[offenders])))
        (thread, _), back = grouped_rows(ranges.thread[tangled], ranges.domain[tangled])
        rank = np.arange(len(thread)) - np.searchsorted(thread, thread)
        number[tangled] = rank[back]
    number[instant] = number.max(initial=-1) + 1
    return number


def _parents(start: Int64s, end: Int64s) -> tuple[Int32s, Int64s]:
    """Find each range's parent, level by level from the outside; sorted by (start, longest first).

    Return the parents' positions (-1: none), and the positions of ranges that cross an earlier one. If
    there are any, the parents must not be used.
    """
    parent = np.full(len(start), -1, np.int32)
    remaining, outer = np.arange(len(start)), np.empty(0, np.int64)
    crossing = [outer]
    while len(remaining):
        if len(crossing) > MAX_DEPTH:
            raise TooTangled(
                f"Its ranges nest more than {MAX_DEPTH} deep on one thread, as pushes without their pops do."
            )
        reach = np.maximum.accumulate(end[remaining])
        outermost = np.concatenate([[True], end[remaining[1:]] > reach[:-1]])
        level = remaining[outermost]
        crossing.append(level[1:][start[level[1:]] < end[level[:-1]]])
        if len(outer):
            parent[level] = outer[np.searchsorted(start[outer], start[level], "right") - 1]
        remaining, outer = remaining[~outermost], level
    return parent, np.concatenate(crossing)
