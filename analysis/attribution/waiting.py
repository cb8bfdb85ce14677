"""When a thread waits for another: it has a range open, opens and closes none, and is inside no CUDA call.

One CUDA call that encloses the whole burst is allowed to the only thread that has a backward range open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..support.threads import at_once, positions
from ..trace import Bools, Calls, Int32s, Int64s, Ranges, Trace
from .nesting import Nesting
from .thread_facts import ThreadFacts
from .user_ranges import NameFacts, of_titles


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals on one thread: calls, or ranges."""

    thread: int
    start_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Waits:
    """The state of a thread per interval of another: whether it waited, in which node, in which stretch.

    `stretch` numbers the stretches between two turns of the thread; it is -1 where the thread was inside a call.
    """

    waits: Bools
    node: Int32s
    in_backward: Bools
    stretch: Int64s


class Waiting:
    """Finds whether threads wait for the intervals of another."""

    def __init__(
        self, trace: Trace, facts: NameFacts, ranges: Ranges, nesting: Nesting, calls: Calls, threads: ThreadFacts
    ) -> None:
        self._trace, self._nesting = trace, nesting
        self._calls, self.threads = calls, threads
        self._in_backward = of_titles(facts.backward_phase, ranges)
        self._quiet: dict[int, _Quiet] = {}
        self._for_calls: dict[tuple[int, int], Waits] = {}

    def calls(self, thread: int) -> Intervals:
        """Return a thread's calls that caused work."""
        of_thread = self._calls.thread == thread
        return Intervals(thread, self._calls.start_ns[of_thread], self._calls.end_ns[of_thread])

    def for_calls(self, waiting: int, thread: int) -> Waits:
        """Return the state of a thread during each call of another."""
        if (waiting, thread) not in self._for_calls:
            self._for_calls[waiting, thread] = self.waits(waiting, self.calls(thread))
        return self._for_calls[waiting, thread]

    def waits(self, waiting: int, during: Intervals) -> Waits:
        """Return the state of a thread during each interval of another."""
        if waiting not in self._quiet:
            self._quiet[waiting] = _Quiet(self._trace, waiting)
        quiet = self._quiet[waiting]
        tasks: list[Callable[[], Any]] = [partial(quiet.stretch, during), partial(self._open, waiting, during)]
        stretch, node = at_once(tasks, len(during))
        in_backward = self.in_backward(node)
        waits: Bools = (stretch >= 0) & (node >= 0)
        inside = np.flatnonzero(in_backward & ~waits)
        if len(inside):
            part = Intervals(during.thread, during.start_ns[inside], during.end_ns[inside])
            enclosed = quiet.enclosed(part, self.calls(during.thread))
            others_in_backward = np.zeros(len(part), np.bool_)
            for other in self.threads.candidates(part.thread):
                if other != waiting:
                    others_in_backward |= self.in_backward(self._open(other, part))
            waits[inside] = enclosed & ~others_in_backward
        return Waits(waits, node, in_backward, stretch)

    def in_backward(self, node: Int32s) -> Bools:
        """Return which nodes are in a range that opens the backward phase."""
        forest = self._nesting.forest
        inside = np.zeros(len(node), np.bool_)
        while (node >= 0).any():
            here = node >= 0
            inside[here] |= self._in_backward[forest.range[node[here]]]
            node = forest.above(node)
        return inside

    def _open(self, thread: int, during: Intervals) -> Int32s:
        place = np.full(len(during), thread, np.int32)
        return self._nesting.containing(place, during.start_ns, during.end_ns)


class _Quiet:
    """The turns of a thread: where it opens and closes ranges, and when it is inside a CUDA call."""

    def __init__(self, trace: Trace, thread: int) -> None:
        ranges, launches = trace.ranges, trace.launches
        range_of_thread = ranges.thread == thread
        # Ranges are in the order of their starts; their ends are nearly so, which a stable sort is quick at.
        self._starts, self._ends = (
            ranges.start_ns[range_of_thread],
            np.sort(ranges.end_ns[range_of_thread], kind="stable"),
        )
        launch_of_thread = launches.thread == thread
        order = np.argsort(launches.start_ns[launch_of_thread], kind="stable")
        self._call_start = launches.start_ns[launch_of_thread][order]
        self._call_end = np.maximum.accumulate(launches.end_ns[launch_of_thread][order])

    def stretch(self, during: Intervals) -> Int64s:
        """Return the number of the stretch around each interval; -1 if the thread was active: int64 (n,)."""
        number, calls = self._between_turns(during.start_ns, during.end_ns)
        begun = (number >= 0) & (calls > 0)
        number[begun] = np.where(self._call_end[calls[begun] - 1] < during.start_ns[begun], number[begun], -1)
        return number

    def enclosed(self, during: Intervals, calls: Intervals) -> Bools:
        """Return which intervals are in one call of this thread that encloses the whole burst around them.

        The burst is those of `calls` between the same two turns.
        """
        number, begun = self._between_turns(during.start_ns, during.end_ns)
        burst, _ = self._between_turns(calls.start_ns, calls.end_ns)
        order = np.argsort(burst, kind="stable")
        distinct, first = np.unique(burst[order], return_index=True)
        last = np.maximum.reduceat(calls.end_ns[order], first) if len(order) else calls.end_ns
        position = np.minimum(np.searchsorted(distinct, number), max(len(distinct) - 1, 0))
        end = during.end_ns.copy()
        if len(distinct):
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
