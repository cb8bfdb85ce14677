"""Find the ranges that caused each piece of GPU work, the purpose of this project.

A range owns the work launched inside it: the whole launch call lies inside the range. The path of a piece of
work is every such range, in the order of their starts: on the launching thread (*own*); continued upward into
the ranges of the thread that waits in backward (*adopted*); taken from the forward operator of the same sequence
number (*linked*); or continued downward into the ranges in which the node of a CUDA graph was created
(*captured*). docs/attribution.md draws it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..support.heap import give_back
from ..support.small_numbers import grouped
from ..support.threads import at_once
from ..trace import Bools, Int8s, Int32s, Ranges, Trace, marked, working_calls
from ..vocabulary import OPTIMIZER, PHASES
from .adoption import Adoption
from .attributed import Attribution, Rules
from .capture import Captured
from .links import Links
from .nesting import Nesting
from .phases import IN_BACKWARD, NOTHING, NodePhases, RangePhases, Unnamed, of_nodes
from .placing import AMBIGUOUS, CAPTURED, HOW, OUTSIDE, OWN, Placed, Placing, Spots
from .steps import updates_called_steps, with_steps
from .thread_facts import ThreadFacts
from .user_ranges import name_facts, nested_ranges, operator_ranges
from .waiting import Intervals, Waiting

__all__ = ["HOW", "Attribution", "Rules", "attribute"]


def attribute(trace: Trace, rules: Rules | None = None) -> Attribution:
    """Attribute all work of a trace to its ranges.

    Raises UsageError if the rules name a domain or a step that the trace does not have.
    """
    attributing = _Attributing(trace, rules or Rules())
    attribution = attributing.result()
    updates = updates_called_steps(attribution)
    if updates.any():
        attribution = attributing.with_optimizer(attribution, updates)
    copying = attributing.threads.launching - attributing.threads.launching_kernels
    attribution = with_steps(attribution, updates, copying)
    give_back(len(trace.ranges))
    return attribution


class _Attributing:
    def __init__(self, trace: Trace, rules: Rules) -> None:
        self.trace, self.rules = trace, rules
        self.facts = name_facts(trace, rules.step, rules.phase_names)
        nested = nested_ranges(trace, rules.domains)
        self.operator = nested & operator_ranges(self.facts, trace.ranges)
        chosen = nested if rules.operators == "keep" else nested & ~self.operator
        self.ranges = self.own_ranges = trace.ranges if chosen.all() else trace.ranges.take(chosen)
        self.nesting = Nesting(self.ranges)
        self.forest = self.nesting.forest
        self.calls = working_calls(trace)
        self.threads = ThreadFacts(trace, self.facts, self.ranges, self.calls)
        waiting = Waiting(trace, self.facts, self.ranges, self.nesting, self.calls, self.threads)
        self.adoption = Adoption(self.threads, waiting)
        self.known = self.adoption.known_threads  # computed now, because it can add nodes

    def result(self) -> Attribution:
        calls, home = self.calls, self.nesting.home.copy()
        placing = Placing(self.facts, self.ranges, self.nesting, self.adoption)
        placing.adopts = self.rules.adopt
        if self.rules.link:
            placing.links = partial(Links, self.trace, self.facts, self.threads)
        spots = Spots(calls.thread, calls.start_ns, calls.end_ns)

        def unnamed() -> Unnamed | None:
            """Return what finds the phase of work in no named one, if a node or a model can tell it."""
            can_tell = self.own_ranges.of_model.any() or self.facts.backward_operator.any()
            return Unnamed(self.trace, self.facts, self.own_ranges) if can_tell else None

        steps: list[Callable[[], Any]] = [partial(placing.place, spots), unnamed]
        placed, self.unnamed = at_once(steps, len(spots))
        memory, none = self.trace.memory, np.empty(0, np.int64)
        owner, at_ns = (memory.thread, memory.at_ns) if memory else (none.astype(np.int32), none)
        self.allocated = Spots(owner, at_ns, at_ns)
        self.memory_node = placing.place(self.allocated).node if len(self.allocated) else np.empty(0, np.int32)
        if self.rules.adopt and len(self.ranges):
            ranges = self.ranges
            for thread in self.adoption.threads:  # below those of the thread that waits for it
                rows = np.flatnonzero(ranges.thread == thread)
                above = self.adoption.base(Intervals(thread, ranges.start_ns[rows], ranges.end_ns[rows]))
                home[rows] = self.forest.graft(np.maximum(above, -1), home[rows])
        if self.rules.operators == "auto":
            home = self._show_stray_operators(placed.node, placed.how, home)
        return self._attribution(placed, home, placing.rule.linked_nodes)

    def _show_stray_operators(self, node: Int32s, how: NDArray[np.int64], home: Int32s) -> Int32s:
        """Place calls that are in no range of the user in PyTorch's operator ranges, if they are in one."""
        stray, calls = np.flatnonzero(how == OUTSIDE), self.calls
        operators = self._operators_outside(calls.thread[stray])
        if not len(operators):
            return home
        nesting = Nesting(operators)
        operator_node = nesting.containing(calls.thread[stray], calls.start_ns[stray], calls.end_ns[stray])
        first = self.forest.append(nesting.forest, len(self.ranges))
        node[stray] = np.where(operator_node >= 0, operator_node + first, -1)
        how[stray[operator_node >= 0]] = OWN
        self.ranges = Ranges.joined([self.ranges, operators])
        return np.concatenate([home, nesting.home + first]).astype(np.int32)

    def _operators_outside(self, threads: Int32s) -> Ranges:
        """Return PyTorch's operator ranges on these threads that are in no range of the user's."""
        ranges, on_threads = self.trace.ranges, marked(threads, len(self.trace.threads))
        rows = np.flatnonzero(self.operator & on_threads[ranges.thread])
        outermost = Nesting(self.ranges.take(self.nesting.forest.above(self.nesting.home) < 0))
        user_node = outermost.containing(ranges.thread[rows], ranges.start_ns[rows], ranges.end_ns[rows])
        return ranges.take(rows[user_node < 0])

    def _attribution(self, placed: Placed, home: Int32s, linked_nodes: list[Int32s]) -> Attribution:
        launch = self.trace.work.launch
        call = np.zeros(len(self.trace.launches), np.int64)
        call[self.calls.row] = np.arange(len(self.calls))
        has_launch = launch >= 0
        node, how = np.full(len(launch), -1, np.int32), np.full(len(launch), OUTSIDE, np.uint8)
        unfit = np.zeros(len(launch), np.bool_)
        work_call = call[launch[has_launch]]
        node[has_launch], how[has_launch] = placed.node[work_call], placed.how[work_call].astype(np.uint8)
        unfit[has_launch] = placed.unfit[work_call]
        node = self._led_to_captures(node, how)
        # Nodes that contain work, at any depth, and were linked.
        linked = np.zeros(len(self.forest), np.bool_)
        for nodes in (node, self.memory_node):
            linked[nodes[nodes >= 0]] = True
        for nodes in self.forest.by_depth()[:0:-1]:
            linked[self.forest.parent[nodes[linked[nodes]]]] = True
        not_linked = np.ones(len(linked), np.bool_)
        for nodes in linked_nodes:
            not_linked[nodes[nodes >= 0]] = False
        linked[not_linked] = False
        self.linked = linked
        phases, work_phase, memory_phase = self._phases(node)
        led = linked.copy()
        led[self.captured] = True
        return Attribution(
            trace=self.trace,
            facts=self.facts,
            ranges=self.ranges,
            forest=self.forest,
            home=home,
            node=node,
            how=how,
            phase=work_phase,
            node_phase=phases.phase,
            warm_up=phases.warm_up,
            recompute=phases.recompute,
            linked=led,
            unfit=unfit,
            rules=self.rules,
            memory_node=self.memory_node,
            memory_phase=memory_phase,
        )

    def with_optimizer(self, attribution: Attribution, updates: Bools) -> Attribution:
        """Return the attribution where ranges of some names, which are called steps, are the optimizer's."""
        self.facts.phase[updates], self.facts.step[updates] = PHASES.index(OPTIMIZER), False
        phases, work_phase, memory_phase = self._phases(attribution.node)
        return replace(
            attribution,
            phase=work_phase,
            node_phase=phases.phase,
            recompute=phases.recompute,
            memory_phase=memory_phase,
        )

    def _led_to_captures(self, node: Int32s, how: NDArray[np.uint8]) -> Int32s:
        """Assign CUDA graphs' replays to the ranges of their capture; return all work's nodes."""
        self.captured = np.empty(0, np.int32)
        self.created = np.full(len(node), -1, np.int32)  # per piece of work: where its node was captured
        if self.trace.captures is None or not len(self.nesting.home):
            return node
        captured = Captured(self.trace.captures, self.ranges, self.nesting, self.facts)
        led = how != AMBIGUOUS
        node = captured.lead(node, led)
        how[led] = CAPTURED
        self.captured, self.created = captured.made, captured.created_of_work(how != AMBIGUOUS)
        return node

    def _phases(self, node: Int32s) -> tuple[NodePhases, Int8s, Int8s]:
        """Return the phases of nodes, of work, whose nodes are given, and of allocations."""
        by_range = RangePhases.of(self.trace, self.facts, self.ranges).by_node(self.forest, self.linked)
        engine = np.isin(self.ranges.thread, self.known)[self.forest.range]
        engine[self.captured] = False  # the phase of a replay is its launch's, whichever thread captured it
        phases = of_nodes(self.forest, by_range, self.linked, engine)
        memory_phase = _phase_of(self.memory_node, phases.phase)
        undecided = np.flatnonzero(memory_phase == NOTHING)
        memory_phase[undecided] = self._phase_by_place(self.allocated.take(undecided))
        return phases, self._work_phase(node, phases.phase), memory_phase

    def _work_phase(self, node: Int32s, node_phase: Int8s) -> Int8s:
        """Return the phase of each piece of work, by its node, its thread or its place in time: int8 (work,)."""
        launches, launch = self.trace.launches, self.trace.work.launch
        phase = _phase_of(node, node_phase)
        # A replay in no phase has that of its capture.
        phase = np.where(phase == NOTHING, _phase_of(self.created, node_phase), phase)
        undecided = np.flatnonzero((phase == NOTHING) & (launch >= 0))
        calls, back = grouped(launch[undecided])
        spots = Spots(launches.thread[calls], launches.start_ns[calls], launches.end_ns[calls])
        phase[undecided] = self._phase_by_place(spots)[back]
        return phase

    def _phase_by_place(self, spots: Spots) -> Int8s:
        """Return the phase of what no range has one for, by its thread or its place in time: int8 (spots,)."""
        phase = np.full(len(spots), NOTHING, np.int8)
        if len(spots) and self.unnamed:
            phase = self.unnamed.phase(spots.thread, spots.start_ns, spots.end_ns)
        phase[np.isin(spots.thread, self.known)] = IN_BACKWARD
        return phase


def _phase_of(node: Int32s, node_phase: Int8s) -> Int8s:
    """Return the phase of each node, NOTHING for -1."""
    return np.append(node_phase, np.int8(NOTHING))[node]
