"""The tables of an nsys SQLite export, or of a recording of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..errors import NotAReport
from ..trace import Trace
from .nccl_payloads import PayloadEvent
from .nsys_tables import EVENTS, EVENTS_READ, NEVER_ABSENT, STRINGS, NsysTables, Part, Table
from .nsys_trace import read_trace
from .sqlite import Database

#: Columns that a table of a whole export may lack.
OPTIONAL = frozenset(
    ("textId", "category", "nameId", "globalPid", "graphNodeId", "bytes", "srcKind", "dstKind", "eventId")
)
TEXT = "CAST(coalesce(text, '') AS TEXT)"
PAYLOADS_SQL = """
SELECT start, globalTid, name, binaryData FROM
    (SELECT start, globalTid, coalesce(text, value) AS name, binaryData
     FROM NVTX_EVENTS LEFT JOIN StringIds ON StringIds.id = textId WHERE binaryData IS NOT NULL)
WHERE name LIKE 'nccl%' AND typeof(binaryData) = 'blob' AND typeof(start) = 'integer'
      AND typeof(globalTid) = 'integer'
"""
ROWS_PER_PART = 200_000


class NsysSqlite(NsysTables):
    """One nsys SQLite export, or a recording of ours; raises NotAReport for another database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path)
        if STRINGS not in self.database.columns:
            raise NotAReport(f"{path} is an SQLite database, but not one that `nsys export` wrote.")

    def parts(self, table: Table) -> Sequence[Part]:
        """Divide a table into parts of its rows, to be read on several cores with little memory each."""
        columns = []
        for ours, theirs in table.columns.items():
            if theirs and (theirs not in OPTIONAL or self.database.has_columns(table.name, theirs)):
                # Names in brackets are never read as texts.
                value = " * ".join(f"[{name}]" for name in theirs.split(" * "))
                value = f"coalesce({value}, {table.missing[ours]})" if ours in table.missing else value
                columns.append(f"{TEXT if ours == 'text' else value} AS [{ours}]")
        statement = f"SELECT {', '.join(columns)} FROM {table.name} WHERE {{}}"  # noqa: S608 - constants only
        if table is EVENTS:
            statement += f" AND eventType IN {EVENTS_READ}"
        return self.database.parts(table.name, statement, ROWS_PER_PART)

    def rows(self, table: str, **columns: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a small table; nsys writes no other types, but damage and other programs may."""
        lacking = {name for name in columns if not self.database.has_columns(table, name)}
        if not self.database.has(table) or (lacking and not lacking & NEVER_ABSENT):
            return []
        stored = self.database.rows(f"SELECT {', '.join(f'[{name}]' for name in columns)} FROM {table}")  # noqa: S608
        filled = (tuple(map(_filled, row, columns.values())) for row in stored)
        return [row for row in filled if all(map(isinstance, row, map(type, columns.values())))]

    def payloads(self) -> Iterable[PayloadEvent]:
        """Return NCCL's ranges that carry a payload."""
        has_payloads = self.database.has_columns(EVENTS.name, "binaryData")
        if has_payloads:
            return [PayloadEvent(*row) for row in self.database.rows(PAYLOADS_SQL)]
        return ()

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of these string ids; an id without text is left out."""
        sql = "SELECT id, value FROM StringIds WHERE id IN (SELECT value FROM json_each(?))"
        return {key: _filled(value, "") for key, value in self.database.rows(sql, json.dumps(sorted(ids)))}


def read(path: Path) -> Trace:
    """Read an nsys SQLite export, or a recording of ours.

    Raises NotAReport for another database, for a damaged one, and for one that is being written.
    """
    return read_trace(NsysSqlite(path))


def _filled(value: Any, missing: Any) -> Any:
    """Return a value of a small table, or what stands for it if it is missing; of any as text, where that is."""
    if value is None or missing != "":
        if value is None:
            return missing
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)
