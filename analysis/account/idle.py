"""One cause for each nanosecond in which a GPU is idle: what the thread that launches the next work was doing.

    GPU       ▓▓▓▓ work ▓▓▓▓┤ . . . . . . . . . gap . . . . . . . . . ├▓▓ next work: it decides ▓▓
    thread       ┤ launch ├────┤ synchronize ├──── code ────┤ launch of it ├
    causes                  ├synchronization─┼─ host code ──┼─ launching ──┼─ latency ─┤

A *gap* is a time in which no work runs on a GPU. The work that ends it *decides*: up to the end of its launch
call the gap is cut at every begin and end of a call, of a range and of the profiler's own time on its logical
thread, and each piece has one cause; the rest of the gap is after the launch. Work of a thread that launches no
kernels on this GPU, such as a prefetcher's copies, does not decide where a later one can. docs/idle.md has the
rules.

A *logical thread* is a thread, those that wait for it (as adoption found) and those that it waits for: only one of
them runs at a time, so their calls are read as one thread's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import Attribution
from ..support.small_numbers import looked_up, rows_of_each, sorted_by
from ..trace import GRAPH, KERNEL, Columns, Int8s, Int32s, Int64s, Trace, marked
from ..vocabulary.calls import (
    ALLOCATION,
    CALL_KINDS,
    COPY,
    KERNEL_LAUNCH,
    LOADING,
    OTHER_LAUNCH,
    QUERY,
    SYNCHRONIZATION,
)
from .calls_near import NearCalls
from .gaps import Gaps
from .in_turn import LogicalThread, loading_of, logical_threads

#: Why a GPU is idle.
CAUSES = (
    "launching",
    "host code",
    "data loading",
    "synchronization",
    "allocation",
    "copy",
    "module loading",
    "between kernels",
    "latency",
    "queue",
    "profiler",
    "no more work",
    "unknown",
)
(
    LAUNCHING,
    HOST_CODE,
    DATA_LOADING,
    SYNCHRONIZING,
    ALLOCATING,
    COPYING,
    MODULE_LOADING,
    BETWEEN_KERNELS,
    LATENCY,
    QUEUE,
    PROFILER,
    NO_MORE_WORK,
    UNKNOWN,
) = range(len(CAUSES))
#: The cause while a call of each kind is the innermost one; HOST_CODE where it says nothing.
_CAUSE_OF_KIND = np.full(len(CALL_KINDS), HOST_CODE, np.int8)
_CAUSE_OF_KIND[[KERNEL_LAUNCH, OTHER_LAUNCH]] = LAUNCHING
_CAUSE_OF_KIND[[SYNCHRONIZATION, QUERY]] = SYNCHRONIZING
_CAUSE_OF_KIND[[ALLOCATION, COPY, LOADING]] = ALLOCATING, COPYING, MODULE_LOADING

#: Host code between two launches that took less than this belongs to launching: an eager module's own Python.
NEAR_NS = 100_000
#: A GPU begins launched work within this time; longer is a queue.
LATENCY_NS = 10_000
#: So many gaps are examined at once, with the calls beside them and this many more on both sides.
GAPS_AT_ONCE = 100_000
MARGIN = 2_000
_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Pieces(Columns):
    """Idle time in pieces of one cause each, by GPU and time; the pieces of a gap add up to it."""

    gpu: Int32s
    cause: Int8s  # position in CAUSES
    node: Int32s  # of the attribution: the innermost range then open on the logical thread; -1 for none
    start_ns: Int64s
    end_ns: Int64s
    exposed_by: Int32s  # position in Launches: the call that waited for the GPU before host code; -1 for none
    function: Int32s  # position in Trace.frame_names: the innermost Python function then running; -1 for none
    line: Int32s  # position in Attribution.lines.sources: where the program then was; -1 where unknown

    @property
    def duration_ns(self) -> Int64s:
        """How long each piece is, ns."""
        return self.end_ns - self.start_ns


#: No idle time.
_NONE = np.empty(0, np.int32)
_NOWHEN = np.empty(0, np.int64)
NO_PIECES = Pieces(_NONE, np.empty(0, np.int8), _NONE, _NOWHEN, _NOWHEN, _NONE, _NONE, _NONE)


def pieces_of(
    attribution: Attribution, gaps: Gaps, gpu_of_work: Int32s, *, at_once: int = GAPS_AT_ONCE
) -> Iterator[Pieces]:
    """Yield the pieces of many gaps, in blocks of some; `gaps` are by GPU and time."""
    trace = attribution.trace
    deciding_work = _deciding(trace, gaps, gpu_of_work)
    host = _Host(attribution)
    for begin in range(0, len(gaps), at_once):
        rows = np.arange(begin, min(begin + at_once, len(gaps)))
        block = gaps.take(rows)
        decides = deciding_work[rows]
        near = slice(None)
        if len(gaps) > at_once:
            near = _calls_near(trace, block, decides)
        yield _Causes(host, block, decides, near).pieces()


class _Host:
    """What all blocks of gaps need to know of the threads: which run in turn, and when they load data."""

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution
        self.trace = attribution.trace
        self.in_turn = logical_threads(attribution)
        self.loading = loading_of(self.trace)


def _deciding(trace: Trace, gaps: Gaps, gpu_of_work: Int32s) -> Int64s:
    """Return the work that decides on each gap: the next one by a thread that launches kernels on its GPU."""
    work = trace.work
    decides = gaps.next.astype(np.int64)
    thread_of_work = looked_up(trace.launches.thread, work.launch, -1)
    computes = (work.kind == KERNEL) | (work.kind == GRAPH)
    for (gpu,), of_gpu in rows_of_each(gaps.gpu):
        on_gpu = gpu_of_work == gpu
        is_driver = marked(thread_of_work[computes & on_gpu], len(trace.threads))
        drivers = np.flatnonzero(is_driver)
        thread = thread_of_work[gaps.next[of_gpu]]
        is_passed = (thread >= 0) & ~np.isin(thread, drivers)
        passed = of_gpu[is_passed]
        if not len(passed):
            continue
        rows = np.flatnonzero(on_gpu & np.isin(thread_of_work, drivers))
        rows = sorted_by(rows, work.start_ns)
        place = np.searchsorted(work.start_ns[rows], gaps.end_ns[passed], "left")
        later = place < len(rows)
        decides[passed[later]] = rows[place[later]]
    return decides


def _calls_near(trace: Trace, gaps: Gaps, decides: Int64s) -> slice:
    """Return the calls from the launches of the deciding work, or the gaps, to the last gap."""
    launches = trace.launches
    if (launches.start_ns[1:] < launches.start_ns[:-1]).any():
        return slice(None)
    longest_ns = int((launches.end_ns - launches.start_ns).max(initial=0))
    call = trace.work.launch[decides]
    first_launch_ns = int(launches.start_ns[call[call >= 0]].min(initial=_NEVER))
    begin_ns = min(int(gaps.start_ns.min()), first_launch_ns)
    end_ns = int(gaps.end_ns.max()) + 1
    low, high = np.searchsorted(launches.start_ns, (begin_ns - longest_ns, end_ns)).tolist()
    return slice(max(low - MARGIN, 0), high + MARGIN)


class _Causes:
    """Cuts gaps into pieces, and finds the cause of each."""

    def __init__(self, host: _Host, gaps: Gaps, decides: Int64s, near: slice) -> None:
        self.host = host
        self.attribution = host.attribution
        self.trace = host.trace
        self.gaps = gaps
        self.decides = decides
        self.calls = NearCalls(host.attribution, near)
        launches = self.trace.launches
        call = self.trace.work.launch[decides]
        self.thread = looked_up(launches.thread, call, -1)
        self.known = (call >= 0) & self.trace.launch_times_known
        returned = looked_up(launches.end_ns, call, 0)
        returned_in_gap = np.clip(returned, gaps.start_ns, gaps.end_ns)
        # Up to here the deciding launch had not returned.
        self.cut = np.where(self.known, returned_in_gap, gaps.end_ns)
        self.launched_before = returned <= gaps.start_ns

    def pieces(self) -> Pieces:
        """Return all pieces, in no order."""
        gaps = self.gaps
        node = self.attribution.node
        unknown = np.flatnonzero(~self.known)
        following = gaps.next[unknown]
        parts = [self._piece(unknown, UNKNOWN, node[following], gaps.start_ns[unknown], gaps.end_ns[unknown])]
        before = np.flatnonzero(self.known & (self.cut > gaps.start_ns))
        for (thread,), rows in rows_of_each(self.thread[before]):
            parts.append(self._before_launch(thread, before[rows]))
        after = np.flatnonzero(self.known & (self.cut < gaps.end_ns))
        start_ns = self.cut[after]
        end_ns = gaps.end_ns[after]
        begun_soon = np.where(self.launched_before[after], BETWEEN_KERNELS, LATENCY)
        cause = np.where(end_ns - start_ns <= LATENCY_NS, begun_soon, QUEUE)
        decides = self.decides[after]
        launched_at = self.calls.lines_of(self.trace.work.launch[decides])
        parts.append(self._piece(after, cause, node[decides], start_ns, end_ns, line=launched_at))
        return Pieces.joined(parts)

    def _piece(
        self,
        gap: Int64s,
        cause: NDArray[np.integer] | int,
        node: NDArray[np.integer],
        start_ns: Int64s,
        end_ns: Int64s,
        exposed_by: NDArray[np.integer] | int = -1,
        function: NDArray[np.integer] | int = -1,
        line: NDArray[np.integer] | int = -1,
    ) -> Pieces:
        def column(values: NDArray[np.integer] | int) -> Int32s:
            return np.broadcast_to(np.asarray(values, np.int32), len(gap))

        return Pieces(
            gpu=self.gaps.gpu[gap],
            cause=np.broadcast_to(np.asarray(cause, np.int8), len(gap)),
            node=node.astype(np.int32),
            start_ns=start_ns,
            end_ns=end_ns,
            exposed_by=column(exposed_by),
            function=column(function),
            line=column(line),
        )

    def _before_launch(self, thread: int, gaps: Int64s) -> Pieces:
        """Return the pieces, up to the return of their launches by this thread, of some of the gaps."""
        threads = (thread, *self.host.in_turn.get(thread, ()))
        group = LogicalThread(self.calls, self.host.loading, threads, self.gaps.start_ns[gaps], self.cut[gaps])
        piece, start, end = group.cut()
        stretch_ns, last_launch_ns = group.stretch(start)
        cause = _CAUSE_OF_KIND[group.kinds_at(start)]
        cause[(cause == HOST_CODE) & (stretch_ns < NEAR_NS)] = LAUNCHING
        is_code = (cause == HOST_CODE) | (cause == LAUNCHING)
        cause[is_code & group.loading.contain(start)] = DATA_LOADING
        overhead = group.overhead_at(start)
        cause[overhead == 0] = PROFILER
        cause[overhead == 1] = MODULE_LOADING
        waited = np.where(cause == HOST_CODE, group.waited_before(start, last_launch_ns), -1)
        return self._piece(
            gaps[piece],
            cause,
            node=group.nodes_at(start),
            start_ns=start,
            end_ns=end,
            exposed_by=waited,
            function=group.functions_at(start),
            line=group.lines_at(start),
        )
