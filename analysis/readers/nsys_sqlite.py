"""The tables of an nsys SQLite export, or of a recording of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import NotAReport
from ..support import arrow
from ..trace import Trace
from .columns import Part
from .nccl_payloads import PayloadEvent
from .nsys_tables import EVENTS, EVENTS_READ, NEVER_ABSENT, STRINGS, NsysTables, Table
from .nsys_trace import read_trace
from .sqlite import Database

#: Columns that a table of a whole export may lack.
OPTIONAL = frozenset({"textId", "category", "nameId", "globalPid", "graphNodeId"})
TEXT = "CAST(coalesce(text, '') AS TEXT)"
PAYLOADS_SQL = """
SELECT start, globalTid, name, binaryData FROM
    (SELECT start, globalTid, coalesce(text, value) AS name, binaryData
     FROM NVTX_EVENTS LEFT JOIN StringIds ON StringIds.id = textId WHERE binaryData IS NOT NULL)
WHERE name LIKE 'nccl%' AND typeof(binaryData) = 'blob' AND typeof(start) = 'integer'
      AND typeof(globalTid) = 'integer'
"""
ROWS_PER_PART = 200_000

# Several small integers of a range as one number, for a driver that takes 50 ns a value: the bits of each column,
# from the lowest; a row in which one does not fit has no number. The last column can be negative. It needs no
# limit but against text, which SQLite takes for larger than any number: where the result is beyond 63 bits, SQLite
# makes a real number of it.
BITS = {"category": 8, "event": 7, "domain": 16}
LAST, LAST_BEYOND = "text_id", 1 << 32
SHIFTS = {"category": 0, "event": 8, "domain": 15, LAST: 31}


class NsysSqlite(NsysTables):
    """One nsys SQLite export, or a recording of ours; raises NotAReport for another database."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path)
        self._fits = True  # until a part of the ranges does not
        if STRINGS not in self.database.columns:
            raise NotAReport(f"{path} is an SQLite database, but not one that `nsys export` wrote.")

    def parts(self, table: Table) -> Sequence[Part]:
        """Divide a table into parts of its rows, to be read on several cores with little memory each."""
        if not self.database.has(table.name):
            return ()
        there = {
            ours: theirs
            for ours, theirs in table.columns.items()
            if theirs and (theirs not in OPTIONAL or self.database.has_columns(table.name, theirs))
        }
        columns = {ours: _value(ours, theirs, table.missing) for ours, theirs in there.items()}
        plain, packed = _select(columns, table.name), ""
        if table is EVENTS:
            plain += f" AND eventType IN {EVENTS_READ}"
            alone = {ours: sql for ours, sql in columns.items() if ours not in SHIFTS}
            packed = _select({**alone, "packed": _packed(there)}, table.name)
        parts = self.database.stretches(table.name, ROWS_PER_PART)
        for statement in filter(None, (plain, packed)):
            self.database.require_plain(statement.format(parts[0][0]))
        return [partial(self._part, plain.format(rows), packed.format(rows), most) for rows, most in parts]

    def _part(self, plain: str, packed: str, most_rows: int) -> pa.Table:
        """Read a part with packed columns; where a row's do not fit, without, and then all parts to come."""
        if packed and self._fits:
            with suppress(NotAReport):  # which the plain statement will raise again, with the column's name
                if (table := _unpacked(self.database.part(packed, most_rows))) is not None:
                    return table
            self._fits = False
        return self.database.part(plain, most_rows)

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
        return [PayloadEvent(*row) for row in self.database.rows(PAYLOADS_SQL)] if has_payloads else ()

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of these string ids; an id without text is left out."""
        sql = "SELECT id, value FROM StringIds WHERE id IN (SELECT value FROM json_each(?))"
        return {key: _filled(value, "") for key, value in self.database.rows(sql, json.dumps(sorted(ids)))}


def read(path: Path) -> Trace:
    """Read an nsys SQLite export, or a recording of ours.

    Raises NotAReport for another database, for a damaged one, and for one that is being written.
    """
    return read_trace(NsysSqlite(path))


def _value(ours: str, theirs: str, missing: Any) -> str:
    # Names in brackets are never read as texts.
    value = " * ".join(f"[{name}]" for name in theirs.split(" * "))
    if ours == "text":
        return TEXT
    return f"coalesce({value}, {missing[ours]})" if ours in missing else value


def _select(columns: dict[str, str], table: str) -> str:
    named = ", ".join(f"{sql} AS [{ours}]" for ours, sql in columns.items())
    return f"SELECT {named} FROM {table} WHERE {{}}"  # noqa: S608 - constants only


def _filled(value: Any, missing: Any) -> Any:
    """Return a value of a small table, or what stands for it if it is missing; of any as text, where that is."""
    if value is None or missing != "":
        return missing if value is None else value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _packed(columns: dict[str, str]) -> str:
    """Return the SQL expression for several columns as one number."""
    sql = {**columns, "category": f"(coalesce({columns.get('category', '0')}, 0) & 255)"}
    last = columns.get(LAST, "NULL")
    fits = [f"{sql[name]} BETWEEN 0 AND {(1 << bits) - 1}" for name, bits in BITS.items()]
    terms = [f"{sql[name]} * {1 << SHIFTS[name]}" for name in BITS]
    return (
        f"CASE WHEN {' AND '.join([*fits, f'coalesce({last}, 0) < {LAST_BEYOND}'])} "
        f"THEN {' + '.join([f'coalesce({last}, -1) * {1 << SHIFTS[LAST]}', *terms])} END"
    )


def _unpacked(table: pa.Table) -> pa.Table | None:
    """Return the columns in place of `packed`; None if a row did not fit."""
    packed = table["packed"]
    if packed.null_count or packed.type != pa.int64():
        return None
    encoded = packed.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    distinct, codes = arrow.to_numpy(encoded.dictionary), encoded.indices
    values = {name: distinct >> SHIFTS[name] & (1 << bits) - 1 for name, bits in BITS.items()}
    values[LAST] = distinct >> SHIFTS[LAST]
    columns = {name: table[name] for name in table.column_names if name != "packed"}
    for name in ("event", "category"):
        columns[name] = arrow.from_numpy(values[name][arrow.to_numpy(codes)])
    for name in ("domain", LAST):
        columns[name] = pa.DictionaryArray.from_arrays(codes, arrow.from_numpy(values[name]))
    return pa.table(columns)
