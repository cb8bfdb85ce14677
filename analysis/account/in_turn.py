"""Logical threads: a thread, those that wait for it (as adoption found) and those that it waits for.

Only one of them runs at a time, so their calls are read as one thread's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import HOW, Attribution
from ..support.layers import Layers
from ..support.small_numbers import distinct, each_row, grouped_rows, looked_up, ordered, sorted_by
from ..trace import Int32s, Int64s, Spots, Trace
from ..vocabulary.calls import ALLOCATION, CALL_KINDS, COPY, LOADING, NO_KIND, QUERY, SYNCHRONIZATION
from ..vocabulary.loading import loads_data, loads_in_workers
from .calls_near import NearCalls
from .intervals import Intervals, cut_at, touching, union

#: The calls that are no part of the host code between two launches.
_TAKEN_OUT = np.isin(np.arange(len(CALL_KINDS)), (SYNCHRONIZATION, QUERY, ALLOCATION, COPY, LOADING))
_LONG_AGO = -(2**62)
_NEVER = 2**62


class LogicalThread:
    """The calls and ranges near some gaps of threads that run in turn; the launching thread is first."""

    def __init__(
        self,
        calls: NearCalls,
        loading: Spots,
        threads: tuple[int, ...],
        from_ns: Int64s,
        until_ns: Int64s,
    ) -> None:
        self.near = calls
        self.from_ns = from_ns
        self.until_ns = until_ns
        self.trace = calls.trace
        self.attribution = calls.attribution
        self.launches = calls.launches
        # Launch calls of one thread can be in any order, but gaps are disjoint and in order for each GPU.
        times = union(from_ns, until_ns)
        self.calls = [_near(self.launches, thread, times) for thread in threads]
        ranges = [_near(self.attribution.ranges, thread, times) for thread in threads]
        self.ranges = [rows[self.attribution.home[rows] >= 0] for rows in ranges]
        self.frames = []
        if self.trace.frames is not None:
            self.frames = [_near(self.trace.frames, thread, times) for thread in threads]
        rows = np.concatenate([_near(loading, thread, times) for thread in threads])
        self.loading = union(loading.start_ns[rows], loading.end_ns[rows])
        #: All calls of these threads, near gaps or not.
        self.all_calls = np.flatnonzero(np.isin(self.launches.thread, threads))
        self.overhead = np.empty(0, np.int64)
        if self.trace.overhead is not None:
            self.overhead = np.flatnonzero(np.isin(self.trace.overhead.thread, (-1, *threads)))

    def cut(self) -> tuple[Int64s, Int64s, Int64s]:
        """Cut the gaps where a call, a range or the profiler's time begins or ends: gap, start, end (pieces,)."""
        trace = self.trace
        spots: list[tuple[Spots, Int64s]] = [(self.launches, rows) for rows in self.calls]
        spots += [(self.attribution.ranges, rows) for rows in self.ranges]
        spots += [(trace.frames, rows) for rows in self.frames if trace.frames is not None]
        if trace.overhead is not None:
            spots.append((trace.overhead, self.overhead))
        times = [self.loading.start_ns, self.loading.end_ns]
        for table, rows in spots:
            times += [table.start_ns[rows], table.end_ns[rows]]
        return cut_at(ordered(np.concatenate(times)), self.from_ns, self.until_ns)

    def kinds_at(self, at_ns: Int64s) -> NDArray[np.uint8]:
        """Return the kind of the innermost call then open, of the launching thread first; NO_KIND for none."""
        return looked_up(self.near.kinds, _innermost(self.launches, self.calls, at_ns), NO_KIND)

    def nodes_at(self, at_ns: Int64s) -> Int32s:
        """Return the node of the innermost range then open, of the launching thread first; -1 for none."""
        attribution = self.attribution
        return looked_up(attribution.home, _innermost(attribution.ranges, self.ranges, at_ns), -1)

    def functions_at(self, at_ns: Int64s) -> Int32s:
        """Return the name of the innermost Python function then running, of the launching thread first; -1."""
        frames = self.trace.frames
        if frames is None:
            return np.full(len(at_ns), -1, np.int32)
        return looked_up(frames.name_id, _innermost(frames, self.frames, at_ns), -1)

    def lines_at(self, at_ns: Int64s) -> Int32s:
        """Return where the program then was: at the innermost call then open, else where it is before the next."""
        near = self.near
        if self.attribution.lines is None:
            return np.full(len(at_ns), -1, np.int32)
        rows = sorted_by(self.all_calls, self.launches.start_ns)
        following = np.searchsorted(self.launches.start_ns[rows], at_ns, "right")
        line = near.lines_of(looked_up(rows + near.first, following, -1), before=True)
        call = _innermost(self.launches, self.calls, at_ns)
        return np.where(call >= 0, near.lines_of(call + near.first), line)

    def overhead_at(self, at_ns: Int64s) -> Int64s:
        """Return whether the profiler then did something (0) or loaded code (1); -1 for neither."""
        overhead = self.trace.overhead
        if overhead is None:
            return np.full(len(at_ns), -1, np.int64)
        return looked_up(overhead.loads.astype(np.int64), _innermost(overhead, [self.overhead], at_ns), -1)

    def stretch(self, at_ns: Int64s) -> tuple[Int64s, Int64s]:
        """Return how long the threads were between the calls that caused work around each moment, and since when.

        Calls that wait, allocate, copy or load are taken out.
        """
        launches = self.launches
        calls = self.all_calls
        working = calls[self.near.worked[calls]]
        starts = np.sort(launches.start_ns[working])
        ends = np.sort(launches.end_ns[working])
        before = np.searchsorted(ends, at_ns, "right") - 1
        after = np.searchsorted(starts, at_ns, "left")
        last_ns = looked_up(ends, before, _LONG_AGO)
        following_ns = looked_up(starts, after, _NEVER)
        others = calls[_TAKEN_OUT[self.near.kinds[calls]]]
        taken_out = union(launches.start_ns[others], launches.end_ns[others])
        is_between = (before >= 0) & (after < len(starts))
        from_ns = last_ns[is_between]
        until_ns = following_ns[is_between]
        stretch_ns = np.full(len(at_ns), _NEVER)
        stretch_ns[is_between] = until_ns - from_ns - taken_out.covered(from_ns, until_ns)
        return stretch_ns, last_ns

    def waited_before(self, at_ns: Int64s, last_launch_ns: Int64s) -> Int64s:
        """Return the last call that waited for the GPU, if it ended after the last launch; else -1."""
        launches = self.launches
        rows = self.all_calls[self.near.waits[self.all_calls]]
        rows = sorted_by(rows, launches.end_ns)
        ends = launches.end_ns[rows]
        before = np.searchsorted(ends, at_ns, "right") - 1
        ended_ns = looked_up(ends, before, _LONG_AGO)
        is_last = (before >= 0) & (ended_ns >= last_launch_ns)
        call = looked_up(rows + self.near.first, before, -1)
        return np.where(is_last, call, -1)


