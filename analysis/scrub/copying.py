"""Write a copy of a report that contains only what the analysis reads, of texts only what is known to be harmless.

The copy is a new file, so no page of it ever held other data. It is written next to its target and renamed into
place whole.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError
from ..readers.nccl_payloads import Figures
from ..readers.safety import identity, require_unchanged
from ..support.files import Unfinished
from .allowed import EVENT_ROLES, EVENTS, METADATA, METADATA_TABLES, ROLES, STRINGS, Columns, Kind, Role
from .names import Names
from .own_words import own_words
from .source import Row, Source

SQL_TYPES = {
    **dict.fromkeys((Kind.NUMBER, Kind.TIME, Kind.STRING), "INTEGER"),
    Kind.TEXT: "TEXT",
    Kind.PAYLOAD: "BLOB",
}


class Copied(NamedTuple):
    """What went into a copy: rows, and how many words were replaced in it."""

    rows: int
    replaced: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """What is not known to be harmless: where it is, what it is, and how many there are."""

    where: str
    text: str
    count: int


def copy(report: Path, target: Path, *, keep: Sequence[str] = ()) -> Copied:
    """Write the shared copy of an nsys SQLite export, or of a recording; names that match `keep` stay.

    Raises NotAReport if the report cannot be read, and UsageError if the target cannot be written.
    """
    before = identity(report)
    source = Source(report)
    source.require_types()
    require_replaceable(target, report)
    sharing = Sharing(source, Names(own_words=own_words(report), keep=keep))
    with _beside(target) as path, closing(sqlite3.connect(path, isolation_level=None)) as database:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY", "cache_size = -65536"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("BEGIN")
        rows = _copy_strings(sharing, database)
        for table, columns in source.tables.items():
            insert = _create(database, table, columns)
            for batch in sharing.rows(table):
                insert(batch)
                rows += len(batch)
        database.execute("COMMIT")
        require_unchanged(report, before)
    return Copied(rows, len(sharing.names.numbers) + len(sharing.names.long_numbers))


def _copy_strings(sharing: Sharing, database: sqlite3.Connection) -> int:
    """Copy the strings that kept rows refer to, as far as they may be shared."""
    insert = _create(database, STRINGS, {"id": Kind.STRING, "value": Kind.TEXT}, key="id")
    unused, copied = (number for number in count(1) if number not in sharing.roles), 0

    def kept() -> Iterator[Row]:
        nonlocal copied
        for number, texts in sharing.strings():
            of_id: dict[int, str] = {}
            for role, text in texts.items():
                if text is not None and of_id.setdefault(number, text) != text:
                    sharing.new_ids[number, role] = next(unused)
                    of_id[sharing.new_ids[number, role]] = text
            copied += len(of_id)
            yield from of_id.items()

    insert(kept())
    return copied


def _create(
    database: sqlite3.Connection, table: str, columns: Columns, key: str = ""
) -> Callable[[Iterable[Row]], object]:
    """Create a table; return what inserts rows into it."""
    named = ", ".join(
        f'"{name}" {SQL_TYPES[kind]}{" PRIMARY KEY" * (name == key)}' for name, kind in columns.items()
    )
    database.execute(f"CREATE TABLE {table} ({named})")
    sql = f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    return lambda rows: database.executemany(sql, rows)


class Sharing:
    """What may be shared of a report: its strings and rows, with names chosen by `names`."""

    def __init__(self, source: Source, names: Names) -> None:
        self.source, self.names = source, names
        self.epoch_ns = source.epoch_ns()
        self.roles = source.string_roles()
        self.payload_figures = Figures(source.payload_fields())
        self.new_ids: dict[tuple[int, Role], int] = {}  # of a string that is two things, and differs by which

    def strings(self) -> Iterator[tuple[int, dict[Role, str | None]]]:
        """Yield each string that kept rows refer to: its id, and what may be shared of it by its roles."""
        for rows in self.source.strings():
            for number, text in rows:
                roles = self.roles.get(number)
                if roles and text is not None:
                    yield number, {role: self.names.shared(role, text) for role in roles}

    def rows(self, table: str) -> Iterator[list[Row]]:
        """Yield what may be shared of a table's rows."""
        changed = self.change(table)
        for rows in self.source.rows(table):
            yield [new for row in rows if (new := changed(row)) is not None] if changed else rows

    def change(self, table: str) -> Callable[[Row], Row | None] | None:
        """Return a function that cleans or drops a row; None if all rows are copied unchanged."""
        columns = self.source.tables[table]
        if table in METADATA_TABLES:
            return lambda row: (
                (row[0], row[1] and self.names.shared(Role.FACT, row[1])) if row[0] in METADATA else None
            )
        column_number = {name: number for number, name in enumerate(columns)}
        of_kind = {kind: [column_number[name] for name in columns if columns[name] is kind] for kind in Kind}
        times = of_kind[Kind.TIME] if self.epoch_ns else []
        string_ids = of_kind[Kind.STRING] if self.new_ids else []
        if not (times or of_kind[Kind.TEXT] or of_kind[Kind.PAYLOAD] or string_ids):
            return None

        def changed(row: Row) -> Row:
            role = EVENT_ROLES[row[column_number["eventType"]]] if table == EVENTS else ROLES.get(table, Role.FACT)
            new = list(row)
            for number in times:
                new[number] = None if row[number] is None else max(row[number] - self.epoch_ns, -(2**63))
            for number in of_kind[Kind.TEXT]:
                new[number] = None if row[number] is None else self.names.shared(role, row[number])
            for number in of_kind[Kind.PAYLOAD]:
                new[number] = self.payload_figures.alone(row[number]) if row[number] else None
            for number in string_ids:
                new[number] = self.new_ids.get((row[number], role), row[number])
            return tuple(new)

        return changed


