"""The phases of places and work, by the names of ranges, or else by the categories of our annotation.

docs/attribution.md has the definitions, under "Phases".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..support.small_numbers import distinct
from ..trace import (
    MODEL_BACKWARD,
    MODEL_FORWARD,
    NO_CATEGORY,
    PUSH_POP,
    Bools,
    Int8s,
    Int32s,
    Int64s,
    Ranges,
    Trace,
    marked,
)
from ..vocabulary import BACKWARD, FORWARD, OTHER, PHASES, RECOMPUTE, SERVING
from .nesting import Forest, Nesting
from .user_ranges import NameFacts, named, named_phases, of_names, of_titles, operator_ranges

NO_PHASE, IN_FORWARD, IN_BACKWARD = -1, PHASES.index(FORWARD), PHASES.index(BACKWARD)
NOTHING = PHASES.index(OTHER)
_SERVING = [PHASES.index(phase) for phase in SERVING]
_TOLD = {NO_CATEGORY: NO_PHASE, MODEL_FORWARD: IN_FORWARD, MODEL_BACKWARD: IN_BACKWARD}


@dataclass(frozen=True, slots=True)
class Said:
    """What names and annotation say about ranges, one entry per range.

    These are the phase by name, whether it is the whole phase, warm-up, the phase by annotation, and whether
    annotation marks the range as recomputation. Phases are positions in PHASES, or NO_PHASE.
    """

    by_name: Int8s
    whole: Bools
    warm_up: Bools
    told: Int8s
    again: Bools

    @classmethod
    def of(cls, trace: Trace, facts: NameFacts, ranges: Ranges) -> Said:
        """Look up the names and annotation of ranges."""
        again = (ranges.category == MODEL_FORWARD) & of_names(named(trace, RECOMPUTE), ranges)
        told = np.array([_TOLD[category] for category in sorted(_TOLD)], np.int8)[ranges.category]
        return cls(
            named_phases(facts, ranges),
            of_titles(facts.opens_phase, ranges),
            of_titles(facts.warm_up, ranges),
            np.where(again, np.int8(IN_BACKWARD), told),
            again,
        )

    def at(self, forest: Forest, linked: Bools) -> Said:
        """Return the same by node; `linked` nodes are parts of forward paths below backward."""
        by_name, told = self.by_name[forest.range], self.told[forest.range]
        by_name[linked & (by_name == IN_FORWARD)] = NO_PHASE
        told[linked & (told == IN_FORWARD)] = NO_PHASE
        rest = self.whole[forest.range], self.warm_up[forest.range], self.again[forest.range]
        return Said(by_name, rest[0], rest[1], told, rest[2])


@dataclass(frozen=True, slots=True)
class OfNodes:
    """Per node: its phase (a position in PHASES), whether it is in warm-up, and whether it is recomputed."""

    phase: Int8s
    warm_up: Bools
    recompute: Bools


def of_nodes(forest: Forest, said: Said, linked: Bools, engine: Bools) -> OfNodes:
    """Return each node's phase: its nearest name's, else its nearest category's, else its thread's.

    `said` and `linked` are by node; `engine` marks the nodes on autograd's threads.
    """
    if not len(forest):
        return OfNodes(np.empty(0, np.int8), np.empty(0, np.bool_), np.empty(0, np.bool_))
    phase, warm_up = np.full(len(forest), NO_PHASE, np.int8), said.warm_up.copy()
    recompute, is_named = np.zeros(len(forest), np.bool_), said.by_name >= 0
    for depth, nodes in enumerate(forest.by_depth()):
        above, told = forest.parent[nodes], said.told[nodes]
        outer, below_name = np.full(len(nodes), NO_PHASE, np.int8), np.zeros(len(nodes), np.bool_)
        if depth:
            outer, below_name = phase[above], is_named[above]
            warm_up[nodes] |= warm_up[above]
        in_backward = (outer == IN_BACKWARD) | ((outer == NO_PHASE) & engine[nodes])
        inherited = np.where((outer == NO_PHASE) & (engine | linked)[nodes], IN_BACKWARD, outer)
        says = np.where(is_named[nodes], said.by_name[nodes], np.where(below_name, NO_PHASE, told))
        again = (says == IN_FORWARD) & in_backward
        served = (says == IN_FORWARD) & np.isin(outer, _SERVING)  # an engine's forward of prompts, or of tokens
        phase[nodes] = np.where(again, IN_BACKWARD, np.where(served, outer, np.where(says >= 0, says, inherited)))
        computes = (again & (said.whole[nodes] | (told == IN_FORWARD))) | ((told == IN_FORWARD) & in_backward)
        goes_on = (recompute[above] if depth else False) & (said.by_name[nodes] < 0) & (told != IN_BACKWARD)
        recompute[nodes] = (goes_on | computes | said.again[nodes]) & (phase[nodes] == IN_BACKWARD)
        is_named[nodes] |= below_name
    return OfNodes(np.where(phase >= 0, phase, NOTHING).astype(np.int8), warm_up, recompute)


@dataclass(frozen=True, slots=True)
class _Turns:
    """One thread's ends of model calls, turns of its phases and steps, and begins of backward, in order.

    `tells` is true for a backward if everything before it was forward: it begins on one of autograd's threads, or
    with a node, and not with the first module after the loss's own backward.
    """

    ends: Int64s
    turns: Int64s
    begins: Int64s
    tells: Bools

    def before_backward(self, start_ns: Int64s, end_ns: Int64s) -> Bools:
        """Return which intervals lie between a call of the model and its backward, with no turn between these."""
        before = np.searchsorted(self.ends, start_ns, "right")
        ended = self.ends[np.maximum(before - 1, 0)]
        at = np.searchsorted(self.begins, ended, "left")
        rows = (before > 0) & (at < len(self.begins))
        at = np.minimum(at, len(self.begins) - 1)
        begin = self.begins[at]
        turns = np.searchsorted(self.turns, begin, "right") - np.searchsorted(self.turns, ended, "left")
        found: Bools = rows & self.tells[at] & (end_ns <= begin) & (turns == 0)
        return found


class Unnamed:
    """Finds the phase of work in no range that has one, in processes with an annotated model."""

    def __init__(self, trace: Trace, facts: NameFacts, ranges: Ranges) -> None:
        self._trace, self._facts, self._ranges = trace, facts, ranges
        process = trace.process_of_thread()
        self._process, annotated = process, distinct(process[ranges.thread[ranges.category != NO_CATEGORY]])
        node = of_names(facts.backward_operator, trace.ranges) & operator_ranges(facts, trace.ranges)
        node &= (trace.ranges.style == PUSH_POP) & np.isin(process, annotated)[trace.ranges.thread]
        self._nodes = np.flatnonzero(node)
        self._roots = self._calls_of_models()

    def phase(self, thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> Int8s:
        """Return the phases of intervals: in a backward node, between a model and its backward, or neither."""
        found = np.full(len(thread), NOTHING, np.int8)
        for one in sorted({*distinct(thread).tolist()} & {*distinct(self._roots.thread).tolist()}):
            mine, turns = np.flatnonzero(thread == one), self._turns(one)
            if len(turns.begins):
                found[mine[turns.before_backward(start_ns[mine], end_ns[mine])]] = IN_FORWARD
        found[self._in_node(thread, start_ns, end_ns)] = IN_BACKWARD
        return found

    def _in_node(self, thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> Bools:
        """Return which intervals are in a backward node; only the nodes of their threads are indexed."""
        nesting = Nesting(self._trace.ranges.take(self._nodes_on(marked(thread, len(self._process)))))
        inside: Bools = nesting.containing(thread, start_ns, end_ns) >= 0
        return inside

    def _nodes_on(self, threads: Bools) -> Int64s:
        """Return the backward nodes on some threads, positions in the trace's ranges."""
        return self._nodes[threads[self._trace.ranges.thread[self._nodes]]]

    def _calls_of_models(self) -> Ranges:
        """Return the outermost ranges of modules that a program calls, not backward."""
        category = self._ranges.category
        calling = marked(self._ranges.thread[category == MODEL_FORWARD], len(self._process))
        ours = self._ranges.take((category != NO_CATEGORY) & calling[self._ranges.thread])
        ours = ours.take(~self._in_node(ours.thread, ours.start_ns, ours.end_ns))
        nesting = Nesting(ours)
        again = of_names(named(self._trace, RECOMPUTE), ours)
        return ours.take((nesting.forest.above(nesting.home) < 0) & (ours.category == MODEL_FORWARD) & ~again)

    def _turns(self, thread: int) -> _Turns:
        ranges, facts = self._ranges, self._facts
        opens = of_titles(facts.opens_phase | facts.step | facts.measured | facts.warm_up, ranges)
        opens &= ranges.thread == thread
        others = (self._process == self._process[thread]) & ~marked(self._roots.thread, len(self._process))
        others[thread] = True
        backward = ranges.take((ranges.category == MODEL_BACKWARD) & others[ranges.thread])
        nodes_ns = self._trace.ranges.start_ns[self._nodes_on(others)]
        begins = np.concatenate([backward.start_ns, nodes_ns])
        tells = np.concatenate([backward.thread != thread, np.ones(len(nodes_ns), np.bool_)])
        order = np.lexsort((~tells, begins))
        return _Turns(
            np.sort(self._roots.end_ns[self._roots.thread == thread]),
            np.sort(np.concatenate([ranges.start_ns[opens], ranges.end_ns[opens]])),
            begins[order],
            tells[order],
        )
