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
_ENDS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
COPY_KINDS = {
    f"[CUDA memcpy {_ENDS[ends[0]]}-to-{_ENDS[ends[1]]}]": number
    for number, ends in enumerate(["HD", "DH", "HA", "AH", "AA", "AD", "DA", "DD", "HH", "PP"], 1)
}
AXES = ("X", "Y", "Z")
# NOT NULL in nsys's schema, and not known here.
NO_SIZES = {f"{size}{axis}": 0 for size in ("grid", "block") for axis in AXES}
UNKNOWN = ("staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal", "gridId")
UNKNOWN_OF_KERNEL: dict[str, Any] = dict.fromkeys(UNKNOWN, 0)


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

    def __init__(self, trace: TraceFile, origin_ns: int, *, on_gpu: bool, operators: bool = False) -> None:
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
        thread_ids = np.array([global_tid(self._pid, number) for number, _ in seen.threads] or [0], np.int64)
        if self._on_gpu:
            calls = seen.calls
            self._add_calls(calls.start_ns, calls.end_ns, thread_ids[calls.thread], calls.correlation,
                            text_ids[calls.name], calls.event_class)  # fmt: skip
            self._add_gpu_work(seen.work, names, text_ids)
            self._add_waits(seen.waits, seen.records)
        else:
            self._add_self_times(seen, thread_ids, text_ids)
        self._add_blocks(seen, names, thread_ids, log)
        self._add_allocations(seen, thread_ids)

    def _add_calls(
        self, start_ns: Column, end_ns: Column, thread: Column, number: Column, name: Any, kind: Any
    ) -> None:
        self._trace.add_columns(
            RUNTIME, start=start_ns - self._origin_ns, end=end_ns - self._origin_ns, eventClass=kind,
            globalTid=thread, correlationId=number, nameId=name, returnValue=0,
        )  # fmt: skip

    def _add_self_times(self, seen: Seen, thread_ids: Column, text_ids: _TextIds) -> None:
        times, blocks = seen.self_times, seen.blocks
        row = times.block
        number = np.arange(len(row)) + self._launches + 1
        self._launches += len(row)
        name, thread = text_ids[blocks.name[row]], blocks.thread[row]
        self._add_calls(times.call_start_ns, times.call_end_ns, thread_ids[thread], number, name, 0)
        streams = np.array([of for of, _ in seen.threads] or [0], np.int64)
        self._add_work(
            KERNEL, times.start_ns, times.end_ns, streamId=streams[thread], correlationId=number, deviceId=0,
            contextId=0, demangledName=name, shortName=name, registersPerThread=0, **NO_SIZES, **UNKNOWN_OF_KERNEL,
        )  # fmt: skip

    def _add_gpu_work(self, work: GpuWork, names: list[str], text_ids: _TextIds) -> None:
        short_ids = _TextIds(self._trace, [short_name(name) for name in names])
        copy_kinds = np.array([COPY_KINDS.get(name, 0) for name in names] or [0])
        for kind, table in enumerate(WORK_TABLES):
            rows = np.flatnonzero(work.kind == kind)
            own: dict[str, Any] = {"bytes": work.bytes[rows]}
            if table == KERNEL:
                sizes = {"grid": work.grid, "block": work.block}
                own = {f"{size}{axis}": of[rows, at] for size, of in sizes.items() for at, axis in enumerate(AXES)}
                own |= {"demangledName": text_ids[work.name[rows]], "shortName": short_ids[work.name[rows]]}
                own |= {"registersPerThread": work.registers[rows], **UNKNOWN_OF_KERNEL}
            elif table == WORK_TABLES[1]:
                own["copyKind"] = copy_kinds[work.name[rows]]
                own |= {"srcKind": _known(work.from_memory[rows]), "dstKind": _known(work.to_memory[rows])}
            else:
                own["value"] = 0
            self._add_work(
                table, work.start_ns[rows], work.end_ns[rows], streamId=work.stream[rows],
                correlationId=work.correlation[rows], deviceId=work.device[rows], contextId=work.context[rows],
                graphNodeId=[node or None for node in work.graph_node[rows].tolist()], **own,
            )  # fmt: skip

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

    def _add_blocks(self, seen: Seen, names: list[str], thread_ids: Column, log: RangeLog) -> None:
        """Write blocks, but none that only repeats a range `optimizer` of ours, and operators if asked for."""
        blocks = seen.blocks
        wanted = (~blocks.is_operator | self._operators) & ~np.isin(blocks.name, _begins(names, LAST))
        for row in np.flatnonzero(np.isin(blocks.name, _begins(names, OPTIMIZER_BLOCKS)) & ~blocks.is_operator):
            times = int(blocks.start_ns[row]), int(blocks.end_ns[row])
            wanted[row] &= not log.tells_optimizer(seen.threads[int(blocks.thread[row])][0], *times)
        rows = np.flatnonzero(wanted)
        texts = [names[number] for number in blocks.name[rows].tolist()]
        numbered = np.flatnonzero(
            (blocks.sequence[rows] >= 0) & ~np.isin(blocks.name[rows], _begins(names, ENGINE))
        )
        for place in numbered.tolist():
            texts[place] = f"{texts[place]}, seq = {blocks.sequence[rows[place]]}"
        self._trace.add_columns(
            NVTX, start=blocks.start_ns[rows] - self._origin_ns, end=blocks.end_ns[rows] - self._origin_ns,
            eventType=RANGE, text=texts, globalTid=thread_ids[blocks.thread[rows]], domainId=0,
        )  # fmt: skip

    def _add_allocations(self, seen: Seen, thread_ids: Column) -> None:
        """Write allocations and frees; addresses, which say how a process is laid out, become numbers."""
        of = seen.allocated[self._on_gpu]
        places = zip(of.device.tolist(), of.address.tolist(), strict=True)
        self._trace.add_columns(
            ALLOCATIONS, start=of.at_ns - self._origin_ns, globalTid=thread_ids[of.thread], deviceId=of.device,
            block=[self._blocks.setdefault(place, len(self._blocks)) for place in places], bytes=of.bytes,
            totalBytes=of.total_bytes,
        )  # fmt: skip

    def add_ranges(self, events: Iterable[Event], log: RangeLog) -> None:
        """Write the ranges and marks of a log; their names are registered strings, as nvtx's are."""
        if not (rows := list(events)):
            return
        start, end, thread, name, payload, domain, category, _, is_mark = map(list, zip(*rows, strict=True))
        self.threads |= dict.fromkeys({*thread} - self.threads.keys(), "")
        self._trace.add_columns(
            NVTX,
            start=[at - self._origin_ns for at in start],
            end=[None if at is None else at - self._origin_ns for at in end],
            eventType=[MARK if mark else RANGE for mark in is_mark],
            globalTid=[global_tid(self._pid, number) for number in thread],
            textId=list(map(self._trace.text_id, name)),
            domainId=[log.domains[of] for of in domain],
            category=list(map(log.category_number, category)),
            int64Value=[int(n) if isinstance(n, int) and n in INT64 else None for n in payload],
            doubleValue=[n if isinstance(n, float) else None for n in payload],
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


def _known(numbers: Column) -> list[int | None]:
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
