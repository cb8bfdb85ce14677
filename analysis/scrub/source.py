"""The report that a copy is made of, row by row: allowed columns only, and numbers only where numbers belong."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import NotAReport
from ..readers.nsys_trace import CATEGORY_TYPE, DOMAIN_TYPE, MARK_TYPE
from ..readers.sqlite import Database, read_only_uri
from ..readers.written import MODEL_MARK
from ..support.progress import advance, expect
from ..vocabulary import OWN_DOMAIN
from .allowed import (
    EVENT_ROLES,
    EVENTS,
    KERNELS,
    METADATA_TABLES,
    ROLES,
    STRINGS,
    TABLES,
    THREADS,
    Columns,
    Kind,
    Role,
)

# SQLite's types of the values that a kind of column may hold.
TYPES = {
    Kind.NUMBER: ("integer", "null"),
    Kind.TIME: ("integer", "null"),
    Kind.STRING: ("integer", "null"),
    Kind.TEXT: ("text", "null"),
}
BATCH = 2_000
# No capture is this long, so a time beyond it counts from 1970 and says when the program ran.
LONGEST_CAPTURE_NS = 10**17


class Source:
    """A report's allowed tables, opened read-only; texts come as bytes, for not all are UTF-8."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns = columns = Database(path).columns
        if STRINGS not in columns:
            raise NotAReport(f"{path} is a SQLite database, but not one that `nsys export` wrote.")
        self.tables: dict[str, Columns] = {
            table: {name: kind for name, kind in allowed.items() if name in columns[table]}
            for table, allowed in TABLES.items()
            if set(columns.get(table, ())) & allowed.keys()
            and (table not in METADATA_TABLES or allowed.keys() <= set(columns[table]))
        }

    def require_types(self) -> None:
        """Raise NotAReport if a column of numbers has other values, or a column of text other than text."""
        for table, columns in {**self.tables, STRINGS: {"id": Kind.STRING, "value": Kind.TEXT}}.items():
            wrong = " OR ".join(f'typeof("{name}") NOT IN {TYPES[kind]}' for name, kind in columns.items())
            if self._select(f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1"):  # noqa: S608
                raise NotAReport(
                    f"{self.path} has values in {table} that nsys never writes there. Export the report again."
                )

    def rows(self, table: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield a table's rows in batches, in the file's order, columns as in `tables`."""
        columns = self.tables[table]
        expect(self._select(f"SELECT count(*) FROM {table}{self._where(table)}")[0][0])  # noqa: S608
        chosen = _quoted(columns)
        if table == EVENTS:  # the categories of other domains say nothing, and can be any number
            chosen = chosen.replace('"category"', f'CASE WHEN {self._is_annotations} THEN "category" END')
        yield from self._watched(f"SELECT {chosen} FROM {table}{self._where(table)}")  # noqa: S608

    def strings(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield (id, text) of all strings in batches."""
        expect(self._select(f"SELECT count(*) FROM {STRINGS}")[0][0])  # noqa: S608
        yield from self._watched(f"SELECT id, value FROM {STRINGS}")  # noqa: S608

    def string_roles(self) -> dict[int, Role]:
        """Return what each string that a kept row refers to is, by its id."""
        roles: dict[int, Role] = {}
        for number, role in self._referred():
            if number is not None:
                roles[number] = roles.get(number, Role(0)) | role
        return roles

    def _referred(self) -> Iterator[tuple[int | None, Role]]:
        for table, role in ROLES.items():
            for column in self._string_columns(table):
                for (number,) in self._select(f"SELECT DISTINCT {column} FROM {table}{self._where(table)}"):  # noqa: S608
                    yield number, role
        for column in self._string_columns(EVENTS):
            events = f"SELECT DISTINCT eventType, {column} FROM {EVENTS}{self._where(EVENTS)}"  # noqa: S608
            for event, number in self._select(events):
                yield number, EVENT_ROLES[event]

    @cached_property
    def _is_annotations(self) -> str:
        """Return an SQL condition: the event is in a domain of this project's annotation."""
        columns = self._columns.get(EVENTS, ())
        if not {"globalTid", "domainId", "eventType"} <= set(columns):
            return "0"
        texts = ["text"] if "text" in columns else []
        if "textId" in columns:
            texts.append(f"(SELECT value FROM {STRINGS} WHERE id = textId)")  # noqa: S608
        domain = "coalesce(globalTid, 0) >> 24, coalesce(domainId, 0)"
        named = " OR ".join(
            f"eventType = {DOMAIN_TYPE} AND {text} = '{OWN_DOMAIN}'"
            f" OR eventType = {MARK_TYPE} AND {text} LIKE '{MODEL_MARK}%'"
            for text in texts
        )
        sql = f"SELECT {domain} FROM {EVENTS} WHERE {named or 0}"  # noqa: S608
        found = ", ".join(f"({process}, {number})" for process, number in set(self._select(sql)))
        return f"({domain}) IN (VALUES {found})" if found else "0"

    def thread_names(self) -> list[str]:
        """Return all names of all threads, traced or not."""
        if not self._string_columns(THREADS):
            return []
        sql = f"SELECT CAST(value AS TEXT) FROM {THREADS} JOIN {STRINGS} ON id = nameId"  # noqa: S608
        return [(text or b"").decode("utf-8", "replace") for (text,) in self._select(sql)]

    def other_kernel_names(self) -> set[int]:
        """Return the ids of kernels' short and mangled names, which are left out and repeat others."""
        columns = [name for name in ("shortName", "mangledName") if name in self._columns.get(KERNELS, ())]
        return {number for name in columns for (number,) in self._select(f"SELECT DISTINCT {name} FROM {KERNELS}")}  # noqa: S608

    def epoch_ns(self) -> int:
        """Return the offset to subtract from all times, ns: zero, unless they count from 1970."""
        timed = [table for table, columns in self.tables.items() if columns.get("start")]
        starts = [self._select(f"SELECT min(start) FROM {table}{self._where(table)}")[0][0] for table in timed]  # noqa: S608
        first = min((start for start in starts if isinstance(start, int)), default=0)
        return first if first > LONGEST_CAPTURE_NS else 0

    def _where(self, table: str) -> str:
        if table == EVENTS:
            foreign = f"eventType <> {CATEGORY_TYPE} OR {self._is_annotations}"
            return f" WHERE eventType IN {tuple(EVENT_ROLES)} AND ({foreign})"
        if table != THREADS:
            return ""
        traced = [other for other in self.tables if "globalTid" in self.tables[other] and other != THREADS]
        threads = " UNION ".join(f"SELECT globalTid FROM {other}" for other in traced)  # noqa: S608
        return f" WHERE globalTid IN ({threads or 'NULL'})"

    def _string_columns(self, table: str) -> list[str]:
        return [name for name, kind in self.tables.get(table, {}).items() if kind is Kind.STRING]

    def _select(self, sql: str) -> list[tuple[Any, ...]]:
        return [row for rows in self._batches(sql) for row in rows]

    def _watched(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        for rows in self._batches(sql):
            yield rows
            advance(len(rows))

    def _batches(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        try:
            with closing(sqlite3.connect(read_only_uri(self.path), uri=True)) as connection:
                connection.text_factory = bytes
                cursor = connection.execute(sql)
                while rows := cursor.fetchmany(BATCH):
                    yield rows
        except (sqlite3.Error, UnicodeError) as error:
            raise NotAReport(f"{self.path} is damaged: {error}. Export it again.") from error


def _quoted(columns: Columns) -> str:
    return ", ".join(f'"{name}"' for name in columns)
