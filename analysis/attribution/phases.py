"""The phases of places and work, by the names of ranges, or else by the categories of our annotation.

docs/attribution.md has the definitions, under "Phases".
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ..moments import NEVER, Clock, Moments
from ..support.small_numbers import looked_up
from ..trace import (
    GRADIENT,
    MODEL_BACKWARD,
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
from .forest import Forest
from .links import Links
from .nesting import Nesting
from .thread_facts import ThreadFacts
from .user_ranges import NameFacts, computed_again, named_phases, of_titles, operator_ranges

NO_PHASE = -1
IN_FORWARD = PHASES.index(FORWARD)
IN_BACKWARD = PHASES.index(BACKWARD)
NOTHING = PHASES.index(OTHER)
_SERVING = [PHASES.index(phase) for phase in SERVING]


def of_nodes(
    trace: Trace, facts: NameFacts, ranges: Ranges, forest: Forest, linked: Bools, engine: Bools
) -> dict[str, Any]:
    """Return each node's phase: its nearest name's, else its nearest category's, else its thread's.

    `linked` marks nodes that are parts of forward paths below backward, `engine` those on autograd's threads.
    The result are the columns `node_phase`, positions in PHASES, `warm_up` and `recompute` of an attribution.
    """
    again = computed_again(trace, ranges)
    is_recompute = again[forest.range]
    is_gradient = (ranges.category == GRADIENT)[forest.range]
    is_part = ~of_titles(facts.opens_phase, ranges)[forest.range]
    by_name = named_phases(facts, ranges)[forest.range]
    by_category = _by_category(facts, ranges)[forest.range]
    by_category[is_recompute] = IN_BACKWARD
    by_name[linked & (by_name == IN_FORWARD)] = NO_PHASE
    by_category[linked & (by_category == IN_FORWARD)] = NO_PHASE
    # A gradient that a forward asks for: its backward is part of the phase around it.
    in_gradient = forest.below(is_gradient)
    is_named = np.append(by_name >= 0, False)
    phase = np.full(len(forest) + 1, NO_PHASE, np.int8)  # the last is of what is above the top
    recompute = np.zeros(len(forest) + 1, np.bool_)
    for nodes in forest.by_depth():
        above = forest.parent[nodes]
        outer = phase[above]
        name = by_name[nodes]
        category = by_category[nodes]
        is_asked = (in_gradient[nodes] & (category == IN_BACKWARD)) | is_gradient[nodes]
        in_engine = (outer == NO_PHASE) & engine[nodes]
        in_backward = (outer == IN_BACKWARD) | in_engine
        by_outer = is_named[above] | (is_asked & (outer != NO_PHASE))
        unless_named = np.where(by_outer, NO_PHASE, category)
        from_range = np.where(name >= 0, name, unless_named)
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
    """Return the phases of ranges by annotation's categories, or NO_PHASE: int8 (ranges,).

    A gradient in no phase is forward if a backward follows before an update, else backward.
    """
    phase = np.full(len(ranges), NO_PHASE, np.int8)
    phase[ranges.of_forward] = IN_FORWARD
    phase[ranges.category == MODEL_BACKWARD] = IN_BACKWARD
    is_gradient = ranges.category == GRADIENT
    if is_gradient.any():
        opens = of_titles(facts.opens_phase, ranges)
        by_name = np.where(opens, named_phases(facts, ranges), NO_PHASE)
        end_ns = ranges.end_ns[is_gradient]
        next_backward_ns = _following(ranges.start_ns[by_name == IN_BACKWARD], end_ns)
        next_update_ns = _following(ranges.start_ns[by_name == PHASES.index(OPTIMIZER)], end_ns)
        phase[is_gradient] = np.where(next_backward_ns < next_update_ns, IN_FORWARD, IN_BACKWARD)
    return phase


def _following(times_ns: Int64s, at_ns: Int64s) -> Int64s:
    """Return the first of some times at or after each moment, NEVER for none, ns: int64 (moments,)."""
    in_order_ns = np.sort(times_ns)
    return looked_up(in_order_ns, np.searchsorted(in_order_ns, at_ns), NEVER)


class Unnamed:
    """Finds the phase of work in no range that has one: by its operators, or by its place around a model."""

    def __init__(self, threads: ThreadFacts, ranges: Ranges) -> None:
        self._threads = threads
        self._trace = threads.trace
        self._facts = threads.names
        self._ranges = ranges
        trace = threads.trace
        facts = threads.names
        self._process = trace.process_of_thread()
        is_node = facts.backward_operator[trace.ranges.name_id] & operator_ranges(facts, trace.ranges)
        self._nodes = np.flatnonzero(is_node & (trace.ranges.style == PUSH_POP))
        # The outermost ranges of modules that a program calls, not backward.
        calling = marked(ranges.thread[ranges.of_forward], len(self._process))
        parts = ranges.take(ranges.of_model & calling[ranges.thread])
        parts = parts.take(~self._in_node(parts))
        nesting = Nesting(parts)
        is_recompute = computed_again(trace, parts)
        is_outermost = nesting.forest.above(nesting.home) < 0
        self._calls = parts.take(is_outermost & parts.of_forward & ~is_recompute)

    def phase(self, spots: Spots) -> Int8s:
        """Return the phases of intervals: in a backward node, in a forward or between a model and its backward."""
        phase = np.full(len(spots), NOTHING, np.int8)
        phase[self._in_forward(spots)] = IN_FORWARD
        rows = np.flatnonzero(self._calling[spots.thread])
        phase[rows[self._before_backward(spots.take(rows))]] = IN_FORWARD
        phase[self._in_node(spots)] = IN_BACKWARD
        return phase

    def _in_node(self, spots: Spots) -> Bools:
        """Return which intervals are in a backward node; only the nodes of their threads are indexed."""
        is_on_thread = marked(spots.thread, len(self._process))
        nodes = self._trace.ranges.take(self._nodes_on(is_on_thread))
        return Nesting(nodes).containing(spots) >= 0

    def _in_forward(self, spots: Spots) -> Bools:
        """Return which intervals lie in a forward, or between its operators, of processes that do not name any."""
        in_forward = np.zeros(len(spots), np.bool_)
        opens_forward = self._facts.opens_phase & (self._facts.phase == IN_FORWARD)
        is_named = of_titles(opens_forward, self._ranges)
        names_it = marked(self._process[self._ranges.thread[is_named]], len(self._trace.processes))
        rows = np.flatnonzero(~names_it[self._process[spots.thread]])
        if not len(rows) or not len(self._forwards):
            return in_forward
        begins = Moments(self._forwards.start_ns, self._forwards.thread)
        unnamed = spots.take(rows)
        begun = begins.begun(unnamed.thread, unnamed.start_ns, "right")
        forward = self._forwards.take(np.maximum(begun - 1, 0))
        has_begun = (forward.thread == unnamed.thread) & (forward.start_ns <= unnamed.start_ns)
        is_inside = has_begun & (forward.end_ns >= unnamed.end_ns)
        in_forward[rows[is_inside]] = True
        return in_forward

    @cached_property
    def _forwards(self) -> Spots:
        """The stretches from the first to the last operator that made nodes of one backward.

        No phase, step or warm-up of the thread begins or ends within, and no node of its process begins.
        """
        links = Links(self._threads)
        nodes = np.arange(len(links.nodes))
        maker = links.made(nodes, np.full(len(nodes), -1, np.int32))
        makers = links.operators.take(np.unique(maker[maker >= 0]))
        makers = makers.take(~self._in_node(makers))  # those of a second derivative are backward
        makers = makers.take(np.lexsort((makers.start_ns, makers.thread)))
        if not len(makers):
            return makers
        end = Clock(makers).at(makers.thread, makers.end_ns)
        is_latest = end == np.maximum.accumulate(end)
        latest = np.maximum.accumulate(np.where(is_latest, np.arange(len(makers)), 0))
        between = Spots(makers.end_ns[latest[:-1]], makers.start_ns[1:], makers.thread[1:])
        process = self._process
        node_begins = Moments(links.nodes.start_ns, process[links.nodes.thread])
        is_cut = self._turns.some_within(between) | node_begins.some_within(between.on(process[between.thread]))
        is_cut |= makers.thread[1:] != makers.thread[:-1]
        first = np.append(True, is_cut)
        last = np.append(is_cut, True)
        return Spots(makers.start_ns[first], makers.end_ns[latest[last]], makers.thread[first])

    @cached_property
    def _turns(self) -> Moments:
        """When a phase, step or warm-up of each thread begins or ends."""
        turning = self._ranges.take(of_titles(self._facts.turns, self._ranges))
        moments_ns = np.concatenate([turning.start_ns, turning.end_ns])
        return Moments(moments_ns, np.concatenate([turning.thread, turning.thread]))

    def _nodes_on(self, threads: Bools) -> Int64s:
        """Return the backward nodes on some threads, positions in the trace's ranges."""
        return self._nodes[threads[self._trace.ranges.thread[self._nodes]]]

    def _before_backward(self, spots: Spots) -> Bools:
        """Return which intervals of threads that call models lie between a call and its backward.

        No phase or step of the thread turns between these, and everything before the backward was forward: it
        begins on one of autograd's threads, or with a node, and not with the first module after the loss's own
        backward.
        """
        called_ns = self._call_ends.last_until(spots.thread, spots.start_ns)
        elsewhere_ns = self._backward_begins.first_from(self._process[spots.thread], called_ns)
        first_ns = np.minimum(elsewhere_ns, self._node_begins.first_from(spots.thread, called_ns))
        begin_ns = np.minimum(first_ns, self._own_backward_begins.first_from(spots.thread, called_ns))
        has_turn = self._turns.some_within(Spots(called_ns, begin_ns, spots.thread))
        is_between: Bools = (called_ns > -NEVER) & (begin_ns < NEVER) & (first_ns == begin_ns)
        is_between &= (spots.end_ns <= begin_ns) & ~has_turn
        return is_between

    @cached_property
    def _calling(self) -> Bools:
        """Mark the threads that call models."""
        return marked(self._calls.thread, len(self._process))

    @cached_property
    def _call_ends(self) -> Moments:
        return Moments(self._calls.end_ns, self._calls.thread)

    @cached_property
    def _backward_begins(self) -> Moments:
        """When backward begins on the threads of each process that call no models."""
        backward, nodes = self._backward_of(~self._calling)
        threads = np.concatenate([backward.thread, nodes.thread])
        return Moments(np.concatenate([backward.start_ns, nodes.start_ns]), self._process[threads])

    @cached_property
    def _node_begins(self) -> Moments:
        """When nodes begin on each thread that calls models."""
        _, nodes = self._backward_of(self._calling)
        return Moments(nodes.start_ns, nodes.thread)

    @cached_property
    def _own_backward_begins(self) -> Moments:
        """When backward of modules begins on each thread that calls models."""
        backward, _ = self._backward_of(self._calling)
        return Moments(backward.start_ns, backward.thread)

    def _backward_of(self, threads: Bools) -> tuple[Ranges, Ranges]:
        """Return the ranges of modules' backward on some threads, and the backward nodes."""
        of_modules = (self._ranges.category == MODEL_BACKWARD) & threads[self._ranges.thread]
        return self._ranges.take(of_modules), self._trace.ranges.take(self._nodes_on(threads))
