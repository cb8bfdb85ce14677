"""On a CPU: what the program's thread does while it runs no operator.

The program's thread is the one with the steps' ranges, or without steps the one with the most operators; threads
that run in turn with it, as autograd's, count as it (see idle.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..support.layers import Layers
from ..support.small_numbers import each_row, grouped_rows, looked_up, sorted_by, summed
from ..trace import Columns, Int8s, Int32s, Int64s
from ..vocabulary.loading import loads_data, waits
from .in_turn import logical_threads
from .intervals import Intervals, cut_at, union

#: What the thread does outside of operators: by the name of the innermost range or function with a meaning.
CPU_CAUSES = ("Python", "data loading", "waiting")
PYTHON, LOADING, WAITING = range(len(CPU_CAUSES))


@dataclass(frozen=True, slots=True)
class Outside(Columns):
    """The time outside of operators in pieces of one range and function each, in the order of time."""

    window: Int64s  # position in the intervals that were asked for
    cause: Int8s  # position in CPU_CAUSES
    node: Int32s  # of the attribution: the innermost range of the program's thread; -1 for none
    function: Int32s  # position in Trace.frame_names; -1 for none
    line: Int32s  # position in Attribution.lines.sources: where the program was; -1 where unknown
    start_ns: Int64s
    end_ns: Int64s


def program_thread(attribution: Attribution, process: int, step_ranges: Int64s) -> int:
    """Return the thread that runs the program in a process, given the ranges of its steps, if it has some."""
    trace = attribution.trace
    if len(step_ranges):
        return int(np.bincount(attribution.ranges.thread[step_ranges]).argmax())
    launches = trace.launches
    of_process = trace.process_of_thread()[launches.thread] == process
    duration_ns = np.where(of_process, launches.end_ns - launches.start_ns, 0)
    return int(summed(launches.thread, duration_ns, len(trace.threads)).argmax())


def operators_of(attribution: Attribution, thread: int) -> Intervals:
    """Return when a thread, or one that runs in turn with it, runs operators."""
    launches = attribution.trace.launches
    rows = np.flatnonzero(np.isin(launches.thread, _in_turn(attribution, thread)))
    return union(launches.start_ns[rows], launches.end_ns[rows])


def _in_turn(attribution: Attribution, thread: int) -> tuple[int, ...]:
    """Return a thread and those that run in turn with it."""
    return (thread, *logical_threads(attribution).get(thread, ()))


def outside_operators(attribution: Attribution, paths: Paths, thread: int, windows: Intervals) -> Outside:
    """Describe a thread's time in some disjoint intervals while no operator runs."""
    operators = operators_of(attribution, thread)
    ranges = attribution.ranges
    frames = attribution.trace.frames
    edges_ns = np.unique(np.concatenate([operators.start_ns, operators.end_ns]))
    window, start_ns, end_ns = cut_at(edges_ns, windows.start_ns, windows.end_ns)
    is_free = operators.covered(start_ns, end_ns) == 0
    takes_time = ranges.end_ns > ranges.start_ns
    is_open = (ranges.thread == thread) & takes_time & (attribution.home >= 0)
    open_ranges = ranges.take(np.flatnonzero(is_open))
    cuts_ns = [open_ranges.start_ns, open_ranges.end_ns]
    running = None
    if frames is not None:
        running = frames.take(frames.thread == thread)
        cuts_ns += [running.start_ns, running.end_ns]
    edges_ns = np.unique(np.concatenate(cuts_ns))
    piece, start_ns, end_ns = cut_at(edges_ns, start_ns[is_free], end_ns[is_free])
    place = Layers(open_ranges.start_ns, open_ranges.end_ns).innermost(start_ns)
    node = looked_up(attribution.home[is_open], place, -1)
    closes_ns = looked_up(open_ranges.end_ns, place, windows.end_ns.max(initial=0))
    function = np.full(len(start_ns), -1, np.int32)
    if running is not None:
        place = Layers(running.start_ns, running.end_ns).innermost(start_ns)
        function = looked_up(running.name_id, place, -1)
    cause = _causes(attribution, paths, node, function)
    line = _lines_before(attribution, thread, start_ns, end_ns, closes_ns, cause)
    return Outside(window[is_free][piece], cause, node, function, line, start_ns, end_ns)


def _lines_before(
    attribution: Attribution,
    thread: int,
    start_ns: Int64s,
    end_ns: Int64s,
    closes_ns: Int64s,
    cause: Int8s,
) -> Int32s:
    """Return where a thread was in pieces of time outside of operators, by the next operator.

    The time before an operator has one line. It is that of the longest piece, and of those of the same cause in
    ranges that are still open when the operator begins, given when the innermost range of each piece closes.
    """
    lines = attribution.lines
    launches = attribution.trace.launches
    if lines is None:
        return np.full(len(start_ns), -1, np.int32)
    rows = np.flatnonzero(np.isin(launches.thread, _in_turn(attribution, thread)))
    rows = sorted_by(rows, launches.start_ns)
    following = np.searchsorted(launches.start_ns[rows], start_ns, "right")
    call = looked_up(rows, following, -1)
    before: Int32s = looked_up(lines.before_launch, call, -1)
    is_true = closes_ns >= looked_up(launches.start_ns[rows], following, np.iinfo(np.int64).max)
    by_length = np.lexsort((end_ns - start_ns, following))
    longest = by_length[np.flatnonzero(np.diff(following[by_length], append=-1))]
    is_true &= cause == looked_up(cause, longest[np.searchsorted(following[longest], following)], -1)
    is_true[longest] = True
    return np.where(is_true, before, np.int32(-1))


def _causes(attribution: Attribution, paths: Paths, node: Int32s, function: Int32s) -> Int8s:
    """Return the cause of each piece, by the innermost range or function whose name says one."""
    functions = ("", *attribution.trace.frame_names)
    (path, name), place = grouped_rows(paths.names_of_node[node], function + 1)
    pairs = each_row(path, name)
    causes = [_cause((*paths.names[path_number], functions[number])) for path_number, number in pairs]
    return np.array(causes, np.int8)[place]


def _cause(names: tuple[str, ...]) -> int:
    for name in reversed(names):
        if loads_data(name):
            return LOADING
        if waits(name):
            return WAITING
    return PYTHON
