"""One cause for each nanosecond in which a GPU is idle: what the thread that launches the next work was doing.

A *gap* is a time in which no work runs on a GPU. The work that ends it *decides*: up to the end of its launch
call the gap is cut at every begin and end of a call, of a range and of the profiler's own time on its logical
thread, and each piece has one cause; the rest of the gap is after the launch. Work of a thread that launches no
kernels on this GPU, such as a prefetcher's copies, does not decide where a later one can.
docs/idle.md has the rules.

A *logical thread* is a thread, those that wait for it (as adoption found) and those that it waits for: only one of
them runs at a time, so their calls are read as one thread's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import HOW, Attribution
from ..support.small_numbers import bounds, grouped_rows, ordered, rows_of_each
from ..trace import GRAPH, KERNEL, Bools, Columns, Int8s, Int32s, Int64s, Spots, Trace, marked
from ..vocabulary import PHASES
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
from .gaps import Gaps, gaps_of
from .idle_windows import Windows, typical, windows_of
from .layers import Layers, cut_at, touching
from .spans import Extents, Spans, union

#: Why a GPU is idle.
CAUSES = (
    "launching",
    "host code",
    "synchronization",
    "allocation",
    "copy",
    "module loading",
    "between kernels",
    "latency",
    "queue",
    "profiler",
    "unknown",
)
(
    LAUNCHING,
    HOST_CODE,
    SYNCHRONIZING,
    ALLOCATING,
    COPYING,
    MODULE_LOADING,
    BETWEEN_KERNELS,
    LATENCY,
    QUEUE,
    PROFILER,
    UNKNOWN,
) = range(len(CAUSES))
#: The cause while a call of each kind is the innermost one; HOST_CODE where it says nothing.
_CAUSE_OF_KIND = np.full(len(CALL_KINDS), HOST_CODE, np.int8)
_CAUSE_OF_KIND[[KERNEL_LAUNCH, OTHER_LAUNCH]] = LAUNCHING
_CAUSE_OF_KIND[[SYNCHRONIZATION, QUERY]] = SYNCHRONIZING
_CAUSE_OF_KIND[[ALLOCATION, COPY, LOADING]] = ALLOCATING, COPYING, MODULE_LOADING

#: Host code between two launches that took less than this belongs to launching: an eager module's own Python.
NEAR_NS = 100_000
#: A GPU begins launched work within this time; longer is a queue. The first launch of a kernel that takes longer
#: than LAZY_NS loads its code.
LATENCY_NS, LAZY_NS = 10_000, 100_000
#: The calls that are no part of the host code between two launches.
_TAKEN_OUT = np.isin(np.arange(len(CALL_KINDS)), (SYNCHRONIZATION, QUERY, ALLOCATION, COPY, LOADING))
#: Up to this number of gaps, all steps are examined, else a few typical ones.
FEW_GAPS = 20_000
_LONG_AGO, _NEVER = -(2**62), 2**62


@dataclass(frozen=True, slots=True)
class Pieces(Columns):
    """Idle time in pieces of one cause each, by GPU and time; the pieces of a gap add up to it."""

    gap: Int32s  # position in the idle time's gaps
    cause: Int8s  # position in CAUSES
    node: Int32s  # of the attribution: the innermost range then open on the logical thread; -1 for none
    start_ns: Int64s
    end_ns: Int64s
    exposed_by: Int32s  # position in Launches: the call that waited for the GPU before host code; -1 for none
    function: Int32s  # position in Trace.frame_names: the innermost Python function then running; -1 for none

    @property
    def duration_ns(self) -> Int64s:
        """How long each piece is, ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class IdleTime:
    """The idle time in some windows: its gaps, the window of each, and its pieces."""

    attribution: Attribution  # of all work
    gpus: list[str]
    windows: Windows
    gaps: Gaps
    window: Int32s  # of each gap, a position in `windows`
    pieces: Pieces
    all_gaps: Gaps  # also those in no window

    @property
    def window_of_piece(self) -> Int32s:
        """The window of each piece, int32 (pieces,)."""
        return self.window[self.pieces.gap]


