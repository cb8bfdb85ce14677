"""Which ranges caused each piece of GPU work: the answer this project exists for.

A range owns the work launched inside it: the whole launch call lies inside the range. The path of a piece of
work is every such range, in the order of their starts: on the launching thread (*own*); continued upward into
the ranges of the thread that waits in backward (*adopted*); or led to the forward operator of the same sequence
number (*linked*). docs/attribution.md draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analysis.adoption import AMBIGUOUS as NO_DECISION
from analysis.adoption import Adoption
from analysis.calls import working_calls
from analysis.links import LinkRule, Links
from analysis.nesting import Forest, Nesting
from analysis.trace import Bools, Int32s, Ranges, Trace
from analysis.user_ranges import NameFacts, name_facts, nested_ranges, of_names, operator_ranges
from analysis.vocabulary import BACKWARD, OTHER, PHASES

HOW = ("own", "adopted", "linked", "outside", "ambiguous")
OWN, ADOPTED, LINKED, OUTSIDE, AMBIGUOUS = range(len(HOW))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as a parent; the defaults are this project's, `LAUNCHING_THREAD` is what nsys does."""

    domains: Sequence[str] = ()  # the only NVTX domains to take; empty: all but libraries'
    operators: str = "auto"  # PyTorch's operator ranges: "keep", "hide", or show those in no other range
    adopt: bool = True
    link: bool = True
    step: str = ""  # what the measured steps are called, if not by the usual names; see vocabulary.step_matcher


@dataclass(frozen=True, slots=True)
class Attribution:
    """Every piece of work with its node, and the forest of nodes.

    `ranges` are those that paths are made of; `forest.range` are positions among them; `home[r]` is the node
    of range r itself, -1 for one that is not shown.
    `node` and `how` (a position in HOW) have one entry per piece of work; node is -1 for work in no range.
    """

    trace: Trace
    facts: NameFacts
    ranges: Ranges
    forest: Forest
    home: Int32s
    node: Int32s
    how: NDArray[np.uint8]
    phase: NDArray[np.int8]  # per piece of work, a position in PHASES
    node_phase: NDArray[np.int8]  # per node
    warm_up: Bools  # per node
    linked: Bools  # per node: a place in a forward path that backward work was led to
    rules: Rules = field(default_factory=Rules)


def attribute(trace: Trace, rules: Rules | None = None) -> Attribution:
    """Attribute all work of a trace to its ranges.

    Raises UsageError where the rules name a domain or a step that the trace does not have.
    """
    return _Attributing(trace, rules or Rules()).result()


