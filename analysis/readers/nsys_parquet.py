"""The tables of `nsys export --type parquetdir`: a folder with one Parquet file per table.

The files are named after the tables (`NVTX_EVENTS.parquet`) and have the columns and string ids of the SQLite
export, so this reader gives the tables of `nsys_sqlite`, made with Arrow instead of SQL. Types differ between
versions of nsys: integers of any width, texts plain or as dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import NotAReport
from ..support import arrow
from ..support.progress import expect
from ..trace import GRAPH, KERNEL, MEMCPY, MEMSET, Trace
from .allocations import FREED, USAGE_TABLE
from .columns import Part
from .launches import NODE_TABLE
from .nccl_payloads import ENTRIES_TABLE, Field, PayloadEvent
from .nsys_tables import EVENTS_READ, NEVER_CLOSED
from .nsys_trace import read_trace
from .operator_names import with_bare_names
from .parquet_table import ParquetTable

# Ours: (nsys's column, the value used for a missing one). A column without such a value is required.
Columns = Mapping[str, tuple[str, int | None]]

RANGES: Columns = {
    "start": ("start", None),
    "end": ("end", NEVER_CLOSED),
    "event": ("eventType", None),
    "thread": ("globalTid", 0),
    "domain": ("domainId", 0),
    "text_id": ("textId", -1),
    "category": ("category", 0),
}
LAUNCHES: Columns = {
    "start": ("start", None),
    "end": ("end", None),
    "thread": ("globalTid", 0),
    "correlation": ("correlationId", -1),
    "name": ("nameId", -1),
    "event_class": ("eventClass", 0),
}
WORK: Columns = {
    "start": ("start", None),
    "end": ("end", None),
    "process": ("globalPid", 0),
    "correlation": ("correlationId", -1),
    "device": ("deviceId", 0),
    "stream": ("streamId", 0),
}
NODES: Columns = {
    "start": ("start", None),
    "thread": ("globalTid", 0),
    "node": ("graphNodeId", None),
    "original": ("originalGraphNodeId", -1),
}
# nsys's own events of memory: see USAGE_SQL in nsys_sqlite.
USAGE: Columns = {
    "start": ("start", None),
    "process": ("globalPid", 0),
    "device": ("deviceId", 0),
    "block": ("address", None),
    "bytes": ("bytes", None),
    "operation": ("memoryOperationType", None),
    "correlation": ("correlationId", -1),
}
ENTRIES: Columns = {
    "domain": ("domainId", None),
    "schema": ("schemaId", None),
    "type": ("type", -1),
    "offset": ("offset", 0),
}
# Green contexts, and the GPUs that they are of.
CONTEXTS: Columns = {
    "device": ("deviceId", -1),
    "process": ("processId", -1),
    "green": ("isGreenContext", 0),
    "multiprocessors": ("numMultiprocessors", 0),
}
DEVICES: Columns = {
    "device": ("cudaId", -1),
    "process": ("pid", -1),
    "gpu": ("gpuId", -1),
    "multiprocessors": ("numMultiprocessors", 0),
}
# The additional columns of each kind of work, and its table. Columns that no table has are filled in.
WORK_TABLES: Mapping[int, tuple[str, Columns]] = {
    KERNEL: (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        {"name": ("demangledName", -1), "x": ("gridX", 0), "y": ("gridY", 0), "z": ("gridZ", 0)},
    ),
    MEMCPY: ("CUPTI_ACTIVITY_KIND_MEMCPY", {"name": ("copyKind", -1)}),
    MEMSET: ("CUPTI_ACTIVITY_KIND_MEMSET", {}),
    GRAPH: ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", {}),
}
# Every export has these, though single rows may not: without one, no work could be assigned to a process.
NEVER_ABSENT = frozenset({"globalTid", "correlationId", "domainId", "deviceId", "streamId"})
CUDA_EVENT_CLASSES = (0, 1)
IS_TEXT = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_large_string,
    pa.types.is_large_binary,
    pa.types.is_null,
)
METADATA_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")


# Every table that is read: what `nsys export --tables` is asked for.
TABLES = (
    "StringIds",
    "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    *(table for table, _ in WORK_TABLES.values()),
    "ThreadNames",
    "TARGET_INFO_GPU",
    USAGE_TABLE,
    ENTRIES_TABLE,
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    "TARGET_INFO_CUDA_DEVICE",
    *METADATA_TABLES,
)


class NsysParquet:
    """One folder of Parquet files; raises NotAReport for one that `nsys export` did not write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = {file.stem: file for file in sorted(path.glob("*.parquet"))}
        if "StringIds" not in self.files:
            raise NotAReport(f"{path} is a folder of Parquet files, but not one that `nsys export` wrote.")

    def ranges(self) -> Sequence[Part]:
        """Return NVTX ranges, marks and domain names."""
        return self._parts("NVTX_EVENTS", RANGES, _events, texts=("text",))

    def launches(self) -> Sequence[Part]:
        """Return CUDA API calls, the runtime's and the driver's."""
        return self._parts("CUPTI_ACTIVITY_KIND_RUNTIME", LAUNCHES, _calls)

    def work(self, kind: int) -> Sequence[Part]:
        """Return the GPU work of one kind."""
        table, extra = WORK_TABLES[kind]
        node: Columns = {"graph_node": ("graphNodeId", -1)} if NODE_TABLE in self.files else {}
        return self._parts(table, {**WORK, **extra, **node}, partial(_work, extra))

    def graph_nodes(self) -> Sequence[Part]:
        """Return the creations of CUDA graphs' nodes."""
        return self._parts(NODE_TABLE, NODES, lambda nodes: nodes)

    def allocations(self) -> Sequence[Part]:
        """Return CUDA's own allocations and frees, as nsys saw them."""
        return self._parts(USAGE_TABLE, USAGE, _usage)

    def payload_fields(self) -> list[Field]:
        """Return the fields of the payloads that NVTX ranges carry; none where the export has no payloads."""
        table = self._integers(ENTRIES_TABLE, ENTRIES, texts=("name",))
        if table is None:
            return []
        domain, schema, type_, offset = (table[name].to_pylist() for name in ENTRIES)
        rows = zip(domain, schema, _decoded(table["name"]), type_, offset, strict=True)
        return list(dict.fromkeys(Field(*row) for row in rows))

    def payloads(self) -> Iterable[PayloadEvent]:
        """Yield NCCL's ranges that carry a payload."""
        columns = {name: RANGES[name] for name in ("start", "thread", "text_id")}
        for part in self._parts("NVTX_EVENTS", columns, _with_payload, texts=("text", "binaryData")):
            rows = part()
            texts, text_ids = _decoded(rows["text"]), rows["text_id"].to_pylist()
            registered = self.strings({text_id for text_id in text_ids if text_id >= 0})
            names = [text or registered.get(text_id, "") for text, text_id in zip(texts, text_ids, strict=True)]
            blobs = rows["binaryData"].cast(pa.binary()).to_pylist()
            events = zip(rows["start"].to_pylist(), rows["thread"].to_pylist(), names, blobs, strict=True)
            yield from (PayloadEvent(*event) for event in events if event[2].lower().startswith("nccl"))

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of these string ids; an id without text is left out."""
        if self._strings is None:
            return {}
        rows = self._strings.filter(pc.is_in(self._strings["id"], arrow.integers(sorted(ids))))
        return dict(zip(rows["id"].to_pylist(), _decoded(rows["value"]), strict=True))

    def thread_names(self) -> list[tuple[int, str]]:
        """Return (global thread id, name) rows; a thread may have several."""
        rows = self._integers("ThreadNames", {"thread": ("globalTid", -1), "name": ("nameId", -1)})
        if rows is None:
            return []
        names = self.strings(rows["name"].to_pylist())
        pairs = zip(rows["thread"].to_pylist(), rows["name"].to_pylist(), strict=True)
        return [(thread, names[name]) for thread, name in pairs if thread >= 0 and name in names]

    def gpus(self) -> list[tuple[int, str]]:
        """Return (id, name) rows of the GPUs in the machine."""
        table = self._integers("TARGET_INFO_GPU", {"id": ("id", -1)}, texts=("name",))
        if table is None:
            return []
        rows = zip(table["id"].to_pylist(), _decoded(table["name"]), strict=True)
        return [(gpu, name) for gpu, name in rows if gpu >= 0 and name]

    def cuda_devices(self) -> list[tuple[int, int, int]]:
        """Return (process id, CUDA's number in that process, GPU's id) rows; none where there is no such table."""
        devices = self._integers("TARGET_INFO_CUDA_DEVICE", DEVICES)
        rows = devices.to_pylist() if devices is not None else []
        numbers = [(row["process"], row["device"], row["gpu"]) for row in rows]
        return [row for row in numbers if min(row) >= 0]

    def diagnostics(self) -> list[str]:
        """Return nsys's own messages, of which a folder of Parquet has none that is read."""
        return []

    def green_contexts(self) -> list[tuple[int, int]]:
        """Return of each kind of green context its multiprocessors, and those of its GPU."""
        contexts = self._integers("TARGET_INFO_CUDA_CONTEXT_INFO", CONTEXTS)
        devices = self._integers("TARGET_INFO_CUDA_DEVICE", DEVICES)
        if contexts is None or devices is None:
            return []
        numbered = [row for row in devices.to_pylist() if min(row["device"], row["process"]) >= 0]
        of_gpu = {(row["device"], row["process"]): row["multiprocessors"] for row in numbered}
        green = [row for row in contexts.to_pylist() if row["green"] == 1 and row["multiprocessors"]]
        pairs = {(row["multiprocessors"], of_gpu.get((row["device"], row["process"]), 0)) for row in green}
        return sorted((of_context, whole_gpu) for of_context, whole_gpu in pairs if whole_gpu)

    def metadata(self) -> dict[str, str]:
        """Return the export's own description of itself."""
        tables = (self._integers(name, {}, texts=("name", "value")) for name in METADATA_TABLES)
        descriptions = [
            (_decoded(table["name"]), _decoded(table["value"])) for table in tables if table is not None
        ]
        return {name: value for names, values in descriptions for name, value in zip(names, values, strict=True)}

    @cached_property
    def _strings(self) -> pa.Table | None:
        return self._integers("StringIds", {"id": ("id", None)}, texts=("value",))

    def _parts(
        self, table: str, columns: Columns, finish: Callable[[pa.Table], pa.Table], texts: Sequence[str] = ()
    ) -> Sequence[Part]:
        """Offer a table in its row groups, to be read on several cores; none if it has no rows."""
        if table not in self.files:
            return ()
        file = ParquetTable(self.files[table], {theirs for theirs, _ in columns.values()}, texts)
        expect(file.rows)

        def part(group: int) -> pa.Table:
            return finish(self._named(file.read([group]), table, columns, texts))

        return [partial(part, group) for group in file.groups]

    def _integers(self, table: str, columns: Columns, texts: Sequence[str] = ()) -> pa.Table | None:
        """Return integer columns under our names, and text ones as bytes under theirs; None without rows."""
        if table not in self.files:
            return None
        file = ParquetTable(self.files[table], {theirs for theirs, _ in columns.values()}, texts)
        return self._named(file.read(file.groups), table, columns, texts) if file.rows else None

    def _named(self, raw: pa.Table, table: str, columns: Columns, texts: Iterable[str]) -> pa.Table:
        try:
            numbers = {ours: _filled(raw, table, *source) for ours, source in columns.items()}
            return pa.table({**numbers, **{name: _texts(raw, name) for name in texts}})
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise NotAReport(f"{self.files[table]} has values of another type than nsys's: {error}.") from error


