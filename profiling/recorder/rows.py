"""Write what sessions saw, and the log of ranges, into a report: columns into the tables that nsys exports.

This runs after measuring, or in a pause between steps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..annotate.others import OPTIMIZER_BLOCKS, original_name
from .backward import ENGINE
from .range_log import Event, RangeLog
from .seen import Column, GpuWork, Seen, Spans, Synchronized
from .session import LAST
from .trace_file import TraceFile, global_tid, writable

# nsys's types of NVTX events.
RANGE, MARK, DOMAIN_CREATED, CATEGORY_NAMED = 59, 34, 75, 33
INT64 = range(-(1 << 63), 1 << 63)
NVTX = "NVTX_EVENTS"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
SYNCHRONIZATION, CUDA_EVENT = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
#: What CUPTI writes as the stream where the whole device is waited for.
NO_STREAM = 2**32 - 1
ALLOCATIONS = "NVTX_KERNELS_ALLOCATIONS"
#: By the kinds of analysis.trace.
WORK_TABLES = (KERNEL, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
# CUpti_ActivityMemcpyKind, by the name that the reader gives to copies.
COPY_KINDS = {
    "[CUDA memcpy Host-to-Device]": 1,
    "[CUDA memcpy Device-to-Host]": 2,
    "[CUDA memcpy Host-to-Array]": 3,
    "[CUDA memcpy Array-to-Host]": 4,
    "[CUDA memcpy Array-to-Array]": 5,
    "[CUDA memcpy Array-to-Device]": 6,
    "[CUDA memcpy Device-to-Array]": 7,
    "[CUDA memcpy Device-to-Device]": 8,
    "[CUDA memcpy Host-to-Host]": 9,
    "[CUDA memcpy Peer-to-Peer]": 10,
}
AXES = ("X", "Y", "Z")
# NOT NULL in nsys's schema, and not known here.
NO_SIZES = {f"{size}{axis}": 0 for size in ("grid", "block") for axis in AXES}
UNKNOWN_OF_KERNEL: dict[str, Any] = {
    "staticSharedMemory": 0,
    "dynamicSharedMemory": 0,
    "localMemoryPerThread": 0,
    "localMemoryTotal": 0,
    "gridId": 0,
}


def short_name(demangled: str) -> str:
    """Return the base name of a C++ function, as nsys's shortName: no templates, arguments or namespaces.

    >>> short_name("void at::native::(anonymous namespace)::foo<float, 4>(int, float*)")
    'foo'
    """
    plain = demangled.replace("(anonymous namespace)", "anonymous").removeprefix("void ")
    return re.split(r"[<(]", plain, maxsplit=1)[0].rsplit("::", 1)[-1] or demangled


class Rows:
    """Writes into a report; times become ns since `origin_ns`.

    With `on_gpu` the GPU's own kernels are work, else the self time of CPU operators. Blocks of
    `torch.profiler.record_function` are ranges; with `operators` every operator is one too, with the sequence
    number that links backward to forward. `works` counts the work written.
    """

    def __init__(
        self,
        trace: TraceFile,
        origin_ns: int,
        *,
        on_gpu: bool,
        operators: bool = False,
    ) -> None:
        self.threads: dict[int, str] = {}
        self.works = 0
        self._trace = trace
        self._origin_ns = origin_ns
        self._on_gpu = on_gpu
        self._operators = operators
        self._pid = os.getpid()
        self._launches = 0
        self._blocks: dict[tuple[int, int], int] = {}

    def add(self, seen: Seen, log: RangeLog) -> None:
        """Write a session, whose ranges were the last taken from the log."""
        self.threads |= {number: name for number, name in seen.threads if name or number not in self.threads}
        names = [writable(original_name(text)) for text in seen.texts]
        text_ids = _TextIds(self._trace, names)
        global_tids = [global_tid(self._pid, number) for number, _ in seen.threads]
        thread_ids = np.array(global_tids or [0], np.int64)
        if self._on_gpu:
            calls = seen.calls
            self._add_calls(
                calls.start_ns,
                calls.end_ns,
                thread_ids[calls.thread],
                calls.correlation,
                text_ids[calls.name],
                calls.event_class,
            )
            self._add_gpu_work(seen.work, names, text_ids)
            self._add_waits(seen.waits, seen.records)
        else:
            self._add_self_times(seen, thread_ids, text_ids)
        self._add_blocks(seen, names, thread_ids, log)
        self._add_allocations(seen, thread_ids)

    def _add_calls(
        self,
        start_ns: Column,
        end_ns: Column,
        thread: Column,
        number: Column,
        name: Any,
        kind: Any,
    ) -> None:
        self._trace.add_columns(
            RUNTIME,
            start=start_ns - self._origin_ns,
            end=end_ns - self._origin_ns,
            eventClass=kind,
            globalTid=thread,
            correlationId=number,
            nameId=name,
            returnValue=0,
        )

    def _add_self_times(self, seen: Seen, thread_ids: Column, text_ids: _TextIds) -> None:
        times, blocks = seen.self_times, seen.blocks
        row = times.block
        number = np.arange(len(row)) + self._launches + 1
        self._launches += len(row)
        name = text_ids[blocks.name[row]]
        thread = blocks.thread[row]
        self._add_calls(times.call_start_ns, times.call_end_ns, thread_ids[thread], number, name, 0)
        tids = [tid for tid, _ in seen.threads]
        streams = np.array(tids or [0], np.int64)
        self._add_work(
            KERNEL,
            times.start_ns,
            times.end_ns,
            streamId=streams[thread],
            correlationId=number,
            deviceId=0,
            contextId=0,
            demangledName=name,
            shortName=name,
            registersPerThread=0,
            **NO_SIZES,
            **UNKNOWN_OF_KERNEL,
        )

    def _add_gpu_work(self, work: GpuWork, names: list[str], text_ids: _TextIds) -> None:
        short_ids = _TextIds(self._trace, [short_name(name) for name in names])
        copy_kinds = np.array([COPY_KINDS.get(name, 0) for name in names] or [0])
        for kind, table in enumerate(WORK_TABLES):
            rows = np.flatnonzero(work.kind == kind)
            name = work.name[rows]
            details: dict[str, Any] = {"bytes": work.bytes[rows]}
            if table == KERNEL:
                details = _sizes(work, rows)
                details["demangledName"] = text_ids[name]
                details["shortName"] = short_ids[name]
                details["registersPerThread"] = work.registers[rows]
                details |= UNKNOWN_OF_KERNEL
            elif table == WORK_TABLES[1]:
                details["copyKind"] = copy_kinds[name]
                details["srcKind"] = _null_below_zero(work.from_memory[rows])
                details["dstKind"] = _null_below_zero(work.to_memory[rows])
            else:
                details["value"] = 0
            self._add_work(
                table,
                work.start_ns[rows],
                work.end_ns[rows],
                streamId=work.stream[rows],
                correlationId=work.correlation[rows],
                deviceId=work.device[rows],
                contextId=work.context[rows],
                graphNodeId=[node or None for node in work.graph_node[rows].tolist()],
                **details,
            )

    def _add_waits(self, waits: Synchronized, records: Synchronized) -> None:
        """Write which calls waited for which stream or event, and which recorded events."""
        times = {"start": waits.start_ns - self._origin_ns, "end": waits.end_ns - self._origin_ns}
        self._trace.add_columns(SYNCHRONIZATION, **times, syncType=waits.kind, **self._on_streams(waits))
        self._trace.add_columns(CUDA_EVENT, **self._on_streams(records))

    def _on_streams(self, calls: Synchronized) -> dict[str, Any]:
        return {
            "deviceId": calls.device,
            "contextId": calls.context,
            "streamId": np.where(calls.stream < 0, NO_STREAM, calls.stream),
            "correlationId": calls.correlation,
            "globalPid": global_tid(self._pid, 0),
            "eventId": calls.event,
        }

    def _add_work(self, table: str, start_ns: Column, end_ns: Column, **columns: Any) -> None:
        times = {"start": start_ns - self._origin_ns, "end": end_ns - self._origin_ns}
        self.works += self._trace.add_columns(table, **times, globalPid=global_tid(self._pid, 0), **columns)

    def _add_blocks(
        self,
        seen: Seen,
        names: list[str],
        thread_ids: Column,
        log: RangeLog,
    ) -> None:
        """Write blocks, but none that only repeats a range `optimizer` of ours, and operators if asked for."""
        blocks = seen.blocks
        is_last = np.isin(blocks.name, _begins(names, LAST))
        is_range = (~blocks.is_operator | self._operators) & ~is_last
        is_optimizer = np.isin(blocks.name, _begins(names, OPTIMIZER_BLOCKS)) & ~blocks.is_operator
        for row in np.flatnonzero(is_optimizer):
            tid, _ = seen.threads[int(blocks.thread[row])]
            start_ns = int(blocks.start_ns[row])
            end_ns = int(blocks.end_ns[row])
            is_range[row] &= not log.tells_optimizer(tid, start_ns, end_ns)
        rows = np.flatnonzero(is_range)
        texts = [names[number] for number in blocks.name[rows].tolist()]
        is_engine = np.isin(blocks.name[rows], _begins(names, ENGINE))
        is_numbered = (blocks.sequence[rows] >= 0) & ~is_engine
        for place in np.flatnonzero(is_numbered).tolist():
            sequence = blocks.sequence[rows[place]]
            texts[place] = f"{texts[place]}, seq = {sequence}"
        self._trace.add_columns(
            NVTX,
            start=blocks.start_ns[rows] - self._origin_ns,
            end=blocks.end_ns[rows] - self._origin_ns,
            eventType=RANGE,
            text=texts,
            globalTid=thread_ids[blocks.thread[rows]],
            domainId=0,
        )

    def _add_allocations(self, seen: Seen, thread_ids: Column) -> None:
        """Write allocations and frees; addresses, which say how a process is laid out, become numbers."""
        allocated = seen.allocated[self._on_gpu]
        places = zip(allocated.device.tolist(), allocated.address.tolist(), strict=True)
        numbers = [self._blocks.setdefault(place, len(self._blocks)) for place in places]
        self._trace.add_columns(
            ALLOCATIONS,
            start=allocated.at_ns - self._origin_ns,
            globalTid=thread_ids[allocated.thread],
            deviceId=allocated.device,
            block=numbers,
            bytes=allocated.bytes,
            totalBytes=allocated.total_bytes,
        )

    def add_ranges(self, events: Iterable[Event], log: RangeLog) -> None:
        """Write the ranges and marks of a log; their names are registered strings, as nvtx's are."""
        rows = list(events)
        if not rows:
            return
        threads = {event.thread for event in rows}
        payloads = [event.payload for event in rows]
        self.threads |= dict.fromkeys(threads - self.threads.keys(), "")
        self._trace.add_columns(
            NVTX,
            start=[event.start_ns - self._origin_ns for event in rows],
            end=[None if event.end_ns is None else event.end_ns - self._origin_ns for event in rows],
            eventType=[MARK if event.is_mark else RANGE for event in rows],
            globalTid=[global_tid(self._pid, event.thread) for event in rows],
            textId=[self._trace.text_id(event.name) for event in rows],
            domainId=[log.domains[event.domain] for event in rows],
            category=[log.category_number(event.category) for event in rows],
            int64Value=[int(n) if isinstance(n, int) and n in INT64 else None for n in payloads],
            doubleValue=[n if isinstance(n, float) else None for n in payloads],
        )


