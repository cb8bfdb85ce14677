"""Adoption: work on autograd's threads belongs to the ranges of the thread that called backward, and waits.

PyTorch runs backward on separate threads, on which the `backward` range of the model is not open. A launch
there is adopted by the thread of the same process that waits for it; so is one of a helper, such as the replicas'
threads of DataParallel, or NCCL's own while it sets up. docs/attribution.md defines which threads these are, and
which of several threads waits.

A thread waits for another when it has a range open, opens and closes none, and is inside no CUDA call. One CUDA
call that encloses the whole burst is allowed to the only thread that has a backward range open.

Each thread has a list of candidates that could wait for it. The first candidates of all threads are looked at
together, then the second ones, so that many threads take no longer than one with as many calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..moments import Clock
from ..support.small_numbers import bounds, grouped, grouped_rows, looked_up, positions_between
from ..support.threads import at_once, positions
from ..trace import Bools, Columns, Int32s, Int64s, Spots, Trace, marked
from .nesting import Nesting
from .thread_facts import ThreadFacts
from .user_ranges import of_titles

# A nameless thread may launch this share of its calls while no thread waits, and still be autograd's.
MAX_CONTRADICTIONS = 0.01

NOBODY = -1
AMBIGUOUS = -2
BEFORE_ALL = -(2**63)


@dataclass(frozen=True, slots=True)
class Watched(Columns):
    """Candidates during intervals of threads that they could wait for: one row an interval, `row`.

    `stretch` numbers the stretches between two turns of a candidate; it is -1 where that was inside a call.
    """

    row: Int64s
    thread: Int32s
    candidate: Int32s
    waits: Bools
    node: Int32s
    in_backward: Bools
    stretch: Int64s


class Adoption:
    """Finds the node that becomes the parent of calls and ranges on autograd's threads."""

    def __init__(self, facts: ThreadFacts, nesting: Nesting) -> None:
        self.facts = facts
        self._nesting = nesting
        ranges = facts.ranges
        self._opens_backward = of_titles(facts.names.backward_phase, ranges)
        self._below_backward = np.empty(0, np.bool_)
        self._first_ns, self._last_ns = bounds(
            ranges.thread, ranges.start_ns, ranges.end_ns, len(facts.trace.threads)
        )
        self._turns = _Turns(facts.trace, nesting.clock)

    @cached_property
    def threads(self) -> Int32s:
        """The threads, among those that launched work, whose work and ranges others can adopt, in order."""
        facts = self.facts
        others = facts.launching - facts.workers - facts.mains
        autograds = others & facts.of_autograd
        behaving = self._behaving(others - autograds - facts.independent)
        return np.array(sorted(autograds | behaving), np.int32)

    @cached_property
    def known_threads(self) -> Int32s:
        """Those of `threads` that are autograd's by name or by the engine's ranges, not only by behaviour."""
        return self.threads[self._marked(self.facts.of_autograd)[self.threads]]

    def waiting_node(self, during: Spots) -> Int32s:
        """Return the node of the thread that waits for each interval, NOBODY or AMBIGUOUS: int32 (intervals,).

        Nobody waits for threads that are not among `threads`.
        """
        is_adopted = self._marked(self.threads)
        rows = np.flatnonzero(is_adopted[during.thread])
        spots = during.take(rows)
        node = np.full(len(spots), NOBODY, np.int32)
        best = np.full(len(spots), -1, np.int8)
        for waiting in self._waiting(spots):
            row = waiting.row
            rank = self._rank(waiting)
            best_before = best[row]
            not_above = np.where(rank == best_before, np.int32(AMBIGUOUS), node[row])
            node[row] = np.where(rank > best_before, waiting.node, not_above)
            best[row] = np.maximum(best_before, rank)
        undecided = np.flatnonzero(node == AMBIGUOUS)
        if len(undecided):
            node[undecided] = self._outlasting(spots.take(undecided), best[undecided])
        waiting_node = np.full(len(during), NOBODY, np.int32)
        waiting_node[rows] = node
        return waiting_node

    def _outlasting(self, spots: Spots, best: NDArray[np.int8]) -> Int32s:
        """Return the node of the candidate of the best rank that outlasts the others, or AMBIGUOUS: int32 (n,).

        It waited for more calls of the burst, and each of the others was busy during some of these.
        """
        node = np.full(len(spots), AMBIGUOUS, np.int32)
        longest = np.zeros(len(spots), np.int64)
        winner = np.full(len(spots), -1, np.int32)
        is_alone = np.zeros(len(spots), np.bool_)
        stretch = np.full(len(spots), -1, np.int64)
        calls = self._calls_of(spots.thread)
        for tied, of_calls in zip(self._tied(spots, best), self._states(calls), strict=True):
            row = tied.row
            count = _calls_in_stretch(of_calls, tied)
            longest_before = longest[row]
            is_longer = count > longest_before
            stays_alone = is_alone[row] & (count < longest_before)
            is_alone[row] = is_longer | stays_alone
            row = row[is_longer]
            leading = tied.take(is_longer)
            longest[row] = count[is_longer]
            winner[row] = leading.candidate
            node[row] = leading.node
            stretch[row] = leading.stretch
        wins = np.flatnonzero(is_alone)
        burst_of_row = np.full(len(spots), -1, np.int64)
        call, burst, burst_of_row[wins] = self._bursts(calls, spots.thread[wins], winner[wins], stretch[wins])
        for tied, of_calls in zip(self._tied(spots, best), self._states(calls), strict=True):
            was_busy = np.ones(len(calls), np.bool_)
            was_busy[of_calls.row[of_calls.waits]] = False
            was_busy_in = marked(burst[was_busy[call]], len(spots))
            is_rival = is_alone[tied.row] & (tied.candidate != winner[tied.row])
            row = tied.row[is_rival]
            is_alone[row] = was_busy_in[burst_of_row[row]]
        return np.where(is_alone, node, np.int32(AMBIGUOUS))

    def _bursts(
        self, calls: Spots, thread: Int32s, winner: Int32s, stretch: Int64s
    ) -> tuple[Int64s, Int64s, Int64s]:
        """Return the calls in bursts of some threads, the burst of each, and that of each thread's stretch.

        A burst is the calls of a thread in one stretch of the candidate `winner`.
        """
        (pair_thread, pair_winner), _ = grouped_rows(thread, winner)
        order = np.argsort(calls.thread, kind="stable")
        ordered_thread = calls.thread[order]
        first = np.searchsorted(ordered_thread, pair_thread, "left")
        last = np.searchsorted(ordered_thread, pair_thread, "right")
        pair, place = positions_between(first, last)
        call = order[place]
        call_winner = pair_winner[pair]
        stretch_of_call = self._turns.stretch(calls.take(call).on(call_winner))
        threads = np.append(thread, pair_thread[pair])
        winners = np.append(winner, call_winner)
        stretches = np.append(stretch, stretch_of_call)
        _, burst = grouped_rows(threads, winners, stretches)
        burst_of_call = burst[len(thread) :]
        bursts, burst_of_row = grouped(burst[: len(thread)])
        place = np.searchsorted(bursts, burst_of_call)
        in_bursts = looked_up(bursts, place, -1) == burst_of_call
        return call[in_bursts], place[in_bursts], burst_of_row

    def _waiting(self, spots: Spots) -> Iterator[Watched]:
        """Yield the candidates that wait during some intervals, in the order of the threads' lists."""
        of_autograd = self._marked(self.facts.of_autograd)
        adopted = self._marked(self.threads)
        for watched in self._states(spots):
            # Threads that are adopted by behaviour, such as two workers in turn, only seem to wait for each other.
            can_wait = of_autograd[watched.thread] | ~adopted[watched.candidate]
            rows = np.flatnonzero(watched.waits & can_wait)
            yield watched.take(rows)

    def _tied(self, spots: Spots, best: NDArray[np.int8]) -> Iterator[Watched]:
        """Yield the candidates that wait and have the best rank."""
        for waiting in self._waiting(spots):
            is_best = self._rank(waiting) == best[waiting.row]
            yield waiting.take(np.flatnonzero(is_best))

    def _rank(self, waiting: Watched) -> NDArray[np.int8]:
        """Rank candidates by where they have worked, and by their phase: int8 (rows,)."""
        devices = self.facts.devices
        devices_of_candidate = devices[waiting.candidate]
        here = (devices_of_candidate & devices[waiting.thread]) != 0
        elsewhere = (devices_of_candidate != 0) & ~here
        rank: NDArray[np.int8] = (4 * ~elsewhere + 2 * waiting.in_backward + here).astype(np.int8)
        return rank

    def _behaving(self, threads: frozenset[int]) -> frozenset[int]:
        """Return those of some threads that behave as if others waited for them."""
        facts = self.facts
        is_examined = self._marked(threads)
        calls = facts.calls.take(is_examined[facts.calls.thread])
        launches = self._marked(facts.launching)
        launches_kernels = self._marked(facts.launching_kernels)
        could = self._have_candidates(launches)
        served, watched, awaited, backward = np.zeros((4, len(calls)), np.bool_)
        for state in self._states(calls):
            # Another always waits for NCCL's own, inside a call of NCCL's.
            is_for_nccl = state.waits & ~launches_kernels[state.thread]
            for_nccl = state.take(np.flatnonzero(is_for_nccl))
            on_candidate = calls.take(for_nccl.row).on(for_nccl.candidate)
            served[for_nccl.row] |= facts.in_nccl(on_candidate)
            judge = state.take(launches[state.candidate] | ~could[state.thread])
            row = judge.row
            watched[row] |= judge.node >= 0
            awaited[row] |= judge.waits
            backward[row] |= judge.waits & judge.in_backward

        def count(some: Bools) -> Int64s:
            return np.bincount(calls.thread[some], minlength=len(is_examined))

        contradictions = count(watched & ~awaited)
        all_calls = np.ones_like(watched)
        most = MAX_CONTRADICTIONS * count(all_calls)
        always = (count(watched) > 0) & (contradictions <= most)
        in_backward = always & (count(awaited & backward) > 0)
        elsewhere = always & (count(awaited & ~backward) > 0)
        # Where autograd's threads are known, others are helpers of the program.
        phased = self._marked(facts.phased)
        is_helper = self._marked(facts.with_autograd)
        as_autograd = np.where(phased, in_backward & ~elsewhere, in_backward | elsewhere)
        as_helper = ~phased & elsewhere & ~in_backward
        behaves = np.where(is_helper, as_helper, as_autograd)
        behaves = np.where(launches_kernels, behaves, count(~served) == 0)
        return frozenset(np.flatnonzero(is_examined & behaves).tolist())

    def _have_candidates(self, some: Bools) -> Bools:
        """Mark the threads that have one of some threads in their lists: bool (threads,)."""
        candidates = self.facts.candidates
        thread = np.arange(len(some), dtype=np.int32)
        count = candidates.count(thread)
        have = np.zeros(len(some), np.bool_)
        for number in range(int(count.max(initial=0))):
            listed = np.flatnonzero(count > number)
            candidate = candidates.at(thread[listed], number)
            have[listed] |= some[candidate]
        return have

    def _marked(self, threads: Collection[int]) -> Bools:
        return marked(np.array([*threads], np.int32), len(self.facts.trace.threads))

    def _calls_of(self, thread: Int32s) -> Spots:
        """Return the calls of some threads that caused work."""
        calls = self.facts.calls
        is_caller = marked(thread, len(self.facts.trace.threads))
        return calls.take(is_caller[calls.thread])

    def _states(self, spots: Spots) -> Iterator[Watched]:
        """Yield the candidates of some intervals that have a range open, in the order of the threads' lists."""
        candidates = self.facts.candidates
        count = candidates.count(spots.thread)
        in_backward = np.full(len(spots), -1)
        for number in range(int(count.max(initial=0))):
            row = np.flatnonzero(count > number)
            candidate = candidates.at(spots.thread[row], number)
            is_among = self._first_ns[candidate] <= spots.start_ns[row]
            is_among &= spots.end_ns[row] <= self._last_ns[candidate]
            row = row[is_among]
            candidate = candidate[is_among]
            state = self._state(row, candidate, spots.take(row))
            inside = state.take(np.flatnonzero(state.in_backward & ~state.waits))
            if len(inside):
                new = inside.row[in_backward[inside.row] < 0]
                in_backward[new] = self._count_in_backward(spots.take(new))
                is_alone = in_backward[inside.row] == 1
                alone = inside.take(np.flatnonzero(is_alone))
                is_enclosed = self._enclosed(alone, spots.take(alone.row))
                enclosed_row = alone.row[is_enclosed]
                state.waits[np.isin(state.row, enclosed_row)] = True
            yield state.take(np.flatnonzero(state.node >= 0))

    def _state(self, row: Int64s, candidate: Int32s, spots: Spots) -> Watched:
        on_candidate = spots.on(candidate)
        tasks: list[Callable[[], Any]] = [
            partial(self._turns.stretch, on_candidate),
            partial(self._nesting.containing, on_candidate),
        ]
        stretch, node = at_once(tasks, len(row))
        waits = (stretch >= 0) & (node >= 0)
        return Watched(row, spots.thread, candidate, waits, node, self._is_backward(node), stretch)

    def _enclosed(self, alone: Watched, spots: Spots) -> Bools:
        """Mark the intervals around whose whole burst a candidate is inside one call, bool (intervals,)."""
        candidate = np.full(len(self.facts.trace.threads), -1, np.int32)
        candidate[alone.thread] = alone.candidate
        calls = self._calls_of(alone.thread)
        during = spots.on(alone.candidate)
        calls_on_candidate = calls.on(candidate[calls.thread])
        return self._turns.enclosed(during, calls_on_candidate, alone.thread, calls.thread)

    def _count_in_backward(self, spots: Spots) -> Int64s:
        """Count the candidates that have a backward range open during each interval: int64 (intervals,)."""
        candidates = self.facts.candidates
        in_backward = np.zeros(len(spots), np.int64)
        count = candidates.count(spots.thread)
        for number in range(int(count.max(initial=0))):
            row = np.flatnonzero(count > number)
            candidate = candidates.at(spots.thread[row], number)
            node = self._nesting.containing(spots.take(row).on(candidate))
            in_backward[row] += self._is_backward(node)
        return in_backward

    def _is_backward(self, node: Int32s) -> Bools:
        """Return which nodes are in a range that opens the backward phase."""
        forest = self._nesting.forest
        if len(self._below_backward) != len(forest) + 1:
            self._below_backward = forest.below(self._opens_backward[forest.range])
        return self._below_backward[node]