def read(path: Path) -> Trace:
    """Read the folder that `nsys export --type parquetdir` made.

    Raises NotAReport for a folder of other Parquet files, and for a damaged one.
    """
    return read_trace(NsysParquet(path))


def _events(events: pa.Table) -> pa.Table:
    read = pc.is_in(events["event"], arrow.integers(EVENTS_READ))
    events_read = events if pc.all(read).as_py() else events.filter(read)
    return with_bare_names(
        _with(events_read, category=pc.bit_wise_and(events_read["category"], arrow.integer(255)))
    )


def _with_payload(events: pa.Table) -> pa.Table:
    payload = events["binaryData"]
    if pa.types.is_dictionary(payload.type):
        payload = payload.cast(payload.type.value_type)
    has_payload = pc.greater(pc.fill_null(pc.binary_length(payload.cast(pa.binary())), 0), 0)
    return _with(events, binaryData=payload).filter(has_payload)


def _calls(calls: pa.Table) -> pa.Table:
    cuda = pc.is_in(calls["event_class"], arrow.integers(CUDA_EVENT_CLASSES))
    return _with(calls, foreign_class=pc.cast(pc.invert(cuda), pa.int64()))


def _usage(events: pa.Table) -> pa.Table:
    freed = pc.if_else(pc.equal(events["operation"], arrow.integer(FREED)), arrow.integer(-1), arrow.integer(1))
    thread, total = (arrow.repeated(value, events.num_rows) for value in (0, -1))
    return _with(events, bytes=pc.multiply(events["bytes"], freed), thread=thread, total=total)


