"""On a CPU: the time in which the program's thread runs no operator, in steps and between them, and what it does.

The program's thread is the one with the steps' ranges, or without steps the one with the most operators; threads
that run in turn with it, as autograd's, count as it (see idle.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..attribution.steps import measured_steps
from ..report import IdleReport, IdleRow, Path
from ..support.small_numbers import bounds, grouped_rows, summed
from ..trace import Columns, Int64s
from .idle import logical_threads
from .layers import Layers, cut_at
from .spans import Intervals, union
from .step_time import BETWEEN, WINDOW, loops

#: What the thread does outside of operators, by the name of a range around it; the first that matches.
CPU_CAUSES = (
    ("data loading", re.compile(r"DataLoader|dataloader|data.?loading|load.?batch|next.?batch", re.IGNORECASE)),
    ("waiting", re.compile(r"\bwait\b|_wait\b|\bwait_|barrier|synchroni[sz]e|\bsleep\b", re.IGNORECASE)),
)
PYTHON = "Python"


@dataclass(frozen=True, slots=True)
class OutsideOperators:
    """One cause in one range: the time outside of operators, ns, in how many pieces, and the longest.

    `function` is the innermost Python function of a trace with stacks, "" where none is known.
    """

    cause: str
    path: Path
    function: str
    time_ns: int
    pieces: int
    largest_ns: int


@dataclass(frozen=True, slots=True)
class CpuIdle:
    """The program's time in the steps and between them, or in all that was recorded, and outside of operators, ns.

    `wall_of_step` and `of_step` are by measured step (without steps, one): the time, and that of each cause.
    """

    wall_of_step: tuple[int, ...]
    of_step: Mapping[str, tuple[int, ...]]
    rows: tuple[OutsideOperators, ...]  # the most first
    has_steps: bool

    @property
    def wall_ns(self) -> int:
        """The program's time."""
        return sum(self.wall_of_step)

    @property
    def outside_ns(self) -> int:
        """The time outside of operators."""
        return sum(row.time_ns for row in self.rows)

    @property
    def by_cause(self) -> dict[str, int]:
        """The time outside of operators by cause, the most first, ns."""
        sums = {cause: sum(of_step) for cause, of_step in self.of_step.items()}
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class _Windows:
    """When the program's thread is in a step, or between two: disjoint and in order; the step of each, from 0."""

    times: Intervals
    step: Int64s
    thread: int
    has_steps: bool


def outside_operators(
    attribution: Attribution, naming: Callable[[Path], Path], *, include_warm_up: bool = False
) -> CpuIdle:
    """Add up by cause and range when the program's thread runs no operator."""
    everything = attribution.of_all_work
    windows = _windows(everything, include_warm_up)
    step, node, function, start, end = _pieces(everything, windows)
    places, row = _places(everything, node, function)
    causes = [cause for cause, _, _ in places]
    keys = [(cause, naming(path), name) for cause, path, name in places]
    time_ns, count = summed(row, end - start, len(keys)), np.bincount(row, minlength=len(keys))
    _, largest = bounds(row, end - start, end - start, len(keys))
    found = (
        OutsideOperators(*key, *figures)
        for key, *figures in zip(keys, time_ns.tolist(), count.tolist(), largest.tolist(), strict=True)
    )
    steps = int(windows.step.max(initial=0)) + 1
    wall_of_step = summed(windows.step, windows.times.end_ns - windows.times.start_ns, steps)
    names = list(dict.fromkeys(causes))
    cause_of_row = np.array([names.index(cause) for cause in causes], np.int64)
    by_step = summed(cause_of_row[row] * steps + step, end - start, len(names) * steps).reshape(-1, steps)
    return CpuIdle(
        tuple(wall_of_step.tolist()),
        {cause: tuple(of_step) for cause, of_step in zip(names, by_step.tolist(), strict=True)},
        tuple(sorted(_joined(found), key=lambda row: (-row.time_ns, row.path, row.function))),
        windows.has_steps,
    )


@dataclass(frozen=True, slots=True)
class OutsidePieces(Columns):
    """The time outside of operators in pieces of one range and function each, in order of time."""

    cause: NDArray[np.object_]  # a name of CPU_CAUSES, or PYTHON
    node: Int64s  # of the attribution: the innermost range of the program's thread; -1 for none
    function: Int64s  # position in Trace.frame_names; -1 for none
    start_ns: Int64s
    end_ns: Int64s


def pieces_between(attribution: Attribution, start_ns: int, end_ns: int) -> OutsidePieces:
    """Return the pieces of the program's thread between two moments in which it runs no operator."""
    everything = attribution.of_all_work
    times = Intervals(np.array([start_ns], np.int64), np.array([end_ns], np.int64))
    windows = replace(_windows(everything, False), times=times, step=np.zeros(1, np.int64))
    _, node, function, start, end = _pieces(everything, windows)
    places, row = _places(everything, node, function)
    causes = np.array([cause for cause, _, _ in places], object)
    return OutsidePieces(causes[row], node, function, start, end)


def _places(
    attribution: Attribution, node: Int64s, function: Int64s
) -> tuple[list[tuple[str, Path, str]], Int64s]:
    """Return the distinct causes of pieces, each with its path and function, and which of these each piece has."""
    paths, functions = Paths(attribution), ("", *attribution.trace.frame_names)
    (numbers, names), row = grouped_rows(paths.names_of_node[node], function + 1)
    places = [
        (paths.names[number], functions[name])
        for number, name in zip(numbers.tolist(), names.tolist(), strict=True)
    ]
    return [(_cause((*path, name)), path, name) for path, name in places], row


