"""Read what Kineto saved of a session, for the recorder: joins `analysis`, which reads traces, to `profiling`.

A report needs more of GPU work than answers about a stranger's trace do: blocks, registers, contexts, bytes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.ma

from .analysis.errors import NotAReport
from .analysis.readers import chrome_events, stream_waits
from .analysis.readers.chrome_columns import Table, TraceColumns
from .analysis.readers.chrome_values import integers, numbered, three_sizes, whole_number
from .analysis.readers.columns import Interner
from .analysis.readers.memory_kinds import UNKNOWN_MEMORY
from .analysis.readers.pytorch_trace import Assembly
from .analysis.trace import KERNEL, Int64s, Spots
from .profiling.recorder.seen import (
    SEQUENCE_BITS,
    Allocated,
    Blocks,
    Calls,
    Column,
    GpuWork,
    Seen,
    SelfTimes,
    Spans,
    SpansOf,
    Synchronized,
)


class _Args(chrome_events.Args, gc=False, frozen=True):
    block: msgspec.Raw = msgspec.Raw()
    registers: Any = msgspec.field(default=None, name="registers per thread")


class _Event(chrome_events.Event, gc=False):
    args: _Args = _Args()


_EVENTS = msgspec.json.Decoder(list[_Event])
# Kineto escapes no quote: not in a name, which has a line of its own or is before `pid`, nor in the file's path.
_TEXT = re.compile(rb'("(?:name|traceName)": ")(.*)("(?:, "pid": .*|,| }))\s*\Z')
_WRAPPED = re.compile(r"thread -?\d+ \((.*)\)\s*")
#: In the names of CUDA's calls that launch one kernel each.
LAUNCHES_KERNEL = "LaunchKernel"
#: So many launches without a kernel at the end of a session are no coincidence.
MANY_LOST = 64


class _Columns(TraceColumns):
    """Also the blocks, registers, contexts, bytes and graph nodes of work, and whether calls are of the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.details = Table()
        self.of_calls = Table()
        self.sizes: Interner[tuple[bytes, bytes]] = Interner()  # of grids and blocks, as written

    def _add_work(self, events: list[Any], kind: int) -> None:
        super()._add_work(events, kind)
        of_work = [event.args for event in events]
        sizes = [(bytes(args.grid), bytes(args.block)) for args in of_work]
        self.details.add(
            sizes=numbered(sizes, self.sizes),
            registers=integers([args.registers for args in of_work], 0),
            context=integers([args.context for args in of_work], 0),
            bytes=integers([args.copied for args in of_work], 0),
            graph_node=integers([args.graph_node for args in of_work], 0),
        )

    def _add_launches(self, events: list[Any], device: int) -> None:
        super()._add_launches(events, device)
        is_of_driver = [event.cat.endswith("driver") for event in events]
        self.of_calls.add(name=self._names(events, str), event_class=np.array(is_of_driver))


def read(path: Path, spans_of: SpansOf | None = None) -> Seen:
    """Read a session's file, given what says which ranges were open meanwhile.

    Raises NotAReport for a file that is damaged, as Kineto leaves it on a full disk.
    """
    try:
        columns, assembly = _columns(path)
    except NotAReport:
        escaped = path.with_name(f"{path.name}.escaped")
        try:
            _escape(path, escaped)
            columns, assembly = _columns(escaped)
        finally:
            escaped.unlink(missing_ok=True)
    base_ns = whole_number(assembly.envelope.base_ns) or 0
    threads = []
    for pid, tid in columns.threads:
        name = columns.thread_names.get((pid, tid), "")
        threads.append((whole_number(tid) or 0, _WRAPPED.sub(r"\1", name)))
    blocks, self_times = _operators(columns, assembly, threads, base_ns, spans_of)
    calls = _calls(columns, base_ns)
    work = _work(columns, base_ns)
    allocated = {on_gpu: _allocated(columns.memory, base_ns, on_gpu=on_gpu) for on_gpu in (False, True)}
    names = [*columns.names]
    return Seen(
        names,
        threads,
        calls,
        work,
        _synchronized(stream_waits.waits_of(columns.syncs), base_ns),
        _synchronized(stream_waits.records_of(columns.syncs), base_ns),
        blocks,
        self_times,
        allocated,
        _lost_from(calls, work, names),
    )


def _columns(path: Path) -> tuple[_Columns, Assembly]:
    file = chrome_events.TraceFile(path, decoder=_EVENTS)
    columns = _Columns()
    for events in file.blocks():
        columns.take(events)
    return columns, Assembly(path, columns, file.envelope)


def _escape(path: Path, escaped: Path) -> None:
    """Copy a file with what JSON wants escaped in names and paths escaped."""
    with path.open("rb") as lines, escaped.open("wb") as file:
        for line in lines:
            match = _TEXT.search(line)
            if match is not None:
                begin, text, end = match.groups()
                text = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
                line = line[: match.start()] + begin + text + end + b"\n"
            file.write(line)