def _innermost(table: Spots, rows_of_threads: Iterable[Int64s], at_ns: Int64s) -> Int64s:
    """Return the row of the innermost interval that contains each moment, of the first thread with one; or -1."""
    row = np.full(len(at_ns), -1, np.int64)
    for rows in rows_of_threads:
        place = Layers(table.start_ns[rows], table.end_ns[rows]).innermost(at_ns)
        is_new = (row < 0) & (place >= 0)
        row[is_new] = rows[place[is_new]]
    return row


def _near(spots: Spots, thread: int, times: Intervals) -> NDArray[np.int64]:
    """Return the rows of a thread that take time, and share some of it with these intervals."""
    rows = np.flatnonzero((spots.thread == thread) & (spots.end_ns > spots.start_ns))
    return rows[touching(spots.start_ns[rows], spots.end_ns[rows], times)]


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


def has_workers(trace: Trace, run: Mapping[str, Any]) -> bool | None:
    """Return whether a program's data loaders have workers, by its longest ranges and functions, else as it says.

    `run` has the settings of its `loaders`. None if neither tells.
    """
    times_ns = {True: 0, False: 0}
    tables: list[tuple[Spots, Int32s, Sequence[str]]] = [(trace.ranges, trace.ranges.name_id, trace.names)]
    if trace.frames is not None:
        tables.append((trace.frames, trace.frames.name_id, trace.frame_names))
    for spots, name_id, names in tables:
        for number in distinct(name_id):
            in_workers = loads_in_workers(names[number])
            if in_workers is not None:
                of_name = name_id == number
                times_ns[in_workers] += int((spots.end_ns - spots.start_ns)[of_name].sum())
    if any(times_ns.values()):
        return times_ns[True] > times_ns[False]
    settings = {loader.get("num_workers", 0) > 0 for loader in run.get("loaders") or ()}
    return settings.pop() if len(settings) == 1 else None


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
