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

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import HOW, Attribution
from ..support.layers import Layers
from ..support.small_numbers import bounds, distinct, each_row, grouped_rows, ordered, rows_of_each
from ..trace import GRAPH, KERNEL, Bools, Columns, Int8s, Int32s, Int64s, Launches, Spots, Trace, marked
from ..vocabulary.calls import (
    ALLOCATION,
    CALL_KINDS,
    COPY,
    KERNEL_LAUNCH,
    LOADING,
    NO_KIND,
    OTHER_LAUNCH,
    QUERY,
    SYNCHRONIZATION,
)
from ..vocabulary.loading import loads_data
from .gaps import Gaps
from .intervals import Intervals, cut_at, touching, union

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
#: The causes of idle time after the next work was launched, or before it is known when.
LAUNCHED = (BETWEEN_KERNELS, LATENCY, QUEUE, NO_MORE_WORK, UNKNOWN)
#: The cause while a call of each kind is the innermost one; HOST_CODE where it says nothing.
_CAUSE_OF_KIND = np.full(len(CALL_KINDS), HOST_CODE, np.int8)
_CAUSE_OF_KIND[[KERNEL_LAUNCH, OTHER_LAUNCH]] = LAUNCHING
_CAUSE_OF_KIND[[SYNCHRONIZATION, QUERY]] = SYNCHRONIZING
_CAUSE_OF_KIND[[ALLOCATION, COPY, LOADING]] = ALLOCATING, COPYING, MODULE_LOADING

#: Host code between two launches that took less than this belongs to launching: an eager module's own Python.
NEAR_NS = 100_000
#: A GPU begins launched work within this time; longer is a queue. The first launch of a kernel that takes longer
#: than LAZY_NS loads its code.
LATENCY_NS = 10_000
LAZY_NS = 100_000
#: The calls that are no part of the host code between two launches.
_TAKEN_OUT = np.isin(np.arange(len(CALL_KINDS)), (SYNCHRONIZATION, QUERY, ALLOCATION, COPY, LOADING))
#: So many gaps are examined at once, with the calls beside them and this many more on both sides.
GAPS_AT_ONCE = 100_000
MARGIN = 2_000
_LONG_AGO = -(2**62)
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
    thread_of_work = np.append(trace.launches.thread, np.int32(-1))[work.launch]
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
        rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
        place = np.searchsorted(work.start_ns[rows], gaps.end_ns[passed], "left")
        later = place < len(rows)
        decides[passed[later]] = rows[place[later]]
    return decides


