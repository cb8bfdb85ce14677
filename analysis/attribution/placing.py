"""Where an interval of a thread belongs: its own ranges, those of the waiting thread, or its operator's.

The calls that caused work are placed, and then the operators that backward nodes are linked to: an operator
in a backward (recomputed, or differentiated twice) is itself placed by the node that it runs in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..support.small_numbers import distinct
from ..trace import Bools, Columns, Int32s, Int64s, Ranges
from .adoption import AMBIGUOUS as NO_DECISION
from .adoption import Adoption
from .links import Links, Wanted
from .nesting import Forest, Nesting, distinct_pairs
from .user_ranges import NameFacts, of_titles, operator_ranges
from .waiting import Intervals

HOW = ("own", "adopted", "linked", "outside", "ambiguous", "captured")
OWN, ADOPTED, LINKED, OUTSIDE, AMBIGUOUS, CAPTURED = range(len(HOW))

# Makes links of the nodes around moments of threads.
LinksAround = Callable[[tuple[Int32s, Int64s]], Links]
# Higher derivatives are followed this many times.
MAX_ORDER = 8


@dataclass(frozen=True, slots=True)
class Spots(Columns):
    """Intervals on threads: calls, or operators."""

    thread: Int32s
    start_ns: Int64s
    end_ns: Int64s


@dataclass(frozen=True, slots=True)
class Placed:
    """Per interval: its node (-1 for none), how it was found, and whether its backward node has no operator.

    `own_node` and `base` are the parts of the node: the thread's own ranges, and those of the thread that waits.
    """

    node: Int32s
    how: NDArray[np.int64]
    unfit: Bools
    own_node: Int32s
    base: Int32s


class Placing:
    """Places intervals: under others' ranges if it `adopts`, by their operators if it has `links`."""

    def __init__(self, facts: NameFacts, ranges: Ranges, nesting: Nesting, adoption: Adoption) -> None:
        self.facts, self.ranges, self.nesting, self.adoption = facts, ranges, nesting, adoption
        self.forest, self.adopts = nesting.forest, True
        self.links: LinksAround | None = None
        self._operator = operator_ranges(facts, ranges)
        opens = facts.step | facts.measured | facts.warm_up | facts.opens_phase
        self.rule = LinkRule(self.forest, self._operator | of_titles(opens, ranges))

    def place(self, spots: Spots, order: int = 0) -> Placed:
        """Find the nodes of intervals; `order` counts the derivatives that led here."""
        own_node = self.nesting.containing(spots.thread, spots.start_ns, spots.end_ns)
        base = self._bases(spots)
        how = np.where(own_node >= 0, OWN, OUTSIDE)
        how[base >= 0], how[base == NO_DECISION] = ADOPTED, AMBIGUOUS
        placed = Placed(own_node, how, np.zeros(len(own_node), np.bool_), own_node.copy(), np.maximum(base, -1))
        if self.links is not None and len(self.ranges) and order < MAX_ORDER:
            self._link(spots, placed, self.links, order)
        node = self.forest.graft(placed.base, placed.own_node)
        node[how == AMBIGUOUS] = -1
        return Placed(node, how, placed.unfit, placed.own_node, placed.base)

    def _bases(self, spots: Spots) -> Int32s:
        """Return the parent nodes of intervals on autograd's and helpers' threads: int32 (intervals,)."""
        base = np.full(len(spots), -1, np.int32)
        if self.adopts and len(self.ranges):
            for thread in sorted({*distinct(spots.thread).tolist()} & {*self.adoption.threads}):
                spot_rows = np.flatnonzero(spots.thread == thread)
                base[spot_rows] = self.adoption.base(
                    Intervals(thread, spots.start_ns[spot_rows], spots.end_ns[spot_rows])
                )
        return base

    def _link(self, spots: Spots, placed: Placed, links_around: LinksAround, order: int) -> None:
        """Link backward work to its forward operator's ranges, unless a range of its own is more precise."""
        rows, above = self._eligible(spots, placed)
        inside = spots.take(rows)
        links = links_around((inside.thread, inside.start_ns)) if len(rows) else None
        if not links:
            return
        backward_node = links.nodes.around(inside.thread, inside.start_ns, inside.end_ns)
        numbered = np.flatnonzero((backward_node >= 0) & (links.nodes.seq[backward_node] >= 0))
        rows, above, backward_node = rows[numbered], above[numbered], backward_node[numbered]
        # The operators that made these nodes, -1 if none fits; each pair of node and waiting thread is asked once.
        waiting = np.where(above >= 0, self.ranges.thread[self.forest.range[above]], -1)
        (node, who), back = distinct_pairs(backward_node.astype(np.int32), (waiting + 1).astype(np.int32))
        maker = links.made(Wanted(node.astype(np.int64), who - 1))[back]
        placed.unfit[rows] = maker < 0
        rows, above, maker = rows[maker >= 0], above[maker >= 0], maker[maker >= 0]
        operators, back = np.unique(maker, return_inverse=True)
        table = links.operators
        there = Spots(table.thread[operators], table.start_ns[operators], table.end_ns[operators])
        forward = self.place(there, order + 1).node[back] if len(operators) else maker.astype(np.int32)
        self._lead(placed, rows[forward >= 0], above[forward >= 0], forward[forward >= 0])

    def _lead(self, placed: Placed, rows: Int64s, above: Int32s, forward: Int32s) -> None:
        """Put the forward paths of some intervals below their bases."""
        under = above >= 0
        target = np.full(len(rows), -1, np.int32)
        target[under] = self.rule.link(above[under], forward[under])
        target[~under] = self.rule.alone(forward[~under])
        led = target >= 0
        rows, target, under = rows[led], target[led], under[led]
        placed.how[rows] = LINKED
        adopted = placed.base[rows] >= 0
        placed.base[rows[adopted]] = target[adopted]
        unadopted = rows[~adopted]
        placed.own_node[unadopted] = np.where(
            under[~adopted], target[~adopted], self.forest.graft(target[~adopted], placed.own_node[unadopted])
        )

    def _eligible(self, spots: Spots, placed: Placed) -> tuple[Int64s, Int32s]:
        """Return the intervals without a range of the user's closer than the phase, and the node above each.

        That is the phase's, or -1 on one of autograd's threads that no thread waits for.
        """
        own_node, base = placed.own_node, placed.base
        # Per node, and last for none, the user's ranges of its path.
        count = np.append((~self._operator)[self.forest.range].astype(np.int32), 0)
        for nodes in self.forest.by_depth()[1:]:
            count[nodes] += count[self.forest.parent[nodes]]
        in_user_range = count[own_node] > 0
        backward = of_titles(self.facts.backward_phase, self.ranges)
        innermost = self.forest.range[own_node] if len(self.forest) else own_node
        in_phase = (base < 0) & (own_node >= 0) & backward[innermost]
        unawaited = np.isin(spots.thread, self.adoption.known_threads) & (base < 0) & ~in_user_range
        chosen = ((base >= 0) & ~in_user_range) | in_phase | unawaited
        rows = np.flatnonzero(chosen & (placed.how != AMBIGUOUS))
        above = np.where(base >= 0, base, np.where(in_phase, own_node, -1))[rows]
        return rows, above.astype(np.int32)