def idle_time(
    attribution: Attribution, phases: Collection[str] = PHASES, *, include_warm_up: bool = False
) -> IdleTime:
    """Find why each GPU is idle in the measured steps and between them, or without steps in all of the work."""
    extents = Extents(attribution, include_warm_up=include_warm_up)
    gaps = gaps_of(extents.attribution.of_all_work.trace, extents.gpu_of_all)
    return idle_in(extents, gaps, windows_of(extents, phases))


def typical_idle_time(extents: Extents, gaps: Gaps, phases: Collection[str] = PHASES) -> IdleTime:
    """Return the same in a few typical steps and the one with the most idle time, if there are many gaps."""
    windows = windows_of(extents, phases)
    first, last = gaps_in(gaps, windows)
    until_ns = np.concatenate([[0], np.cumsum(gaps.duration_ns)])
    few = (last - first).sum() <= FEW_GAPS
    chosen = windows if few else typical(windows, until_ns[last] - until_ns[first])
    return idle_in(extents, gaps, chosen, some=len(chosen) < len(windows))


def idle_in(extents: Extents, gaps: Gaps, windows: Windows, *, some: bool = False) -> IdleTime:
    """Return the causes of the gaps in these windows; `gaps` are those between all work of each GPU.

    With `some`, only the calls and work near the windows are looked at, which is faster for a few of many.
    """
    first, last = gaps_in(gaps, windows)
    window = np.repeat(np.arange(len(windows), dtype=np.int32), last - first)
    number = np.arange(len(window)) - np.repeat(np.cumsum(last - first) - (last - first), last - first)
    all_gaps, gaps = gaps, gaps.take(first[window] + number)
    attribution = extents.attribution.of_all_work
    near = _calls_near(attribution.trace, windows) if some else None
    pieces = _Causes(attribution, gaps, extents.gpu_of_all, near).pieces()
    return IdleTime(attribution, extents.gpus, windows, gaps, window, pieces, all_gaps)


def causes_of(attribution: Attribution, gaps: Gaps, gpu_of_work: Int32s) -> Pieces:
    """Return the causes of a few gaps of many, by the calls and work near them."""
    around = Windows(
        gaps.gpu[:1], gaps.start_ns[:1], gaps.end_ns[-1:], np.zeros(1, np.int32), np.zeros(1, np.bool_)
    ).take(np.arange(min(len(gaps), 1)))
    return _Causes(attribution, gaps, gpu_of_work, _calls_near(attribution.trace, around)).pieces()


def gaps_in(gaps: Gaps, windows: Windows | Spans) -> tuple[Int64s, Int64s]:
    """Return the first gap in each window, and the first after it: positions in the gaps, int64 (windows,)."""
    first, last = np.zeros((2, len(windows)), np.int64)
    for (gpu,), rows in rows_of_each(windows.gpu):
        begin, end = np.searchsorted(gaps.gpu, (gpu, gpu + 1))
        first[rows] = begin + np.searchsorted(gaps.start_ns[begin:end], windows.start_ns[rows], "left")
        last[rows] = begin + np.searchsorted(gaps.end_ns[begin:end], windows.end_ns[rows], "right")
    return first, np.maximum(first, last)


def _calls_near(trace: Trace, windows: Windows) -> Int64s:
    """Return the calls that overlap the windows, or lie between the launch of their first work and them."""
    work, launches = trace.work, trace.launches
    near, launch_ns = np.zeros(len(launches), np.bool_), np.append(launches.start_ns, _NEVER)
    is_ordered = not (launches.start_ns[1:] < launches.start_ns[:-1]).any()
    longest = int((launches.end_ns - launches.start_ns).max(initial=0))
    for start, end in zip(windows.start_ns.tolist(), windows.end_ns.tolist(), strict=True):
        rows = np.flatnonzero((work.start_ns >= start) & (work.start_ns <= end))
        begin = min(start, int(launch_ns[work.launch[rows]].min(initial=start)))
        bounds_ns = (begin - longest, end + 1)
        low, high = np.searchsorted(launches.start_ns, bounds_ns) if is_ordered else (0, len(launches))
        near[low:high] |= (launches.end_ns[low:high] >= begin) & (launches.start_ns[low:high] <= end)
    return np.flatnonzero(near)