def loading_of(trace: Trace) -> Spots:
    """Return when ranges and functions that get the next batch are open, of any domain, also operators' ranges."""
    ids = distinct(trace.ranges.name_id)
    loading_names = [name_id for name_id in ids if loads_data(trace.names[name_id])]
    ranges = trace.ranges.take(np.isin(trace.ranges.name_id, loading_names))
    parts = [Spots(ranges.start_ns, ranges.end_ns, ranges.thread)]
    if trace.frames is not None:
        loading_functions = [number for number, name in enumerate(trace.frame_names) if loads_data(name)]
        frames = trace.frames.take(np.isin(trace.frames.name_id, loading_functions))
        parts.append(Spots(frames.start_ns, frames.end_ns, frames.thread))
    return Spots.joined(parts)


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
        self.near = near
        launches = self.trace.launches
        work = self.trace.work
        # Of all calls, those that are looked at, and the work that they caused.
        self.first, behind, _ = near.indices(len(launches))
        columns = [getattr(launches, name)[near] for name in Launches.__match_args__]
        self.launches = Launches(*columns)
        is_caused = (work.launch >= self.first) & (work.launch < behind)
        self.caused = np.flatnonzero(is_caused)
        self.call = work.launch[self.caused] - self.first  # of each piece of that work
        call = work.launch[decides]
        self.thread = np.append(launches.thread, np.int32(-1))[call]
        self.known = (call >= 0) & self.trace.launch_times_known
        returned = np.append(launches.end_ns, 0)[call]
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
        launched_at = self.lines_of(self.trace.work.launch[decides])
        parts.append(self._piece(after, cause, node[decides], start_ns, end_ns, line=launched_at))
        return Pieces.joined(parts)

    def lines_of(self, calls: Int64s | Int32s, *, before: bool = False) -> Int32s:
        """Return where some calls were made, by their rows among all, or where the program was before them."""
        lines = self.attribution.lines
        if lines is None:
            return np.full(len(calls), -1, np.int32)
        line_of_call = lines.before_launch if before else lines.of_launch
        return np.append(line_of_call, np.int32(-1))[calls]

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

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """What each call does; a call is loading where it loads inside, or is a kernel's first and takes long."""
        launches = self.launches
        named = self.trace.calls
        kinds = np.zeros(len(launches), np.uint8)
        if named is not None:
            kinds = named.kind_of_name[named.of_launch[self.near]]
        nameless = np.flatnonzero(kinds[self.call] == NO_KIND)
        kind = self.trace.work.kind[self.caused[nameless]]
        computes = (kind == KERNEL) | (kind == GRAPH)
        kinds[self.call[nameless]] = np.where(computes, KERNEL_LAUNCH, COPY)  # by what came of them
        loading = np.flatnonzero(kinds == LOADING)
        for (thread,), rows in rows_of_each(launches.thread[loading]):
            inner_ns = np.sort(launches.start_ns[loading[rows]])
            outer = np.flatnonzero((launches.thread == thread) & (kinds != LOADING))
            first = np.searchsorted(inner_ns, launches.start_ns[outer])
            last = np.searchsorted(inner_ns, launches.end_ns[outer])
            kinds[outer[last > first]] = LOADING
        kinds[self._lazy_launches(kinds)] = LOADING
        return kinds

    def _lazy_launches(self, kinds: NDArray[np.uint8]) -> Int32s:
        """Return the calls that launch a kernel first in its process, and take long: they load its code."""
        work = self.trace.work
        launches = self.launches
        duration_ns = launches.end_ns - launches.start_ns
        is_long = (kinds == KERNEL_LAUNCH) & (duration_ns > LAZY_NS)
        kernels = (work.kind[self.caused] == KERNEL) & is_long[self.call]
        long_rows = self.caused[kernels]
        call = self.call[kernels]
        if not len(long_rows):
            return np.empty(0, np.int32)
        is_name_of_long = marked(work.name_id[long_rows], len(self.trace.names))
        is_same_kernel = is_name_of_long[work.name_id] & (work.kind == KERNEL)
        rows = np.flatnonzero(is_same_kernel & (work.launch >= 0))
        keys, group = grouped_rows(work.process[rows], work.name_id[rows])
        start_ns = self.trace.launches.start_ns[work.launch[rows]]
        first_ns, _ = bounds(group, start_ns, start_ns, len(keys[0]))
        group_of_long = group[np.searchsorted(rows, long_rows)]
        is_first = launches.start_ns[call] == first_ns[group_of_long]
        lazy: Int32s = call[is_first]
        return lazy

    @cached_property
    def waits(self) -> Bools:
        """Mark the calls that return when the GPU is done: synchronization, and copies that end first."""
        copies = np.flatnonzero(self.kinds[self.call] == COPY)
        call = self.call[copies]
        copied_ns = self.trace.work.end_ns[self.caused[copies]]
        waited = copied_ns <= self.launches.end_ns[call]
        waits: Bools = self.kinds == SYNCHRONIZATION
        waits[call[waited]] = True
        return waits

    @cached_property
    def worked(self) -> Bools:
        """Mark the calls that caused work."""
        return marked(self.call, len(self.launches))

    def _before_launch(self, thread: int, gaps: Int64s) -> Pieces:
        """Return the pieces, up to the return of their launches by this thread, of some of the gaps."""
        in_turn = self.host.in_turn.get(thread, ())
        group = _LogicalThread(self, (thread, *in_turn), gaps)
        gap, start, end = group.cut()
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
            gap,
            cause,
            node=group.nodes_at(start),
            start_ns=start,
            end_ns=end,
            exposed_by=waited,
            function=group.functions_at(start),
            line=group.lines_at(start),
        )


