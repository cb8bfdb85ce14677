"""Adoption: work on autograd's threads belongs to the ranges of the thread that called backward, and waits.

PyTorch runs backward on separate threads, on which the `backward` range of the model is not open. A launch
there is adopted by the thread of the same process that waits for it (`waiting`); so is one of a helper,
such as the replicas' threads of DataParallel, or NCCL's own while it sets up. docs/attribution.md defines
which threads these are, and which of several threads waits.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..trace import Bools, Int32s, Int64s
from .thread_facts import ThreadFacts
from .waiting import Intervals, Waiting, Waits

# A nameless thread may launch this share of its calls while no thread waits, and still be autograd's.
MAX_CONTRADICTIONS = 0.01

NOBODY, AMBIGUOUS = -1, -2


class Adoption:
    """Finds the node that becomes the parent of calls and ranges on autograd's threads."""

    def __init__(self, threads: ThreadFacts, waiting: Waiting) -> None:
        self.facts, self._waiting = threads, waiting

    @cached_property
    def threads(self) -> tuple[int, ...]:
        """The threads, among those that launched work, whose work and ranges others can adopt."""
        return tuple(thread for thread in sorted(self.facts.launching) if self._is_adopted(thread))

    @cached_property
    def known_threads(self) -> tuple[int, ...]:
        """Those of `threads` that are autograd's by name or by the engine's ranges, not only by behaviour."""
        return tuple(thread for thread in self.threads if self.facts.says_autograd(thread))

    def base(self, during: Intervals) -> Int32s:
        """Return the parent node of each interval on a thread, or NOBODY, or AMBIGUOUS: int32 (intervals,)."""
        candidates = self.facts.candidates(during.thread)
        if not self.facts.says_autograd(during.thread):
            # Threads that are adopted by behaviour, such as two workers in turn, only seem to wait for each other.
            candidates = [other for other in candidates if other not in self.threads]
        waits_by_thread = {other: self._waiting.waits(other, during) for other in candidates}
        waits_by_thread = {other: waits for other, waits in waits_by_thread.items() if waits.waits.any()}
        best, node = np.full(len(during), -1, np.int64), np.full(len(during), NOBODY, np.int32)
        for other, waits in waits_by_thread.items():
            rank = self._rank(other, during.thread, waits)
            node = np.where(rank > best, waits.node, np.where((rank == best) & waits.waits, AMBIGUOUS, node))
            best = np.maximum(rank, best)
        undecided = np.flatnonzero(node == AMBIGUOUS)
        if len(undecided):
            tied = {
                other: waits
                for other, waits in waits_by_thread.items()
                if (self._rank(other, during.thread, waits) == best)[undecided].any()
            }
            node[undecided] = self._of_tied(tied, during.thread, undecided, best)
        return node.astype(np.int32)

    def _rank(self, other: int, thread: int, waits: Waits) -> Int64s:
        """Rank a thread that waits by where it has worked and its phase; -1 where it does not wait."""
        devices = self.facts.devices
        here = bool(devices[other] & devices[thread])
        elsewhere = bool(devices[other]) and not here
        rank = 4 * (not elsewhere) + 2 * waits.in_backward + here
        return np.where(waits.waits, rank, -1)

    def _of_tied(self, tied: dict[int, Waits], thread: int, rows: Int64s, best: Int64s) -> Int32s:
        """Decide by the burst: one that waited for all of it wins over those that did not."""
        node = np.full(len(rows), AMBIGUOUS, np.int32)
        in_tie = {o: (self._rank(o, thread, waits) == best)[rows] for o, waits in tied.items()}
        for candidate, waits in tied.items():
            wins = in_tie[candidate].copy()
            for other in tied.keys() - {candidate}:
                wins &= ~in_tie[other] | self._outlasts(candidate, other, thread, rows, tied)
            node[wins] = waits.node[rows[wins]]
        return node

    def _outlasts(self, candidate: int, other: int, thread: int, rows: Int64s, tied: dict[int, Waits]) -> Bools:
        """Return where the candidate waited for a longer burst, during part of which the other was busy."""
        a, b = self._waiting.for_calls(candidate, thread), self._waiting.for_calls(other, thread)
        busy = np.unique(a.stretch[(a.stretch >= 0) & ~b.waits])
        candidate_stretch, other_stretch = tied[candidate].stretch[rows], tied[other].stretch[rows]
        longer = _count_of(a.stretch, candidate_stretch) > _count_of(b.stretch, other_stretch)
        outlasts: Bools = longer & np.isin(candidate_stretch, busy)
        return outlasts

    def _is_adopted(self, thread: int) -> bool:
        facts = self.facts
        if facts.is_worker(thread) or facts.is_main(thread):
            return False
        if facts.says_autograd(thread):
            return True
        if thread in facts.independent:
            return False
        if thread not in facts.launching_kernels:
            return self._serves_nccl(thread)
        awaited = self._always_awaited(thread)
        if facts.has_autograd_beside(thread):  # a helper of the program's, and not autograd's
            return thread not in facts.phased and awaited == {False}
        return bool(awaited) if thread not in facts.phased else awaited == {True}

    def _serves_nccl(self, thread: int) -> bool:
        """Return whether another thread waited inside a call of NCCL's during all of a thread's calls."""
        calls = self._waiting.calls(thread)
        served = np.zeros(len(calls), np.bool_)
        for other in self.facts.candidates(thread):
            waits = self._waiting.for_calls(other, thread).waits
            served |= waits & self.facts.in_nccl(other, calls.start_ns, calls.end_ns)
        return bool(served.all())

    def _always_awaited(self, thread: int) -> set[bool]:
        """Return where the thread was awaited: in backward (True), elsewhere (False); empty unless always."""
        candidates = self.facts.candidates(thread)
        working = [other for other in candidates if other in self.facts.launching]
        waits_of_candidates = [self._waiting.for_calls(other, thread) for other in working or candidates]
        if not waits_of_candidates:
            return set()
        awaited = np.any([waits.waits for waits in waits_of_candidates], axis=0)
        watched = np.any([waits.node >= 0 for waits in waits_of_candidates], axis=0)
        if not watched.any() or (watched & ~awaited).sum() > MAX_CONTRADICTIONS * len(watched):
            return set()
        backward = np.any([waits.waits & waits.in_backward for waits in waits_of_candidates], axis=0)
        return set(backward[awaited].tolist())


def _count_of(values: Int64s, targets: Int64s) -> Int64s:
    """Count each target among the non-negative values: int64 (targets,)."""
    distinct, count = np.unique(values[values >= 0], return_counts=True)
    if not len(distinct):
        return np.zeros(len(targets), np.int64)
    position = np.minimum(np.searchsorted(distinct, targets), len(distinct) - 1)
    return np.where(distinct[position] == targets, count[position], 0)
