"""One step in time: single kernels by stream, why each GPU is idle, and what the CPU's threads do.

A timeline is lanes on one clock. A lane has its `label`, its `kind` and columns by box:

    work     start, end, row (of `work_rows`), launch (when the CPU launched it) and line
    idle     start, end, row (of the work that it is before), text (where the program was) and tone (the cause)
    ranges   start, end, path, tone (the phase)
    calls    start, end, text (the call), tone (what it does)

Times are in `tick_ns` from the begin of the first lane; other columns are positions, in `row`, `line` and `path`
one higher, as 0 is none. Beyond `MAX_BOXES`, neighbours are joined: `count` is how many a box is made of.
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
from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..support.layers import Layers
from ..support.small_numbers import distinct, grouped_rows
from ..support.text import fit
from ..trace import Bools, Int64s, Spots
from ..views.headings import phase as phase_called
from ..views.rows import label
from ..vocabulary import PHASES
from ..vocabulary.calls import CALL_KINDS, plain_name
from .work_rows import LONGEST_KERNEL, LONGEST_RANGE, PathTree, WorkRows, packed

MAX_BOXES, MAX_STREAMS, MAX_THREADS = 20_000, 16, 2
NO_KIND = "another call"


def timeline(partition: Partition, rows: WorkRows, tree: PathTree) -> dict[str, Any]:
    """Return the step that takes the median time, or without steps all that was recorded."""
    attribution = partition.attribution
    drawn = _Drawn(attribution, rows, tree, *_median_step(partition))
    if not len(drawn.positions):
        return {"lanes": []}
    lanes = [*drawn.streams(), *(drawn.outside_operators() if partition.on_cpu else drawn.idle())]
    if not partition.on_cpu:
        lanes += [lane for thread in drawn.threads() for lane in drawn.of_thread(thread)]
    sources = attribution.lines.sources if attribution.lines else ()
    return {
        "lanes": lanes,
        "step": drawn.number if partition.has_steps else None,
        "tick_ns": drawn.tick_ns,
        "span": (drawn.until_ns - drawn.from_ns) // drawn.tick_ns,
        "left_out": max(0, drawn.stream_count - MAX_STREAMS),
        "texts": list(drawn.texts),
        "lines": [source.lines[0].called for source in sources],
    }


def _median_step(partition: Partition) -> tuple[int, int, int]:
    """Return the number of the step that takes the median time, and its begin and end, ns."""
    table, number = partition.table, partition.main_loop
    counted = partition.choices[number].counted
    row = int(counted[np.argsort(table.own_ns[counted], kind="stable")[len(counted) // 2]])
    pieces = partition.steps.loops[number].pieces.in_steps()
    pieces = pieces.take(pieces.row == row)
    return int(table.number[row]), int(pieces.start_ns.min()), int(pieces.end_ns.max())


class _Drawn:
    """The work that a timeline shows, as positions in all work, from `from_ns` to `until_ns`."""

    def __init__(
        self, attribution: Attribution, rows: WorkRows, tree: PathTree, number: int, from_ns: int, until_ns: int
    ) -> None:
        work = attribution.trace.work
        is_near = (work.end_ns > from_ns) & (work.start_ns < until_ns)
        self.attribution, self.rows, self.tree, self.number = attribution, rows, tree, number
        self.from_ns, self.until_ns = from_ns, until_ns
        self.positions = np.flatnonzero(is_near & (rows.of_work >= 0))
        self.stream_count = 0
        self.texts: dict[str, int] = {}

    @property
    def on_cpu(self) -> bool:
        return self.attribution.trace.provenance.unit_of_work == "CPU"

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
        trace, lines = self.attribution.trace, self.attribution.lines
        work = trace.work.take(self.positions)
        (process, device, stream_id), stream = grouped_rows(work.process, work.device_id, work.stream_id)
        self.stream_count = len(process)
        several = len(distinct(process)) > 1
        line_of_launch = np.append(lines.of_launch if lines else np.full(len(trace.launches), -1), -1)
        launch_ns = np.append(trace.launches.start_ns, self.from_ns)
        for number in np.sort(np.argsort(-np.bincount(stream), kind="stable")[:MAX_STREAMS]).tolist():
            chosen = np.flatnonzero(stream == number)
            chosen = chosen[np.argsort(work.start_ns[chosen], kind="stable")]
            launch = work.launch[chosen]
            columns = {
                "row": self.rows.of_work[self.positions[chosen]] + 1,
                "launch": np.maximum(self.ticks(launch_ns[launch]), 1) * (launch >= 0),
                "line": line_of_launch[launch] + 1,
            }
            name = f"GPU {device[number]} · stream {stream_id[number]}"
            name = f"thread {stream_id[number]}" if self.on_cpu else name
            name = f"process {process[number]} · {name}" if several else name
            yield self.lane(name, "work", (work.start_ns[chosen], work.end_ns[chosen]), columns, "row")

    def idle(self) -> Iterator[dict[str, Any]]:
        """Yield the gaps of each GPU by cause."""
        work, gpus = self.attribution.trace.work, Gpus(self.attribution.trace)
        for gpu in distinct(gpus.of_work[self.positions]).tolist():
            of_gpu = np.flatnonzero(gpus.of_work == gpu)
            gaps = within(gaps_between(work, of_gpu, gpu, self.from_ns), self.window)
            if not len(gaps):
                continue
            pieces = Pieces.joined([*pieces_of(self.attribution, gaps, gpus.of_work)])
            pieces = pieces.take((pieces.end_ns > self.from_ns) & (pieces.start_ns < self.until_ns))
            pieces = pieces.take(np.argsort(pieces.start_ns, kind="stable"))
            of_gpu = of_gpu[np.argsort(work.start_ns[of_gpu], kind="stable")]
            following = np.searchsorted(work.start_ns[of_gpu], pieces.end_ns)
            row = np.append(self.rows.of_work[of_gpu], -1)[following] + 1
            yield self._idle_lane(f"{gpus.names[gpu]} idle", pieces, CAUSES, row)

    def _idle_lane(
        self, name: str, pieces: Pieces | Outside, causes: Sequence[str], row: Int64s
    ) -> dict[str, Any]:
        tones = self.numbers(causes)[pieces.cause.astype(np.int64)]
        columns = {"row": row, "text": self.numbers([*self._where(pieces)]), "tone": tones}
        return self.lane(name, "idle", (pieces.start_ns, pieces.end_ns), columns, "tone")

    def _where(self, pieces: Pieces | Outside) -> Iterator[str]:
        """Yield in which range, function and line the CPU was in each piece, and after which call that waited."""
        trace, paths, lines = self.attribution.trace, Paths(self.attribution), self.attribution.lines
        functions, calls = ("", *trace.frame_names), trace.calls
        nothing = np.full(len(pieces), -1)
        exposed_by = pieces.exposed_by if isinstance(pieces, Pieces) else nothing
        called = np.append(calls.of_launch.astype(np.int64), -1)[exposed_by] if calls else exposed_by
        columns = paths.names_of_node[pieces.node], pieces.function, pieces.line, called
        for path, function, line, call in zip(*(column.tolist() for column in columns), strict=True):
            parts = [label(self.tree.apart(paths.names[path])), functions[function + 1]]
            parts.append(f"at {lines.sources[line].lines[0].called}" if lines and line >= 0 else "")
            parts.append(f"after {plain_name(calls.names, call)}" if calls and call >= 0 else "")
            yield fit(", ".join(filter(None, parts)), LONGEST_KERNEL)

    def outside_operators(self) -> Iterator[dict[str, Any]]:
        """Yield the time of the program on a CPU while it runs no operator."""
        attribution, trace = self.attribution, self.attribution.trace
        process = int(trace.work.process[self.positions[0]])
        steps = attribution.steps.range
        of_process = trace.process_of_thread()[attribution.ranges.thread[steps]] == process
        thread = program_thread(attribution, process, steps[of_process].astype(np.int64))
        pieces = outside_operators(attribution, Paths(attribution), thread, self.window)
        if len(pieces):
            yield self._idle_lane("outside of operators", pieces, CPU_CAUSES, np.zeros(len(pieces), np.int64))

    def threads(self) -> list[int]:
        """Return the threads that launched most of the work, in the order of their first launch."""
        trace = self.attribution.trace
        calls = trace.work.launch[self.positions]
        thread = trace.launches.thread[calls[calls >= 0]]
        if not len(thread) or not trace.launch_times_known:
            return []
        most = np.argsort(-np.bincount(thread), kind="stable")[:MAX_THREADS]
        return sorted((int(number) for number in most if (thread == number).any()), key=thread.tolist().index)

    def of_thread(self, thread: int) -> Iterator[dict[str, Any]]:
        """Yield a thread's ranges, then its calls."""
        trace, calls = self.attribution.trace, self.attribution.trace.launches
        name = fit(trace.threads[thread].name or f"thread {trace.threads[thread].thread_id}", LONGEST_RANGE)
        yield from self._ranges(thread, name)
        chosen = np.flatnonzero(self._is_near(calls, thread))
        if trace.calls is None or not len(chosen):
            return
        chosen = chosen[np.argsort(calls.start_ns[chosen], kind="stable")]
        called = trace.calls.of_launch[chosen].astype(np.int64)
        names = {
            number: fit(plain_name(trace.calls.names, number), LONGEST_RANGE) for number in set(called.tolist())
        }
        columns = {
            "text": self.numbers([names[number] for number in called.tolist()]),
            "tone": self.numbers([kind or NO_KIND for kind in CALL_KINDS])[trace.calls.kinds[chosen]],
        }
        yield self.lane(f"{name} calls", "calls", (calls.start_ns[chosen], calls.end_ns[chosen]), columns, "tone")

    def _is_near(self, spots: Spots, thread: int) -> Bools:
        """Mark what is on a thread within the timeline, and takes time."""
        near = (spots.thread == thread) & (spots.end_ns > self.from_ns) & (spots.start_ns < self.until_ns)
        is_near: Bools = near & (spots.end_ns > spots.start_ns)
        return is_near

    def _ranges(self, thread: int, name: str) -> Iterator[dict[str, Any]]:
        """Yield the innermost range of the thread at each moment; the page draws those around them above."""
        attribution, ranges = self.attribution, self.attribution.ranges
        chosen = np.flatnonzero(self._is_near(ranges, thread) & (attribution.home >= 0))
        if not len(chosen):
            return
        times = ranges.start_ns[chosen], ranges.end_ns[chosen]
        begin, end = (np.array([ns], np.int64) for ns in (self.from_ns, self.until_ns))
        _, start, stop = cut_at(np.unique(np.concatenate(times)), begin, end)
        place = Layers(*times).innermost(start)
        start, stop, node = start[place >= 0], stop[place >= 0], attribution.home[chosen[place[place >= 0]]]
        paths = Paths(attribution)
        number = paths.names_of_node[node]
        places = {path: self.tree.number(paths.names[path]) + 1 for path in distinct(number).tolist()}
        columns = {
            "path": np.array([places[path] for path in number.tolist()], np.int64),
            "tone": self.numbers([phase_called(phase) for phase in PHASES])[attribution.node_phase[node]],
        }
        yield self.lane(f"{name} ranges", "ranges", (start, stop), columns, "path")

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
        first = _begins(start_ns - self.from_ns, end_ns - self.from_ns, columns[key], self.until_ns - self.from_ns)
        box = np.zeros(len(start_ns), np.int64)
        box[first[1:]] = 1
        box = np.cumsum(box)
        by_box = np.lexsort((start_ns - end_ns, box))
        longest = by_box[np.searchsorted(box[by_box], np.arange(len(first)))]
        boxes = {
            "start": self.ticks(start_ns[first]),
            "end": self.ticks(np.maximum.reduceat(end_ns, first)),
            **{column: values[longest] for column, values in columns.items()},
        }
        if len(first) < len(box):
            boxes["count"] = np.bincount(box)
        return {"label": name, "kind": kind} | {column: packed(values) for column, values in boxes.items()}


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
