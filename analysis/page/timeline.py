"""One step in time: single kernels by stream, why each GPU is idle, and what the CPU's threads do.

A timeline is lanes on one clock. A lane has its `label`, its `kind` and columns by box:

    work     start, end, row (of `work_rows`), launch (when the CPU launched it) and line
    idle     start, end, row (of the work that it is before), text (where the program was) and tone (the cause)
    ranges   start, end, path, tone (the phase)
    calls    start, end, text (the call), tone (what it does)

Times are in `tick_ns` from the begin of the first lane; other columns are positions, in `row`, `line` and `path`
one higher, as 0 means no box. Beyond `MAX_BOXES`, neighbours are joined: `count` is how many a box is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..account import Partition
from ..account.cells import Gpus
from ..account.cpu import CPU_CAUSES, Outside, outside_operators, program_thread
from ..account.gaps import gaps_between, within
from ..account.idle import CAUSES, Pieces, pieces_of
from ..account.intervals import Intervals, cut_at
from ..support.layers import Layers
from ..support.small_numbers import distinct, grouped_rows, looked_up, sorted_by
from ..support.text import fit
from ..trace import Bools, CallNames, Int32s, Int64s, Spots
from ..views.headings import phase as phase_called
from ..views.rows import label
from ..vocabulary import PHASES
from ..vocabulary.calls import CALL_KINDS, plain_name
from .work_rows import LONGEST_KERNEL, LONGEST_RANGE, PathTree, WorkRows, packed

MAX_BOXES, MAX_STREAMS, MAX_THREADS = 20_000, 16, 2
NO_KIND = "another call"


def timeline(partition: Partition, rows: WorkRows, tree: PathTree) -> dict[str, Any]:
    """Return the step that takes the median time, or without steps all that was recorded."""
    drawn = _Drawn(partition, rows, tree)
    if not len(drawn.positions):
        return {"lanes": []}
    lanes = list(drawn.streams())
    if partition.on_cpu:
        lanes += drawn.outside_operators()
    else:
        lanes += drawn.idle()
        for thread in drawn.threads():
            lanes += drawn.of_thread(thread)
    return {
        "lanes": lanes,
        "step": drawn.number if partition.has_steps else None,
        "tick_ns": drawn.tick_ns,
        "span": (drawn.until_ns - drawn.from_ns) // drawn.tick_ns,
        "left_out": max(0, drawn.stream_count - MAX_STREAMS),
        "texts": list(drawn.texts),
        "lines": drawn.lines,
    }


def _median_step(partition: Partition) -> tuple[int, int, int]:
    """Return the number of the step that takes the median time, and its begin and end, ns."""
    table = partition.table
    counted = partition.choices[partition.main_loop].counted
    by_time = np.argsort(table.own_ns[counted], kind="stable")
    row = int(counted[by_time[len(counted) // 2]])
    pieces = partition.steps.loops[partition.main_loop].pieces.in_steps()
    pieces = pieces.take(pieces.row == row)
    begin_ns = int(pieces.start_ns.min(initial=table.end_ns[row]))  # a step that takes no time has no pieces
    end_ns = int(pieces.end_ns.max(initial=begin_ns))
    return int(table.number[row]), begin_ns, end_ns


class _Drawn:
    """The work that a timeline shows, as positions in all work, from `from_ns` to `until_ns`."""

    def __init__(self, partition: Partition, rows: WorkRows, tree: PathTree) -> None:
        self.attribution = partition.attribution
        self.paths = partition.paths
        self.rows = rows
        self.tree = tree
        self.number, self.from_ns, self.until_ns = _median_step(partition)
        work = self.attribution.trace.work
        is_near = (work.end_ns > self.from_ns) & (work.start_ns < self.until_ns)
        self.positions = np.flatnonzero(is_near & (rows.of_work >= 0))
        self.stream_count = 0
        self.texts: dict[str, int] = {}

    @property
    def on_cpu(self) -> bool:
        return self.attribution.trace.provenance.unit_of_work == "CPU"

    @property
    def lines(self) -> list[str]:
        """The lines of the program, as people read them."""
        lines = self.attribution.lines
        return [source.lines[0].called for source in lines.sources] if lines else []

    @property
    def tick_ns(self) -> int:
        """The unit of times: a nanosecond, unless the timeline is longer than two seconds."""
        return max(1, (self.until_ns - self.from_ns) >> 31)

    @property
    def window(self) -> Intervals:
        """From the first work to the last."""
        return Intervals(np.array([self.from_ns], np.int64), np.array([self.until_ns], np.int64))

    def streams(self) -> Iterator[dict[str, Any]]:
        """Yield the work of each stream."""
        work = self.attribution.trace.work.take(self.positions)
        keys, stream = grouped_rows(work.process, work.device_id, work.stream_id)
        names = self._stream_names(*keys)
        self.stream_count = len(names)
        busiest = np.argsort(-np.bincount(stream), kind="stable")[:MAX_STREAMS]
        for number in np.sort(busiest).tolist():
            chosen = _by_time(work.start_ns, stream == number)
            columns = {"row": self.rows.of_work[self.positions[chosen]] + 1}
            columns |= self._launched(work.launch[chosen])
            times_ns = work.start_ns[chosen], work.end_ns[chosen]
            yield self.lane(names[number], "work", times_ns, columns, "row")

    def _stream_names(self, process: Int32s, device: Int32s, stream: Int64s) -> list[str]:
        """Return the name of each stream: on a CPU a thread, and with its process if there are several."""
        has_processes = len(distinct(process)) > 1
        names = []
        for number, gpu, place in zip(stream.tolist(), device.tolist(), process.tolist(), strict=True):
            name = f"thread {number}" if self.on_cpu else f"GPU {gpu} · stream {number}"
            names.append(f"process {place} · {name}" if has_processes else name)
        return names

    def _launched(self, launch: Int32s) -> dict[str, NDArray[Any]]:
        """Return when the CPU launched some work, and at which line; 0 where that is unknown."""
        launched_ns = looked_up(self.attribution.trace.launches.start_ns, launch, self.from_ns)
        ticks = np.maximum(self.ticks(launched_ns), 1)
        columns: dict[str, NDArray[Any]] = {"launch": np.where(launch >= 0, ticks, 0)}
        lines = self.attribution.lines
        if lines:
            columns["line"] = looked_up(lines.of_launch, launch, -1) + 1
        return columns

    def idle(self) -> Iterator[dict[str, Any]]:
        """Yield the gaps of each GPU by cause."""
        work = self.attribution.trace.work
        gpus = Gpus(self.attribution.trace)
        for gpu in distinct(gpus.of_work[self.positions]).tolist():
            of_gpu = np.flatnonzero(gpus.of_work == gpu)
            gaps = within(gaps_between(work, of_gpu, gpu, self.from_ns), self.window)
            if not len(gaps):
                continue
            pieces = Pieces.joined([*pieces_of(self.attribution, gaps, gpus.of_work)])
            is_near = (pieces.end_ns > self.from_ns) & (pieces.start_ns < self.until_ns)
            pieces = pieces.take(_by_time(pieces.start_ns, is_near))
            of_gpu = _by_time(work.start_ns, gpus.of_work == gpu)
            following = np.searchsorted(work.start_ns[of_gpu], pieces.end_ns)
            row = looked_up(self.rows.of_work[of_gpu], following, -1) + 1
            yield self._idle_lane(f"{gpus.names[gpu]} idle", pieces, CAUSES, row)

    def _idle_lane(
        self, name: str, pieces: Pieces | Outside, causes: Sequence[str], row: Int64s
    ) -> dict[str, Any]:
        tones = self.numbers(causes)[pieces.cause.astype(np.int64)]
        columns = {"row": row, "text": self.numbers([*self._where(pieces)]), "tone": tones}
        return self.lane(name, "idle", (pieces.start_ns, pieces.end_ns), columns, "tone")

    def _where(self, pieces: Pieces | Outside) -> Iterator[str]:
        """Yield in which range, function and line the CPU was in each piece, and after which call that waited."""
        trace = self.attribution.trace
        place = self.paths.names_of_node[pieces.node].tolist()
        labels = {number: label(self.tree.apart(self.paths.names[number])) for number in set(place)}
        columns = [
            [labels[number] for number in place],
            _named(trace.frame_names, pieces.function),
            _named([f"at {called}" for called in self.lines], pieces.line),
        ]
        if trace.calls and isinstance(pieces, Pieces):
            after = looked_up(trace.calls.of_launch.astype(np.int64), pieces.exposed_by, -1)
            columns.append(_named([f"after {name}" for name in _call_names(trace.calls)], after))
        for parts in zip(*columns, strict=True):
            yield fit(", ".join(filter(None, parts)), LONGEST_KERNEL)

    def outside_operators(self) -> Iterator[dict[str, Any]]:
        """Yield the time of the program on a CPU while it runs no operator."""
        attribution = self.attribution
        trace = attribution.trace
        process = int(trace.work.process[self.positions[0]])
        steps = attribution.steps.range
        of_process = trace.process_of_thread()[attribution.ranges.thread[steps]] == process
        thread = program_thread(attribution, process, steps[of_process].astype(np.int64))
        pieces = outside_operators(attribution, self.paths, thread, self.window)
        if len(pieces):
            yield self._idle_lane("outside of operators", pieces, CPU_CAUSES, np.zeros(len(pieces), np.int64))

    def threads(self) -> list[int]:
        """Return the threads that launched most of the work, in the order of their first launch."""
        trace = self.attribution.trace
        calls = trace.work.launch[self.positions]
        thread = trace.launches.thread[calls[calls >= 0]]
        if not len(thread) or not trace.launch_times_known:
            return []
        busiest = np.argsort(-np.bincount(thread), kind="stable")[:MAX_THREADS].tolist()
        in_order = thread.tolist()
        return sorted(set(busiest) & set(in_order), key=in_order.index)

    def of_thread(self, thread: int) -> Iterator[dict[str, Any]]:
        """Yield a thread's ranges, then its calls."""
        trace = self.attribution.trace
        calls = trace.launches
        source = trace.threads[thread]
        name = fit(source.name or f"thread {source.thread_id}", LONGEST_RANGE)
        yield from self._ranges(thread, name)
        chosen = _by_time(calls.start_ns, self._is_near(calls, thread))
        if trace.calls is None or not len(chosen):
            return
        kinds = self.numbers([kind or NO_KIND for kind in CALL_KINDS])
        names = self.numbers([fit(text, LONGEST_RANGE) for text in _call_names(trace.calls)])
        columns = {
            "text": names[trace.calls.of_launch[chosen].astype(np.int64)],
            "tone": kinds[trace.calls.kinds[chosen]],
        }
        times_ns = calls.start_ns[chosen], calls.end_ns[chosen]
        yield self.lane(f"{name} calls", "calls", times_ns, columns, "tone")

    def _is_near(self, spots: Spots, thread: int) -> Bools:
        """Mark what is on a thread within the timeline, and takes time."""
        near = (spots.thread == thread) & (spots.end_ns > self.from_ns) & (spots.start_ns < self.until_ns)
        is_near: Bools = near & (spots.end_ns > spots.start_ns)
        return is_near

    def _ranges(self, thread: int, name: str) -> Iterator[dict[str, Any]]:
        """Yield the innermost range of the thread at each moment; the page draws those around them above."""
        attribution = self.attribution
        ranges = attribution.ranges
        chosen = np.flatnonzero(self._is_near(ranges, thread) & (attribution.home >= 0))
        if not len(chosen):
            return
        times_ns = ranges.start_ns[chosen], ranges.end_ns[chosen]
        edges_ns = np.unique(np.concatenate(times_ns))
        _, start_ns, end_ns = cut_at(edges_ns, self.window.start_ns, self.window.end_ns)
        place = Layers(*times_ns).innermost(start_ns)
        is_inside = place >= 0
        node = attribution.home[chosen[place[is_inside]]]
        number = self.paths.names_of_node[node]
        places = {path: self.tree.number(self.paths.names[path]) + 1 for path in distinct(number).tolist()}
        phases = self.numbers([phase_called(phase) for phase in PHASES])
        columns = {
            "path": np.array([places[path] for path in number.tolist()], np.int64),
            "tone": phases[attribution.node_phase[node]],
        }
        times_ns = start_ns[is_inside], end_ns[is_inside]
        yield self.lane(f"{name} ranges", "ranges", times_ns, columns, "path")

    def numbers(self, texts: Sequence[str]) -> Int64s:
        """Return the positions of some texts in those of the timeline."""
        return np.array([self.texts.setdefault(text, len(self.texts)) for text in texts], np.int64)

    def ticks(self, times_ns: Int64s) -> Int64s:
        """Return times on the timeline's clock, which begins and ends with it."""
        return (np.clip(times_ns, self.from_ns, self.until_ns) - self.from_ns) // self.tick_ns

    def lane(
        self, name: str, kind: str, times_ns: tuple[Int64s, Int64s], columns: Mapping[str, NDArray[Any]], key: str
    ) -> dict[str, Any]:
        """Return boxes in order of time, with the columns of the longest piece of each."""
        start_ns, end_ns = times_ns
        width = self.until_ns - self.from_ns
        first = _begins(start_ns - self.from_ns, end_ns - self.from_ns, columns[key], width)
        box = np.zeros(len(start_ns), np.int64)
        box[first[1:]] = 1
        box = np.cumsum(box)
        by_box = np.lexsort((start_ns - end_ns, box))
        longest = by_box[np.searchsorted(box[by_box], np.arange(len(first)))]
        boxes = {
            "start": self.ticks(start_ns[first]),
            "end": self.ticks(np.maximum.reduceat(end_ns, first)),
        }
        boxes |= {column: values[longest] for column, values in columns.items()}
        if len(first) < len(box):
            boxes["count"] = np.bincount(box)
        lane: dict[str, Any] = {"label": name, "kind": kind}
        for column, values in boxes.items():
            lane[column] = packed(values)
        return lane


def _by_time(start_ns: Int64s, chosen: Bools) -> Int64s:
    """Return the positions of what was chosen, in the order of its begins."""
    places = np.flatnonzero(chosen)
    return sorted_by(places, start_ns)


def _call_names(calls: CallNames) -> list[str]:
    return [plain_name(calls.names, number) for number in range(len(calls.names))]


def _named(names: Sequence[str], numbers: NDArray[Any]) -> list[str]:
    """Return the name of each number, "" for -1."""
    return [names[number] if number >= 0 else "" for number in numbers.tolist()]


def _begins(start: Int64s, end: Int64s, key: NDArray[Any], width: int) -> Int64s:
    """Return the pieces at which boxes begin: all, or at other keys and gaps, or at parts of the width."""
    if len(start) <= MAX_BOXES:
        return np.arange(len(start))
    begins = np.ones(len(start), np.bool_)
    gap = start[1:] - np.maximum.accumulate(end)[:-1]
    begins[1:] = (key[1:] != key[:-1]) | (gap > width // MAX_BOXES)
    if begins.sum() > MAX_BOXES:
        part = np.maximum(start, 0) * MAX_BOXES // max(width, 1)
        begins[1:] = part[1:] != part[:-1]
    return np.flatnonzero(begins)
