"""Write a copy of a report that has only the parts that the analysis reads, and in texts only public words.

The copy is a new file, so no page of it ever held other data.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nvtx_kernels import DOMAIN

from ..errors import NotAReport
from ..readers.marks import MODEL_MARK
from ..readers.nccl_payloads import Payloads
from ..readers.nsys_sqlite import NsysSqlite
from ..readers.nsys_tables import CATEGORY_TYPE, DOMAIN_TYPE, MARK_TYPE, METADATA_TABLES, STRINGS
from ..readers.safety import identity, require_unchanged
from ..support.files import beside
from ..support.progress import advance, expect
from .allowed import EVENT_ROLES, EVENTS, METADATA, ROLES, STRING_COLUMNS, TABLES, THREADS, Columns, Kind, Role
from .names import Names
from .words import own_words

Row = tuple[Any, ...]

# Of columns that hold no numbers, the type, and SQLite's types of the values that they may hold.
COLUMN_TYPES: dict[Kind, type] = {Kind.TEXT: str, Kind.LISTED: str, Kind.PAYLOAD: bytes}
VALUE_TYPES = {Kind.TEXT: ("text", "null"), Kind.LISTED: ("text", "null"), Kind.PAYLOAD: ("blob", "text", "null")}
PRAGMAS = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -65536;
"""
BATCH = 2_000
# No capture is this long, so a time beyond it counts from 1970 and says when the program ran.
LONGEST_CAPTURE_NS = 10**17


@dataclass(frozen=True, slots=True)
class Unknown:
    """A possibly private part: where it is, what it is, and how many there are."""

    where: str
    text: str
    count: int


