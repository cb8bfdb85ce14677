"""The path of an interval on a thread, as a node: own, adopted or linked, as docs/attribution.md defines them.

```
main thread       ├ step ──────────────────────────────────────────────────┤
                    ├ forward ───────────────────┤├ backward ─────────────┤
                      ├ softmax ───────────────┤            (waits)
                        ├ aten::_softmax, 12 ┤

autograd thread                                     ├ SoftmaxBackward0, 12 ┤
                                                        L
```

| of `L` | is | here |
|---|---|---|
| its own ranges | none | `own_node` |
| the ranges of the thread that waits | step > backward | `waiting_node` |
| the backward phase's ranges, below which a link leads | the same | `phase_node` |
| the ranges of the forward operator with the number 12 | step > forward > softmax | `forward_node` |
| its linked path: the part below the common `step`, without phases | step > backward > softmax | `linked_node` |

Operators are placed like launches: one that ran in a backward node (recomputed, or differentiated twice) is itself
linked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..support.small_numbers import grouped_rows
from ..trace import FUNCTION, NO_CATEGORY, Bools, Int32s, Int64s, Spots
from .adoption import AMBIGUOUS as NO_DECISION
from .adoption import NOBODY, Adoption
from .links import Links
from .nesting import Nesting
from .places import Rules
from .user_ranges import computed_again, of_titles, operator_ranges

HOW = ("own", "adopted", "linked", "outside", "ambiguous", "captured")
OWN, ADOPTED, LINKED, OUTSIDE, AMBIGUOUS, CAPTURED = range(len(HOW))

# Higher derivatives are followed this many times.
MAX_ORDER = 8


@dataclass(frozen=True, slots=True)
class Placed:
    """Per interval: its node (-1 for none), how it was found, and whether its backward node has no operator."""

    node: Int32s
    how: NDArray[np.int64]
    unfit: Bools


class Placing:
    """Places intervals: their own ranges, below those of the thread that waits, or below linked ones.

    `linked_nodes` collects the nodes that linking made.
    """

    def __init__(self, nesting: Nesting, adoption: Adoption, rules: Rules) -> None:
        self._facts = adoption.facts
        self._nesting = nesting
        self._adoption = adoption
        self._rules = rules
        self._ranges = self._facts.ranges
        self._forest = nesting.forest
        names = self._facts.names
        # What does not keep work of a backward from being led to its forward: operators and what runs again.
        self._runs_again = computed_again(self._facts.trace, self._ranges)
        self._is_seen_through = operator_ranges(names, self._ranges) | self._runs_again
        self._is_backward_phase = of_titles(names.backward_phase, self._ranges)
        # What a linked path leaves out of the forward operator's.
        self._is_dropped = self._is_seen_through | of_titles(names.turns, self._ranges)
        self.linked_nodes = [np.empty(0, np.int32)]

    def place(self, spots: Spots, order: int = 0) -> Placed:
        """Find the nodes of intervals; `order` counts the derivatives that led here."""
        own_node = self._nesting.containing(spots)
        waiting_node = self._waiting_node(spots)
        how = np.where(own_node >= 0, OWN, OUTSIDE)
        how[waiting_node >= 0] = ADOPTED
        how[waiting_node == NO_DECISION] = AMBIGUOUS
        unfit = np.zeros(len(spots), np.bool_)
        upper = np.maximum(waiting_node, -1)
        lower = own_node
        if self._rules.link and len(self._ranges) and len(spots) and order < MAX_ORDER:
            rows, phase_node = self._linkable(spots, own_node, waiting_node)
            rows, phase_node, forward_node = self._forward(spots, rows, phase_node, unfit, order)
            linked_node = self._linked(phase_node, forward_node)
            is_linked = linked_node >= 0
            rows = rows[is_linked]
            phase_node = phase_node[is_linked]
            how[rows] = LINKED
            upper[rows] = linked_node[is_linked]
            # A phase of its own is in the linked path, all but what runs again below it.
            lower = own_node.copy()
            in_own_phase = rows[(waiting_node[rows] < 0) & (phase_node >= 0)]
            lower[in_own_phase] = self._forest.copied(
                own_node[in_own_phase], lambda nodes: self._runs_again[self._forest.range[nodes]]
            )
        node = self._forest.graft(upper, lower)
        node[how == AMBIGUOUS] = -1
        return Placed(node, how, unfit)

    def _waiting_node(self, spots: Spots) -> Int32s:
        """Return the node of the thread that waits for each interval, NOBODY or NO_DECISION: int32 (n,)."""
        if self._rules.adopt and len(self._ranges):
            return self._adoption.waiting_node(spots)
        return np.full(len(spots), NOBODY, np.int32)

    def _linkable(self, spots: Spots, own_node: Int32s, waiting_node: Int32s) -> tuple[Int64s, Int32s]:
        """Return the intervals to look for links of, and the node of the backward phase of each.

        They are in no range of the user's below that: below the waiting thread's, below their own thread's phase
        or call of the engine, or, on one of autograd's threads for which none waits, in none at all (-1).
        """
        is_awaited = waiting_node >= 0
        is_undecided = waiting_node == NO_DECISION
        forest = self._forest
        is_users = ~self._is_seen_through[forest.range]
        in_user_range = forest.below(is_users)[own_node]
        is_autograds = np.isin(spots.thread, self._adoption.known_threads)
        in_own_phase = (own_node >= 0) & self._is_backward_phase[forest.range[own_node]]
        in_own_phase |= ~is_autograds & self._in_called_engine(spots, own_node)
        in_own_phase &= ~is_awaited
        in_others_phase = (is_awaited | is_autograds) & ~in_user_range
        below_phase = in_own_phase | in_others_phase
        rows = np.flatnonzero(below_phase & ~is_undecided)
        # A phase's node is above what runs again in it.
        every = np.arange(len(forest), dtype=np.int32)
        runs_again = self._runs_again[forest.range]
        phase = forest.nearest(np.where(runs_again, np.int32(-1), every))
        phase_node = np.where(in_own_phase, phase[own_node], waiting_node)
        return rows, phase_node[rows]

    def _in_called_engine(self, spots: Spots, own_node: Int32s) -> Bools:
        """Mark the intervals in a range of the engine on their thread, and in no range of the user's below it.

        A phase, or a model that asks for a gradient in its forward, owns what that computes.
        """
        is_inside = np.zeros(len(spots), np.bool_)
        called, engine = self._facts.engine_calls(spots)
        rows = np.flatnonzero(called >= 0)
        if not len(rows):
            return is_inside
        forest = self._forest
        has_category = ~np.isin(self._ranges.category, (NO_CATEGORY, FUNCTION))
        owns = has_category & ~self._is_seen_through
        owns |= of_titles(self._facts.names.opens_phase, self._ranges)
        is_owned = forest.below(owns[forest.range])
        rows = rows[~is_owned[own_node[rows]]]
        calls, call_of_row = np.unique(called[rows], return_inverse=True)
        around_engine = self._nesting.containing(engine.take(calls))[call_of_row]
        is_users = ~self._is_seen_through[forest.range]
        innermost = forest.nearest(np.where(is_users, forest.range, np.int32(-1)))
        is_inside[rows] = innermost[own_node[rows]] == innermost[around_engine]
        return is_inside

    def _forward(
        self, spots: Spots, rows: Int64s, phase_node: Int32s, unfit: Bools, order: int
    ) -> tuple[Int64s, Int32s, Int32s]:
        """Return the rows whose forward operators are in ranges, with the nodes of their phases and operators.

        Mark as `unfit` the rows in a numbered backward node that no operator fits.
        """
        inside = spots.take(rows)
        links = Links(self._facts, inside) if len(rows) else None
        if not links:
            return rows[:0], phase_node[:0], phase_node[:0]
        backward_node = links.around(inside)
        has_number = links.seq[backward_node] >= 0
        numbered = np.flatnonzero((backward_node >= 0) & has_number)
        rows = rows[numbered]
        phase_node = phase_node[numbered]
        backward_node = backward_node[numbered]
        # Each pair of a backward node and the thread of its phase is asked once.
        phase_thread = self._ranges.thread[self._forest.range[phase_node]]
        thread = np.where(phase_node >= 0, phase_thread, -1)
        pair, pair_of_row = grouped_rows(backward_node, thread)
        maker = links.made(*pair)[pair_of_row]
        has_maker = maker >= 0
        unfit[rows] = ~has_maker
        rows = rows[has_maker]
        phase_node = phase_node[has_maker]
        maker = maker[has_maker]
        makers, maker_of_row = np.unique(maker, return_inverse=True)
        if not len(makers):
            return rows, phase_node, phase_node
        forward_node = self.place(links.operators.take(makers), order + 1).node[maker_of_row]
        in_range = forward_node >= 0
        return rows[in_range], phase_node[in_range], forward_node[in_range]

    def _linked(self, phase_node: Int32s, forward_node: Int32s) -> Int32s:
        """Return the nodes (n,) of phases' paths, each with the forward path below the deepest common range.

        Steps, phases and operators of the forward path are left out; where all of it is and there is no phase, -1.
        """
        forest = self._forest
        has_phase = phase_node >= 0
        count = len(self._ranges)
        phases = np.unique(phase_node[has_phase])
        # Each pair of a phase and a range around it, as one number.
        pairs = [np.empty(0, np.int64)]
        number = np.arange(len(phases))
        around = phases
        while len(around):
            pairs.append(number * count + forest.range[around])
            around = forest.parent[around]
            number = number[around >= 0]
            around = around[around >= 0]
        ranges_around = np.concatenate(pairs)

        def below_common(phase: Int32s, forward: Int32s) -> tuple[Int32s, Int32s, Int32s]:
            innermost = forest.range[forward]
            pair = np.searchsorted(phases, phase) * count + innermost
            is_common = np.isin(pair, ranges_around)
            above = np.where(is_common, np.int32(-1), forest.parent[forward])
            is_left_out = is_common | self._is_dropped[innermost]
            return np.where(is_left_out, np.int32(-1), innermost), phase, above

        first_new = len(forest)
        linked_node = np.full(len(phase_node), -1, np.int32)
        linked_node[has_phase] = forest.combine(phase_node[has_phase], forward_node[has_phase], below_common)
        alone, row_of_alone = np.unique(forward_node[~has_phase], return_inverse=True)
        copies = forest.copied(alone, lambda nodes: ~self._is_dropped[forest.range[nodes]])
        linked_node[~has_phase] = copies[row_of_alone]
        self.linked_nodes.append(np.arange(first_new, len(forest), dtype=np.int32))
        return linked_node