def unknown(report: Path, *, keep: Sequence[str] = ()) -> Iterator[Unknown]:
    """Yield what a report has that is not known to be harmless; of a shared copy, nothing.

    Raises NotAReport if the report cannot be read.
    """
    source = Source(report)
    source.require_types()
    for table, columns in source.all_columns.items():
        allowed = {"id", "value"} if table == STRINGS else {name.lower() for name in source.tables.get(table, ())}
        quoted = table.replace('"', '""')
        if not allowed:
            yield Unknown(table, "(all of the table)", source.select(f'SELECT count(*) FROM "{quoted}"')[0][0])  # noqa: S608
            continue
        for column in (name for name in columns if name.lower() not in allowed):
            sql = 'SELECT count(*) FROM "{}" WHERE "{}" IS NOT NULL'.format(quoted, column.replace('"', '""'))  # noqa: S608
            yield Unknown(f"{table}.{column}", "(all of the column)", source.select(sql)[0][0])
    sharing = Sharing(source, Names(own_words=own_words(report), keep=keep, of_copy=True))
    yield Unknown("times", "(they are dates)", int(sharing.epoch_ns > 0))
    for table in source.tables:
        sql = f"SELECT count(*) FROM {table}"  # noqa: S608
        every, copied = (source.select(sql + where)[0][0] for where in ("", source.where(table)))
        yield Unknown(table, "(rows that are not read)", every - copied)
    yield from _unknown_texts(sharing)
    yield Unknown("freed pages", "(rows that were deleted)", source.select("PRAGMA freelist_count")[0][0])


def _unknown_texts(sharing: Sharing) -> Iterator[Unknown]:
    texts: Counter[tuple[str, str]] = Counter()
    for rows in sharing.source.strings():
        for number, text in rows:
            if number not in sharing.roles and text:
                texts["strings of no row", text] += 1
            for role in sharing.roles.get(number, Role(0)):
                if text and sharing.names.shared(role, text) != text:
                    texts[f"names: {str(role.name).lower()}", text] += 1
    for table, columns in sharing.source.tables.items():
        kinds = list(columns.values())
        numbers = [number for number, kind in enumerate(kinds) if kind in (Kind.TEXT, Kind.PAYLOAD)]
        changed = sharing.change(table)
        if not (changed and numbers):
            continue
        for rows in sharing.source.rows(table):
            for row in rows:
                new = changed(row)
                if new is None:
                    texts[table, str(row[0])] += 1
                else:
                    texts.update(
                        (table, row[number] if kinds[number] is Kind.TEXT else "(bytes that ranges carry)")
                        for number in numbers
                        if row[number] != new[number]
                    )
    yield from (Unknown(where, text, number) for (where, text), number in texts.items())


def require_replaceable(target: Path, report: Path) -> None:
    """Raise UsageError for a target that is the report."""
    with suppress(OSError):  # a missing or inaccessible file is reported where it is written
        if target.samefile(report):
            raise UsageError(f"{target} is the report itself. Name another file with -o.")


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a new file next to the target; rename it into place when the block ends, remove it when it raises."""
    try:
        unfinished = Unfinished(target)
        try:
            unfinished.create()
            yield unfinished.path
            unfinished.publish()
        finally:
            unfinished.discard()
    except (OSError, sqlite3.Error) as error:
        raise UsageError(f"{target} cannot be written: {getattr(error, 'strerror', None) or error}.") from error
