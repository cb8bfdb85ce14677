"""Facts about the threads of a trace, by their names, the engine's ranges, and their own ranges."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..support.small_numbers import counted, distinct
from ..trace import MODEL_BACKWARD, PUSH_POP, Bools, Int64s, Ranges, Trace, marked, working_calls
from ..vocabulary import AUTOGRAD_THREADS, ENGINE_OPERATOR, NCCL_RANGES, WORKER_THREADS
from .nesting import Nesting
from .user_ranges import NameFacts, computed_again, of_titles

MAX_WAITING_THREADS = 64


class ThreadFacts:
    """Facts about threads, by their positions in `Trace.threads`; `ranges` are those that can be parents.

    `calls` are those that caused work.
    """

    def __init__(self, trace: Trace, names: NameFacts, ranges: Ranges) -> None:
        self.trace, self.names, self.ranges, self.calls = trace, names, ranges, working_calls(trace)

    def is_main(self, thread: int) -> bool:
        """Return whether it is its process's first thread."""
        here = self.trace.threads[thread]
        return here.thread_id == self.trace.processes[here.process].process_id

    def is_worker(self, thread: int) -> bool:
        """Return whether its name shows that it works alone: no thread waits for it, and it waits for none."""
        return bool(WORKER_THREADS.search(self.trace.threads[thread].name))

    def says_autograd(self, thread: int) -> bool:
        """Return whether a thread is autograd's, by its name, or else by the engine's ranges on it."""
        if self.is_main(thread):
            return False
        named = bool(AUTOGRAD_THREADS.search(self.trace.threads[thread].name))
        runs_program = thread in self.independent or thread in self.phased or thread in self._calling_models
        return named or (thread in self._engine_threads and not runs_program)

    def has_autograd_beside(self, thread: int) -> bool:
        """Return whether any thread of its process is known to be autograd's."""
        return self.trace.threads[thread].process in self._processes_with_autograd

    @cached_property
    def _processes_with_autograd(self) -> frozenset[int]:
        return frozenset(
            thread.process
            for number, thread in enumerate(self.trace.threads)
            if AUTOGRAD_THREADS.search(thread.name) or number in self._engine_threads
        )

    @cached_property
    def launching_kernels(self) -> frozenset[int]:
        """The threads that launched a kernel or a graph."""
        return frozenset(distinct(self.calls.thread[self.calls.launches_kernel]).tolist())

    @cached_property
    def launching(self) -> frozenset[int]:
        """The threads that launched any work."""
        return frozenset(distinct(self.calls.thread).tolist())

    @cached_property
    def independent(self) -> frozenset[int]:
        """The threads that run their own program: with their own step, warm-up or backward phase."""
        names = self.names
        own = of_titles(names.warm_up | names.step | names.backward_phase, self.ranges)
        return self._outside_engine(self.ranges.take(own))

    @cached_property
    def phased(self) -> frozenset[int]:
        """The threads with any phase of their own, such as one that recomputes in backward."""
        return self._outside_engine(self.ranges.take(of_titles(self.names.opens_phase, self.ranges)))

    @cached_property
    def _calling_models(self) -> frozenset[int]:
        """The threads on which a program calls an annotated model; recomputation in backward does not count."""
        calls = self.ranges.take(self.ranges.of_forward)
        again = Nesting(calls.take(computed_again(self.trace, calls)))
        return self._outside_engine(calls.take(_is_outside(calls, again)))

    def in_nccl(self, thread: int, start_ns: Int64s, end_ns: Int64s) -> Bools:
        """Return which intervals lie inside a range that NCCL opened around a call of its own on a thread."""
        inside: Bools = self._nccl.containing(np.full(len(start_ns), thread, np.int32), start_ns, end_ns) >= 0
        return inside

    @cached_property
    def _nccl(self) -> Nesting:
        names = np.array([bool(NCCL_RANGES.match(name)) for name in self.trace.names], np.bool_)
        ranges = self.trace.ranges
        return Nesting(ranges.take(names[ranges.name_id] & (ranges.style == PUSH_POP)))

    @cached_property
    def devices(self) -> Int64s:
        """The GPUs that each thread gave work to: bit 3 means GPU 3."""
        work, bits = self.trace.work, np.zeros(len(self.trace.threads), np.int64)
        rows = np.flatnonzero(work.launch >= 0)
        thread = self.trace.launches.thread[work.launch[rows]]
        pairs = distinct(thread.astype(np.int64) << 6 | work.device_id[rows] & 63)
        np.bitwise_or.at(bits, pairs >> 6, np.int64(1) << (pairs & 63))
        return bits

    def candidates(self, thread: int) -> list[int]:
        """Return the threads of the same process that could wait for this one: they have ranges of their own."""
        threads = self.trace.threads
        return [
            other
            for other in self._threads_with_ranges
            if threads[other].process == threads[thread].process
            and other != thread
            and not self.says_autograd(other)
            and not self.is_worker(other)
        ][:MAX_WAITING_THREADS]

    @cached_property
    def _threads_with_ranges(self) -> list[int]:
        """The threads that have most ranges first."""
        threads, count = counted(self.ranges.thread)
        ordered: list[int] = threads[np.argsort(-count, kind="stable")].tolist()
        return ordered

    @cached_property
    def _engine(self) -> Ranges:
        """Return the ranges of autograd's engine; or, as before PyTorch 1.9 there were none, of its nodes.

        The backward of an annotated model runs in nodes too.
        """
        names = np.array([name.startswith(ENGINE_OPERATOR) for name in self.trace.names], np.bool_)
        if not names.any():
            names = self.names.operator & self.names.backward_operator
        ranges = self.trace.ranges
        return ranges.take(names[ranges.name_id] | (ranges.category == MODEL_BACKWARD))

    @cached_property
    def _engine_threads(self) -> frozenset[int]:
        return frozenset(distinct(self._engine.thread).tolist())

    @cached_property
    def _inside_engine(self) -> Nesting:
        """The engine's ranges, on the threads that have others."""
        others = marked(self.ranges.thread[self.ranges.category != MODEL_BACKWARD], len(self.trace.threads))
        return Nesting(self._engine.take(others[self._engine.thread]))

    def _outside_engine(self, ranges: Ranges) -> frozenset[int]:
        """Return the threads with one of these ranges that autograd's engine did not open."""
        if not len(ranges):
            return frozenset()
        return frozenset(distinct(ranges.thread[_is_outside(ranges, self._inside_engine)]).tolist())


def _is_outside(ranges: Ranges, nesting: Nesting) -> Bools:
    """Return which ranges none of the others contains."""
    outside: Bools = nesting.containing(ranges.thread, ranges.start_ns, ranges.end_ns) < 0
    return outside
