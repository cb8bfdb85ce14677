"""Chrome's trace format, which Perfetto and chrome://tracing open: one JSON object, an event a line.

Times are microseconds from the first event, with nanoseconds behind the point. A tenth of a nanosecond is added
for readers that cut a product of floating-point numbers instead of rounding it, as Perfetto has done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import HOW, Attribution
from ..attribution.places import Instances, Paths, projections
from ..kernel_names.categories import categorize
from ..kernel_names.short import distinct_short_names
from ..support.small_numbers import each_row, grouped_rows
from ..support.text import fit
from ..trace import KERNEL, KINDS, START_END, Columns, Int32s, Int64s, Trace, working_calls
from ..vocabulary import PATH_SEPARATOR, PHASES

LAUNCH_NAMES = {"kernel": "launch kernel", "memcpy": "copy", "memset": "set memory", "graph": "launch graph"}
LONGEST_NAME, LONGEST_PATH, LONGEST_TRACK = 200, 500, 80
# Perfetto knows a thread by its number alone, so ours start where a system's own thread numbers end.
FIRST_FREE = 2**24


@dataclass(frozen=True, slots=True)
class Slices(Columns):
    """Rows in drawing order. `group` and `lane` say on which track; `row` is a row of the table that is drawn."""

    group: Int32s
    lane: Int32s
    start_ns: Int64s
    end_ns: Int64s
    row: Int64s


def slices(group: NDArray[Any], start_ns: Int64s, end_ns: Int64s, rows: Int64s, *, nest: bool = True) -> Slices:
    """Arrange these rows of a table for drawing: by group and start, outer before inner; else as they were."""
    rows = rows[np.lexsort((-end_ns[rows], start_ns[rows], group[rows]))]
    group = group[rows].astype(np.int32)
    start_ns = start_ns[rows]
    end_ns = end_ns[rows]
    return Slices(group, _lanes(group, start_ns, end_ns, nest=nest), start_ns, end_ns, rows)


def _lanes(group: Int32s, start_ns: Int64s, end_ns: Int64s, *, nest: bool) -> Int32s:
    """Return the first lane of its group on which each slice has room; the rows are in drawing order.

    With `nest` a slice may lie inside an earlier one; without, any overlap moves it to another lane. A slice that
    crosses another is thus never cut or stretched.
    """
    lane = np.zeros(len(group), np.int32)
    lanes: list[list[int]] = []  # per lane the ends of the slices that are open, outermost first
    last_group = None
    rows = each_row(group, start_ns, end_ns)
    for row, (row_group, start, end) in enumerate(rows):
        if row_group != last_group:
            lanes = []
            last_group = row_group
        for number, ends in enumerate(lanes):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or (nest and end <= ends[-1]):
                lane[row] = number
                break
        else:
            lane[row] = len(lanes)
            ends = []
            lanes.append(ends)
        ends.append(end)
    return lane


@dataclass(frozen=True, slots=True)
class Table:
    """What is drawn of a table: its slices, the details of a row, and the arrows that begin or end at one."""

    slices: Slices
    details: Callable[[int], str]
    arrow: str = ""
    arrows: Callable[[int], Sequence[int]] = lambda row: ()  # noqa: ARG005


def chrome_trace(attribution: Attribution, *, arrows: bool = True) -> Iterator[str]:
    """Yield the file's text, line by line; with `arrows`, also those from each launch to its work."""
    trace = attribution.trace
    work = attribution.trace.work
    streams, stream = grouped_rows(work.process, work.device_id, work.stream_id)
    tables = _tables(attribution, stream.astype(np.int32))
    first_ns = min((int(t.slices.start_ns.min()) for t in tables.values() if len(t.slices)), default=0)
    tracks = Tracks(trace, np.stack(streams, axis=1).tolist(), tables)
    yield '{"traceEvents":[\n'
    yield ",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in tracks.metadata)
    for name, table in tables.items():
        drawn = table.slices
        start_us, start_rest_ns = np.divmod(drawn.start_ns - first_ns, 1000)
        lasts_us, lasts_rest_ns = np.divmod(drawn.end_ns - drawn.start_ns, 1000)
        columns = (drawn.row, drawn.group, drawn.lane, start_us, start_rest_ns, lasts_us, lasts_rest_ns)
        for row, group, lane, us, ns, dur_us, dur_ns in each_row(*columns):
            pid, tid = tracks.of[name, group, lane]
            begin = f'"pid":{pid},"tid":{tid},"ts":{us}.{ns:03d}1'
            yield f',\n{{"ph":"X",{begin},"dur":{dur_us}.{dur_ns:03d}1,{table.details(row)}}}'
            for number in table.arrows(row) if arrows else ():
                yield f',\n{{{table.arrow},"id":{number + 1},{begin},"name":"launch","cat":"launch"}}'
    about = {"file": trace.provenance.file, "tool": trace.provenance.tool, "begins_ns": first_ns}
    yield f'\n],\n"otherData":{json.dumps(about)}}}\n'


