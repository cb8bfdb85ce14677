"""Where an interval of a thread belongs: its own ranges, those of the waiting thread, or its operator's.

The calls that caused work are placed, and then the operators that backward nodes are linked to: an operator
in a backward (recomputed, or differentiated twice) is itself placed by the node that it runs in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..support.small_numbers import distinct, grouped_rows
from ..trace import FUNCTION, NO_CATEGORY, Bools, Int32s, Int64s, Spots
from .adoption import AMBIGUOUS as NO_DECISION
from .adoption import Adoption
from .links import Links
from .nesting import Nesting
from .places import Rules
from .user_ranges import of_titles, operator_ranges

HOW = ("own", "adopted", "linked", "outside", "ambiguous", "captured")
OWN, ADOPTED, LINKED, OUTSIDE, AMBIGUOUS, CAPTURED = range(len(HOW))

# Higher derivatives are followed this many times.
MAX_ORDER = 8


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
    """Places intervals: under others' ranges, and by their operators, as far as the rules say so.

    `linked_nodes` collects the nodes that linking made.
    """

    def __init__(self, nesting: Nesting, adoption: Adoption, rules: Rules) -> None:
        self._facts, self._nesting, self._adoption, self._rules = adoption.facts, nesting, adoption, rules
        self._ranges, self._forest = self._facts.ranges, nesting.forest
        names = self._facts.names
        self._operator = operator_ranges(names, self._ranges)
        opens = names.turns
        self._dropped = self._operator | of_titles(opens, self._ranges)  # from forward paths below backward ones
        self.linked_nodes = [np.empty(0, np.int32)]

    def place(self, spots: Spots, order: int = 0) -> Placed:
        """Find the nodes of intervals; `order` counts the derivatives that led here."""
        own_node = self._nesting.containing(spots)
        base = np.full(len(spots), -1, np.int32)
        if self._rules.adopt and len(self._ranges):
            for thread in sorted({*distinct(spots.thread).tolist()} & {*self._adoption.threads}):
                spot_rows = np.flatnonzero(spots.thread == thread)
                base[spot_rows] = self._adoption.base(thread, spots.take(spot_rows))
        how = np.where(own_node >= 0, OWN, OUTSIDE)
        how[base >= 0], how[base == NO_DECISION] = ADOPTED, AMBIGUOUS
        placed = Placed(own_node, how, np.zeros(len(own_node), np.bool_), own_node.copy(), np.maximum(base, -1))
        if self._rules.link and len(self._ranges) and order < MAX_ORDER:
            self._link(spots, placed, order)
        node = self._forest.graft(placed.base, placed.own_node)
        node[how == AMBIGUOUS] = -1
        return Placed(node, how, placed.unfit, placed.own_node, placed.base)

    def _link(self, spots: Spots, placed: Placed, order: int) -> None:
        """Link backward work to its forward operator's ranges, unless a range of its own is more precise."""
        # The intervals without a range of the user's closer than the phase, or than the engine that their own
        # thread runs, and the node above each: the phase's, the engine's, or -1 on one of autograd's threads that
        # no thread waits for.
        own_node, base = placed.own_node, placed.base
        in_user_range = self._forest.below(~self._operator[self._forest.range])[own_node]
        backward = of_titles(self._facts.names.backward_phase, self._ranges)
        in_phase = (base < 0) & (own_node >= 0) & backward[self._forest.range[own_node]]
        is_autograds = np.isin(spots.thread, self._adoption.known_threads)
        in_phase |= (base < 0) & ~is_autograds & self._in_called_engine(spots, own_node)
        unawaited = is_autograds & (base < 0) & ~in_user_range
        eligible = ((base >= 0) & ~in_user_range) | in_phase | unawaited
        rows = np.flatnonzero(eligible & (placed.how != AMBIGUOUS))
        above = np.where(in_phase, own_node, base)[rows]
        inside = spots.take(rows)
        links = Links(self._facts, inside) if len(rows) else None
        if not links:
            return
        backward_node = links.around(inside)
        numbered = np.flatnonzero((backward_node >= 0) & (links.seq[backward_node] >= 0))
        rows, above, backward_node = rows[numbered], above[numbered], backward_node[numbered]
        # The operators that made these nodes, -1 if none fits; each pair of node and waiting thread is asked once.
        waiting = np.where(above >= 0, self._ranges.thread[self._forest.range[above]], -1)
        (node, who), back = grouped_rows(backward_node, waiting)
        maker = links.made(node, who)[back]
        placed.unfit[rows] = maker < 0
        rows, above, maker = rows[maker >= 0], above[maker >= 0], maker[maker >= 0]
        operators, back = np.unique(maker, return_inverse=True)
        there = links.operators.take(operators)
        forward = self.place(there, order + 1).node[back] if len(operators) else maker.astype(np.int32)
        self._lead(placed, rows[forward >= 0], above[forward >= 0], forward[forward >= 0])

    def _in_called_engine(self, spots: Spots, own_node: Int32s) -> Bools:
        """Mark the intervals in a range of the engine on their thread, and in no range of the user's below it.

        A phase, or a model that asks for a gradient in its forward, owns what that computes.
        """
        is_inside = np.zeros(len(spots), np.bool_)
        called, engine = self._facts.engine_calls(spots)
        owns = ~np.isin(self._ranges.category, (NO_CATEGORY, FUNCTION))
        owns |= of_titles(self._facts.names.opens_phase, self._ranges)
        is_owned = self._forest.below(owns[self._forest.range])[own_node]
        rows = np.flatnonzero((called >= 0) & ~is_owned)
        if len(rows):
            calls, back = np.unique(called[rows], return_inverse=True)
            around = self._nesting.containing(engine.take(calls))[back]
            is_users = ~self._operator[self._forest.range]
            innermost = self._forest.nearest(np.where(is_users, self._forest.range, np.int32(-1)))
            is_inside[rows] = innermost[own_node[rows]] == innermost[around]
        return is_inside

    def _lead(self, placed: Placed, rows: Int64s, above: Int32s, forward: Int32s) -> None:
        """Put the forward paths of some intervals below their bases, never repeating a step or a phase.

        A base's path is followed by the forward one below the deepest range common to both.
        """

        def step(base: Int32s, forward: Int32s) -> tuple[Int32s, Int32s, Int32s]:
            range_ = self._forest.range[forward]
            common, node = np.zeros(len(base), np.bool_), base
            while (node >= 0).any():
                common |= (node >= 0) & (self._forest.range[node] == range_)
                node = self._forest.above(node)
            above = np.where(common, np.int32(-1), self._forest.parent[forward])
            return base, above, np.where(common | self._dropped[range_], np.int32(-1), range_)

        before, under = len(self._forest), above >= 0
        target = np.full(len(rows), -1, np.int32)
        target[under] = self._forest.combine(above[under], forward[under], step)
        alone, back = np.unique(forward[~under], return_inverse=True)
        target[~under] = self._forest.copied(alone, lambda level: ~self._dropped[self._forest.range[level]])[back]
        self.linked_nodes.append(np.arange(before, len(self._forest), dtype=np.int32))
        led = target >= 0
        rows, target, under = rows[led], target[led], under[led]
        placed.how[rows] = LINKED
        adopted = placed.base[rows] >= 0
        placed.base[rows[adopted]] = target[adopted]
        unadopted = rows[~adopted]
        placed.own_node[unadopted] = np.where(
            under[~adopted], target[~adopted], self._forest.graft(target[~adopted], placed.own_node[unadopted])
        )
