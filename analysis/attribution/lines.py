"""The lines of one step's calls for those of all steps: the k-th call of a kind has the line of the k-th there.

    traced step   mm  add  mm  sync     lines 12 13 12 20
    another       mm  add  add mm sync        12 13  ? 12 20

Calls are of one kind if their thread, name, work, phase and path of ranges agree. Most steps make the very same
calls, which is looked at first; in others the k-th call of a kind in the step is the k-th of that kind.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..errors import ReportError
from ..readers.columns import Names
from ..support.small_numbers import grouped_rows, looked_up, next_marked, rows_of_each
from ..trace import KERNEL, Int64s, Lines, Trace, marked, range_order
from .places import Attribution

UNKNOWN = -1
UNKNOWN_LINE = "(line unknown)"
HOW_TO_GET_LINES = (
    "Record with nk.profile or nvtx-kernels record, which trace a step of warm-up by line, or a PyTorch trace "
    "with with_stack=True."
)


def with_lines(attribution: Attribution) -> Attribution:
    """Return the attribution with the lines of the calls of all steps, as far as those of a step are known."""
    trace = attribution.trace
    if trace.lines is None or len(trace.lines.begun_ns) < 2:
        return replace(attribution, lines=trace.lines)
    lines = trace.lines
    order = _order(trace)
    kind = _kinds(attribution, lines.begun_ns, order)
    like = _like_calls(trace, lines, kind, order)
    is_like = like >= 0
    of_launch = np.where(is_like, lines.of_launch[like], lines.of_launch)
    before_launch = np.where(is_like, lines.before_launch[_longest_pause(trace, like, order)], lines.before_launch)
    lines = replace(lines, of_launch=of_launch, before_launch=before_launch)
    return replace(attribution, lines=lines)


def names_kernels(attribution: Attribution) -> bool:
    """Return whether the line of any kernel is known."""
    if attribution.lines is None:
        return False
    launch = attribution.trace.work.launch
    return bool((attribution.lines.of_launch[launch[launch >= 0]] >= 0).any())


def named_by_line(attribution: Attribution) -> Attribution:
    """Return the attribution with its kernels named by the lines that launch them: `train.py:65 (train)`.

    Raises ReportError if no line is known.
    """
    lines, trace = attribution.lines, attribution.trace
    if lines is None or not names_kernels(attribution):
        reason = f": {lines.reason}" if lines is not None and lines.reason else ""
        raise ReportError(f"No kernel's line is known{reason}. {HOW_TO_GET_LINES}")
    number = Names(trace.names)
    called = [number(source.lines[0].called) for source in lines.sources]
    name_of_line = np.array([*called, number(UNKNOWN_LINE)], np.int32)
    line_of_work = looked_up(lines.of_launch, trace.work.launch, UNKNOWN)
    is_kernel = trace.work.kind == KERNEL
    name_id = np.where(is_kernel, name_of_line[line_of_work], trace.work.name_id)
    work = replace(trace.work, name_id=name_id)
    return replace(attribution, trace=replace(trace, work=work, names=number.all))


def _kinds(attribution: Attribution, begun_ns: Int64s, order: Int64s) -> Int64s:
    """Return the kind of each call, int64 (launches,); one without work has the range of the next with some.

    Behind the last of a thread's work, that is its first in the step.
    """
    trace = attribution.trace
    launches = trace.launches
    launch = trace.work.launch
    count = len(trace.launches)
    rows = np.flatnonzero(launch >= 0)[::-1]  # of several pieces of work of one call, the first
    path_of_node = np.append(_paths_in_steps(attribution), UNKNOWN)
    name, phase, path = np.full((3, count), UNKNOWN, np.int64)
    name[launch[rows]] = trace.work.name_id[rows]
    phase[launch[rows]] = attribution.phase[rows]
    path[launch[rows]] = path_of_node[attribution.node[rows]]
    works = marked(launch, count)[order]
    following = next_marked(works)
    thread = launches.thread[order]
    is_same_thread = looked_up(thread, following, -1) == thread
    place_of_next = np.where(is_same_thread, following, count)
    next_working = looked_up(order, place_of_next, -1)
    idle = order[~works]
    from_next = next_working[~works]
    last = from_next < 0
    from_next[last] = _first_in_step(trace, begun_ns, idle[last], order[works])
    has_next = from_next >= 0
    phase[idle] = np.where(has_next, phase[from_next], UNKNOWN)
    path[idle] = np.where(has_next, path[from_next], UNKNOWN)
    call = np.zeros(count, np.uint16)
    if trace.calls is not None:
        call = trace.calls.of_launch
    _, kind = grouped_rows(launches.thread, call, name, phase, path)
    return kind


def _first_in_step(trace: Trace, begun_ns: Int64s, calls: Int64s, working: Int64s) -> Int64s:
    """Return the first call with work of each call's thread in its step, of those `working`; -1 for none."""
    start_ns = trace.launches.start_ns
    thread = trace.launches.thread
    first = np.full(len(calls), UNKNOWN, np.int64)
    step = np.searchsorted(begun_ns, start_ns[calls], "right") - 1
    for (number,), rows in rows_of_each(thread[calls]):
        of_thread = working[thread[working] == number]
        place = np.searchsorted(start_ns[of_thread], begun_ns[np.maximum(step[rows], 0)])
        first[rows] = looked_up(of_thread, place, UNKNOWN)
    return first


