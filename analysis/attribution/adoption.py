"""Adoption: work on autograd's threads belongs to the ranges of the thread that called backward, and waits.

PyTorch runs backward on separate threads, on which the `backward` range of the model is not open. A launch
there is adopted by the thread of the same process that waits for it; so is one of a helper, such as the replicas'
threads of DataParallel, or NCCL's own while it sets up. docs/attribution.md defines which threads these are, and
which of several threads waits.

A thread waits for another when it has a range open, opens and closes none, and is inside no CUDA call. One CUDA
call that encloses the whole burst is allowed to the only thread that has a backward range open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from ..support.threads import at_once, positions
from ..trace import Bools, Int32s, Int64s, Spots, Trace
from .nesting import Nesting
from .thread_facts import ThreadFacts
from .user_ranges import of_titles

# A nameless thread may launch this share of its calls while no thread waits, and still be autograd's.
MAX_CONTRADICTIONS = 0.01

NOBODY, AMBIGUOUS = -1, -2


@dataclass(frozen=True, slots=True)
class Waits:
    """The state of a thread per interval of another: whether it waited, in which node, in which stretch.

    `stretch` numbers the stretches between two turns of the thread; it is -1 where the thread was inside a call.
    """

    waits: Bools
    node: Int32s
    in_backward: Bools
    stretch: Int64s


class Adoption:
    """Finds the node that becomes the parent of calls and ranges on autograd's threads."""

    def __init__(self, facts: ThreadFacts, nesting: Nesting) -> None:
        self.facts, self._nesting = facts, nesting
        self._opens_backward = of_titles(facts.names.backward_phase, facts.ranges)
        self._turns_of = cache(partial(_Turns, facts.trace))
        self._for_calls: dict[tuple[int, int], Waits] = {}

    @cached_property
    def threads(self) -> tuple[int, ...]:
        """The threads, among those that launched work, whose work and ranges others can adopt."""
        return tuple(thread for thread in sorted(self.facts.launching) if self._is_adopted(thread))

    @cached_property
    def known_threads(self) -> tuple[int, ...]:
        """Those of `threads` that are autograd's by name or by the engine's ranges, not only by behaviour."""
        return tuple(thread for thread in self.threads if thread in self.facts.of_autograd)

    def waiting_node(self, thread: int, during: Spots) -> Int32s:
        """Return the node of the thread that waits for each interval, NOBODY or AMBIGUOUS: int32 (intervals,)."""
        candidates = self.facts.candidates(thread)
        if thread not in self.facts.of_autograd:
            # Threads that are adopted by behaviour, such as two workers in turn, only seem to wait for each other.
            candidates = [other for other in candidates if other not in self.threads]
        best, node = np.full(len(during), -1, np.int64), np.full(len(during), NOBODY, np.int32)
        ranked: dict[int, tuple[Waits, Int64s]] = {}
        devices = self.facts.devices
        for other in candidates:
            waits = self._waits(other, thread, during)
            if waits.waits.any():
                # By where the thread that waits has worked, and its phase.
                here = bool(devices[other] & devices[thread])
                elsewhere = bool(devices[other]) and not here
                rank = np.where(waits.waits, 4 * (not elsewhere) + 2 * waits.in_backward + here, -1)
                node = np.where(rank > best, waits.node, np.where((rank == best) & waits.waits, AMBIGUOUS, node))
                best = np.maximum(rank, best)
                ranked[other] = waits, rank
        undecided = np.flatnonzero(node == AMBIGUOUS)
        tied = {other: waits for other, (waits, rank) in ranked.items() if (rank == best)[undecided].any()}
        in_tie = {other: (ranked[other][1] == best)[undecided] for other in tied}
        for candidate, waits in tied.items():  # one that waited for all of the burst wins over those that did not
            wins = in_tie[candidate].copy()
            for other in tied.keys() - {candidate}:
                wins &= ~in_tie[other] | self._outlasts(candidate, other, thread, undecided, tied)
            node[undecided[wins]] = waits.node[undecided[wins]]
        return node.astype(np.int32)

    def _outlasts(self, candidate: int, other: int, thread: int, rows: Int64s, tied: dict[int, Waits]) -> Bools:
        """Return the rows whose longer burst the candidate waited for while the other was busy for some of it."""
        a, b = self._for_calls_of(thread, candidate), self._for_calls_of(thread, other)
        busy = np.unique(a.stretch[(a.stretch >= 0) & ~b.waits])
        candidate_stretch, other_stretch = tied[candidate].stretch[rows], tied[other].stretch[rows]
        longer = _count_of(a.stretch, candidate_stretch) > _count_of(b.stretch, other_stretch)
        return longer & np.isin(candidate_stretch, busy)

    def _is_adopted(self, thread: int) -> bool:
        facts = self.facts
        if thread in facts.workers | facts.mains:
            return False
        if thread in facts.of_autograd:
            return True
        if thread in facts.independent:
            return False
        if thread not in facts.launching_kernels:  # another always waits for NCCL's own, inside a call of NCCL's
            calls = self._calls(thread)
            served = np.zeros(len(calls), np.bool_)
            for other in facts.candidates(thread):
                served |= self._for_calls_of(thread, other).waits & facts.in_nccl(calls.on(other))
            return bool(served.all())
        awaited = self._always_awaited(thread)
        if (
            facts.trace.threads[thread].process in facts.processes_with_autograd
        ):  # a helper of the program's, and not autograd's
            return thread not in facts.phased and awaited == {False}
        return bool(awaited) if thread not in facts.phased else awaited == {True}

    def _always_awaited(self, thread: int) -> set[bool]:
        """Return where the thread was awaited: in backward (True), elsewhere (False); empty unless always."""
        candidates = self.facts.candidates(thread)
        working = [other for other in candidates if other in self.facts.launching]
        waits_of_candidates = [self._for_calls_of(thread, other) for other in working or candidates]
        if not waits_of_candidates:
            return set()
        awaited = np.any([waits.waits for waits in waits_of_candidates], axis=0)
        watched = np.any([waits.node >= 0 for waits in waits_of_candidates], axis=0)
        if not watched.any() or (watched & ~awaited).sum() > MAX_CONTRADICTIONS * len(watched):
            return set()
        backward = np.any([waits.waits & waits.in_backward for waits in waits_of_candidates], axis=0)
        return set(backward[awaited].tolist())

    def _calls(self, thread: int) -> Spots:
        """Return a thread's calls that caused work."""
        return self.facts.calls.take(self.facts.calls.thread == thread)

    def _for_calls_of(self, thread: int, waiting: int) -> Waits:
        """Return the state of a thread during each call of another."""
        if (waiting, thread) not in self._for_calls:
            self._for_calls[waiting, thread] = self._waits(waiting, thread, self._calls(thread))
        return self._for_calls[waiting, thread]

    def _waits(self, waiting: int, thread: int, during: Spots) -> Waits:
        """Return the state of a thread during each interval of another."""
        turns = self._turns_of(waiting)
        tasks: list[Callable[[], Any]] = [partial(turns.stretch, during), partial(self._open, waiting, during)]
        stretch, node = at_once(tasks, len(during))
        in_backward = self._in_backward(node)
        waits: Bools = (stretch >= 0) & (node >= 0)
        inside = np.flatnonzero(in_backward & ~waits)
        if len(inside):
            part = during.take(inside)
            others_in_backward = np.zeros(len(part), np.bool_)
            for other in self.facts.candidates(thread):
                if other != waiting:
                    others_in_backward |= self._in_backward(self._open(other, part))
            waits[inside] = turns.enclosed(part, self._calls(thread)) & ~others_in_backward
        return Waits(waits, node, in_backward, stretch)

    def _open(self, thread: int, during: Spots) -> Int32s:
        return self._nesting.containing(during.on(thread))

    def _in_backward(self, node: Int32s) -> Bools:
        """Return which nodes are in a range that opens the backward phase."""
        forest = self._nesting.forest
        inside = np.zeros(len(node), np.bool_)
        while (node >= 0).any():
            here = node >= 0
            inside[here] |= self._opens_backward[forest.range[node[here]]]
            node = forest.above(node)
        return inside


