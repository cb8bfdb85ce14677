"""Find the ranges that caused each piece of GPU work, the purpose of this project.

A range owns the work launched inside it: the whole launch call lies inside the range. The path of a piece of
work is every such range, in the order of their starts: on the launching thread (*own*); continued upward into
the ranges of the thread that waits in backward (*adopted*); taken from the forward operator of the same sequence
number (*linked*); or continued downward into the ranges in which the node of a CUDA graph was created
(*captured*). docs/attribution.md draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..support.heap import give_back
from ..support.small_numbers import grouped
from ..support.threads import at_once
from ..trace import Int8s, Int32s, Ranges, Spots, Trace, marked
from ..vocabulary import OPTIMIZER, PHASES
from .adoption import Adoption
from .between_calls import with_gaps_named
from .capture import below_launches
from .kernel_categories import with_categories
from .lines import with_lines
from .named_steps import updates_called_steps
from .nesting import Nesting
from .phases import IN_BACKWARD, NOTHING, Unnamed, of_nodes
from .places import Attribution, Rules
from .placing import AMBIGUOUS, CAPTURED, HOW, OUTSIDE, OWN, Placed, Placing
from .recomputation import with_recomputation
from .step_making import with_steps
from .thread_facts import ThreadFacts
from .user_ranges import NameFacts, nested_ranges, operator_ranges, with_phases_once

__all__ = ["HOW", "Attribution", "Rules", "attribute"]


def attribute(trace: Trace, rules: Rules | None = None) -> Attribution:
    """Attribute all work of a trace to its ranges.

    Raises UsageError if the rules name a domain or a step that the trace does not have.
    """
    rules = rules or Rules()
    trace, facts = with_recomputation(*with_gaps_named(trace, rules), rules)
    attributing = _Attributing(with_categories(trace, facts), facts, rules)
    attribution = attributing.attribution()
    updates = updates_called_steps(attribution)
    if updates.any():  # ranges of some names, which are called steps, are the optimizer's
        attribution.facts.phase[updates] = PHASES.index(OPTIMIZER)
        attribution.facts.step[updates] = False
        attribution = replace(attribution, **attributing.phases(attribution.node))
    threads = attributing.threads
    copying = threads.launching - threads.launching_kernels
    attribution = with_steps(attribution, updates, copying)
    attribution = with_lines(attribution)
    give_back(len(trace.ranges))
    return attribution


class _Attributing:
    def __init__(self, trace: Trace, facts: NameFacts, rules: Rules) -> None:
        self.trace = trace
        self.facts = facts
        self.rules = rules
        nested = nested_ranges(trace, rules.domains)
        self.operator = nested & operator_ranges(self.facts, trace.ranges)
        chosen = nested if rules.operators == "keep" else nested & ~self.operator
        self.ranges = trace.ranges.take(chosen)
        if rules.adopt:  # else as nsys counts them
            self.ranges = with_phases_once(trace, self.facts, self.ranges)
        self.own_ranges = self.ranges
        self.nesting = Nesting(self.ranges)
        self.forest = self.nesting.forest
        self.threads = ThreadFacts(trace, self.facts, self.ranges)
        self.adoption = Adoption(self.threads, self.nesting)
        self.known = self.adoption.known_threads  # computed now, because it can add nodes
        # Calls of modules in a backward that their own thread runs.
        self.computed_again = np.zeros(len(self.own_ranges), np.bool_)
        forward = np.flatnonzero(self.own_ranges.of_forward)
        if len(forward):
            engine_call, _ = self.threads.engine_calls(self.own_ranges.take(forward))
            self.computed_again[forward] = engine_call >= 0

    def attribution(self) -> Attribution:
        trace = self.trace
        calls = self.threads.calls
        placing = Placing(self.nesting, self.adoption, self.rules)

        def unnamed() -> Unnamed | None:
            """Return a finder of phases for work outside of named phases, if nodes or models can tell them."""
            can_tell = self.own_ranges.of_model.any() or self.facts.backward_operator.any()
            if can_tell:
                return Unnamed(self.threads, self.own_ranges)
            return None

        tasks: list[Callable[[], Any]] = [partial(placing.place, calls), unnamed]
        placed, self.unnamed = at_once(tasks, len(calls))
        self.allocated = Spots(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
        if trace.memory is not None:
            self.allocated = Spots(trace.memory.at_ns, trace.memory.at_ns, trace.memory.thread)
        allocated = placing.place(self.allocated)
        self.memory_node = allocated.node
        home = self.nesting.home.copy()
        if self.rules.adopt and len(self.ranges):
            rows = np.flatnonzero(np.isin(self.ranges.thread, self.adoption.threads))
            waiting_node = self.adoption.waiting_node(self.ranges.take(rows))
            upper = np.maximum(waiting_node, -1)
            home[rows] = self.forest.graft(upper, home[rows])  # below the nodes of the thread that waits
        if self.rules.operators == "auto":
            home = self._show_stray_operators([(calls, placed), (self.allocated, allocated)], home)

        # From calls to the work that they caused.
        launch = trace.work.launch
        has_launch = launch >= 0
        call = np.zeros(len(trace.launches), np.int64)
        call[calls.row] = np.arange(len(calls))
        work_call = call[launch[has_launch]]
        node = np.full(len(launch), -1, np.int32)
        how = np.full(len(launch), OUTSIDE, np.uint8)
        unfit = np.zeros(len(launch), np.bool_)
        node[has_launch] = placed.node[work_call]
        how[has_launch] = placed.how[work_call].astype(np.uint8)
        unfit[has_launch] = placed.unfit[work_call]
        # Work of CUDA graphs' replays, and where its nodes were captured.
        self.captured = np.empty(0, np.int32)
        self.created = np.full(len(node), -1, np.int32)
        if trace.captures is not None and len(self.nesting.home):
            self.created, captured, self.captured = below_launches(
                trace.captures, self.ranges, self.nesting, self.facts, node, how != AMBIGUOUS
            )
            how[captured >= 0] = CAPTURED
            node = np.where(captured >= 0, captured, node)
        self.forest.require_drawable(len(self.ranges))

        # Nodes that contain work, at any depth, and were linked.
        nodes_of_work = np.concatenate([node, self.memory_node])
        nodes_of_links = np.concatenate(placing.linked_nodes)
        has_work = self.forest.around(marked(nodes_of_work, len(self.forest)))
        self.linked = has_work[:-1] & marked(nodes_of_links, len(self.forest))
        led = self.linked.copy()
        led[self.captured] = True
        return Attribution(
            trace=trace,
            facts=self.facts,
            ranges=self.ranges,
            forest=self.forest,
            home=home,
            node=node,
            how=how,
            linked=led,
            unfit=unfit,
            rules=self.rules,
            memory_node=self.memory_node,
            **self.phases(node),
        )

    def _show_stray_operators(self, groups: Sequence[tuple[Spots, Placed]], home: Int32s) -> Int32s:
        """Place calls and allocations that are in no range of the user in the operator range around them."""
        ranges = self.trace.ranges
        stray = [np.flatnonzero(placed.how == OUTSIDE) for _, placed in groups]
        # PyTorch's operator ranges on these threads that are in no range of the user's.
        threads = [spots.thread[rows] for (spots, _), rows in zip(groups, stray, strict=True)]
        on_threads = marked(np.concatenate(threads), len(self.trace.threads))
        operators = ranges.take(self.operator & on_threads[ranges.thread])
        is_outermost = self.forest.above(self.nesting.home) < 0
        user_node = Nesting(self.ranges.take(is_outermost)).containing(operators)
        operators = operators.take(user_node < 0)
        if not len(operators):
            return home
        nesting = Nesting(operators)
        first = len(self.forest)
        inside = [nesting.containing(spots.take(rows)) for (spots, _), rows in zip(groups, stray, strict=True)]
        added = nesting.forest
        parent = np.where(added.parent >= 0, added.parent + first, -1)
        self.forest.add(parent.astype(np.int32), added.range + np.int32(len(self.ranges)))
        for (_, placed), rows, operator_node in zip(groups, stray, inside, strict=True):
            is_inside = operator_node >= 0
            placed.node[rows] = np.where(is_inside, operator_node + first, -1)
            placed.how[rows[is_inside]] = OWN
        self.ranges = Ranges.joined([self.ranges, operators])
        return np.concatenate([home, nesting.home + first]).astype(np.int32)

    def phases(self, node: Int32s) -> dict[str, Any]:
        """Return the columns of an attribution that tell phases, given the nodes of work."""
        engine = np.isin(self.ranges.thread, self.known)
        engine[: len(self.computed_again)] |= self.computed_again
        engine = engine[self.forest.range]
        engine[self.captured] = False  # the phase of a replay is its launch's, whichever thread captured it
        columns = of_nodes(self.trace, self.facts, self.ranges, self.forest, self.linked, engine)
        of_node = np.append(columns["node_phase"], np.int8(NOTHING))
        memory_phase = of_node[self.memory_node]
        undecided = np.flatnonzero(memory_phase == NOTHING)
        memory_phase[undecided] = self._phase_by_place(self.allocated.take(undecided))
        # Work has its node's, its thread's or its place's in time; a replay in none has that of its capture.
        launches = self.trace.launches
        launch = self.trace.work.launch
        phase = of_node[node]
        phase = np.where(phase == NOTHING, of_node[self.created], phase)
        undecided = np.flatnonzero((phase == NOTHING) & (launch >= 0))
        calls, back = grouped(launch[undecided])
        phase[undecided] = self._phase_by_place(launches.take(calls))[back]
        return columns | {"phase": phase, "memory_phase": memory_phase}

    def _phase_by_place(self, spots: Spots) -> Int8s:
        """Return the phase of what no range has one for, by its thread or its place in time: int8 (spots,)."""
        phase = np.full(len(spots), NOTHING, np.int8)
        if len(spots) and self.unnamed:
            phase = self.unnamed.phase(spots)
        phase[np.isin(spots.thread, self.known)] = IN_BACKWARD
        return phase
