"""The tables of an nsys SQLite export, queried by column name and given this project's names.

nsys's own names occur here and in `nsys_parquet` only. Columns and their history: docs/nsys_tables.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa

from ..errors import NotAReport
from ..trace import GRAPH, KERNEL, MEMCPY, MEMSET, Trace
from .allocations import ALLOCATIONS_TABLE, FREED, USAGE_TABLE
from .columns import Part
from .launches import NODE_TABLE
from .nccl_payloads import ENTRIES_TABLE, Field, PayloadEvent
from .nsys_tables import EVENTS_READ, NEVER_CLOSED
from .nsys_trace import read_trace
from .operator_names import with_bare_names
from .packed import packed_sql, unpacked
from .sqlite import Database, trimmed

STRINGS = "StringIds"
RANGES_SQL = f"""
SELECT start AS start, coalesce("end", {NEVER_CLOSED}) AS "end", eventType AS event,
       coalesce(globalTid, 0) AS thread, coalesce(domainId, 0) AS domain, coalesce({{text_id}}, -1) AS text_id,
       coalesce({{category}}, 0) & 255 AS category,
       CAST(coalesce(text, '') AS TEXT) AS text
FROM NVTX_EVENTS WHERE {{rows}} AND eventType IN {EVENTS_READ}
"""  # noqa: S608 - constants only

# The same, with four columns as one number, where they fit.
PACKED_RANGES_SQL = f"""
SELECT start AS start, coalesce("end", {NEVER_CLOSED}) AS "end", coalesce(globalTid, 0) AS thread, {{packed}},
       CAST(coalesce(text, '') AS TEXT) AS text
FROM NVTX_EVENTS WHERE {{rows}}
"""  # noqa: S608 - constants only

LAUNCHES_SQL = """
SELECT start AS start, "end" AS "end", coalesce(globalTid, 0) AS thread,
       coalesce(correlationId, -1) AS correlation, coalesce({name}, -1) AS name,
       eventClass NOT IN (0, 1) AS foreign_class
FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE {{rows}}
"""
CONTEXTS, DEVICES = "TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_DEVICE"
DEVICES_SQL = f"SELECT DISTINCT pid, cudaId, gpuId FROM {DEVICES} WHERE min(pid, cudaId, gpuId) >= 0"  # noqa: S608 - our name
GREEN_SQL = f"""
SELECT DISTINCT contexts.numMultiprocessors, devices.numMultiprocessors
FROM {CONTEXTS} AS contexts JOIN {DEVICES} AS devices
    ON devices.cudaId = contexts.deviceId AND devices.pid = contexts.processId
WHERE contexts.isGreenContext = 1 AND typeof(contexts.numMultiprocessors) = 'integer'
    AND typeof(devices.numMultiprocessors) = 'integer' ORDER BY 1, 2
"""  # noqa: S608 - constants only

# Per kind of work: its table, what names it, its grid, and the columns without which it cannot be read.
WORK_TABLES = {
    KERNEL: ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", "gridX * gridY * gridZ"),
    MEMCPY: ("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind", "0"),
    MEMSET: ("CUPTI_ACTIVITY_KIND_MEMSET", "0", "0"),
    GRAPH: ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "0", "0"),
}

WORK_SQL = """
SELECT start AS start, "end" AS "end", {node}coalesce({process}, 0) AS process,
       coalesce(correlationId, -1) AS correlation,
       coalesce(deviceId, 0) AS device, coalesce(streamId, 0) AS stream, coalesce({name}, -1) AS name,
       coalesce({grid}, 0) AS grid
FROM {table} WHERE {{rows}}
"""

NODE_COLUMN = "coalesce(graphNodeId, -1) AS graph_node, "
NODES_SQL = f"""
SELECT start AS start, coalesce(globalTid, 0) AS thread, graphNodeId AS node,
       coalesce(originalGraphNodeId, -1) AS original
FROM {NODE_TABLE} WHERE {{rows}}
"""  # noqa: S608 - constants only

ALLOCATIONS_SQL = f"""
SELECT start AS start, coalesce(globalTid, 0) AS thread, coalesce(globalTid, 0) AS process,
       coalesce(deviceId, 0) AS device, block AS block, bytes AS bytes, totalBytes AS total, -1 AS correlation
