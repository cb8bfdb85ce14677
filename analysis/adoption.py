"""Whose ranges continue upward into another thread's: the thread that called backward, and waits.

PyTorch runs backward on threads of its own, on which the `backward` range of the model is not open. A launch
there is adopted by the thread of the same process that is *quiet* meanwhile: it has a range open, is inside no
CUDA call, and opens or closes no range between the first and the last launch of the burst.

What a thread is, is told by its name, else by autograd's own operator ranges on it, else by its behaviour: a
thread without either is taken for autograd's if it launches kernels, is not the main thread, has no phase, step
or warm-up range of its own, and never launches while every thread that has a range open is busy itself.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np

from analysis.calls import Calls
from analysis.nesting import Nesting
from analysis.trace import Bools, Int32s, Int64s, Ranges, Trace
from analysis.user_ranges import NameFacts, of_names
from analysis.vocabulary import AUTOGRAD_THREADS, ENGINE_OPERATOR, WORKER_THREADS

# A nameless thread may launch this share of its calls while nobody waits, and still be autograd's.
MAX_CONTRADICTIONS = 0.01
MAX_WAITING_THREADS = 64

NOBODY, AMBIGUOUS = -1, -2
_IN_BACKWARD = 1 << 40  # outweighs any number of calls


class Adoption:
    """Says under which node the calls and ranges on autograd's threads hang."""

    def __init__(self, trace: Trace, facts: NameFacts, ranges: Ranges, nesting: Nesting, calls: Calls) -> None:
        self._trace, self._facts, self._ranges = trace, facts, ranges
        self._nesting, self._calls = nesting, calls
        self._waits: dict[int, _Quiet] = {}

    @cached_property
    def threads(self) -> tuple[int, ...]:
        """The threads on which autograd runs backward, among those that launched work."""
        return tuple(int(thread) for thread in np.unique(self._calls.thread) if self._is_autograd(int(thread)))

    @cached_property
    def known_threads(self) -> tuple[int, ...]:
        """Those of them that say so by their name or by the engine's ranges, not by behaviour alone."""
        return tuple(thread for thread in self.threads if self._says_autograd(thread))

    def base(self, thread: int, start_ns: Int64s, end_ns: Int64s) -> Int32s:
        """Return for intervals on an autograd thread the node they hang under, or NOBODY, or AMBIGUOUS."""
        own = self._calls.thread == thread
        best = np.full(len(start_ns), NOBODY, np.int32)
        best_run = np.zeros(len(start_ns), np.int64)
        for waiting in self._waiting_for(thread):
            quiet = self._quiet(waiting)
            stretch = quiet.stretch(start_ns, end_ns)
            bursts = quiet.stretch(self._calls.start_ns[own], self._calls.end_ns[own])
            run = _count_of(bursts[bursts >= 0], stretch)
            place = np.full(len(start_ns), waiting, np.int32)
            node = self._nesting.containing(place, start_ns, end_ns)
            best, best_run = self._better(best, best_run, np.where(stretch >= 0, node, NOBODY), run)
        return best

    def _better(self, best: Int32s, best_run: Int64s, node: Int32s, run: Int64s) -> tuple[Int32s, Int64s]:
        """Prefer a thread in a backward phase, then the one that was quiet for more of the burst."""
        found, held = node >= 0, best != NOBODY
        score, best_score = run + self._in_backward(node) * _IN_BACKWARD, best_run
        wins = found & (~held | (score > best_score))
        tie = found & held & (score == best_score)
        return (
            np.where(wins, node, np.where(tie, AMBIGUOUS, best)).astype(np.int32),
            np.where(wins, score, best_score),
        )

    def _in_backward(self, node: Int32s) -> Int64s:
        phase = self._facts.backward_phase
        inside = np.zeros(len(node), np.int64)
        while (node >= 0).any():
            here = node >= 0
            inside[here] |= phase[self._ranges.name_id[self._nesting.forest.range[node[here]]]]
            node = self._nesting.forest.above(node)
        return inside

    def _is_autograd(self, thread: int) -> bool:
        if WORKER_THREADS.search(self._trace.threads[thread].name) or self._is_main(thread):
            return False
        if self._says_autograd(thread):
            return True
        return thread in self._nameless and thread not in self._rooted and self._always_awaited(thread)

    def _says_autograd(self, thread: int) -> bool:
        """Tell by its name, else by the engine's ranges on it, whether a thread is autograd's."""
        if self._is_main(thread):
            return False
        named = bool(AUTOGRAD_THREADS.search(self._trace.threads[thread].name))
        return named or (thread in self._engine_threads and thread not in self._rooted)

    @cached_property
    def _engine_threads(self) -> frozenset[int]:
        engine = np.array([name.startswith(ENGINE_OPERATOR) for name in self._trace.names], np.bool_)
        return frozenset(np.unique(self._trace.ranges.thread[of_names(engine, self._trace.ranges)]).tolist())

    @cached_property
    def _rooted(self) -> frozenset[int]:
        """Threads that are a program's own: they have a phase or a step of their own."""
        facts = self._facts
        roots = facts.warm_up | facts.step | (facts.phase >= 0)
        own = np.unique(self._ranges.thread[of_names(roots, self._ranges)]).tolist()
        return frozenset(own)

    def _is_main(self, thread: int) -> bool:
        here = self._trace.threads[thread]
        return here.thread_id == self._trace.processes[here.process].process_id

    @cached_property
    def _nameless(self) -> frozenset[int]:
        """Threads that could be autograd's although nothing says so, in processes where nothing says better."""
        threads = self._trace.threads
        known = {
            thread.process
            for number, thread in enumerate(threads)
            if AUTOGRAD_THREADS.search(thread.name) or number in self._engine_threads
        }
        kernels = np.unique(self._calls.thread[self._calls.launches_kernel]).tolist()
        return frozenset(number for number in kernels if threads[number].process not in known)

    def _always_awaited(self, thread: int) -> bool:
        own = self._calls.thread == thread
        start, end = self._calls.start_ns[own], self._calls.end_ns[own]
        awaited, watched = np.zeros(len(start), np.bool_), np.zeros(len(start), np.bool_)
        for waiting in self._waiting_for(thread):
            open_range = self._nesting.containing(np.full(len(start), waiting, np.int32), start, end) >= 0
            watched |= open_range
            awaited |= open_range & (self._quiet(waiting).stretch(start, end) >= 0)
        return bool(watched.any() and (watched & ~awaited).sum() <= MAX_CONTRADICTIONS * len(start))

    def _waiting_for(self, thread: int) -> list[int]:
        """Return the threads of the same process that could wait for this one: they have ranges of their own."""
        threads = self._trace.threads
        others, count = np.unique(self._ranges.thread, return_counts=True)
        return [
            int(other)
            for other in others[np.argsort(-count, kind="stable")]
            if threads[other].process == threads[thread].process
            and other != thread
            and not self._says_autograd(int(other))
            and not WORKER_THREADS.search(threads[other].name)
        ][:MAX_WAITING_THREADS]

    def _quiet(self, thread: int) -> _Quiet:
        if thread not in self._waits:
            self._waits[thread] = _Quiet(self._trace, thread)
        return self._waits[thread]


