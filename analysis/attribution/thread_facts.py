"""Facts about the threads of a trace, by their names, the engine's ranges, and their own ranges."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..support.small_numbers import counted, distinct, looked_up
from ..trace import MODEL_BACKWARD, PUSH_POP, Bools, Int32s, Int64s, Ranges, Spots, Trace, marked, working_calls
from ..vocabulary import AUTOGRAD_THREADS, ENGINE_OPERATOR, NCCL_RANGES, WORKER_THREADS
from .nesting import Nesting
from .user_ranges import NameFacts, computed_again, of_titles

MAX_WAITING_THREADS = 64


class Candidates:
    """Lists of the threads that could wait for each thread: the first of these in its process, without itself."""

    def __init__(self, process_of_thread: Int32s, waiting: Int64s) -> None:
        process = process_of_thread[waiting]
        order = np.argsort(process, kind="stable")
        place = np.arange(len(waiting)) - np.searchsorted(process[order], process[order])
        of_lists = place <= MAX_WAITING_THREADS  # one more than a list has, as each leaves out its own thread
        self._process_of_thread = process_of_thread
        self._threads = waiting[order[of_lists]]
        processes = process_of_thread[self._threads]
        self._first, last = (
            np.searchsorted(processes, np.arange(process_of_thread.max(initial=0) + 1), side)
            for side in ("left", "right")
        )
        self._in_process = last - self._first
        self._place = np.full(len(process_of_thread), len(waiting))
        self._place[self._threads] = place[of_lists]

    def count(self, thread: Int32s) -> Int64s:
        """Return how many candidates each thread has: int64 (threads,)."""
        in_process = self._in_process[self._process_of_thread[thread]]
        others: Int64s = in_process - (self._place[thread] < in_process)
        return np.minimum(others, MAX_WAITING_THREADS)

    def at(self, thread: Int32s, number: int) -> Int32s:
        """Return the candidate with this number in the list of each thread, counted from 0: int32 (threads,)."""
        first = self._first[self._process_of_thread[thread]]
        return self._threads[first + number + (self._place[thread] <= number)].astype(np.int32)


class ThreadFacts:
    """Facts about threads, by their positions in `Trace.threads`; `ranges` are those that can be parents.

    `calls` are those that caused work; `mains` are the first threads of their processes, and `workers` those whose
    names show that they work alone: no thread waits for them, and they wait for none.
    """

    def __init__(self, trace: Trace, names: NameFacts, ranges: Ranges) -> None:
        self.trace = trace
        self.names = names
        self.ranges = ranges
        self.calls = working_calls(trace)
        self._process = trace.process_of_thread().tolist()
        mains: set[int] = set()
        workers: set[int] = set()
        named_autograd: set[int] = set()
        for number, thread in enumerate(trace.threads):
            if thread.thread_id == trace.processes[thread.process].process_id:
                mains.add(number)
            if WORKER_THREADS.search(thread.name):
                workers.add(number)
            if AUTOGRAD_THREADS.search(thread.name):
                named_autograd.add(number)
        self.mains = frozenset(mains)
        self.workers = frozenset(workers)
        self._named_autograd = frozenset(named_autograd)
        self.launching = _threads(self.calls.thread)
        self.launching_kernels = _threads(self.calls.thread[self.calls.launches_kernel])  # or a graph

    @cached_property
    def of_autograd(self) -> frozenset[int]:
        """The threads that are autograd's, by their names, or else by the engine's ranges on them."""
        by_ranges = self._engine_threads - self._named_autograd - self.mains
        if by_ranges:  # not those that run the program, or call a model for it: recomputation does not
            calls = self.ranges.take(self.ranges.of_forward)
            again = Nesting(calls.take(computed_again(self.trace, calls)))
            first_calls = calls.take(_is_outside(calls, again))
            calling_models = self._outside_engine(first_calls)
            by_ranges -= self.independent | self.phased | calling_models | self._running_programs
        return (self._named_autograd - self.mains) | by_ranges

    @cached_property
    def with_autograd(self) -> frozenset[int]:
        """The threads of processes with a thread that is known to be autograd's."""
        processes = {self._process[thread] for thread in self._named_autograd | self._engine_threads}
        return frozenset(thread for thread, process in enumerate(self._process) if process in processes)

    @cached_property
    def independent(self) -> frozenset[int]:
        """The threads that run their own program: with their own step, warm-up or backward phase."""
        names = self.names
        runs_program = of_titles(names.warm_up | names.step | names.backward_phase, self.ranges)
        return self._outside_engine(self.ranges.take(runs_program))

    @cached_property
    def phased(self) -> frozenset[int]:
        """The threads with any phase of their own, such as one that recomputes in backward."""
        opens_phase = of_titles(self.names.opens_phase, self.ranges)
        return self._outside_engine(self.ranges.take(opens_phase))

    def in_nccl(self, spots: Spots) -> Bools:
        """Return which intervals lie inside a range that NCCL opened around a call of its own."""
        return self._nccl.containing(spots) >= 0

    @cached_property
    def _nccl(self) -> Nesting:
        names = np.array([bool(NCCL_RANGES.match(name)) for name in self.trace.names], np.bool_)
        ranges = self.trace.ranges
        is_nccls = names[ranges.name_id] & (ranges.style == PUSH_POP)
        return Nesting(ranges.take(is_nccls))

    def engine_calls(self, spots: Spots) -> tuple[Int64s, Ranges]:
        """Return the innermost range of autograd's engine around each interval on its thread, and these ranges.

        The first are positions in the second, -1 for none: int64 (spots,). Backward runs on the thread that calls
        it where there is no GPU, or where `set_multithreading_enabled(False)` says so.
        """
        engine = self._engine
        is_asked = marked(spots.thread, max(1, len(self.trace.threads)))
        is_nested = (engine.category != MODEL_BACKWARD) & (engine.style == PUSH_POP)
        engine = engine.take(is_asked[engine.thread] & is_nested)
        if not len(engine):
            return np.full(len(spots), -1), engine
        nesting = Nesting(engine)
        node = nesting.containing(spots)
        position = looked_up(nesting.forest.range, node, -1)
        return position.astype(np.int64), engine

    @cached_property
    def devices(self) -> Int64s:
        """The GPUs that each thread gave work to: bit 3 means GPU 3."""
        work = self.trace.work
        bits = np.zeros(len(self.trace.threads), np.int64)
        rows = np.flatnonzero(work.launch >= 0)
        thread = self.trace.launches.thread[work.launch[rows]]
        pairs = distinct(thread.astype(np.int64) << 6 | work.device_id[rows] & 63)
        np.bitwise_or.at(bits, pairs >> 6, np.int64(1) << (pairs & 63))
        return bits

    @cached_property
    def candidates(self) -> Candidates:
        """The threads of the same process that could wait for each: they have ranges of their own, most first."""
        threads, count = counted(self.ranges.thread)
        never_wait = _positions(self.of_autograd | self.workers)
        can_wait = ~marked(never_wait, len(self.trace.threads))
        by_ranges = threads[np.argsort(-count, kind="stable")]
        return Candidates(self.trace.process_of_thread(), by_ranges[can_wait[by_ranges]])

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
        return _threads(self._engine.thread)

    @cached_property
    def _running_programs(self) -> frozenset[int]:
        """The threads that make nodes outside of the engine's ranges: forward runs there, and more."""
        ranges = self.trace.ranges
        names = self.names
        has_engine = marked(self._engine.thread, len(self.trace.threads))
        is_node = names.backward_operator[ranges.name_id]
        makes_nodes = (ranges.style == PUSH_POP) & (ranges.seq >= 0) & ~is_node
        operators = ranges.take(makes_nodes & has_engine[ranges.thread])
        is_outside = _is_outside(operators, Nesting(self._engine))
        return _threads(operators.thread[is_outside])

    @cached_property
    def _inside_engine(self) -> Nesting:
        """The engine's ranges, on the threads that have others."""
        is_other = self.ranges.category != MODEL_BACKWARD
        has_others = marked(self.ranges.thread[is_other], len(self.trace.threads))
        return Nesting(self._engine.take(has_others[self._engine.thread]))

    def _outside_engine(self, ranges: Ranges) -> frozenset[int]:
        """Return the threads with one of these ranges that autograd's engine did not open."""
        if not len(ranges):
            return frozenset()
        is_outside = _is_outside(ranges, self._inside_engine)
        return _threads(ranges.thread[is_outside])


def _positions(threads: frozenset[int]) -> Int32s:
    return np.array(sorted(threads), np.int32)


def _threads(column: Int32s) -> frozenset[int]:
    return frozenset(distinct(column).tolist())


def _is_outside(ranges: Ranges, nesting: Nesting) -> Bools:
    """Return which ranges none of the others contains."""
    return nesting.containing(ranges) < 0