FROM {ALLOCATIONS_TABLE} WHERE {{rows}}
"""  # noqa: S608 - constants only
# The thread is that of the call with the correlation id.
USAGE_SQL = f"""
SELECT start AS start, 0 AS thread, coalesce(globalPid, 0) AS process, coalesce(deviceId, 0) AS device,
       address AS block, CASE memoryOperationType WHEN {FREED} THEN -bytes ELSE bytes END AS bytes, -1 AS total,
       coalesce(correlationId, -1) AS correlation
FROM {USAGE_TABLE} WHERE {{rows}}
"""  # noqa: S608 - constants only

FIELDS_SQL = f"""
SELECT DISTINCT domainId, schemaId, name, type, coalesce("offset", 0) FROM {ENTRIES_TABLE}
WHERE typeof(domainId) = 'integer' AND typeof(schemaId) = 'integer' AND typeof(name) = 'text'
      AND typeof(type) = 'integer' AND typeof(coalesce("offset", 0)) = 'integer'
"""  # noqa: S608 - constants only
PAYLOADS_SQL = """
SELECT start, globalTid, name, binaryData FROM
    (SELECT start, globalTid, coalesce(text, value) AS name, binaryData
     FROM NVTX_EVENTS LEFT JOIN StringIds ON StringIds.id = textId WHERE binaryData IS NOT NULL)
WHERE name LIKE 'nccl%' AND typeof(binaryData) = 'blob' AND typeof(start) = 'integer'
      AND typeof(globalTid) = 'integer'
