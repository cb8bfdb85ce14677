"""What is read of nsys's tables, wherever they were stored: a database, or a folder of Parquet files.

nsys's own names occur here and in the stores only. Columns and their history: docs/nsys_tables.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from .nccl_payloads import ENTRIES_TABLE, Field, PayloadEvent
from .surroundings import TABLES as SURROUNDINGS
from .surroundings import surroundings

# Reads one part of a table.
Part = Callable[[], pa.Table]

# Stands for the end of a range that was never closed; no event has this time.
NEVER_CLOSED = -(2**63)

# NVTX event types: push/pop and start/end ranges (70 and 71 where they carry an extended payload), marks, and the
# names of domains. Seen in exports of 2020 to 2026.
PUSH_POP_TYPES = (59, 70)
START_END_TYPES = (60, 71)
CATEGORY_TYPE = 33
MARK_TYPE = 34
DOMAIN_TYPE = 75
META_TYPES = (CATEGORY_TYPE, MARK_TYPE, DOMAIN_TYPE)
EVENTS_READ = (*PUSH_POP_TYPES, *START_END_TYPES, *META_TYPES)

#: Of our columns, those that repeat few values, and the widths of numbers that are not int64.
REPEATED = ("thread", "process", "domain", "name", "text", "text_id")
WIDTHS = {"event": "u1", "category": "u1", "event_class": "i4"}
#: What stands for a missing number, by our columns; the others have one in every row.
MISSING = {
    **dict.fromkeys(("thread", "process", "device", "stream", "domain", "category"), 0),
    **dict.fromkeys(("event_class", "grid", "operation", "cuda_event"), 0),
    **dict.fromkeys(("correlation", "name", "text_id", "graph_node", "original", "total"), -1),
    **dict.fromkeys(("bytes", "from_memory", "to_memory"), -1),
}
#: Every export has these, though single rows may not: without one, no work could be assigned to a process.
NEVER_ABSENT = frozenset({"globalTid", "correlationId", "domainId", "deviceId", "streamId"})


@dataclass(frozen=True, slots=True)
class Table:
    """A big table: by our columns those of nsys, the product of some, or "" where it has none.

    `aside` names a number, and its values in the few rows that are kept apart.
    """

    name: str
    columns: Mapping[str, str]
    missing: Mapping[str, int] = field(default_factory=lambda: MISSING)
    aside: tuple[str, Sequence[int]] | None = None


_TIMES = {"start": "start", "end": "end"}
EVENTS = Table(
    "NVTX_EVENTS",
    _TIMES
    | {"event": "eventType", "thread": "globalTid", "domain": "domainId", "category": "category"}
    | {"text_id": "textId", "text": "text", "seq": ""},
    {**MISSING, "end": NEVER_CLOSED},
    aside=("event", META_TYPES),
)
_CALL = {"thread": "globalTid", "correlation": "correlationId", "name": "nameId", "event_class": "eventClass"}
CALLS = Table("CUPTI_ACTIVITY_KIND_RUNTIME", _TIMES | _CALL)
#: The creations of CUDA graphs' nodes.
NODES = Table(
    "CUDA_GRAPH_NODE_EVENTS",
    {"start": "start", "thread": "globalTid", "node": "graphNodeId", "original": "originalGraphNodeId"},
)
_IDS = {"process": "globalPid", "correlation": "correlationId", "device": "deviceId", "stream": "streamId"}
_WORK = _TIMES | _IDS | {"name": "", "grid": ""}
_OF_COPIES = {"name": "copyKind", "bytes": "bytes", "from_memory": "srcKind", "to_memory": "dstKind"}
#: What the GPU did: a table a kind, in the order of KINDS.
WORK = (
    Table("CUPTI_ACTIVITY_KIND_KERNEL", _WORK | {"name": "demangledName", "grid": "gridX * gridY * gridZ"}),
    Table("CUPTI_ACTIVITY_KIND_MEMCPY", _WORK | _OF_COPIES),
    Table("CUPTI_ACTIVITY_KIND_MEMSET", _WORK),
    Table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _WORK),
)
_WAIT = {"process": "globalPid", "correlation": "correlationId", "stream": "streamId", "cuda_event": "eventId"}
#: What calls waited for, or let a stream wait for; and the events that were recorded.
SYNCHRONIZATIONS = Table("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", _WAIT)
CUDA_EVENTS = Table("CUPTI_ACTIVITY_KIND_CUDA_EVENT", _WAIT)
#: What our recorder saw of PyTorch's allocator, and what nsys saw of CUDA's own, with --cuda-memory-usage=true.
#: The thread of the latter is that of the call with the correlation id.
RECORDED_ALLOCATIONS = Table(
    "NVTX_KERNELS_ALLOCATIONS",
    {"start": "start", "thread": "globalTid", "process": "globalTid", "device": "deviceId", "block": "block"}
    | {"bytes": "bytes", "total": "totalBytes", "operation": "", "correlation": ""},
)
MEMORY_USAGE = Table(
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
    {"start": "start", "thread": "", "process": "globalPid", "device": "deviceId", "block": "address"}
    | {"bytes": "bytes", "total": "", "operation": "memoryOperationType", "correlation": "correlationId"},
)

#: Small tables, all that answers need, and all that `nsys export --tables` is asked for.
STRINGS = "StringIds"
THREADS = "ThreadNames"
GPUS = "TARGET_INFO_GPU"
OVERHEAD = "PROFILER_OVERHEAD"
CONTEXTS = "TARGET_INFO_CUDA_CONTEXT_INFO"
DEVICES = "TARGET_INFO_CUDA_DEVICE"
METADATA_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
NEEDED = (
    *(table.name for table in (EVENTS, CALLS, NODES, *WORK, MEMORY_USAGE, SYNCHRONIZATIONS, CUDA_EVENTS)),
    *(STRINGS, THREADS, GPUS, OVERHEAD, ENTRIES_TABLE, CONTEXTS, DEVICES, *METADATA_TABLES),
)
TABLES = tuple(dict.fromkeys((*NEEDED, *SURROUNDINGS)))
MOST_DIAGNOSTICS = 3


class NsysTables(ABC):
    """What one store of nsys's tables answers."""

    path: Path

    @abstractmethod
    def parts(self, table: Table) -> Sequence[Part]:
        """Divide a table into parts of its rows, in the file's order; each has those columns that the file has."""

    def rows(self, table: str, **columns: Any) -> list[tuple[Any, ...]]:  # noqa: ARG002
        """Return the rows of a small table; none where it lacks a column, or the store has no such tables.

        `columns` are nsys's, each with what stands for a missing value; rows with values of other types are left
        out.
        """
        return []

    @abstractmethod
    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of these string ids; an id without text is left out."""

    def payloads(self) -> Iterable[PayloadEvent]:
        """Return NCCL's ranges that carry a payload."""
        return ()

    def payload_fields(self) -> list[Field]:
        """Return the fields of the payloads that NVTX ranges carry; none where the export has no payloads."""
        rows = self.rows(ENTRIES_TABLE, domainId=-1, schemaId=-1, name="", type=-1, offset=0)
        return [Field(*row) for row in dict.fromkeys(rows)]

    def thread_names(self) -> list[tuple[int, str]]:
        """Return (global thread id, name) rows; a thread may have several."""
        rows = self.rows(THREADS, globalTid=-1, nameId=-1)
        names = self.strings({name for _, name in rows})
        return [(thread, names[name]) for thread, name in rows if thread >= 0 and name in names]

    def overhead(self) -> list[tuple[int, int, int]]:
        """Return (start, end, global thread id) rows of what nsys did itself."""
        return [row for row in self.rows(OVERHEAD, start=-1, end=-1, globalTid=-1) if min(row) >= 0]

    def gpus(self) -> list[tuple[int, str]]:
        """Return (id, name) rows of the GPUs in the machine."""
        return [(gpu, name) for gpu, name in self.rows(GPUS, id=-1, name="") if gpu >= 0 and name]

    def cuda_devices(self) -> list[tuple[int, ...]]:
        """Return (process id, CUDA's number in that process, GPU's id) rows; none without such a table."""
        return [row for row in self.rows(DEVICES, pid=-1, cudaId=-1, gpuId=-1) if min(row) >= 0]

    def green_contexts(self) -> list[tuple[int, int]]:
        """Return of each kind of green context its multiprocessors, and those of its GPU."""
        devices = self.rows(DEVICES, pid=-1, cudaId=-1, numMultiprocessors=0)
        of_gpu = {(process, device): count for process, device, count in devices if min(process, device) >= 0}
        contexts = self.rows(CONTEXTS, processId=-1, deviceId=-1, isGreenContext=0, numMultiprocessors=0)
        shares = {
            (count, of_gpu.get((process, device), 0)) for process, device, green, count in contexts if green == 1
        }
        return sorted(share for share in shares if all(share))

    def pauses(self) -> list[tuple[int, int, int]]:
        """Return (start, end, global thread id) of what the recorder did on a thread of the program."""
        rows = self.rows(OVERHEAD, start=-1, end=-1, globalTid=-1)
        return [row for row in rows if 0 <= row[0] <= row[1] and row[2] >= 0]

    def diagnostics(self) -> list[str]:
        """Return the first of nsys's own messages about CUDA."""
        texts = dict.fromkeys(text for (text,) in self.rows("DIAGNOSTIC_EVENT", text=""))
        return [text for text in texts if "CUDA" in text.upper()][:MOST_DIAGNOSTICS]

    def metadata(self) -> dict[str, str]:
        """Return the export's own description of itself; empty before nsys 2022.1."""
        return {name: value for table in METADATA_TABLES for name, value in self.rows(table, name="", value="")}

    def surroundings(self) -> frozenset[str]:
        """Return the texts that name users, hosts, folders and commands; no answer has them."""
        rows = {table: self.rows(table, name="", value="") for table in SURROUNDINGS}
        return frozenset(text for table in rows for text in surroundings(table, rows[table]))