@dataclass(frozen=True, slots=True)
class LinkRule:
    """Puts forward paths under backward ones, never repeating a step or a phase.

    `linked_nodes` collects the places; `dropped` marks the ranges that are left out on the way: steps, warm-up,
    phases and operators.
    """

    forest: Forest
    dropped: Bools
    linked_nodes: list[Int32s] = field(default_factory=list)

    def link(self, base: Int32s, forward: Int32s) -> Int32s:
        """Return the base's path, then the forward one below the deepest range common to both."""
        before = len(self.forest)
        linked = self.forest.combine(base, forward, self._step)
        self.linked_nodes.append(np.arange(before, len(self.forest), dtype=np.int32))
        return linked

    def alone(self, forward: Int32s) -> Int32s:
        """Return the forward path without the dropped ranges, under no base."""
        distinct, back = np.unique(forward, return_inverse=True)
        levels = [distinct.astype(np.int32)]
        while (levels[-1] >= 0).any():
            levels.append(self.forest.above(levels[-1]))
        node = np.full(len(distinct), -1, np.int32)
        for level in reversed(levels):
            copied = (level >= 0) & ~self.dropped[self.forest.range[level]]
            node[copied] = self.forest.add(node[copied], self.forest.range[level[copied]])
            self.linked_nodes.append(node[copied])
        return node[back]

    def _step(self, base: Int32s, forward: Int32s) -> tuple[Int32s, Int32s, Int32s]:
        range_ = self.forest.range[forward]
        common, node = np.zeros(len(base), np.bool_), base
        while (node >= 0).any():
            common |= (node >= 0) & (self.forest.range[node] == range_)
            node = self.forest.above(node)
        above = np.where(common, -1, self.forest.parent[forward]).astype(np.int32)
        return base, above, np.where(common | self.dropped[range_], -1, range_).astype(np.int32)