class _Attributing:
    def __init__(self, trace: Trace, rules: Rules) -> None:
        self.trace, self.rules = trace, rules
        self.facts = name_facts(trace, rules.step)
        nested = nested_ranges(trace, rules.domains)
        self.operator = nested & operator_ranges(self.facts, trace.ranges)
        chosen = nested if rules.operators == "keep" else nested & ~self.operator
        self.ranges = trace.ranges if chosen.all() else trace.ranges.take(chosen)
        self.nesting = Nesting(self.ranges)
        self.forest = self.nesting.forest
        self.calls = working_calls(trace)
        self.adoption = Adoption(trace, self.facts, self.ranges, self.nesting, self.calls)
        self.linked_nodes = np.empty(0, np.int32)

    def result(self) -> Attribution:
        calls, home = self.calls, self.nesting.home.copy()
        with ThreadPoolExecutor(1) as pool:  # links are prepared from the trace alone, and numpy lets both run
            links = pool.submit(Links, self.trace, self.facts) if self.rules.link else None
            own = self.nesting.containing(calls.thread, calls.start_ns, calls.end_ns)
            base = np.full(len(calls), -1, np.int32)
            if self.rules.adopt and len(self.ranges):
                self._adopt(base, home)
        how = np.where(own >= 0, OWN, OUTSIDE)
        how[base >= 0], how[base == NO_DECISION] = ADOPTED, AMBIGUOUS
        base = np.maximum(base, -1)
        if links is not None:
            own, base = self._link(links.result(), own, base, how)
        node = self.forest.graft(base, own)
        node[how == AMBIGUOUS] = -1
        if self.rules.operators == "auto":
            home = self._show_stray_operators(node, how, home)
        return self._attribution(node, how.astype(np.uint8), home)

    def _show_stray_operators(self, node: Int32s, how: NDArray[np.int64], home: Int32s) -> Int32s:
        """Place calls that no range of the user's holds in PyTorch's operator ranges, where those do."""
        stray = np.flatnonzero(how == OUTSIDE)
        threads = np.unique(self.calls.thread[stray])
        operators = self.trace.ranges.take(self.operator & np.isin(self.trace.ranges.thread, threads))
        if not len(operators):
            return home
        nesting, calls = Nesting(operators), self.calls
        at = nesting.containing(calls.thread[stray], calls.start_ns[stray], calls.end_ns[stray])
        first = self.forest.append(nesting.forest, len(self.ranges))
        node[stray] = np.where(at >= 0, at + first, -1)
        how[stray[at >= 0]] = OWN
        inside = self.nesting.containing(operators.thread, operators.start_ns, operators.end_ns) >= 0
        self.ranges = self.ranges.followed_by(operators)
        return np.concatenate([home, np.where(inside, -1, nesting.home + first)]).astype(np.int32)

    def _adopt(self, base: Int32s, home: Int32s) -> None:
        """Fill in the base of the calls on autograd's threads, and hang those threads' own ranges under theirs."""
        calls, ranges = self.calls, self.ranges
        for thread in self.adoption.threads:
            mine = np.flatnonzero(calls.thread == thread)
            base[mine] = self.adoption.base(thread, calls.start_ns[mine], calls.end_ns[mine])
            mine = np.flatnonzero(ranges.thread == thread)
            above = self.adoption.base(thread, ranges.start_ns[mine], ranges.end_ns[mine])
            home[mine] = self.forest.graft(np.maximum(above, -1), home[mine])

    def _link(self, links: Links, own: Int32s, base: Int32s, how: NDArray[np.int64]) -> tuple[Int32s, Int32s]:
        """Lead backward work to its forward operator's ranges, where no range of its own says more."""
        if not links or not len(self.ranges):
            return own, base
        dropped = operator_ranges(self.facts, self.ranges) | of_names(self.facts.phase >= 0, self.ranges)
        rule = LinkRule(self.forest, dropped)
        unawaited = self._unawaited(own, base, how)
        own, base = self._link_in_phase(links, rule, own, base, how)
        own = self._link_unawaited(links, rule, own, how, unawaited)
        self.linked_nodes = np.concatenate(rule.made)
        return own, base

    def _link_in_phase(
        self, links: Links, rule: LinkRule, own: Int32s, base: Int32s, how: NDArray[np.int64]
    ) -> tuple[Int32s, Int32s]:
        """Lead calls whose phase is known to their forward operator on the thread of that phase."""
        eligible = np.flatnonzero(self._placed_by_phase_only(own, base))
        above = np.where(base[eligible] >= 0, base[eligible], own[eligible])
        forward = self._forward_nodes(links, eligible, self.ranges.thread[self.forest.range[above]])
        found = forward >= 0
        linked, target = eligible[found], rule.link(above[found], forward[found])
        how[linked] = LINKED
        adopted = base[linked] >= 0
        base[linked[adopted]], own[linked[~adopted]] = target[adopted], target[~adopted]
        return own, base

    def _link_unawaited(
        self, links: Links, rule: LinkRule, own: Int32s, how: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Int32s:
        """Lead calls that no thread waits for to their forward operator, if only one thread has it."""
        answers, node = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int32)
        for thread in links.forward_threads:
            here = self.trace.threads[thread].process
            same = np.array([other.process == here for other in self.trace.threads], np.bool_)[
                self.calls.thread[rows]
            ]
            forward = self._forward_nodes(links, rows, np.full(len(rows), thread, np.int32))
            answers += same & (forward >= 0)
            node = np.where(same & (forward >= 0), forward, node)
        found = answers == 1
        target = rule.alone(node[found])
        linked, target = rows[found][target >= 0], target[target >= 0]
        own[linked] = self.forest.graft(target, own[linked])
        how[linked] = LINKED
        return own

    def _forward_nodes(self, links: Links, rows: NDArray[np.int64], thread: Int32s) -> Int32s:
        """Return the node of each call's forward operator on the given thread; -1 without one."""
        calls, node = self.calls, np.full(len(rows), -1, np.int32)
        found, operators = links.forward_operators(
            calls.thread[rows], calls.start_ns[rows], calls.end_ns[rows], thread
        )
        node[found] = self.nesting.containing(operators.thread, operators.start_ns, operators.end_ns)
        return node

    def _unawaited(self, own: Int32s, base: Int32s, how: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the calls on autograd's threads that hang under nothing and have no range of the user's own."""
        own_count = self._inherited_count(~operator_ranges(self.facts, self.ranges))
        placed = (base >= 0) | (own_count[own] > 0) | (how == AMBIGUOUS)
        return np.flatnonzero(np.isin(self.calls.thread, self.adoption.known_threads) & ~placed)

    def _placed_by_phase_only(self, own: Int32s, base: Int32s) -> Bools:
        """Tell which calls have no range of the user's closer than the phase they run in."""
        own_count = self._inherited_count(~operator_ranges(self.facts, self.ranges))
        on_engine = (base >= 0) & ((own < 0) | (own_count[own] == 0))
        backward = self.facts.phase[self.ranges.name_id] == PHASES.index(BACKWARD)
        innermost = self.forest.range[own] if len(self.forest) else own
        in_phase = (base < 0) & (own >= 0) & (backward[innermost] if len(backward) else False)
        placed: Bools = on_engine | in_phase
        return placed

    def _inherited_count(self, flag: Bools) -> Int32s:
        """Count per node the ranges of its path that have the flag; one more entry for node -1."""
        count = np.append(flag[self.forest.range].astype(np.int32), 0)
        for nodes in self.forest.by_depth()[1:]:
            count[nodes] += count[self.forest.parent[nodes]]
        return count

    def _attribution(self, node: Int32s, how: NDArray[np.uint8], home: Int32s) -> Attribution:
        trace, launch = self.trace, self.trace.work.launch
        node_phase, warm_up = self._of_nodes()
        at = np.searchsorted(self.calls.row, launch) if len(self.calls) else np.zeros(len(launch), np.int64)
        known = launch >= 0
        work_node, work_how = np.full(len(launch), -1, np.int32), np.full(len(launch), OUTSIDE, np.uint8)
        work_node[known], work_how[known] = node[at[known]], how[at[known]]
        linked = np.zeros(len(self.forest), np.bool_)
        linked[self.linked_nodes] = True
        return Attribution(
            trace, self.facts, self.ranges, self.forest, home, work_node, work_how,
            self._work_phase(work_node, node_phase), node_phase, warm_up, linked, self.rules,
        )  # fmt: skip

    def _of_nodes(self) -> tuple[NDArray[np.int8], Bools]:
        """Return each node's phase, that of the nearest range that opens one, and whether it is in warm-up."""
        forest, name_id = self.forest, self.ranges.name_id
        phase = self.facts.phase[name_id][forest.range] if len(forest) else np.empty(0, np.int8)
        warm_up = self.facts.warm_up[name_id][forest.range] if len(forest) else np.empty(0, np.bool_)
        for nodes in forest.by_depth()[1:]:
            above = forest.parent[nodes]
            phase[nodes] = np.where(phase[nodes] >= 0, phase[nodes], phase[above])
            warm_up[nodes] |= warm_up[above]
        unnamed = self.linked_nodes[phase[self.linked_nodes] < 0]
        phase[unnamed] = PHASES.index(BACKWARD)
        return np.where(phase >= 0, phase, PHASES.index(OTHER)).astype(np.int8), warm_up

    def _work_phase(self, node: Int32s, node_phase: NDArray[np.int8]) -> NDArray[np.int8]:
        """Return the phase of each piece of work: its node's, else what its thread tells."""
        other, launch = PHASES.index(OTHER), self.trace.work.launch
        phase = np.full(len(node), other, np.int8)
        phase[node >= 0] = node_phase[node[node >= 0]]
        undecided = np.flatnonzero((phase == other) & (launch >= 0))
        thread = self.trace.launches.thread[launch[undecided]]
        phase[undecided[np.isin(thread, self.adoption.known_threads)]] = PHASES.index(BACKWARD)
        return phase