def _work(extra: Columns, work: pa.Table) -> pa.Table:
    zero = arrow.repeated(0, work.num_rows)
    grid = pc.multiply(pc.multiply(work["x"], work["y"]), work["z"]) if "x" in extra else zero
    return _with(work, name=work["name"] if "name" in extra else zero, grid=grid)


def _filled(raw: pa.Table, table: str, column: str, missing: int | None) -> pa.ChunkedArray:
    if column in raw.column_names:
        values = pc.cast(raw[column], pa.int64())
        return values if missing is None else pc.fill_null(values, arrow.integer(missing))
    if missing is None or column in NEVER_ABSENT:
        raise NotAReport(f"{table}.parquet has no column {column!r}: it is not nsys's.")
    return arrow.repeated(missing, raw.num_rows)


def _texts(raw: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a text column, as a dictionary where the file has one; empty where the column is missing."""
    if column not in raw.column_names:
        return pa.chunked_array([pa.repeat(b"", raw.num_rows)])
    type_ = raw[column].type
    stored = type_.value_type if pa.types.is_dictionary(type_) else type_
    if not any(is_text(stored) for is_text in IS_TEXT):
        raise pa.ArrowInvalid(f"{stored} in the column {column!r}")
    return raw[column].cast(pa.binary()) if pa.types.is_null(stored) else raw[column]


def _decoded(values: pa.ChunkedArray) -> list[str]:
    """Return texts, empty where they are missing, and repaired where they are not UTF-8."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return [(raw or b"").decode("utf-8", "replace") for raw in values.cast(pa.binary()).to_pylist()]


def _with(table: pa.Table, **columns: Any) -> pa.Table:
    """Return the table with these columns added or replaced."""
    others = {name: table[name] for name in table.column_names if name not in columns}
    return pa.table({**others, **columns})