class _LogicalThread:
    """The calls and ranges near some gaps of threads that run in turn; the launching thread is first."""

    def __init__(self, causes: _Causes, threads: tuple[int, ...], gaps: Int64s) -> None:
        self.causes = causes
        self.threads = threads
        self.gaps = gaps
        trace = causes.trace
        attribution = causes.attribution
        # Launch calls of one thread can be in any order, but gaps are disjoint and in order for each GPU.
        self.from_ns = causes.gaps.start_ns[gaps]
        self.until_ns = causes.cut[gaps]
        times = union(self.from_ns, self.until_ns)
        self.calls = [_near(causes.launches, thread, times) for thread in threads]
        ranges = [_near(attribution.ranges, thread, times) for thread in threads]
        self.ranges = [rows[attribution.home[rows] >= 0] for rows in ranges]
        self.frames = []
        if trace.frames is not None:
            self.frames = [_near(trace.frames, thread, times) for thread in threads]
        loading = causes.host.loading
        rows = np.concatenate([_near(loading, thread, times) for thread in threads])
        self.loading = union(loading.start_ns[rows], loading.end_ns[rows])
        #: All calls of these threads, near gaps or not.
        self.mine = np.flatnonzero(np.isin(causes.launches.thread, threads))
        self.overhead = np.empty(0, np.int64)
        if trace.overhead is not None:
            self.overhead = np.flatnonzero(np.isin(trace.overhead.thread, (-1, *threads)))

    def cut(self) -> tuple[Int64s, Int64s, Int64s]:
        """Cut the gaps where a call, a range or the profiler's time begins or ends: gap, start, end (pieces,)."""
        trace = self.causes.trace
        spots: list[tuple[Spots, NDArray[np.int64]]] = [(self.causes.launches, rows) for rows in self.calls]
        spots += [(self.causes.attribution.ranges, rows) for rows in self.ranges]
        spots += [(trace.frames, rows) for rows in self.frames if trace.frames is not None]
        if trace.overhead is not None:
            spots.append((trace.overhead, self.overhead))
        times = [self.loading.start_ns, self.loading.end_ns]
        for table, rows in spots:
            times += [table.start_ns[rows], table.end_ns[rows]]
        cuts = ordered(np.concatenate(times))
        piece, start, end = cut_at(cuts, self.from_ns, self.until_ns)
        return self.gaps[piece], start, end

    def kinds_at(self, at_ns: Int64s) -> NDArray[np.uint8]:
        """Return the kind of the innermost call then open, of the launching thread first; NO_KIND for none."""
        launches = self.causes.launches
        kind = np.zeros(len(at_ns), np.uint8)
        is_open = np.zeros(len(at_ns), np.bool_)
        for rows in self.calls:
            place = Layers(launches.start_ns[rows], launches.end_ns[rows]).innermost(at_ns)
            is_new = ~is_open & (place >= 0)
            kind[is_new] = self.causes.kinds[rows[place[is_new]]]
            is_open |= is_new
        return kind

    def nodes_at(self, at_ns: Int64s) -> Int64s:
        """Return the node of the innermost range then open, of the launching thread first; -1 for none."""
        attribution = self.causes.attribution
        node = np.full(len(at_ns), -1, np.int64)
        for rows in self.ranges:
            ranges = attribution.ranges
            place = Layers(ranges.start_ns[rows], ranges.end_ns[rows]).innermost(at_ns)
            is_new = (node < 0) & (place >= 0)
            node[is_new] = attribution.home[rows[place[is_new]]]
        return node

    def functions_at(self, at_ns: Int64s) -> Int64s:
        """Return the name of the innermost Python function then running, of the launching thread first; -1."""
        frames = self.causes.trace.frames
        name = np.full(len(at_ns), -1, np.int64)
        if frames is not None:
            for rows in self.frames:
                place = Layers(frames.start_ns[rows], frames.end_ns[rows]).innermost(at_ns)
                is_new = (name < 0) & (place >= 0)
                name[is_new] = frames.name_id[rows[place[is_new]]]
        return name

    def lines_at(self, at_ns: Int64s) -> Int32s:
        """Return where the program then was: at the innermost call then open, else where it is before the next."""
        causes = self.causes
        launches = self.causes.launches
        if causes.attribution.lines is None:
            return np.full(len(at_ns), -1, np.int32)
        rows = self.mine[np.argsort(launches.start_ns[self.mine], kind="stable")]
        following = np.searchsorted(launches.start_ns[rows], at_ns, "right")
        line = causes.lines_of(np.append(rows + causes.first, -1)[following], before=True)
        is_open = np.zeros(len(at_ns), np.bool_)
        for calls in self.calls:
            place = Layers(launches.start_ns[calls], launches.end_ns[calls]).innermost(at_ns)
            is_new = ~is_open & (place >= 0)
            line[is_new] = causes.lines_of(calls[place[is_new]] + causes.first)
            is_open |= is_new
        return line

    def overhead_at(self, at_ns: Int64s) -> Int64s:
        """Return whether the profiler then did something (0) or loaded code (1); -1 for neither."""
        overhead = self.causes.trace.overhead
        state = np.full(len(at_ns), -1, np.int64)
        if overhead is not None and len(self.overhead):
            rows = self.overhead
            place = Layers(overhead.start_ns[rows], overhead.end_ns[rows]).innermost(at_ns)
            state[place >= 0] = overhead.loads[rows[place[place >= 0]]]
        return state

    def stretch(self, at_ns: Int64s) -> tuple[Int64s, Int64s]:
        """Return how long the threads were between the calls that caused work around each moment, and since when.

        Calls that wait, allocate, copy or load are taken out.
        """
        launches = self.causes.launches
        kinds = self.causes.kinds
        calls = self.mine
        working = calls[self.causes.worked[calls]]
        starts = np.sort(launches.start_ns[working])
        ends = np.sort(launches.end_ns[working])
        before = np.searchsorted(ends, at_ns, "right") - 1
        after = np.searchsorted(starts, at_ns, "left")
        last_ns = np.append(ends, _LONG_AGO)[before]
        following_ns = np.append(starts, _NEVER)[after]
        others = calls[_TAKEN_OUT[kinds[calls]]]
        taken_out = union(launches.start_ns[others], launches.end_ns[others])
        is_between = (before >= 0) & (after < len(starts))
        from_ns = last_ns[is_between]
        until_ns = following_ns[is_between]
        stretch_ns = np.full(len(at_ns), _NEVER)
        stretch_ns[is_between] = until_ns - from_ns - taken_out.covered(from_ns, until_ns)
        return stretch_ns, last_ns

    def waited_before(self, at_ns: Int64s, last_launch_ns: Int64s) -> Int64s:
        """Return the last call that waited for the GPU, if it ended after the last launch; else -1."""
        launches = self.causes.launches
        rows = self.mine[self.causes.waits[self.mine]]
        rows = rows[np.argsort(launches.end_ns[rows], kind="stable")]
        ends = launches.end_ns[rows]
        before = np.searchsorted(ends, at_ns, "right") - 1
        ended_ns = np.append(ends, _LONG_AGO)[before]
        is_last = (before >= 0) & (ended_ns >= last_launch_ns)
        call = np.append(rows + self.causes.first, -1)[before]
        return np.where(is_last, call, -1)