"""

ROWS_PER_PART = 200_000
METADATA_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")


class NsysSqlite:
    """One nsys SQLite export, or a recording of ours; raises NotAReport for another database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path)
        self._fits = True  # until a part of the ranges does not
        if STRINGS not in self.database.columns:
            raise NotAReport(f"{path} is an SQLite database, but not one that `nsys export` wrote.")

    def ranges(self) -> Sequence[Part]:
        """Return NVTX ranges, marks and domain names."""
        text_id = "textId" if self.database.has_columns("NVTX_EVENTS", "textId") else "NULL"
        category = "category" if self.database.has_columns("NVTX_EVENTS", "category") else "0"
        sql = RANGES_SQL.format(text_id=text_id, category=category, rows="{rows}")
        columns = {"event": "eventType", "domain": "domainId", "text_id": text_id}
        packed = packed_sql({**columns, "category": f"(coalesce({category}, 0) & 255)"}, missing=-1)
        parts = self._parts("NVTX_EVENTS", sql, PACKED_RANGES_SQL.format(packed=packed, rows="{rows}"))
        return [partial(_with_bare_names, part) for part in parts]

    def launches(self) -> Sequence[Part]:
        """Return CUDA API calls, the runtime's and the driver's."""
        table = "CUPTI_ACTIVITY_KIND_RUNTIME"
        name = "nameId" if self.database.has_columns(table, "nameId") else "NULL"
        return self._parts(table, LAUNCHES_SQL.format(name=name))

    def work(self, kind: int) -> Sequence[Part]:
        """Return the GPU work of one kind."""
        table, name, grid = WORK_TABLES[kind]
        process = "globalPid" if self.database.has_columns(table, "globalPid") else "NULL"
        node = NODE_COLUMN if self.database.has_columns(table, "graphNodeId") else "-1 AS graph_node, "
        node = node if self.database.has(NODE_TABLE) else ""
        sql = WORK_SQL.format(table=table, name=name, grid=grid, process=process, node=node)
        return self._parts(table, sql)

    def graph_nodes(self) -> Sequence[Part]:
        """Return the creations of CUDA graphs' nodes."""
        return self._parts(NODE_TABLE, NODES_SQL)

    def allocations(self) -> Sequence[Part]:
        """Return allocations and frees, the recorder's or nsys's."""
        if self.database.has(ALLOCATIONS_TABLE):
            return self._parts(ALLOCATIONS_TABLE, ALLOCATIONS_SQL)
        return self._parts(USAGE_TABLE, USAGE_SQL)

    def payload_fields(self) -> list[Field]:
        """Return the fields of the payloads that NVTX ranges carry; none where the export has no payloads."""
        has_payloads = self.database.has_columns("NVTX_EVENTS", "binaryData") and self.database.has(ENTRIES_TABLE)
        return [Field(*row) for row in self.database.rows(FIELDS_SQL)] if has_payloads else []

    def payloads(self) -> Iterable[PayloadEvent]:
        """Return NCCL's ranges that carry a payload."""
        return [PayloadEvent(*row) for row in self.database.rows(PAYLOADS_SQL)]

    def _parts(self, table: str, sql: str, packed: str = "") -> Sequence[Part]:
        """Divide a table into parts of its rows, to be read on several cores with little memory each.

        Where a statement with packed columns is given, that is tried first.
        """
        if not self.database.has(table):
            return ()
        if '"end"' in sql and not self.database.has_columns(table, "end"):  # a word of SQL's, read as a text
            raise trimmed(self.path, "column end")
        parts = self.database.stretches(table, ROWS_PER_PART)
        for statement in filter(None, (sql, packed)):
            self.database.require_plain(statement.format(rows=parts[0][0]))
        plain = [partial(self.database.part, sql.format(rows=rows), most) for rows, most in parts]
        if not packed:
            return plain
        faster = [partial(self.database.part, packed.format(rows=rows), most) for rows, most in parts]
        return [partial(self._unpacked, *both) for both in zip(faster, plain, strict=True)]

    def _unpacked(self, packed: Part, plain: Part) -> pa.Table:
        """Read a part with packed columns; where a row's do not fit, without, and then all parts to come."""
        if self._fits:
            with suppress(NotAReport):  # which the plain statement will raise again, with the column's name
                if (table := unpacked(packed(), EVENTS_READ)) is not None:
                    return table
        self._fits = False
        return plain()

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of these string ids; an id without text is left out."""
        sql = "SELECT id, value FROM StringIds WHERE id IN (SELECT value FROM json_each(?))"
        return {key: _text(value) for key, value in self.database.rows(sql, json.dumps(sorted(ids)))}

    def thread_names(self) -> list[tuple[int, str]]:
        """Return (global thread id, name) rows; a thread may have several."""
        if not self.database.has("ThreadNames"):
            return []
        sql = """SELECT globalTid, value FROM ThreadNames JOIN StringIds ON StringIds.id = nameId
                 ORDER BY ThreadNames.rowid"""
        return [(tid, _text(name)) for tid, name in self.database.rows(sql) if tid is not None]

    def gpus(self) -> list[tuple[int, str]]:
        """Return (id, name) rows of the GPUs in the machine."""
        if not self.database.has_columns("TARGET_INFO_GPU", "id", "name"):
            return []
        rows = self.database.rows("SELECT id, name FROM TARGET_INFO_GPU WHERE id >= 0")
        return [(gpu, _text(name)) for gpu, name in rows if name]

    def cuda_devices(self) -> list[tuple[int, int, int]]:
        """Return (process id, CUDA's number in that process, GPU's id) rows; none where there is no such table."""
        if not self.database.has_columns(DEVICES, "pid", "cudaId", "gpuId"):
            return []
        return [*self.database.rows(DEVICES_SQL)]

    def diagnostics(self) -> list[str]:
        """Return the first of nsys's own messages about CUDA; none where the export has no such table."""
        if not self.database.has_columns("DIAGNOSTIC_EVENT", "text"):
            return []
        sql = "SELECT DISTINCT text FROM DIAGNOSTIC_EVENT WHERE text LIKE '%CUDA%' LIMIT 3"
        return [_text(text) for (text,) in self.database.rows(sql)]

    def green_contexts(self) -> list[tuple[int, int]]:
        """Return of each kind of green context its multiprocessors, and those of its GPU."""
        of_context = "deviceId", "processId", "isGreenContext", "numMultiprocessors"
        if not self.database.has_columns(CONTEXTS, *of_context):
            return []
        if not self.database.has_columns(DEVICES, "cudaId", "pid", "numMultiprocessors"):
            return []
        return [*self.database.rows(GREEN_SQL)]

    def metadata(self) -> dict[str, str]:
        """Return the export's own description of itself; empty before nsys 2022.1."""
        tables = [table for table in METADATA_TABLES if table in self.database.columns]
        return {
            _text(name): _text(value)
            for table in tables
            for name, value in self.database.rows(f'SELECT name, value FROM "{table}"')  # noqa: S608
        }


def _with_bare_names(part: Part) -> pa.Table:
    return with_bare_names(part())


def _text(value: object) -> str:
    """Return the text of a value; nsys writes only text, but damage and other programs may differ."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def read(path: Path) -> Trace:
    """Read an nsys SQLite export, or a recording of ours.

    Raises NotAReport for another database, for a damaged one, and for one that is being written.
    """
    return read_trace(NsysSqlite(path))