def _joined(rows: Iterable[OutsideOperators]) -> Iterator[OutsideOperators]:
    """Join rows of one cause and one name."""
    by_key: dict[tuple[str, Path, str], list[OutsideOperators]] = {}
    for row in rows:
        by_key.setdefault((row.cause, row.path, row.function), []).append(row)
    for key, same in by_key.items():
        times, pieces = sum(row.time_ns for row in same), sum(row.pieces for row in same)
        yield OutsideOperators(*key, times, pieces, max(row.largest_ns for row in same))


def cpu_idle_report(found: CpuIdle) -> IdleReport | None:
    """Return the medians over the steps for a whole report; None if operators run all the time."""
    outside = [sum(of_step) for of_step in zip(*found.of_step.values(), strict=True)]
    if not sum(outside):
        return None
    rows = []
    for cause, of_step in found.of_step.items():
        time_of: dict[Path, int] = {}
        for place in found.rows:
            if place.cause == cause:
                time_of[place.path] = time_of.get(place.path, 0) + place.time_ns
        most = max(time_of, key=lambda path: time_of[path])
        second, first = sorted((0, *of_step))[-2:]
        alone_ns, alone_step = (first - second, of_step.index(first)) if len(of_step) > 1 else (0, None)
        alone_step = alone_step if alone_ns else None
        rows.append(IdleRow(cause, _typical(of_step), most, "", alone_ns, alone_step))
    return IdleReport(
        per_step=found.has_steps,
        idle_ns=_typical(outside),
        span_ns=_typical(found.wall_of_step),
        between_ns=0,
        rows=tuple(sorted(rows, key=lambda row: -row.median_ns)),
    )


def _typical(of_step_ns: Sequence[int]) -> int:
    """Return the median over steps, of two the less: what one step alone has is not typical."""
    return min(of_step_ns) if len(of_step_ns) == 2 else int(median(of_step_ns))


def _pieces(attribution: Attribution, windows: _Windows) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s]:
    """Cut the time without operators where the thread's ranges and functions begin and end.

    Returns step, node, function (-1 for none), start and end.
    """
    trace, ranges, thread = attribution.trace, attribution.ranges, windows.thread
    group = (thread, *logical_threads(attribution, np.arange(len(trace.work))).get(thread, ()))
    mine = np.flatnonzero(np.isin(trace.launches.thread, group))
    operators = union(trace.launches.start_ns[mine], trace.launches.end_ns[mine])
    edges = np.unique(np.concatenate([operators.start_ns, operators.end_ns]))
    window, start, end = cut_at(edges, windows.times.start_ns, windows.times.end_ns)
    free = operators.covered(start, end) == 0
    is_open = np.flatnonzero(
        (ranges.thread == thread) & (ranges.end_ns > ranges.start_ns) & (attribution.home >= 0)
    )
    open_ranges = ranges.start_ns[is_open], ranges.end_ns[is_open]
    frames = attribution.trace.frames
    running = np.flatnonzero(frames.thread == thread) if frames is not None else np.empty(0, np.int64)
    functions = (frames.start_ns[running], frames.end_ns[running]) if frames is not None else ()
    piece, start, end = cut_at(np.unique(np.concatenate((*open_ranges, *functions))), start[free], end[free])
    place = Layers(*open_ranges).innermost(start)
    node = np.where(place >= 0, np.append(attribution.home[is_open], -1)[place], -1)
    name = np.full(len(start), -1, np.int64)
    if frames is not None:
        place = Layers(*functions).innermost(start)
        name[place >= 0] = frames.name_id[running[place[place >= 0]]]
    return windows.step[window[free][piece]], node, name, start, end


def _cause(path: Path) -> str:
    """Return the cause of a thread's time outside of operators, by the innermost range with a meaning."""
    for name in reversed(path):
        for cause, pattern in CPU_CAUSES:
            if pattern.search(name):
                return cause
    return PYTHON


def _windows(attribution: Attribution, include_warm_up: bool) -> _Windows:
    """Return the measured steps of the program's thread with what lies between, else all that was recorded."""
    ranges, launches = attribution.ranges, attribution.trace.launches
    steps = measured_steps(attribution, include_warm_up=include_warm_up)
    found = loops(attribution, include_warm_up=include_warm_up)
    if found:
        # Threads with steps at the same time have a loop each.
        loop = max(found, key=lambda loop: len(loop.periods))
        thread = int(np.bincount(ranges.thread[steps[loop.periods.step]]).argmax())
        some = np.flatnonzero((loop.pieces.kind == WINDOW) | (loop.pieces.kind == BETWEEN))
        pieces = loop.pieces.take(some)
        return _Windows(Intervals(pieces.start_ns, pieces.end_ns), pieces.row, thread, has_steps=True)
    durations = summed(launches.thread, launches.end_ns - launches.start_ns, len(attribution.trace.threads))
    thread = int(durations.argmax())
    mine = np.flatnonzero(launches.thread == thread)
    all_ns = launches.start_ns[mine].min(keepdims=True), launches.end_ns[mine].max(keepdims=True)
    return _Windows(Intervals(*all_ns), np.zeros(1, np.int64), thread, has_steps=False)
