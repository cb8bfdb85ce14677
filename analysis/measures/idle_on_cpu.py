"""On a CPU: the time of a step in which the program's thread runs no operator, and what it does instead.

The program's thread is the one with the steps' ranges, or without steps the one with the most operators; threads
that run in turn with it, as autograd's, count as it (see idle.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..attribution.steps import measured_steps
from ..report import Path
from ..support.small_numbers import grouped_rows, summed
from ..trace import Int64s
from .idle import logical_threads
from .layers import Layers, cut_at
from .spans import Intervals, union

#: What the thread does outside of operators, by the name of a range around it; the first that matches.
CPU_CAUSES = (
    ("data loading", re.compile(r"DataLoader|dataloader|data.?loading|load.?batch|next.?batch", re.IGNORECASE)),
    ("waiting", re.compile(r"\bwait\b|_wait\b|\bwait_|barrier|synchroni[sz]e|\bsleep\b", re.IGNORECASE)),
)
PYTHON = "Python"


@dataclass(frozen=True, slots=True)
class OutsideOperators:
    """One cause in one range: the time outside of operators, ns, in how many pieces, and the longest."""

    cause: str
    path: Path
    time_ns: int
    pieces: int
    largest_ns: int


@dataclass(frozen=True, slots=True)
class CpuIdle:
    """The program's time in the steps, or in all that was recorded, and that outside of operators, ns."""

    wall_ns: int
    rows: tuple[OutsideOperators, ...]  # the most first

    @property
    def outside_ns(self) -> int:
        """The time outside of operators."""
        return sum(row.time_ns for row in self.rows)

    @property
    def by_cause(self) -> dict[str, int]:
        """The time outside of operators by cause, the most first, ns."""
        sums: dict[str, int] = {}
        for row in self.rows:
            sums[row.cause] = sums.get(row.cause, 0) + row.time_ns
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def outside_operators(
    attribution: Attribution, naming: Callable[[Path], Path], *, include_warm_up: bool = False
) -> CpuIdle:
    """Add up by cause and range when the program's thread runs no operator."""
    everything = attribution.of_all_work
    trace, ranges = everything.trace, everything.ranges
    windows, thread = _windows(everything, include_warm_up)
    group = (thread, *logical_threads(everything, np.arange(len(trace.work))).get(thread, ()))
    mine = np.flatnonzero(np.isin(trace.launches.thread, group))
    operators = union(trace.launches.start_ns[mine], trace.launches.end_ns[mine])
    start, end = _between(operators, windows)
    open_ranges = np.flatnonzero(
        (ranges.thread == thread) & (ranges.end_ns > ranges.start_ns) & (everything.home >= 0)
    )
    bounds = (ranges.start_ns[open_ranges], ranges.end_ns[open_ranges])
    _, start, end = cut_at(np.unique(np.concatenate(bounds)), start, end)
    place = Layers(*bounds).innermost(start)
    node = np.where(place >= 0, np.append(everything.home[open_ranges], -1)[place], -1)
    paths = Paths(everything)
    path = paths.names_of_node[node]
    (paths_seen,), row = grouped_rows(path)
    named = [naming(paths.names[number]) for number in paths_seen.tolist()]
    causes = [_cause(paths.names[number]) for number in paths_seen.tolist()]
    time_ns = summed(row, end - start, len(named))
    largest = np.zeros(len(named), np.int64)
    np.maximum.at(largest, row, end - start)
    count = np.bincount(row, minlength=len(named))
    sums: dict[tuple[str, Path], tuple[int, int, int]] = {}
    for key, *figures in zip(
        zip(causes, named, strict=True), time_ns.tolist(), count.tolist(), largest.tolist(), strict=True
    ):
        time, pieces, most = sums.get(key, (0, 0, 0))
        sums[key] = time + figures[0], pieces + figures[1], max(most, figures[2])
    rows = [OutsideOperators(*key, *figures) for key, figures in sums.items()]
    return CpuIdle(windows.total_ns, tuple(sorted(rows, key=lambda row: (-row.time_ns, row.path))))


def _cause(path: Path) -> str:
    """Return what a thread does outside of operators in a path: what the innermost range with a meaning says."""
    for name in reversed(path):
        for cause, pattern in CPU_CAUSES:
            if pattern.search(name):
                return cause
    return PYTHON


def _windows(attribution: Attribution, include_warm_up: bool) -> tuple[Intervals, int]:
    """Return when the program's thread is in a measured step, else in all that was recorded, and the thread."""
    ranges, launches = attribution.ranges, attribution.trace.launches
    steps = measured_steps(attribution, include_warm_up=include_warm_up)
    if len(steps):
        thread = int(np.bincount(ranges.thread[steps]).argmax())
        mine = steps[ranges.thread[steps] == thread]
        return union(ranges.start_ns[mine], ranges.end_ns[mine]), thread
    durations = summed(launches.thread, launches.end_ns - launches.start_ns, len(attribution.trace.threads))
    thread = int(durations.argmax())
    mine = np.flatnonzero(launches.thread == thread)
    return Intervals(launches.start_ns[mine].min(keepdims=True), launches.end_ns[mine].max(keepdims=True)), thread


def _between(busy: Intervals, windows: Intervals) -> tuple[Int64s, Int64s]:
    """Return the parts of windows that some intervals do not cover: start, end."""
    start = np.concatenate([windows.start_ns, busy.end_ns])
    start = np.unique(start[_inside(windows, start)])
    ends = np.sort(np.concatenate([windows.end_ns, busy.start_ns]))
    free = start[busy.covered(start, start + 1) == 0]
    return free, ends[np.searchsorted(ends, free, "right")]


def _inside(windows: Intervals, at_ns: Int64s) -> Int64s:
    place = np.searchsorted(windows.start_ns, at_ns, "right") - 1
    return np.flatnonzero((place >= 0) & (windows.end_ns[place] > at_ns))
