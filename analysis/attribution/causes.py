"""Find the ranges that caused each piece of GPU work, the purpose of this project.

A range owns the work launched inside it: the whole launch call lies inside the range. The path of a piece of
work is every such range, in the order of their starts: on the launching thread (*own*); continued upward into
the ranges of the thread that waits in backward (*adopted*); taken from the forward operator of the same sequence
number (*linked*); or continued downward into the ranges in which the node of a CUDA graph was created
(*captured*). docs/attribution.md draws it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..support.heap import give_back
from ..support.small_numbers import grouped
from ..support.threads import at_once
from ..trace import NO_CATEGORY, Bools, Int8s, Int32s, Ranges, Trace, marked, working_calls
from ..vocabulary import PhaseNames
from .adoption import Adoption
from .capture import Captured
from .links import Links
from .nesting import Forest, Nesting
from .phases import IN_BACKWARD, NOTHING, OfNodes, Said, Unnamed, of_nodes
from .placing import AMBIGUOUS, CAPTURED, HOW, OUTSIDE, OWN, Placed, Placing, Spots
from .thread_facts import ThreadFacts
from .user_ranges import NameFacts, name_facts, nested_ranges, operator_ranges
from .waiting import Intervals, Waiting

__all__ = ["HOW", "Attribution", "Rules", "attribute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as a parent; the defaults are this project's, `LAUNCHING_THREAD` is what nsys does."""

    domains: Sequence[str] = ()  # the only NVTX domains to take; empty: all but libraries'
    operators: str = "auto"  # PyTorch's operator ranges: "keep", "hide", or show those in no other range
    adopt: bool = True
    link: bool = True
    phase_names: PhaseNames = ()  # what phases are called, if not by the usual names; see vocabulary.phase_matcher
    step: str = ""  # what the measured steps are called, if not by the usual names; see vocabulary.step_matcher


@dataclass(frozen=True, slots=True)
class Attribution:
    """Every piece of work with its node, and the forest of nodes.

    `ranges` are those that paths consist of; `forest.range` are positions in them; `home[r]` is the node
    of range r itself, -1 if it is not shown.
    `node` and `how` (a position in HOW) have one entry per piece of work; node is -1 for work in no range.
    """

    trace: Trace
    facts: NameFacts
    ranges: Ranges
    forest: Forest
    home: Int32s
    node: Int32s
    how: NDArray[np.uint8]
    phase: Int8s  # per piece of work, a position in PHASES
    node_phase: Int8s  # per node
    warm_up: Bools  # per node
    recompute: Bools  # per node: forward below backward, which is computed again and counts as backward
    linked: Bools  # per node: a place in another path that work was led to, a forward's or a capture's
    unfit: Bools  # per piece of work: in a numbered backward node that no forward operator fits
    rules: Rules = field(default_factory=Rules)
    # Per allocation or free of the trace's memory: its node, -1 for none, and its phase, a position in PHASES.
    memory_node: Int32s = field(default_factory=lambda: np.empty(0, np.int32))
    memory_phase: Int8s = field(default_factory=lambda: np.empty(0, np.int8))
    # What `places.measured_steps` found, without and with warm-up: nearly every figure asks for it.
    found_steps: dict[bool, Int32s] = field(default_factory=dict, init=False, repr=False, compare=False)


