"""The slices of a report in columns: what starts and ends when, on which track, and its details."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import HOW, Attribution
from ..attribution.instances import instances, projections
from ..attribution.paths import Paths
from ..trace import KERNEL, KINDS, START_END, Bools, Columns, Int32s, Int64s, working_calls
from ..vocabulary import PHASES

LAUNCH_NAMES = {"kernel": "launch kernel", "memcpy": "copy", "memset": "set memory", "graph": "launch graph"}


@dataclass(frozen=True, slots=True)
class Slices(Columns):
    """Rows in drawing order. `group` and `lane` say on which track; `row` is a row of the table that is drawn."""

    group: Int32s
    lane: Int32s
    start_ns: Int64s
    end_ns: Int64s
    row: Int64s


def slices(group: NDArray[Any], start_ns: Int64s, end_ns: Int64s, *, nest: bool = True) -> Slices:
    """Arrange rows of a table for drawing."""
    order = drawing_order(group, start_ns, end_ns)
    group, start_ns, end_ns = group[order], start_ns[order], end_ns[order]
    return Slices(
        group.astype(np.int32), lanes(group, start_ns, end_ns, nest=nest), start_ns, end_ns, order.astype(np.int64)
    )


class Drawn:
    """Everything that is drawn of an attributed report.

    `ranges`: groups are threads; `start_end`: ranges without a stack, likewise; `calls`: launches, likewise;
    `work`: groups are `streams`; `projected`: ranges on the GPU, likewise.
    """

    def __init__(self, attribution: Attribution) -> None:
        trace, work, ranges = attribution.trace, attribution.trace.work, attribution.trace.ranges
        self.attribution = attribution
        style = ranges.style == START_END
        self.ranges = _some(~style, ranges.thread, ranges.start_ns, ranges.end_ns)
        self.start_end = _some(style, ranges.thread, ranges.start_ns, ranges.end_ns)
        self.launches = working_calls(trace)
        self.calls = slices(self.launches.thread, self.launches.start_ns, self.launches.end_ns)
        self.streams, stream = _streams(work.process, work.device_id, work.stream_id)
        self.work = slices(stream, work.start_ns, work.end_ns, nest=False)
        self._paths = Paths(attribution)
        self.places = instances(attribution)
        every = np.arange(len(work), dtype=np.int64)
        self.projections = projections(self.places, every, attribution, stream, work.kind == KERNEL)
        self.projected = slices(self.projections.group, self.projections.start_ns, self.projections.end_ns)

    @property
    def path_of_work(self) -> Int32s:
        """Per piece of work its path, a position in `paths`; -1 for none."""
        path: Int32s = self._paths.of_node[self.attribution.node]
        return path

    @property
    def path_of_place(self) -> Int32s:
        """Per instance its path, a position in `paths`."""
        path: Int32s = self._paths.of_node[self.places.node]
        return path

    @property
    def name_of_place(self) -> Int32s:
        """Per instance the name of its range, a position in `Trace.names`."""
        name: Int32s = self.attribution.ranges.name_id[self.places.range]
        return name

    @property
    def paths(self) -> Sequence[tuple[str, ...]]:
        """The distinct paths."""
        return self._paths.paths

    @property
    def how(self) -> list[str]:
        """Per piece of work how it came to its path."""
        return [HOW[how] for how in self.attribution.how.tolist()]

    @property
    def phase(self) -> list[str]:
        """Per piece of work its phase."""
        return [PHASES[phase] for phase in self.attribution.phase.tolist()]

    def launch_names(self) -> list[str]:
        """Return what each launch does, by the work that it caused."""
        work = self.attribution.trace.work
        kind = np.full(len(self.launches), KERNEL, np.uint8)
        launched = work.launch >= 0
        kind[np.searchsorted(self.launches.row, work.launch[launched])] = work.kind[launched]
        return [LAUNCH_NAMES[KINDS[number]] for number in kind.tolist()]


def _some(chosen: Bools, group: Int32s, start_ns: Int64s, end_ns: Int64s) -> Slices:
    """Arrange some rows of a table; `row` still counts in the whole table."""
    rows = np.flatnonzero(chosen)
    arranged = slices(group[rows], start_ns[rows], end_ns[rows])
    return Slices(arranged.group, arranged.lane, arranged.start_ns, arranged.end_ns, rows[arranged.row])


def _streams(process: Int32s, device: Int32s, stream: Int64s) -> tuple[list[tuple[int, int, int]], Int32s]:
    """Give each stream a number: (process, device, stream) of each, and per piece of work its stream's."""
    if not len(process):
        return [], np.empty(0, np.int32)
    distinct, number = np.unique(np.stack([process, device, stream]).astype(np.int64), axis=1, return_inverse=True)
    return [(a, b, c) for a, b, c in distinct.T.tolist()], number.reshape(-1).astype(np.int32)


def drawing_order(group: NDArray[Any], start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Return the order in which slices are written: by group and start, outer before inner; else as they were."""
    return np.lexsort((-end_ns, start_ns, group))


def lanes(group: NDArray[Any], start_ns: Int64s, end_ns: Int64s, *, nest: bool) -> Int32s:
    """Return the first lane of its group on which each slice has room; the rows are in drawing order.

    With `nest` a slice may lie inside an earlier one; without, any overlap moves it to another lane. A slice that
    crosses another is thus never cut or stretched.
    """
    lane = np.zeros(len(group), np.int32)
    opened: list[list[int]] = []  # per lane the ends of the slices that are open, outermost first
    last_group = None
    rows = zip(group.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True)
    for row, (row_group, start, end) in enumerate(rows):
        if row_group != last_group:
            opened, last_group = [], row_group
        number = next((n for n, ends in enumerate(opened) if _has_room(ends, start, end, nest)), len(opened))
        if number == len(opened):
            opened.append([])
        opened[number].append(end)
        lane[row] = number
    return lane


def _has_room(ends: list[int], start: int, end: int, nest: bool) -> bool:
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or (nest and end <= ends[-1])