def spans_of(events: Iterable[Event]) -> Spans:
    """Return the ranges among some events, which have ended."""
    rows = [(event.start_ns, event.end_ns, event.thread) for event in events if event.end_ns is not None]
    return Spans(*np.array(rows, np.int64).reshape(-1, 3).T)


class _TextIds:
    """The report's ids of texts, made for those that are asked for: every string of a report is referred to."""

    def __init__(self, trace: TraceFile, texts: list[str]) -> None:
        self._trace, self._texts = trace, texts
        self._ids = np.zeros(len(texts) + 1, np.int64)

    def __getitem__(self, places: Column) -> Column:
        for place in np.unique(places[self._ids[places] == 0]).tolist():
            self._ids[place] = self._trace.text_id(self._texts[place])
        return self._ids[places]


def _sizes(work: GpuWork, rows: Column) -> dict[str, Any]:
    """Return the columns of kernels' grids and blocks, each by its axis."""
    columns = {}
    for size, sizes in (("grid", work.grid), ("block", work.block)):
        for number, axis in enumerate(AXES):
            columns[f"{size}{axis}"] = sizes[rows, number]
    return columns


def _null_below_zero(numbers: Column) -> list[int | None]:
    """Return numbers as a table has them, with NULL for -1."""
    return [None if number < 0 else number for number in numbers.tolist()]


def _begins(names: list[str], beginnings: str | tuple[str, ...]) -> list[int]:
    return [number for number, name in enumerate(names) if name.startswith(beginnings)]


def thread_name(thread: int) -> str:
    """Return the operating system's name of a thread of this process, empty when it has gone."""
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