def _operators(
    columns: _Columns,
    assembly: Assembly,
    threads: list[tuple[int, str]],
    base_ns: int,
    spans_of: SpansOf | None,
) -> tuple[Blocks, SelfTimes]:
    ranges = assembly.ranges()
    table = columns.ranges
    tids = np.array([*(tid for tid, _ in threads), 0], np.int64)
    thread = ranges.thread.astype(np.int64)
    blocks = Blocks(
        ranges.start_ns + base_ns,
        ranges.end_ns + base_ns,
        thread,
        ranges.name_id.astype(np.int64),
        _sequence(ranges.seq, thread, table, tids),
        table["is_operator"] == 1,
        table["forward"],
    )
    spans = spans_of([*columns.names], threads, blocks) if spans_of else None
    if columns.work.rows or columns.launches.rows:
        none = np.empty(0, np.int64)
        return blocks, SelfTimes(none, none, none, none, none)
    spots = _on_threads(spans, threads, base_ns) if spans else None
    work, rows, calls = assembly.self_times(ranges, spots)
    self_times = SelfTimes(
        work.start_ns + base_ns,
        work.end_ns + base_ns,
        rows.astype(np.int64),
        calls.start_ns + base_ns,
        calls.end_ns + base_ns,
    )
    return blocks, self_times


def _on_threads(spans: Spans, threads: list[tuple[int, str]], base_ns: int) -> Spots:
    """Return ranges by the session's numbers of threads, and without those of threads that it did not see."""
    number = {tid: place for place, (tid, _) in enumerate(threads)}
    thread = np.array([number.get(tid, -1) for tid in spans.thread.tolist()], np.int32)
    rows = np.flatnonzero(thread >= 0)
    return Spots(spans.start_ns[rows] - base_ns, spans.end_ns[rows] - base_ns, thread[rows])


def _sequence(joined: Int64s, thread: Column, table: Table, tids: Column) -> Column:
    """Return numbers with the system's id of a thread, as sessions number their threads in different orders.

    Where a session has no flow from forward to backward, an operator counts in its own thread, and which one a
    node counts in is not known.
    """
    number = table["sequence"]
    unknown = len(tids) - 1
    without_flow = np.where(table["forward"] > 0, unknown, thread)
    place = (joined >> SEQUENCE_BITS) - 1
    place = np.where(place >= 0, place, without_flow)
    tid = tids[np.minimum(place, unknown)]
    in_thread = number & ((1 << SEQUENCE_BITS) - 1)
    with_tid = (tid + 1) << SEQUENCE_BITS | in_thread
    return np.where(number >= 0, with_tid, -1)


def _calls(columns: _Columns, base_ns: int) -> Calls:
    table = columns.launches
    more = columns.of_calls
    start_ns = table["start"] + base_ns
    return Calls(
        start_ns,
        np.maximum(table["end"] + base_ns, start_ns),
        table["place"],
        more["name"],
        table["correlation"],
        more["event_class"],
    )


def _work(columns: _Columns, base_ns: int) -> GpuWork:
    table = columns.work
    more = columns.details
    copies = columns.copies
    start_ns = table["start"] + base_ns
    distinct = [(*three_sizes(grid), *three_sizes(block)) for grid, block in columns.sizes]
    sizes = np.array(distinct, np.int64).reshape(-1, 6)[more["sizes"]]
    from_memory = np.full(len(start_ns), UNKNOWN_MEMORY)
    from_memory[copies["work"]] = copies["from_memory"]
    to_memory = np.full(len(start_ns), UNKNOWN_MEMORY)
    to_memory[copies["work"]] = copies["to_memory"]
    return GpuWork(
        start_ns,
        np.maximum(table["end"] + base_ns, start_ns),
        table["kind"],
        table["name"],
        table["device"],
        more["context"],
        table["stream"],
        table["correlation"],
        grid=sizes[:, :3],
        block=sizes[:, 3:],
        registers=more["registers"],
        bytes=more["bytes"],
        graph_node=more["graph_node"],
        from_memory=from_memory,
        to_memory=to_memory,
    )


def _synchronized(rows: stream_waits.Synchronized, base_ns: int) -> Synchronized:
    return Synchronized(
        rows.start_ns + base_ns,
        np.maximum(rows.end_ns, rows.start_ns) + base_ns,
        rows.kind,
        rows.correlation,
        rows.stream,
        rows.event,
        rows.device,
        rows.context,
    )


def _allocated(table: Table, base_ns: int, *, on_gpu: bool) -> Allocated:
    is_of_gpu = table["device_type"] != 0
    rows = np.flatnonzero(is_of_gpu == on_gpu)
    by_time = np.argsort(table["start"][rows], kind="stable")
    rows = rows[by_time]
    return Allocated(
        table["start"][rows] + base_ns,
        table["place"][rows],
        np.maximum(table["device"][rows], 0),
        table["block"][rows],
        table["bytes"][rows],
        table["total"][rows],
    )


def _lost_from(calls: Calls, work: GpuWork, names: list[str]) -> int | None:
    """Return from when on launches have no kernel: the GPU's events have filled the profiler's buffers."""
    launches_kernel = np.array([LAUNCHES_KERNEL in name for name in names] or [False])
    launches = np.flatnonzero(launches_kernel[calls.name])
    by_time = np.argsort(calls.start_ns[launches], kind="stable")
    launches = launches[by_time]
    kernels = work.correlation[work.kind == KERNEL]
    has_kernel = np.isin(calls.correlation[launches], kernels)
    if not has_kernel.any():
        return None
    last = int(np.flatnonzero(has_kernel)[-1])
    lost = launches[last + 1 :]
    return int(calls.start_ns[lost[0]]) if len(lost) >= MANY_LOST else None