class SharedTables:
    """What may be shared of nsys's tables, or a recording's: tables, rows and strings, with names by `names`.

    Raises NotAReport if a column of numbers has other values, or a column of text other than text.
    """

    def __init__(self, report: Path, *, keep: Sequence[str] = (), of_copy: bool = False) -> None:
        self.report, self.before = report, identity(report)
        export = NsysSqlite(report)
        self.database = export.database
        self.tables: dict[str, Columns] = {}
        for table, allowed in TABLES.items():
            columns = {name: kind for name, kind in allowed.items() if self.database.has_columns(table, name)}
            if columns and (table not in METADATA_TABLES or len(columns) == len(allowed)):
                self.tables[table] = columns
        for table, kinds in {**self.tables, STRINGS: STRING_COLUMNS}.items():
            allowed_types = {name: VALUE_TYPES.get(kind, ("integer", "null")) for name, kind in kinds.items()}
            wrong = " OR ".join(f'typeof("{name}") NOT IN {types}' for name, types in allowed_types.items())
            if self.database.rows(f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1"):  # noqa: S608
                raise NotAReport(
                    f"{report} has values in {table} that nsys never writes there. Export the report again."
                )
        self.names = Names(own_words=own_words(self.database), keep=keep, of_copy=of_copy)
        self.payloads = Payloads(export.payload_fields())
        # A string's new number, by its own and by what it is: one that is two things becomes two strings.
        self.string_numbers: dict[tuple[int, Role], int] = {}
        self.sources = self._sources()
        starts = [
            self.database.rows(f"SELECT min(start) FROM {self.sources[table][1]}")[0][0]  # noqa: S608
            for table, columns in self.tables.items()
            if "start" in columns
        ]
        first_ns = min((start for start in starts if start is not None), default=0)
        self.epoch_ns = first_ns if first_ns > LONGEST_CAPTURE_NS else 0

    def write(self, target: Path) -> int:
        """Write the copy and return how many rows it has; raise NotAReport if the report changes meanwhile."""
        with beside(target) as path, closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.executescript(PRAGMAS)
            database.execute("BEGIN")
            rows = 0
            for table, columns in self.tables.items():
                shared = (new for _, new in self.rows(table) if new is not None)
                rows += _insert(database, table, columns, shared)
            strings = (
                (number, text)
                for original, uses in self.strings()
                for role, number in uses
                if (text := self.names.shared(role, original)) is not None
            )
            rows += _insert(database, STRINGS, STRING_COLUMNS, strings, key="id")
            database.execute("COMMIT")
            require_unchanged(self.report, self.before)
        return rows

    def _sources(self) -> dict[str, tuple[str, str]]:
        """Return SQL for the columns of each table, and for its rows that are read."""
        selected = {table: ", ".join(f'"{name}"' for name in columns) for table, columns in self.tables.items()}
        sources = {table: (columns, table) for table, columns in selected.items()}
        if THREADS in sources:
            traced = [
                table for table, columns in self.tables.items() if "globalTid" in columns and table != THREADS
            ]
            threads = " UNION ".join(f"SELECT globalTid FROM {table}" for table in traced)  # noqa: S608
            sources[THREADS] = selected[THREADS], f"{THREADS} WHERE globalTid IN ({threads or 'NULL'})"
        if EVENTS in sources:
            has = self.tables[EVENTS].keys()
            of_string = f"(SELECT value FROM {STRINGS} WHERE id = textId)"  # noqa: S608
            text = (
                f"coalesce({'text' if 'text' in has else 'NULL'}, {of_string if 'textId' in has else 'NULL'}, '')"
            )
            # Categories of other domains than annotation's say nothing, and can be any number.
            is_annotations = "0"
            if {"globalTid", "domainId", "eventType"} <= has:
                domain = "coalesce(globalTid, 0) >> 24, coalesce(domainId, 0)"
                is_annotations = (
                    f"({domain}) IN (SELECT {domain} FROM {EVENTS} WHERE"  # noqa: S608
                    f" eventType = {DOMAIN_TYPE} AND {text} = '{DOMAIN}'"
                    f" OR eventType = {MARK_TYPE} AND {text} LIKE '{MODEL_MARK}%')"
                )
            # Of what other ranges than NCCL's carry, only that there is something.
            is_nccl = f"typeof(binaryData) = 'blob' AND {text} LIKE 'nccl%'"
            payload = f"CASE WHEN {is_nccl} THEN binaryData WHEN binaryData IS NOT NULL THEN x'' END"
            columns = selected[EVENTS].replace('"binaryData"', payload)
            columns = columns.replace('"category"', f'CASE WHEN {is_annotations} THEN "category" END')
            is_read = f"eventType IN {tuple(EVENT_ROLES)} AND (eventType <> {CATEGORY_TYPE} OR {is_annotations})"
            sources[EVENTS] = columns, f"{EVENTS} WHERE {is_read}"
        return sources

    def rows(self, table: str) -> Iterator[tuple[Row, Row | None]]:
        """Yield the rows of a table that are read, each with what may be shared of it; None is nothing."""
        columns = self.tables[table]
        place_of = {name: place for place, name in enumerate(columns)}
        changed = [
            (place, kind)
            for place, kind in enumerate(columns.values())
            if kind is not Kind.NUMBER and (kind is not Kind.TIME or self.epoch_ns)
        ]
        texts = [place for place, kind in enumerate(columns.values()) if kind is Kind.TEXT]
        all_rows = self._each_row(*self.sources[table])
        while some := [*islice(all_rows, BATCH)]:
            roles = [
                EVENT_ROLES[row[place_of["eventType"]]] if table == EVENTS else ROLES.get(table, Role.FACT)
                for row in some
            ]
            pairs = zip(roles, some, strict=True)
            self.names.expect((role, row[at]) for role, row in pairs for at in texts if row[at] is not None)
            for role, row in zip(roles, some, strict=True):
                if Kind.LISTED in columns.values() and row[0] not in METADATA:
                    yield row, None
                    continue
                new = list(row)
                for place, kind in changed:
                    if row[place] is not None:
                        new[place] = self._value(kind, role, row[place])
                yield row, tuple(new)

    def _value(self, kind: Kind, role: Role, value: Any) -> Any:
        """Return the shareable part of one value."""
        if kind is Kind.TIME:
            return max(value - self.epoch_ns, -(2**63))
        if kind is Kind.STRING:
            return self.string_numbers.setdefault((value, role), len(self.string_numbers) + 1)
        if kind is Kind.PAYLOAD:
            return self.payloads.figures_alone(value) if value else None
        return self.names.shared(role, value) if kind is Kind.TEXT else value

    def strings(self) -> Iterator[tuple[str, list[tuple[Role, int]]]]:
        """Yield each string with its roles in rows that `rows` has yielded, and its number for each."""
        uses: dict[int, list[tuple[Role, int]]] = defaultdict(list)
        for (number, role), new_number in self.string_numbers.items():
            uses[number].append((role, new_number))
        rows = self._each_row("id, value", STRINGS)
        while some := [*islice(rows, BATCH)]:
            used = [(text, uses.get(number, [])) for number, text in some if text is not None]
            self.names.expect((role, text) for text, roles in used for role, _ in roles)
            yield from used

    def _each_row(self, columns: str, table: str) -> Iterator[Row]:
        expect(self.database.rows(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608
        for number, row in enumerate(self.database.each_row(f"SELECT {columns} FROM {table}")):  # noqa: S608
            yield row
            if number % BATCH == BATCH - 1:
                advance(BATCH)

    def unknown(self) -> Iterator[Unknown]:
        """Yield the possibly private parts of a report; a shared copy has none."""

        def counted(rows: str) -> int:
            return int(self.database.rows(f"SELECT count(*) FROM {rows}")[0][0])  # noqa: S608

        for table, names in self.database.columns.items():
            shared = STRING_COLUMNS if table == STRINGS else self.tables.get(table, {})
            quoted = '"{}"'.format(table.replace('"', '""'))
            if not shared:
                yield Unknown(table, "(all of the table)", counted(quoted))
            for column in names if shared else ():
                if column.lower() not in map(str.lower, shared):
                    is_there = '"{}" IS NOT NULL'.format(column.replace('"', '""'))
                    yield Unknown(
                        f"{table}.{column}", "(all of the column)", counted(f"{quoted} WHERE {is_there}")
                    )
        yield Unknown("times", "(they are dates)", int(self.epoch_ns > 0))
        counts: Counter[tuple[str, str]] = Counter()
        for table, columns in self.tables.items():
            yield Unknown(table, "(rows that are not read)", counted(table) - counted(self.sources[table][1]))
            for row, new in self.rows(table):
                if new is None:
                    counts[table, str(row[0])] += 1
                    continue
                for kind, value, new_value in zip(columns.values(), row, new, strict=True):
                    if kind in (Kind.TEXT, Kind.PAYLOAD) and value != new_value:
                        counts[table, value if kind is Kind.TEXT else "(bytes that ranges carry)"] += 1
        for text, uses in self.strings():
            if text and not uses:
                counts["strings of no row", text] += 1
            for role, _ in uses:
                if self.names.shared(role, text) != text:
                    counts[f"names: {str(role.name).lower()}", text] += 1
        yield from (Unknown(where, text, number) for (where, text), number in counts.items())
        yield Unknown("freed pages", "(rows that were deleted)", self.database.rows("PRAGMA freelist_count")[0][0])


def _insert(
    database: sqlite3.Connection, table: str, columns: Columns, rows: Iterable[Row], *, key: str = ""
) -> int:
    """Create a table with these rows; return how many there are."""
    import sqlite_utils  # which loads pandas

    types = {name: COLUMN_TYPES.get(kind, int) for name, kind in columns.items()}
    sqlite_utils.Database(database).table(table).create(types, pk=key or None)
    sql = f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    return database.executemany(sql, rows).rowcount