def _tables(attribution: Attribution, stream: Int32s) -> dict[str, Table]:
    """Return the tables to draw, in the order of the file; groups are threads, or the streams of work."""
    trace = attribution.trace
    work = attribution.trace.work
    ranges = attribution.trace.ranges
    calls = working_calls(trace)
    paths = Paths(attribution)
    places = Instances(attribution)
    every = np.arange(len(work), dtype=np.int64)
    spans = projections(places, every, attribution, stream, work.kind == KERNEL)
    path_texts = [_text(PATH_SEPARATOR.join(path), LONGEST_PATH) for path in paths.paths]
    path_of_work, path_of_place = (paths.of_node[nodes].tolist() for nodes in (attribution.node, places.node))
    name_of_place = attribution.ranges.name_id[places.forest.range]
    range_names = {
        number: _text(trace.names[number], LONGEST_NAME)
        for number in np.unique(np.append(ranges.name_id, name_of_place)).tolist()
    }
    domain_names = [_text(domain.name or "default", LONGEST_NAME) for domain in trace.domains]
    range_name = ranges.name_id.tolist()
    range_domain = ranges.domain.tolist()
    place_name = name_of_place.tolist()
    place = spans.instance.tolist()
    kernel_ns = spans.kernel_ns.tolist()
    # Launches are named by the work that they caused.
    launched = work.launch >= 0
    caused = np.full(len(calls), KERNEL, np.uint8)
    caused[np.searchsorted(calls.row, work.launch[launched])] = work.kind[launched]
    launch_names = [LAUNCH_NAMES[KINDS[kind]] for kind in caused.tolist()]
    work_names = _work_names(trace)
    work_name = work.name_id.tolist()
    work_kind = work.kind.tolist()
    how = attribution.how.tolist()
    phase = attribution.phase.tolist()
    blocks = work.grid.tolist()
    # An arrow has the number of its piece of work; from a launch, one leads to each piece.
    is_launched = launched.tolist()
    by_launch = np.argsort(work.launch, kind="stable")
    low, high = (np.searchsorted(work.launch[by_launch], calls.row, side).tolist() for side in ("left", "right"))
    caused_work = by_launch.tolist()

    def of_range(row: int) -> str:
        args = f'{{"domain":{domain_names[range_domain[row]]}}}'
        return f'"name":{range_names[range_name[row]]},"cat":"range","args":{args}'

    def of_span(row: int) -> str:
        args = f'{{"path":{path_texts[path_of_place[place[row]]]},"kernel_ns":{kernel_ns[row]}}}'
        return f'"name":{range_names[place_name[place[row]]]},"cat":"projected range","args":{args}'

    def of_launch(row: int) -> str:
        return f'"name":"{launch_names[row]}","cat":"launch"'

    def of_work(row: int) -> str:
        return (
            f'{work_names[work_name[row], work_kind[row]]},"path":{path_texts[path_of_work[row]]},'
            f'"phase":"{PHASES[phase[row]]}","given":"{HOW[how[row]]}","blocks":{blocks[row]}}}'
        )

    no_stack = ranges.style == START_END
    thread_ranges, start_end = (
        slices(ranges.thread, ranges.start_ns, ranges.end_ns, np.flatnonzero(chosen))
        for chosen in (~no_stack, no_stack)
    )
    on_gpu = slices(spans.group, spans.start_ns, spans.end_ns, np.arange(len(spans)))
    launches = slices(calls.thread, calls.start_ns, calls.end_ns, np.arange(len(calls)))
    on_streams = slices(stream, work.start_ns, work.end_ns, every, nest=False)
    return {
        "ranges": Table(thread_ranges, of_range),
        "start/end ranges": Table(start_end, of_range),
        "projected": Table(on_gpu, of_span),
        "launches": Table(launches, of_launch, '"ph":"s"', lambda row: caused_work[low[row] : high[row]]),
        "work": Table(on_streams, of_work, '"ph":"f","bp":"e"', lambda row: (row,) if is_launched[row] else ()),
    }


