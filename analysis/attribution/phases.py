"""The phases of places and work, by the names of ranges, or else by the categories of our annotation.

docs/attribution.md has the definitions, under "Phases".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.small_numbers import distinct
from ..trace import (
    GRADIENT,
    MODEL_BACKWARD,
    MODEL_FORWARD,
    PUSH_POP,
    Bools,
    Int8s,
    Int64s,
    Ranges,
    Spots,
    Trace,
    marked,
)
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, OTHER, PHASES, SERVING
from .nesting import Forest, Nesting
from .user_ranges import NameFacts, computed_again, named_phases, of_titles, operator_ranges

_NEVER = 2**62
NO_PHASE, IN_FORWARD, IN_BACKWARD = -1, PHASES.index(FORWARD), PHASES.index(BACKWARD)
NOTHING = PHASES.index(OTHER)
_SERVING = [PHASES.index(phase) for phase in SERVING]


def of_nodes(
    trace: Trace, facts: NameFacts, ranges: Ranges, forest: Forest, linked: Bools, engine: Bools
) -> dict[str, Any]:
    """Return each node's phase: its nearest name's, else its nearest category's, else its thread's.

    `linked` marks nodes that are parts of forward paths below backward, `engine` those on autograd's threads.
    The result are the columns `node_phase`, positions in PHASES, `warm_up` and `recompute` of an attribution.
    """
    again = (ranges.category == MODEL_FORWARD) & computed_again(trace, ranges)
    is_recompute, is_gradient = again[forest.range], (ranges.category == GRADIENT)[forest.range]
    is_part = ~of_titles(facts.opens_phase, ranges)[forest.range]
    by_name, by_category = named_phases(facts, ranges)[forest.range], _by_category(facts, ranges)[forest.range]
    by_category[is_recompute] = IN_BACKWARD
    by_name[linked & (by_name == IN_FORWARD)] = NO_PHASE
    by_category[linked & (by_category == IN_FORWARD)] = NO_PHASE
    # A gradient that a forward asks for: its backward is part of the phase around it.
    in_gradient, is_named = forest.below(is_gradient), np.append(by_name >= 0, False)
    phase = np.full(len(forest) + 1, NO_PHASE, np.int8)  # the last is of what is above the top
    recompute = np.zeros(len(forest) + 1, np.bool_)
    for nodes in forest.by_depth():
        above = forest.parent[nodes]
        outer, name, category = phase[above], by_name[nodes], by_category[nodes]
        is_asked = (in_gradient[nodes] & (category == IN_BACKWARD)) | is_gradient[nodes]
        in_engine = (outer == NO_PHASE) & engine[nodes]
        in_backward = (outer == IN_BACKWARD) | in_engine
        by_outer = is_named[above] | (is_asked & (outer != NO_PHASE))
        from_range = np.where(name >= 0, name, np.where(by_outer, NO_PHASE, category))
        is_again = (from_range == IN_FORWARD) & in_backward
        phase[nodes] = np.select(
            [
                is_again,  # forward below backward is computed again
                (from_range == IN_FORWARD) & np.isin(outer, _SERVING),  # an engine's, of prompts or of tokens
                from_range >= 0,
                in_engine | ((outer == NO_PHASE) & linked[nodes]),
            ],
            [IN_BACKWARD, outer, from_range, IN_BACKWARD],
            default=outer,
        )
        of_model = category == IN_FORWARD
        begins = (is_again & (~is_part[nodes] | of_model)) | (of_model & in_backward)
        goes_on = recompute[above] & (name < 0) & (category != IN_BACKWARD)
        recompute[nodes] = (begins | goes_on | is_recompute[nodes]) & (phase[nodes] == IN_BACKWARD)
        is_named[nodes] |= is_named[above]
    return {
        "node_phase": np.where(phase >= 0, phase, NOTHING)[:-1].astype(np.int8),
        "warm_up": forest.below(of_titles(facts.warm_up, ranges)[forest.range])[:-1],
        "recompute": recompute[:-1],
    }


def _by_category(facts: NameFacts, ranges: Ranges) -> Int8s:
    """Return the phase of ranges by what annotation says of them, or NO_PHASE: int8 (ranges,).

    A gradient in no phase is forward if a backward follows before an update, else backward.
    """
    phase = np.full(len(ranges), NO_PHASE, np.int8)
    phase[ranges.of_forward] = IN_FORWARD
    phase[ranges.category == MODEL_BACKWARD] = IN_BACKWARD
    is_gradient = ranges.category == GRADIENT
    if is_gradient.any():
        by_name = np.where(of_titles(facts.opens_phase, ranges), named_phases(facts, ranges), NO_PHASE)
        next_backward, next_update = (
            np.append(moments, _NEVER)[np.searchsorted(moments, ranges.end_ns[is_gradient])]
            for moments in (
                np.sort(ranges.start_ns[by_name == opened]) for opened in (IN_BACKWARD, PHASES.index(OPTIMIZER))
            )
        )
        phase[is_gradient] = np.where(next_backward < next_update, IN_FORWARD, IN_BACKWARD)
    return phase


class Unnamed:
    """Finds the phase of work in no range that has one: in a backward node, or around an annotated model."""

    def __init__(self, trace: Trace, facts: NameFacts, ranges: Ranges) -> None:
        self._trace, self._facts, self._ranges = trace, facts, ranges
        self._process = trace.process_of_thread()
        is_node = facts.backward_operator[trace.ranges.name_id] & operator_ranges(facts, trace.ranges)
        self._nodes = np.flatnonzero(is_node & (trace.ranges.style == PUSH_POP))
        # The outermost ranges of modules that a program calls, not backward.
        calling = marked(ranges.thread[ranges.of_forward], len(self._process))
        parts = ranges.take(ranges.of_model & calling[ranges.thread])
        parts = parts.take(~self._in_node(parts))
        nesting = Nesting(parts)
        is_recompute = computed_again(trace, parts)
        self._calls = parts.take((nesting.forest.above(nesting.home) < 0) & parts.of_forward & ~is_recompute)

    def phase(self, spots: Spots) -> Int8s:
        """Return the phases of intervals: in a backward node, between a model and its backward, or neither."""
        phase = np.full(len(spots), NOTHING, np.int8)
        for thread in sorted({*distinct(spots.thread).tolist()} & {*distinct(self._calls.thread).tolist()}):
            rows = np.flatnonzero(spots.thread == thread)
            phase[rows[self._before_backward(thread, spots.take(rows))]] = IN_FORWARD
        phase[self._in_node(spots)] = IN_BACKWARD
        return phase

    def _in_node(self, spots: Spots) -> Bools:
        """Return which intervals are in a backward node; only the nodes of their threads are indexed."""
        nodes = self._trace.ranges.take(self._nodes_on(marked(spots.thread, len(self._process))))
        return Nesting(nodes).containing(spots) >= 0

    def _nodes_on(self, threads: Bools) -> Int64s:
        """Return the backward nodes on some threads, positions in the trace's ranges."""
        return self._nodes[threads[self._trace.ranges.thread[self._nodes]]]

    def _before_backward(self, thread: int, spots: Spots) -> Bools:
        """Return which intervals of a thread lie between a call of the model and its backward.

        No phase or step of the thread turns between these, and everything before the backward was forward: it
        begins on one of autograd's threads, or with a node, and not with the first module after the loss's own
        backward.
        """
        ranges, facts = self._ranges, self._facts
        turns = of_titles(facts.opens_phase | facts.step | facts.measured | facts.warm_up, ranges)
        turns &= ranges.thread == thread
        turns_ns = np.sort(np.concatenate([ranges.start_ns[turns], ranges.end_ns[turns]]))
        threads = (self._process == self._process[thread]) & ~marked(self._calls.thread, len(self._process))
        threads[thread] = True
        backward = ranges.take((ranges.category == MODEL_BACKWARD) & threads[ranges.thread])
        nodes_ns = self._trace.ranges.start_ns[self._nodes_on(threads)]
        begins_ns = np.concatenate([backward.start_ns, nodes_ns])
        if not len(begins_ns):
            return np.zeros(len(spots), np.bool_)
        is_first = np.concatenate([backward.thread != thread, np.ones(len(nodes_ns), np.bool_)])
        order = np.lexsort((~is_first, begins_ns))
        begins_ns, is_first = begins_ns[order], is_first[order]

        ends_ns = np.sort(self._calls.end_ns[self._calls.thread == thread])
        calls_before = np.searchsorted(ends_ns, spots.start_ns, "right")
        called_ns = ends_ns[np.maximum(calls_before - 1, 0)]
        backward_row = np.searchsorted(begins_ns, called_ns, "left")
        is_between = (calls_before > 0) & (backward_row < len(begins_ns))
        backward_row = np.minimum(backward_row, len(begins_ns) - 1)
        begin_ns = begins_ns[backward_row]
        has_turn = np.searchsorted(turns_ns, begin_ns, "right") > np.searchsorted(turns_ns, called_ns, "left")
        is_between &= is_first[backward_row] & (spots.end_ns <= begin_ns) & ~has_turn
        return is_between