def _calls_in_stretch(of_calls: Watched, spots: Watched) -> Int64s:
    """Count the calls of each interval's thread in the candidate's stretch around it: int64 (intervals,)."""
    threads = np.append(spots.thread, of_calls.thread)
    stretches = np.append(spots.stretch, of_calls.stretch)
    _, group = grouped_rows(threads, stretches)
    group_of_spot = group[: len(spots)]
    group_of_call = group[len(spots) :]
    calls = np.bincount(group_of_call, minlength=len(group))
    return np.where(spots.stretch >= 0, calls[group_of_spot], 0)


class _Turns:
    """The turns of all threads: where they open and close ranges, and when they are inside a CUDA call.

    Intervals are on the threads whose turns are asked for; their times are on one clock for all threads.
    """

    def __init__(self, trace: Trace, clock: Clock) -> None:
        ranges = trace.ranges
        launches = trace.launches
        self._clock = clock
        range_start = clock.at(ranges.thread, ranges.start_ns)
        range_end = clock.at(ranges.thread, ranges.end_ns)
        self._starts = np.sort(range_start, kind="stable")
        self._ends = np.sort(range_end, kind="stable")
        call_start = clock.at(launches.thread, launches.start_ns)
        call_end = clock.at(launches.thread, launches.end_ns)
        order = np.argsort(call_start, kind="stable")
        self._call_start = call_start[order]
        self._call_end = np.maximum.accumulate(call_end[order])

    def stretch(self, during: Spots) -> Int64s:
        """Return the number of the stretch around each interval; -1 if the thread was active: int64 (n,)."""
        number, calls = self._between_turns(during)
        begun = np.flatnonzero((number >= 0) & (calls > 0))
        start = self._clock.at(during.thread[begun], during.start_ns[begun])
        last_end = self._call_end[calls[begun] - 1]
        is_in_call = last_end >= start
        number[begun[is_in_call]] = -1
        return number

    def enclosed(self, during: Spots, calls: Spots, thread: Int32s, caller: Int32s) -> Bools:
        """Return which intervals are in one call of their thread that encloses the whole burst around them.

        The burst is those of `calls` between the same two turns. `thread` is the one that each interval was on
        before, `caller` that of each call.
        """
        number, begun = self._between_turns(during)
        number_of_call, _ = self._between_turns(calls)
        threads = np.append(thread, caller)
        stretches = np.append(number, number_of_call)
        _, burst = grouped_rows(threads, stretches)
        burst_of_call = burst[len(during) :]
        last_ns = np.full(len(burst), BEFORE_ALL)
        np.maximum.at(last_ns, burst_of_call, calls.end_ns)
        last_in_burst_ns = last_ns[burst[: len(during)]]
        end_ns = np.maximum(during.end_ns, last_in_burst_ns)
        end = self._clock.at(during.thread, end_ns)
        inside: Bools = (number >= 0) & (begun > 0)
        last_call = begun[inside] - 1
        inside[inside] = self._call_end[last_call] >= end[inside]
        return inside

    def _between_turns(self, during: Spots) -> tuple[Int64s, Int64s]:
        """Return the stretch between two turns of each interval, -1 for none, and the number of calls begun."""
        start = self._clock.at(during.thread, during.start_ns)
        end = self._clock.at(during.thread, during.end_ns)
        opened, no_open = _none_within(self._starts, start, end)
        closed, no_close = _none_within(self._ends, start, end)
        calls, no_call = _none_within(self._call_start, start, end)
        most_turns = 2 * len(self._starts) + 1
        number = calls * most_turns + opened + closed
        is_quiet = no_open & no_close & no_call
        return np.where(is_quiet, number, -1), calls


def _none_within(times_ns: Int64s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Bools]:
    """Return how many of some times in order are before each interval, and whether none is in it."""
    before = positions(times_ns, start_ns, "left")
    beyond = looked_up(times_ns, before, 2**63 - 1) > end_ns
    if (end_ns < start_ns).any():  # as damaged calls do; then none may be between the two
        beyond &= np.append(BEFORE_ALL, times_ns)[before] <= end_ns
    return before, beyond