def _work_names(trace: Trace) -> dict[tuple[int, int], str]:
    """Return, per name and kind of work, its short name, its category, and the beginning of its details."""
    pairs = np.stack(grouped_rows(trace.work.name_id, trace.work.kind)[0], axis=1).tolist()
    full_names = [trace.names[name] for name, _ in pairs]
    categories = categorize(full_names, trace.categories)
    columns = zip(pairs, distinct_short_names(full_names), full_names, categories, strict=True)
    texts = {}
    for (name, kind), short, full, kernel_category in columns:
        category = kernel_category if kind == KERNEL else KINDS[kind]
        args = f'{{"name":{_text(full, LONGEST_NAME)}'
        texts[name, kind] = f'"name":{_text(short or full, LONGEST_NAME)},"cat":"{category}","args":{args}'
    return texts


def _text(name: str, longest: int) -> str:
    """Return a name as a JSON string, safe to show and of bounded length."""
    return json.dumps(fit(name, longest), ensure_ascii=False)


class Tracks:
    """Gives each lane of a table's groups a track, in the order in which they are shown.

    `of` has the process and thread number of each, and `metadata` the events that name and order them.
    """

    def __init__(self, trace: Trace, streams: Sequence[Sequence[int]], tables: Mapping[str, Table]) -> None:
        self._tables = tables
        self._free = count(FIRST_FREE + 1)
        self._taken: set[int] = set()
        self.of: dict[tuple[str, int, int], tuple[int, int]] = {}
        self.metadata: list[dict[str, Any]] = []
        of_threads = ("ranges", "start/end ranges", "launches")
        named: set[int] = set()
        for number, thread in enumerate(trace.threads):
            pid = trace.processes[thread.process].process_id
            is_drawn = any(np.any(tables[name].slices.group == number) for name in of_threads)
            if is_drawn and pid not in named:
                self._name("process", pid, pid, trace.processes[thread.process].name or "CPU")
                named.add(pid)
            for name in of_threads:
                label = f"{thread.name or 'thread'} {thread.thread_id}: {name}"
                self._add(name, number, pid, label, thread.thread_id if name == "ranges" else None)
        pids: dict[tuple[int, int], int] = {}
        gpus = trace.provenance.gpus
        several = len(trace.processes) > 1
        for number, (process, device, stream) in enumerate(streams):
            if (process, device) not in pids:
                pid = pids[process, device] = next(self._free)
                gpu = f"GPU {device}" + (f" {gpus[device]}" if 0 <= device < len(gpus) else "")
                of_process = f" of process {trace.processes[process].process_id}" if several else ""
                self._name("process", pid, pid, gpu + of_process)
            self._add("projected", number, pids[process, device], f"stream {stream}: ranges")
            self._add("work", number, pids[process, device], f"stream {stream}: work")

    def _add(self, table: str, group: int, pid: int, label: str, thread: int | None = None) -> None:
        """Give each lane of a group a track; the first may have the system's own number."""
        drawn = self._tables[table].slices
        for lane in np.unique(drawn.lane[drawn.group == group]).tolist():
            tid = thread if thread is not None and not lane and thread not in self._taken else next(self._free)
            self._taken.add(tid)
            self.of[table, group, lane] = pid, tid
            self._name("thread", pid, tid, label + (f", crossing {lane}" if lane else ""))

    def _name(self, kind: str, pid: int, tid: int, name: str) -> None:
        place = {"ph": "M", "pid": pid, "tid": tid}
        self.metadata.append({**place, "name": f"{kind}_name", "args": {"name": fit(name, LONGEST_TRACK)}})
        order = {"sort_index": len(self.metadata)}
        self.metadata.append({**place, "name": f"{kind}_sort_index", "args": order})