class _Causes:
    """Cuts gaps into pieces, and finds the cause of each."""

    def __init__(
        self, attribution: Attribution, gaps: Gaps, gpu_of_work: Int32s, near: Int64s | None = None
    ) -> None:
        self.attribution, self.trace, self.gaps = attribution, attribution.trace, gaps
        launches = self.trace.launches
        # Of all calls, those that are looked at, and the work that they caused.
        self.rows = np.arange(len(launches)) if near is None else near
        self.launches = launches if near is None else launches.take(near)
        place = np.full(len(launches) + 1, -1, np.int32)
        place[self.rows] = np.arange(len(self.rows))
        call_of_work = place[self.trace.work.launch]
        self.caused = np.flatnonzero(call_of_work >= 0)
        self.call = call_of_work[self.caused]  # of each piece of that work
        self.thread_of_work = np.append(launches.thread, np.int32(-1))[self.trace.work.launch]
        self.decides = self._deciding(gpu_of_work)
        call = self.trace.work.launch[self.decides]
        self.known = (call >= 0) & self.trace.launch_times_known
        returned = np.append(launches.end_ns, 0)[call]
        # Up to here the deciding launch had not returned.
        self.cut = np.where(self.known, np.clip(returned, gaps.start_ns, gaps.end_ns), gaps.end_ns)
        self.launched_before = returned <= gaps.start_ns

    def pieces(self) -> Pieces:
        """Return all pieces in the order of gaps and time."""
        gaps, node = self.gaps, self.attribution.node
        parts = []
        unknown = np.flatnonzero(~self.known)
        parts.append(
            self._piece(unknown, UNKNOWN, node[gaps.next[unknown]], gaps.start_ns[unknown], gaps.end_ns[unknown])
        )
        before = np.flatnonzero(self.known & (self.cut > gaps.start_ns))
        thread = self.thread_of_work[self.decides[before]]
        parts += [self._before_launch(number, before[rows]) for (number,), rows in rows_of_each(thread)]
        after = np.flatnonzero(self.known & (self.cut < gaps.end_ns))
        waited_ns = (gaps.end_ns - self.cut)[after]
        begun_soon = np.where(self.launched_before[after], BETWEEN_KERNELS, LATENCY)
        cause = np.where(waited_ns <= LATENCY_NS, begun_soon, QUEUE)
        parts.append(self._piece(after, cause, node[self.decides[after]], self.cut[after], gaps.end_ns[after]))
        pieces = Pieces.joined(parts)
        return pieces.take(np.argsort(pieces.gap, kind="stable"))

    def _piece(
        self,
        gap: Int64s,
        cause: NDArray[np.integer] | int,
        node: NDArray[np.integer],
        start_ns: Int64s,
        end_ns: Int64s,
        exposed_by: NDArray[np.integer] | int = -1,
        function: NDArray[np.integer] | int = -1,
    ) -> Pieces:
        causes = np.broadcast_to(np.asarray(cause, np.int8), len(gap))
        exposed, functions = (
            np.broadcast_to(np.asarray(column, np.int32), len(gap)) for column in (exposed_by, function)
        )
        return Pieces(gap.astype(np.int32), causes, node.astype(np.int32), start_ns, end_ns, exposed, functions)

    def _deciding(self, gpu_of_work: Int32s) -> Int64s:
        """Return the work that decides on each gap: the next one by a thread that launches kernels on its GPU."""
        work, decides = self.trace.work, self.gaps.next.astype(np.int64)
        computes = (work.kind == KERNEL) | (work.kind == GRAPH)
        for (gpu,), gaps in rows_of_each(self.gaps.gpu):
            on_gpu = gpu_of_work == gpu
            drivers = np.flatnonzero(marked(self.thread_of_work[computes & on_gpu], len(self.trace.threads)))
            thread = self.thread_of_work[self.gaps.next[gaps]]
            passed = gaps[(thread >= 0) & ~np.isin(thread, drivers)]
            if not len(passed):
                continue
            rows = np.flatnonzero(on_gpu & np.isin(self.thread_of_work, drivers))
            rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
            place = np.searchsorted(work.start_ns[rows], self.gaps.end_ns[passed], "left")
            later = place < len(rows)
            decides[passed[later]] = rows[place[later]]
        return decides

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """What each call does; a call is loading where it loads inside, or is a kernel's first and takes long."""
        launches, named = self.launches, self.trace.calls
        kinds = np.zeros(len(launches), np.uint8) if named is None else named.kinds[self.rows]
        nameless = np.flatnonzero(kinds[self.call] == NO_KIND)
        kind = self.trace.work.kind[self.caused[nameless]]
        computes = (kind == KERNEL) | (kind == GRAPH)
        kinds[self.call[nameless]] = np.where(computes, KERNEL_LAUNCH, COPY)  # by what came of them
        loading = np.flatnonzero(kinds == LOADING)
        for (thread,), rows in rows_of_each(launches.thread[loading]):
            inner = np.sort(launches.start_ns[loading[rows]])
            outer = np.flatnonzero((launches.thread == thread) & (kinds != LOADING))
            first, last = (np.searchsorted(inner, times[outer]) for times in (launches.start_ns, launches.end_ns))
            kinds[outer[last > first]] = LOADING
        kinds[self._lazy_launches(kinds)] = LOADING
        return kinds

    def _lazy_launches(self, kinds: NDArray[np.uint8]) -> Int32s:
        """Return the calls that launch a kernel first in its process, and take long: they load its code."""
        work, launches = self.trace.work, self.launches
        is_long = (kinds == KERNEL_LAUNCH) & (launches.end_ns - launches.start_ns > LAZY_NS)
        kernels = (work.kind[self.caused] == KERNEL) & is_long[self.call]
        long_rows, call = self.caused[kernels], self.call[kernels]
        if not len(long_rows):
            return np.empty(0, np.int32)
        same = marked(work.name_id[long_rows], len(self.trace.names))
        rows = np.flatnonzero(same[work.name_id] & (work.kind == KERNEL) & (work.launch >= 0))
        keys, group = grouped_rows(work.process[rows], work.name_id[rows])
        start = self.trace.launches.start_ns[work.launch[rows]]
        first, _ = bounds(group, start, start, len(keys[0]))
        of_long = group[np.searchsorted(rows, long_rows)]
        lazy: Int32s = call[launches.start_ns[call] == first[of_long]]
        return lazy

    @cached_property
    def waits(self) -> Bools:
        """Mark the calls that return when the GPU is done: synchronization, and copies that end first."""
        copies = np.flatnonzero(self.kinds[self.call] == COPY)
        call = self.call[copies]
        waited = self.trace.work.end_ns[self.caused[copies]] <= self.launches.end_ns[call]
        waits: Bools = self.kinds == SYNCHRONIZATION
        waits[call[waited]] = True
        return waits

    @cached_property
    def worked(self) -> Bools:
        """Mark the calls that caused work."""
        return marked(self.call, len(self.launches))

    @cached_property
    def _logical(self) -> Mapping[int, tuple[int, ...]]:
        return logical_threads(self.attribution, self.caused)

    def _before_launch(self, thread: int, gaps: Int64s) -> Pieces:
        """Return the pieces, up to the return of their launches by this thread, of some of the gaps."""
        group = _LogicalThread(self, (thread, *self._logical.get(thread, ())), gaps)
        gap, start, end = group.cut()
        kind, node = group.kinds_at(start), group.nodes_at(start)
        stretch_ns, last_launch_ns = group.stretch(start)
        cause = _CAUSE_OF_KIND[kind]
        is_free = cause == HOST_CODE
        cause[is_free & (stretch_ns < NEAR_NS)] = LAUNCHING
        overhead = group.overhead_at(start)
        cause[overhead >= 0] = np.where(overhead[overhead >= 0] == 1, MODULE_LOADING, PROFILER)
        waited = np.where(cause == HOST_CODE, group.waited_before(start, last_launch_ns), -1)
        return self._piece(gap, cause, node, start, end, waited, group.functions_at(start))