def _near(spots: Spots, thread: int, times: Intervals) -> NDArray[np.int64]:
    """Return the rows of a thread that take time, and share some of it with these intervals."""
    rows = np.flatnonzero((spots.thread == thread) & (spots.end_ns > spots.start_ns))
    return rows[touching(spots.start_ns[rows], spots.end_ns[rows], times)]


def logical_threads(attribution: Attribution) -> Mapping[int, tuple[int, ...]]:
    """Return, by thread, the threads that run in turn with it: those that wait for it, and that it waits for.

    Work whose path begins on another thread than its launch's was adopted: that thread waited.
    """
    forest = attribution.forest
    launches = attribution.trace.launches
    work = attribution.trace.work
    if not len(forest):
        return {}
    root = np.arange(len(forest))
    for nodes in forest.by_depth()[1:]:
        root[nodes] = root[forest.parent[nodes]]
    was_awaited = np.isin(attribution.how, [HOW.index("adopted"), HOW.index("linked")])
    rows = np.flatnonzero(was_awaited & (work.launch >= 0) & (attribution.node >= 0))
    outermost = forest.range[root[attribution.node[rows]]]
    waiting_thread = attribution.ranges.thread[outermost]
    launching_thread = launches.thread[work.launch[rows]]
    pairs, _ = grouped_rows(launching_thread, waiting_thread)
    others: dict[int, set[int]] = defaultdict(set)
    for launching, waiting in each_row(*pairs):
        if launching != waiting:
            others[launching].add(waiting)
            others[waiting].add(launching)
    return {thread: tuple(sorted(group)) for thread, group in others.items()}