def _order(trace: Trace) -> Int64s:
    """Return the calls by thread and time."""
    launches = trace.launches
    order = range_order(launches.thread, launches.start_ns, launches.end_ns)
    if order is None:
        return np.arange(len(launches))
    return order


def _paths_in_steps(attribution: Attribution) -> Int64s:
    """Return a number for the path of each node without steps: equal paths have equal numbers, int64 (nodes,)."""
    forest = attribution.forest
    ranges = attribution.ranges
    is_step = marked(attribution.steps.range, len(ranges))
    is_step = is_step[forest.range]
    above = forest.parent.copy()
    depth = np.zeros(len(forest) + 1, np.int32)
    depth[-1] = -1
    for nodes in forest.by_depth():
        parent = forest.parent[nodes]
        above[nodes] = parent
        below_step = nodes[(parent >= 0) & is_step[parent]]
        above[below_step] = above[forest.parent[below_step]]
        depth[nodes] = depth[above[nodes]] + 1
    number = np.full(len(forest) + 1, UNKNOWN, np.int64)
    count = 0
    names = ranges.name_id[forest.range]
    for level in range(int(depth.max()) + 1):
        of_level = np.flatnonzero((depth[:-1] == level) & ~is_step)
        keys, group = grouped_rows(number[above[of_level]], names[of_level])
        number[of_level] = count + group
        count += len(keys[0])
    steps = np.flatnonzero(is_step)
    number[steps] = number[above[steps]]
    return number[:-1]


def _like_calls(trace: Trace, lines: Lines, kind: Int64s, order: Int64s) -> Int64s:
    """Return the call of the traced step that each call is like, -1 where none is: int64 (launches,)."""
    launches = trace.launches
    like = np.full(len(kind), UNKNOWN, np.int64)
    threads = np.flatnonzero(np.diff(launches.thread[order], append=-1)) + 1
    for of_thread in np.split(order, threads[:-1]):
        start_ns = launches.start_ns[of_thread]
        first, last = np.searchsorted(start_ns, lines.span_ns)
        traced = _Step(of_thread[first:last], kind)
        if not len(traced.rows):
            continue
        edges = np.unique(np.searchsorted(start_ns, lines.begun_ns)).tolist()
        for begin, end in pairwise([*edges, len(of_thread)]):
            rows = of_thread[begin:end]
            like[rows] = traced.like(kind[rows])
    return like


def _longest_pause(trace: Trace, like: Int64s, order: Int64s) -> Int64s:
    """Return the call of the traced step with the longest pause before it, since what the call before is like.

        traced step   read  .......  sync  launch      the launch of another step has the pause
        another       read  .............  launch      of the traced step's sync

    That is what the call itself is like, unless the traced step has calls between; -1 where none is.
    """
    launches = trace.launches
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    call = order[1:]
    before = order[:-1]
    follows = (launches.thread[call] == launches.thread[before]) & (like[call] >= 0) & (like[before] >= 0)
    call = call[follows]
    first = place[like[before[follows]]] + 1
    last = place[like[call]]
    pause_ns = np.append(0, launches.start_ns[order[1:]] - launches.end_ns[order[:-1]])
    longest = like.copy()
    skips = np.flatnonzero(first < last)
    for (begin, end), rows in rows_of_each(first[skips], last[skips]):
        longest[call[skips[rows]]] = order[begin + pause_ns[begin : end + 1].argmax()]
    return longest


class _Step:
    """The calls of a thread in the traced step, by time."""

    def __init__(self, rows: Int64s, kind: Int64s) -> None:
        self.rows = rows
        self._kind = kind[rows]
        self._order = np.argsort(self._kind, kind="stable")
        self._sorted = self._kind[self._order]

    def like(self, kind: Int64s) -> Int64s:
        """Return the calls that those of another step, of these kinds, are like."""
        if len(kind) == len(self._kind) and (kind == self._kind).all():
            return self.rows
        order = np.argsort(kind, kind="stable")
        in_order = kind[order]
        number = np.arange(len(kind)) - np.searchsorted(in_order, in_order)
        place = np.searchsorted(self._sorted, in_order) + number
        behind = np.searchsorted(self._sorted, in_order, "right")
        is_there = place < behind
        like = np.full(len(kind), UNKNOWN, np.int64)
        like[order[is_there]] = self.rows[self._order[place[is_there]]]
        return like