class _LogicalThread:
    """The calls and ranges near some gaps of threads that run in turn; the launching thread is first."""

    def __init__(self, causes: _Causes, threads: tuple[int, ...], gaps: Int64s) -> None:
        self.causes, self.threads, self.gaps = causes, threads, gaps
        trace, attribution = causes.trace, causes.attribution
        # Launch calls of one thread can be in any order, but gaps are disjoint and in order for each GPU.
        self.from_ns, self.until_ns = causes.gaps.start_ns[gaps], causes.cut[gaps]
        joined = union(self.from_ns, self.until_ns)
        self.calls: list[NDArray[np.int64]] = []
        self.ranges: list[NDArray[np.int64]] = []
        self.frames: list[NDArray[np.int64]] = []
        tables = [(causes.launches, self.calls), (attribution.ranges, self.ranges)]
        tables += [] if trace.frames is None else [(trace.frames, self.frames)]
        for thread in threads:
            for spots, found in tables:
                rows = np.flatnonzero((spots.thread == thread) & (spots.end_ns > spots.start_ns))
                if found is self.ranges:
                    rows = rows[attribution.home[rows] >= 0]
                near = touching(spots.start_ns[rows], spots.end_ns[rows], joined.start_ns, joined.end_ns)
                found.append(rows[near])
        #: All calls of these threads, near gaps or not.
        self.mine = np.flatnonzero(np.isin(causes.launches.thread, threads))
        self.overhead = np.empty(0, np.int64)
        if trace.overhead is not None:
            self.overhead = np.flatnonzero(np.isin(trace.overhead.thread, (-1, *threads)))

    def cut(self) -> tuple[Int64s, Int64s, Int64s]:
        """Cut the gaps where a call, a range or the profiler's time begins or ends: gap, start, end (pieces,)."""
        trace, attribution = self.causes.trace, self.causes.attribution
        spots: list[tuple[Spots, NDArray[np.int64]]] = [(self.causes.launches, rows) for rows in self.calls]
        spots += [(attribution.ranges, rows) for rows in self.ranges]
        spots += [] if trace.frames is None else [(trace.frames, rows) for rows in self.frames]
        if trace.overhead is not None:
            spots.append((trace.overhead, self.overhead))
        times = [times[rows] for table, rows in spots for times in (table.start_ns, table.end_ns)]
        piece, start, end = cut_at(ordered(np.concatenate(times)), self.from_ns, self.until_ns)
        return self.gaps[piece], start, end

    def kinds_at(self, at_ns: Int64s) -> NDArray[np.uint8]:
        """Return the kind of the innermost call then open, of the launching thread first; NO_KIND for none."""
        launches, kind = self.causes.launches, np.zeros(len(at_ns), np.uint8)
        is_open = np.zeros(len(at_ns), np.bool_)
        for rows in self.calls:
            place = Layers(launches.start_ns[rows], launches.end_ns[rows]).innermost(at_ns)
            found = ~is_open & (place >= 0)
            kind[found] = self.causes.kinds[rows[place[found]]]
            is_open |= found
        return kind

    def nodes_at(self, at_ns: Int64s) -> Int64s:
        """Return the node of the innermost range then open, of the launching thread first; -1 for none."""
        attribution, node = self.causes.attribution, np.full(len(at_ns), -1, np.int64)
        for rows in self.ranges:
            ranges = attribution.ranges
            place = Layers(ranges.start_ns[rows], ranges.end_ns[rows]).innermost(at_ns)
            found = (node < 0) & (place >= 0)
            node[found] = attribution.home[rows[place[found]]]
        return node

    def functions_at(self, at_ns: Int64s) -> Int64s:
        """Return the name of the innermost Python function then running, of the launching thread first; -1."""
        frames, name = self.causes.trace.frames, np.full(len(at_ns), -1, np.int64)
        if frames is not None:
            for rows in self.frames:
                place = Layers(frames.start_ns[rows], frames.end_ns[rows]).innermost(at_ns)
                found = (name < 0) & (place >= 0)
                name[found] = frames.name_id[rows[place[found]]]
        return name

    def overhead_at(self, at_ns: Int64s) -> Int64s:
        """Return whether the profiler then did something (0) or loaded code (1); -1 for neither."""
        overhead, state = self.causes.trace.overhead, np.full(len(at_ns), -1, np.int64)
        if overhead is not None and len(self.overhead):
            rows = self.overhead
            place = Layers(overhead.start_ns[rows], overhead.end_ns[rows]).innermost(at_ns)
            state[place >= 0] = overhead.loads[rows[place[place >= 0]]]
        return state

    def stretch(self, at_ns: Int64s) -> tuple[Int64s, Int64s]:
        """Return how long the threads were between the calls that caused work around each moment, and since when.

        Calls that wait, allocate, copy or load are taken out.
        """
        launches, kinds = self.causes.launches, self.causes.kinds
        mine = self.mine
        working = mine[self.causes.worked[mine]]
        starts, ends = np.sort(launches.start_ns[working]), np.sort(launches.end_ns[working])
        before, after = np.searchsorted(ends, at_ns, "right") - 1, np.searchsorted(starts, at_ns, "left")
        last = np.append(ends, _LONG_AGO)[before]
        following = np.append(starts, _NEVER)[after]
        others = mine[_TAKEN_OUT[kinds[mine]]]
        taken = union(launches.start_ns[others], launches.end_ns[others])
        is_between = (before >= 0) & (after < len(starts))
        stretch_ns = np.full(len(at_ns), _NEVER)
        between = last[is_between], following[is_between]
        stretch_ns[is_between] = between[1] - between[0] - taken.covered(*between)
        return stretch_ns, last

    def waited_before(self, at_ns: Int64s, last_launch_ns: Int64s) -> Int64s:
        """Return the last call that waited for the GPU, if it ended after the last launch; else -1."""
        launches = self.causes.launches
        rows = self.mine[self.causes.waits[self.mine]]
        rows = rows[np.argsort(launches.end_ns[rows], kind="stable")]
        ends = launches.end_ns[rows]
        before = np.searchsorted(ends, at_ns, "right") - 1
        is_last = (before >= 0) & (np.append(ends, _LONG_AGO)[before] >= last_launch_ns)
        return np.where(is_last, np.append(self.causes.rows[rows], -1)[before], -1)


def logical_threads(attribution: Attribution, work_rows: Int64s) -> dict[int, tuple[int, ...]]:
    """Return, by thread, the threads that run in turn with it: those that wait for it, and that it waits for.

    `work_rows` is the work that tells.

    Work whose path begins on another thread than its launch's was adopted: that thread waited.
    """
    forest, launches, work = attribution.forest, attribution.trace.launches, attribution.trace.work
    if not len(forest):
        return {}
    root = np.arange(len(forest))
    for nodes in forest.by_depth()[1:]:
        root[nodes] = root[forest.parent[nodes]]
    how = attribution.how[work_rows]
    rows = work_rows[(how == HOW.index("adopted")) | (how == HOW.index("linked"))]
    rows = rows[(work.launch[rows] >= 0) & (attribution.node[rows] >= 0)]
    waiting = attribution.ranges.thread[forest.range[root[attribution.node[rows]]]]
    (threads, waited), _ = grouped_rows(launches.thread[work.launch[rows]], waiting)
    others: dict[int, set[int]] = defaultdict(set)
    for a, b in zip(threads.tolist(), waited.tolist(), strict=True):
        if a != b:
            others[a].add(b)
            others[b].add(a)
    return {thread: tuple(sorted(group)) for thread, group in others.items()}
