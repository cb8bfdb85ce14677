"""The report that a copy is made of, row by row: allowed columns only, and numbers only where numbers belong."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from nvtx_kernels import DOMAIN

from ..errors import NotAReport
from ..readers.marks import MODEL_MARK
from ..readers.nccl_payloads import Field
from ..readers.nsys_sqlite import NsysSqlite
from ..readers.nsys_tables import CATEGORY_TYPE, DOMAIN_TYPE, MARK_TYPE
from ..readers.sqlite import Database, read_only_uri
from ..support.progress import advance, expect
from .allowed import EVENT_ROLES, EVENTS, METADATA_TABLES, ROLES, STRINGS, TABLES, THREADS, Columns, Kind, Role

# SQLite's types of the values that a kind of column may hold.
TYPES = {
    Kind.NUMBER: ("integer", "null"),
    Kind.TIME: ("integer", "null"),
    Kind.STRING: ("integer", "null"),
    Kind.TEXT: ("text", "null"),
    Kind.PAYLOAD: ("blob", "text", "null"),
}
BATCH = 2_000
# No capture is this long, so a time beyond it counts from 1970 and says when the program ran.
LONGEST_CAPTURE_NS = 10**17

Row = tuple[Any, ...]


class Source:
    """A report's allowed tables, opened read-only; text that is not UTF-8 is read as the analysis reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all_columns = Database(path).columns
        if STRINGS not in self.all_columns:
            raise NotAReport(f"{path} is an SQLite database, but not one that `nsys export` wrote.")
        self.tables: dict[str, Columns] = {}
        for table, allowed in TABLES.items():
            there = {name.lower() for name in self.all_columns.get(table, ())}
            columns = {name: kind for name, kind in allowed.items() if name.lower() in there}
            if columns and (table not in METADATA_TABLES or len(columns) == len(allowed)):
                self.tables[table] = columns

    def require_types(self) -> None:
        """Raise NotAReport if a column of numbers has other values, or a column of text other than text."""
        for table, columns in {**self.tables, STRINGS: {"id": Kind.STRING, "value": Kind.TEXT}}.items():
            wrong = " OR ".join(f'typeof("{name}") NOT IN {TYPES[kind]}' for name, kind in columns.items())
            if self.select(f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1"):  # noqa: S608
                raise NotAReport(
                    f"{self.path} has values in {table} that nsys never writes there. Export the report again."
                )

    def rows(self, table: str) -> Iterator[list[Row]]:
        """Yield a table's rows in batches, in the file's order, columns as in `tables`."""
        chosen = ", ".join(f'"{name}"' for name in self.tables[table])
        if table == EVENTS:  # the categories of other domains say nothing, and can be any number
            chosen = chosen.replace('"category"', f'CASE WHEN {self._is_annotations} THEN "category" END')
            # Of what other ranges carry, only that there is something.
            is_read = f"typeof(binaryData) = 'blob' AND coalesce({', '.join(self._event_texts)}, '') LIKE 'nccl%'"
            payload = f"CASE WHEN {is_read} THEN binaryData WHEN binaryData IS NOT NULL THEN x'' END"
            chosen = chosen.replace('"binaryData"', payload)
        yield from self._watched(f"{table}{self.where(table)}", chosen)

    def strings(self) -> Iterator[list[Row]]:
        """Yield (id, text) of all strings in batches."""
        yield from self._watched(STRINGS, "id, value")

    def string_roles(self) -> dict[int, Role]:
        """Return what each string that a kept row refers to is, by its id."""
        roles: dict[int, Role] = {}
        for table, columns in self.tables.items():
            kind = "eventType" if table == EVENTS else "0"
            for column in (name for name, kind_ in columns.items() if kind_ is Kind.STRING):
                sql = f"SELECT DISTINCT {kind}, {column} FROM {table}{self.where(table)}"  # noqa: S608
                for event, number in self.select(sql):
                    role = EVENT_ROLES[event] if table == EVENTS else ROLES[table]
                    roles[number] = roles.get(number, Role(0)) | role
        return roles

    def epoch_ns(self) -> int:
        """Return the offset to subtract from all times, ns: zero, unless they count from 1970."""
        timed = [table for table, columns in self.tables.items() if "start" in columns]
        starts = [self.select(f"SELECT min(start) FROM {table}{self.where(table)}")[0][0] for table in timed]  # noqa: S608
        first = min((start for start in starts if isinstance(start, int)), default=0)
        return first if first > LONGEST_CAPTURE_NS else 0

    def where(self, table: str) -> str:
        """Return SQL for the rows of a table that are copied: events that are read, and threads with events."""
        if table == EVENTS:
            shared = f"eventType <> {CATEGORY_TYPE} OR {self._is_annotations}"
            return f" WHERE eventType IN {tuple(EVENT_ROLES)} AND ({shared})"
        if table != THREADS:
            return ""
        traced = [other for other in self.tables if "globalTid" in self.tables[other] and other != THREADS]
        threads = " UNION ".join(f"SELECT globalTid FROM {other}" for other in traced)  # noqa: S608
        return f" WHERE globalTid IN ({threads or 'NULL'})"

    @cached_property
    def _is_annotations(self) -> str:
        """Return an SQL condition: the event is in a domain of this project's annotation."""
        columns = self.all_columns.get(EVENTS, ())
        if not {"globalTid", "domainId", "eventType"} <= set(columns):
            return "0"
        domain = "coalesce(globalTid, 0) >> 24, coalesce(domainId, 0)"
        named = " OR ".join(
            f"eventType = {DOMAIN_TYPE} AND {text} = '{DOMAIN}'"
            f" OR eventType = {MARK_TYPE} AND {text} LIKE '{MODEL_MARK}%'"
            for text in self._event_texts
        )
        numbers = sorted(set(self.select(f"SELECT {domain} FROM {EVENTS} WHERE {named or 0}")))  # noqa: S608
        pairs = ", ".join(f"({process}, {number})" for process, number in numbers)
        return f"({domain}) IN (VALUES {pairs})" if pairs else "0"

    @cached_property
    def _event_texts(self) -> list[str]:
        """Return SQL for the texts of an event: its own, and the one that it refers to."""
        of_columns = {"text": "text", "textId": f"(SELECT value FROM {STRINGS} WHERE id = textId)"}  # noqa: S608
        return [sql for column, sql in of_columns.items() if column in self.all_columns.get(EVENTS, ())]

    def payload_fields(self) -> list[Field]:
        """Return the fields of what NCCL's ranges carry."""
        return NsysSqlite(self.path).payload_fields()

    def select(self, sql: str) -> list[Row]:
        """Return all rows of a statement."""
        return [row for rows in self._batches(sql) for row in rows]

    def _watched(self, table: str, columns: str) -> Iterator[list[Row]]:
        expect(self.select(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608
        for rows in self._batches(f"SELECT {columns} FROM {table}"):  # noqa: S608
            yield rows
            advance(len(rows))

    def _batches(self, sql: str) -> Iterator[list[Row]]:
        with opened(self.path, lambda raw: raw.decode("utf-8", "replace")) as connection:
            cursor = connection.execute(sql)
            while rows := cursor.fetchmany(BATCH):
                yield rows


@contextmanager
def opened(report: Path, text: Callable[[bytes], object]) -> Iterator[sqlite3.Connection]:
    """Open a report's database to read it; `text` makes what is got of a text's bytes.

    Raises NotAReport for what SQLite raises in the block.
    """
    try:
        with closing(sqlite3.connect(read_only_uri(report), uri=True)) as connection:
            connection.text_factory = text
            yield connection
    except (sqlite3.Error, UnicodeError) as error:
        raise NotAReport(f"{report} is damaged: {error}. Export it again.") from error