def _count_of(values: Int64s, targets: Int64s) -> Int64s:
    """Count each target among the non-negative values: int64 (targets,)."""
    ordered = np.sort(values[values >= 0])
    return np.searchsorted(ordered, targets, "right") - np.searchsorted(ordered, targets, "left")


class _Turns:
    """The turns of a thread: where it opens and closes ranges, and when it is inside a CUDA call."""

    def __init__(self, trace: Trace, thread: int) -> None:
        ranges, launches = trace.ranges, trace.launches
        range_of_thread = ranges.thread == thread
        self._starts = ranges.start_ns[range_of_thread]  # in order, and their ends nearly so
        self._ends = np.sort(ranges.end_ns[range_of_thread], kind="stable")
        launch_of_thread = launches.thread == thread
        order = np.argsort(launches.start_ns[launch_of_thread], kind="stable")
        self._call_start = launches.start_ns[launch_of_thread][order]
        self._call_end = np.maximum.accumulate(launches.end_ns[launch_of_thread][order])

    def stretch(self, during: Spots) -> Int64s:
        """Return the number of the stretch around each interval; -1 if the thread was active: int64 (n,)."""
        number, calls = self._between_turns(during.start_ns, during.end_ns)
        begun = (number >= 0) & (calls > 0)
        number[begun] = np.where(self._call_end[calls[begun] - 1] < during.start_ns[begun], number[begun], -1)
        return number

    def enclosed(self, during: Spots, calls: Spots) -> Bools:
        """Return which intervals are in one call of this thread that encloses the whole burst around them.

        The burst is those of `calls` between the same two turns.
        """
        number, begun = self._between_turns(during.start_ns, during.end_ns)
        burst, _ = self._between_turns(calls.start_ns, calls.end_ns)
        order = np.argsort(burst, kind="stable")
        distinct, first = np.unique(burst[order], return_index=True)
        last = np.maximum.reduceat(calls.end_ns[order], first) if len(order) else calls.end_ns
        end = during.end_ns
        if len(distinct):
            position = np.minimum(np.searchsorted(distinct, number), len(distinct) - 1)
            end = np.where(distinct[position] == number, np.maximum(end, last[position]), end)
        inside: Bools = (number >= 0) & (begun > 0)
        inside[inside] = self._call_end[begun[inside] - 1] >= end[inside]
        return inside

    def _between_turns(self, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
        """Return the stretch between two turns of each interval, -1 for none, and the number of calls begun."""
        opened, no_open = _none_within(self._starts, start_ns, end_ns)
        closed, no_close = _none_within(self._ends, start_ns, end_ns)
        calls, no_call = _none_within(self._call_start, start_ns, end_ns)
        number = calls * (2 * len(self._starts) + 1) + opened + closed
        return np.where(no_open & no_close & no_call, number, -1), calls


def _none_within(times_ns: Int64s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Bools]:
    """Return how many of some times in order are before each interval, and whether none is in it."""
    before = positions(times_ns, start_ns, "left")
    beyond = np.append(times_ns, 2**63 - 1)[before] > end_ns
    if (end_ns < start_ns).any():  # as damaged calls do; then none may be between the two
        beyond &= np.append(-(2**63), times_ns)[before] <= end_ns
    return before, beyond
