"""The phases of places and work, by the names of ranges, or else by the categories of our annotation.

docs/attribution.md has the definitions, under "Phases".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..support.small_numbers import distinct
from ..trace import (
    GRADIENT,
    MODEL_BACKWARD,
    MODEL_FORWARD,
    PUSH_POP,
    Bools,
    Int8s,
    Int32s,
    Int64s,
    Ranges,
    Trace,
    marked,
)
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, OTHER, PHASES, RECOMPUTE, SERVING
from .nesting import Forest, Nesting
from .user_ranges import NameFacts, named, named_phases, of_names, of_titles, operator_ranges

_NEVER = 2**62
NO_PHASE, IN_FORWARD, IN_BACKWARD = -1, PHASES.index(FORWARD), PHASES.index(BACKWARD)
NOTHING = PHASES.index(OTHER)
_SERVING = [PHASES.index(phase) for phase in SERVING]


@dataclass(frozen=True, slots=True)
class RangePhases:
    """What names and annotation tell about each range, or each node; phases are positions in PHASES.

    `by_name` and `by_category` are NO_PHASE where a name or annotation tells none. `is_part` marks names of a part
    of a phase, and `is_recompute` what annotation marks as computed again. `is_gradient` marks a gradient that
    a forward asks for: its backward is part of the phase around it.
    """

    by_name: Int8s
    is_part: Bools
    warm_up: Bools
    by_category: Int8s
    is_recompute: Bools
    is_gradient: Bools

    @classmethod
    def of(cls, trace: Trace, facts: NameFacts, ranges: Ranges) -> RangePhases:
        """Look up the names and annotation of ranges."""
        is_recompute = (ranges.category == MODEL_FORWARD) & of_names(named(trace, RECOMPUTE), ranges)
        by_category = np.full(len(ranges), NO_PHASE, np.int8)
        by_category[ranges.of_forward] = IN_FORWARD
        by_category[(ranges.category == MODEL_BACKWARD) | is_recompute] = IN_BACKWARD
        is_gradient = ranges.category == GRADIENT
        return cls(
            by_name=named_phases(facts, ranges),
            is_part=~of_titles(facts.opens_phase, ranges),
            warm_up=of_titles(facts.warm_up, ranges),
            by_category=np.where(is_gradient, _of_gradients(facts, ranges), by_category),
            is_recompute=is_recompute,
            is_gradient=is_gradient,
        )

    def by_node(self, forest: Forest, linked: Bools) -> RangePhases:
        """Return the same by node; `linked` nodes are parts of forward paths below backward."""
        by_name, by_category = self.by_name[forest.range], self.by_category[forest.range]
        by_name[linked & (by_name == IN_FORWARD)] = NO_PHASE
        by_category[linked & (by_category == IN_FORWARD)] = NO_PHASE
        flags = (self.is_part, self.warm_up, self.is_recompute, self.is_gradient)
        is_part, warm_up, is_recompute, is_gradient = (flag[forest.range] for flag in flags)
        return RangePhases(by_name, is_part, warm_up, by_category, is_recompute, is_gradient)


def _of_gradients(facts: NameFacts, ranges: Ranges) -> Int8s:
    """Return the phase of gradients in none: forward if a backward follows before an update, else backward.

    Only ranges of annotation's category for such gradients get one, int8 (ranges,).
    """
    phase = np.full(len(ranges), NO_PHASE, np.int8)
    is_gradient = ranges.category == GRADIENT
    if not is_gradient.any():
        return phase
    opens = of_titles(facts.opens_phase, ranges)
    by_name = named_phases(facts, ranges)
    backward_ns = np.sort(ranges.start_ns[opens & (by_name == IN_BACKWARD)])
    update_ns = np.sort(ranges.start_ns[opens & (by_name == PHASES.index(OPTIMIZER))])
    end_ns = ranges.end_ns[is_gradient]
    next_backward, next_update = (
        np.append(moments, _NEVER)[np.searchsorted(moments, end_ns)] for moments in (backward_ns, update_ns)
    )
    phase[is_gradient] = np.where(next_backward < next_update, IN_FORWARD, IN_BACKWARD)
    return phase


@dataclass(frozen=True, slots=True)
class NodePhases:
    """Per node: its phase (a position in PHASES), whether it is in warm-up, and whether it is recomputed."""

    phase: Int8s
    warm_up: Bools
    recompute: Bools


def of_nodes(forest: Forest, by_range: RangePhases, linked: Bools, engine: Bools) -> NodePhases:
    """Return each node's phase: its nearest name's, else its nearest category's, else its thread's.

    `by_range` and `linked` are by node; `engine` marks the nodes on autograd's threads.
    """
    if not len(forest):
        return NodePhases(np.empty(0, np.int8), np.empty(0, np.bool_), np.empty(0, np.bool_))
    phase, warm_up = np.full(len(forest), NO_PHASE, np.int8), by_range.warm_up.copy()
    recompute, in_gradient = np.zeros(len(forest), np.bool_), by_range.is_gradient.copy()
    is_named = by_range.by_name >= 0
    for depth, nodes in enumerate(forest.by_depth()):
        outer, in_named, in_recompute = (
            np.full(len(nodes), NO_PHASE, np.int8),
            *np.zeros((2, len(nodes)), np.bool_),
        )
        if depth:
            above = forest.parent[nodes]
            outer, in_named, in_recompute = phase[above], is_named[above], recompute[above]
            warm_up[nodes] |= warm_up[above]
            in_gradient[nodes] |= in_gradient[above]
        name, category = by_range.by_name[nodes], by_range.by_category[nodes]
        is_asked = in_gradient[nodes] & (outer != NO_PHASE) & (category == IN_BACKWARD)
        is_asked |= by_range.is_gradient[nodes] & (outer != NO_PHASE)
        in_engine = (outer == NO_PHASE) & engine[nodes]
        in_backward = (outer == IN_BACKWARD) | in_engine
        from_range = np.select(
            [name >= 0, in_named | is_asked],
            [name, NO_PHASE],
            default=category,
        )
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
        begins = (is_again & (~by_range.is_part[nodes] | of_model)) | (of_model & in_backward)
        goes_on = in_recompute & (name < 0) & (category != IN_BACKWARD)
        recompute[nodes] = (begins | goes_on | by_range.is_recompute[nodes]) & (phase[nodes] == IN_BACKWARD)
        is_named[nodes] |= in_named
    return NodePhases(np.where(phase >= 0, phase, NOTHING).astype(np.int8), warm_up, recompute)


@dataclass(frozen=True, slots=True)
class _Turns:
    """One thread's ends of model calls, turns of its phases and steps, and begins of backward, in order.

    `is_first` is true for a backward if everything before it was forward: it begins on one of autograd's threads,
    or with a node, and not with the first module after the loss's own backward.
    """

    ends_ns: Int64s
    turns_ns: Int64s
    begins_ns: Int64s
    is_first: Bools

    def before_backward(self, start_ns: Int64s, end_ns: Int64s) -> Bools:
        """Return which intervals lie between a call of the model and its backward, with no turn between these."""
        calls_before = np.searchsorted(self.ends_ns, start_ns, "right")
        called_ns = self.ends_ns[np.maximum(calls_before - 1, 0)]
        backward = np.searchsorted(self.begins_ns, called_ns, "left")
        is_between = (calls_before > 0) & (backward < len(self.begins_ns))
        backward = np.minimum(backward, len(self.begins_ns) - 1)
        begin_ns = self.begins_ns[backward]
        turns = np.searchsorted(self.turns_ns, begin_ns, "right") - np.searchsorted(
            self.turns_ns, called_ns, "left"
        )
        is_between &= self.is_first[backward] & (end_ns <= begin_ns) & (turns == 0)
        return is_between


class Unnamed:
    """Finds the phase of work in no range that has one: in a backward node, or around an annotated model."""

    def __init__(self, trace: Trace, facts: NameFacts, ranges: Ranges) -> None:
        self._trace, self._facts, self._ranges = trace, facts, ranges
        self._process = trace.process_of_thread()
        is_node = of_names(facts.backward_operator, trace.ranges) & operator_ranges(facts, trace.ranges)
        self._nodes = np.flatnonzero(is_node & (trace.ranges.style == PUSH_POP))
        self._calls = self._calls_of_models()

    def phase(self, thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> Int8s:
        """Return the phases of intervals: in a backward node, between a model and its backward, or neither."""
        phase = np.full(len(thread), NOTHING, np.int8)
        for number in sorted({*distinct(thread).tolist()} & {*distinct(self._calls.thread).tolist()}):
            rows, turns = np.flatnonzero(thread == number), self._turns(number)
            if len(turns.begins_ns):
                phase[rows[turns.before_backward(start_ns[rows], end_ns[rows])]] = IN_FORWARD
        phase[self._in_node(thread, start_ns, end_ns)] = IN_BACKWARD
        return phase

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
        calling = marked(self._ranges.thread[self._ranges.of_forward], len(self._process))
        parts = self._ranges.take(self._ranges.of_model & calling[self._ranges.thread])
        parts = parts.take(~self._in_node(parts.thread, parts.start_ns, parts.end_ns))
        nesting = Nesting(parts)
        is_recompute = of_names(named(self._trace, RECOMPUTE), parts)
        return parts.take((nesting.forest.above(nesting.home) < 0) & parts.of_forward & ~is_recompute)

    def _turns(self, thread: int) -> _Turns:
        ranges, facts = self._ranges, self._facts
        turns = of_titles(facts.opens_phase | facts.step | facts.measured | facts.warm_up, ranges)
        turns &= ranges.thread == thread
        threads = (self._process == self._process[thread]) & ~marked(self._calls.thread, len(self._process))
        threads[thread] = True
        backward = ranges.take((ranges.category == MODEL_BACKWARD) & threads[ranges.thread])
        nodes_ns = self._trace.ranges.start_ns[self._nodes_on(threads)]
        begins_ns = np.concatenate([backward.start_ns, nodes_ns])
        is_first = np.concatenate([backward.thread != thread, np.ones(len(nodes_ns), np.bool_)])
        order = np.lexsort((~is_first, begins_ns))
        return _Turns(
            np.sort(self._calls.end_ns[self._calls.thread == thread]),
            np.sort(np.concatenate([ranges.start_ns[turns], ranges.end_ns[turns]])),
            begins_ns[order],
            is_first[order],
        )