def attribute(trace: Trace, rules: Rules | None = None) -> Attribution:
    """Attribute all work of a trace to its ranges.

    Raises UsageError if the rules name a domain or a step that the trace does not have.
    """
    found = _Attributing(trace, rules or Rules()).result()
    give_back(len(trace.ranges))
    return found


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
        steps: list[Callable[[], Any]] = [partial(placing.place, spots), self._unnamed]
        placed, self.unnamed = at_once(steps, len(spots))
        self.allocated = self._allocated()
        self.memory_node = placing.place(self.allocated).node if len(self.allocated) else np.empty(0, np.int32)
        if self.rules.adopt and len(self.ranges):
            self._adopt_ranges(home)
        if self.rules.operators == "auto":
            home = self._show_stray_operators(placed.node, placed.how, home)
        return self._attribution(placed, home, placing.rule.made)

    def _unnamed(self) -> Unnamed | None:
        """Return what finds the phase of work in no named one, if an annotated model can tell it."""
        annotated = (self.own_ranges.category != NO_CATEGORY).any()
        return Unnamed(self.trace, self.facts, self.own_ranges) if annotated else None

    def _allocated(self) -> Spots:
        """Return the moments of allocations and frees."""
        memory = self.trace.memory
        if memory is None:
            return Spots(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
        return Spots(memory.thread, memory.at_ns, memory.at_ns)

    def _show_stray_operators(self, node: Int32s, how: NDArray[np.int64], home: Int32s) -> Int32s:
        """Place calls that are in no range of the user in PyTorch's operator ranges, if they are in one."""
        stray, calls = np.flatnonzero(how == OUTSIDE), self.calls
        operators = self._operators_outside(calls.thread[stray])
        if not len(operators):
            return home
        nesting = Nesting(operators)
        at = nesting.containing(calls.thread[stray], calls.start_ns[stray], calls.end_ns[stray])
        first = self.forest.append(nesting.forest, len(self.ranges))
        node[stray] = np.where(at >= 0, at + first, -1)
        how[stray[at >= 0]] = OWN
        self.ranges = Ranges.joined([self.ranges, operators])
        return np.concatenate([home, nesting.home + first]).astype(np.int32)

    def _operators_outside(self, threads: Int32s) -> Ranges:
        """Return PyTorch's operator ranges on these threads that are in no range of the user's."""
        ranges, wanted = self.trace.ranges, marked(threads, len(self.trace.threads))
        rows = np.flatnonzero(self.operator & wanted[ranges.thread])
        outermost = Nesting(self.ranges.take(self.nesting.forest.above(self.nesting.home) < 0))
        at = outermost.containing(ranges.thread[rows], ranges.start_ns[rows], ranges.end_ns[rows])
        return ranges.take(rows[at < 0])

    def _adopt_ranges(self, home: Int32s) -> None:
        """Put the ranges of autograd's and helpers' threads below those of the thread that waits."""
        ranges = self.ranges
        for thread in self.adoption.threads:
            mine = np.flatnonzero(ranges.thread == thread)
            above = self.adoption.base(Intervals(thread, ranges.start_ns[mine], ranges.end_ns[mine]))
            home[mine] = self.forest.graft(np.maximum(above, -1), home[mine])

    def _attribution(self, placed: Placed, home: Int32s, made: list[Int32s]) -> Attribution:
        launch = self.trace.work.launch
        call = np.zeros(len(self.trace.launches), np.int64)
        call[self.calls.row] = np.arange(len(self.calls))
        known = launch >= 0
        node, how = np.full(len(launch), -1, np.int32), np.full(len(launch), OUTSIDE, np.uint8)
        unfit = np.zeros(len(launch), np.bool_)
        at = call[launch[known]]
        node[known], how[known] = placed.node[at], placed.how[at].astype(np.uint8)
        unfit[known] = placed.unfit[at]
        node, captured = self._led_to_captures(node, how)
        linked = self._holding(np.concatenate([node, self.memory_node]))
        unmade = np.ones(len(linked), np.bool_)
        for nodes in made:
            unmade[nodes[nodes >= 0]] = False
        linked[unmade] = False
        of_nodes = self._of_nodes(linked, captured)
        linked[captured] = True
        return Attribution(
            self.trace, self.facts, self.ranges, self.forest, home, node, how,
            self._work_phase(node, of_nodes.phase), of_nodes.phase, of_nodes.warm_up, of_nodes.recompute, linked,
            unfit, self.rules, self.memory_node,
            self._phase(self.allocated, self.memory_node, of_nodes.phase),
        )  # fmt: skip

    def _led_to_captures(self, node: Int32s, how: NDArray[np.uint8]) -> tuple[Int32s, Int32s]:
        """Assign CUDA graphs' replays to the ranges of their capture; return all work's nodes, and new ones."""
        if self.trace.captures is None or not len(self.nesting.home):
            return node, np.empty(0, np.int32)
        captured = Captured(self.trace.captures, self.ranges, self.nesting, self.facts)
        led = how != AMBIGUOUS
        node = captured.lead(node, led)
        how[led] = CAPTURED
        return node, captured.made

    def _holding(self, node: Int32s) -> Bools:
        """Return which nodes contain work, at any depth: bool (nodes,)."""
        holding = np.zeros(len(self.forest), np.bool_)
        holding[node[node >= 0]] = True
        for nodes in self.forest.by_depth()[:0:-1]:
            holding[self.forest.parent[nodes[holding[nodes]]]] = True
        return holding

    def _of_nodes(self, linked: Bools, captured: Int32s) -> OfNodes:
        said = Said.of(self.trace, self.facts, self.ranges).at(self.forest, linked)
        engine = np.isin(self.ranges.thread, self.known)[self.forest.range]
        engine[captured] = False  # the phase of a replay is its launch's, whichever thread captured it
        return of_nodes(self.forest, said, linked, engine)

    def _work_phase(self, node: Int32s, node_phase: Int8s) -> Int8s:
        """Return the phase of each piece of work, by its node, its thread or its place in time: int8 (work,)."""
        launches, launch = self.trace.launches, self.trace.work.launch
        phase = _phase_of(node, node_phase)
        undecided = np.flatnonzero((phase == NOTHING) & (launch >= 0))
        calls, back = grouped(launch[undecided])
        spots = Spots(launches.thread[calls], launches.start_ns[calls], launches.end_ns[calls])
        phase[undecided] = self._phase_by_place(spots)[back]
        return phase

    def _phase(self, spots: Spots, node: Int32s, node_phase: Int8s) -> Int8s:
        """Return the phase of moments, by their nodes, threads or places in time: int8 (moments,)."""
        phase = _phase_of(node, node_phase)
        undecided = np.flatnonzero(phase == NOTHING)
        phase[undecided] = self._phase_by_place(spots.take(undecided))
        return phase

    def _phase_by_place(self, spots: Spots) -> Int8s:
        """Return the phase of what no range has one for, by its thread or its place in time: int8 (spots,)."""
        found = np.full(len(spots), NOTHING, np.int8)
        if len(spots) and self.unnamed:
            found = self.unnamed.phase(spots.thread, spots.start_ns, spots.end_ns)
        found[np.isin(spots.thread, self.known)] = IN_BACKWARD
        return found


def _phase_of(node: Int32s, node_phase: Int8s) -> Int8s:
    """Return the phase of each node, NOTHING for -1."""
    return np.append(node_phase, np.int8(NOTHING))[node]