class _Quiet:
    """The stretches in which a thread opens and closes no range and is inside no CUDA call."""

    def __init__(self, trace: Trace, thread: int) -> None:
        ranges, launches = trace.ranges, trace.launches
        mine = ranges.thread == thread
        # Ranges are in the order of their starts; their ends are nearly so, which a stable sort is quick at.
        self._starts, self._ends = ranges.start_ns[mine], np.sort(ranges.end_ns[mine], kind="stable")
        mine = launches.thread == thread
        order = np.argsort(launches.start_ns[mine], kind="stable")
        self._call_start = launches.start_ns[mine][order]
        self._call_end = np.maximum.accumulate(launches.end_ns[mine][order])

    def stretch(self, start_ns: Int64s, end_ns: Int64s) -> Int64s:
        """Return the number of the stretch that contains each interval; -1 where the thread was active."""
        before, upto = self._bounds(start_ns, "left"), self._bounds(end_ns, "right")
        calls = np.searchsorted(self._call_start, end_ns, "right")
        quiet: Bools = before == upto
        begun = calls > 0
        quiet[begun] &= self._call_end[calls[begun] - 1] < start_ns[begun]
        return np.where(quiet, calls * (2 * len(self._starts) + 1) + before, -1)

    def _bounds(self, time_ns: Int64s, side: Literal["left", "right"]) -> Int64s:
        """Count the starts and ends of ranges up to each moment."""
        return np.searchsorted(self._starts, time_ns, side) + np.searchsorted(self._ends, time_ns, side)


def _count_of(values: Int64s, wanted: Int64s) -> Int64s:
    """Count how often each wanted value occurs."""
    distinct, count = np.unique(values, return_counts=True)
    at = np.searchsorted(distinct, wanted)
    at = np.where(at < len(distinct), at, -1)
    return np.where((at >= 0) & (distinct[at] == wanted), count[at], 0) if len(distinct) else np.zeros_like(wanted)
