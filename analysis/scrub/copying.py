"""Write a copy of a report that contains only what the analysis reads.

The copy is a new file, so no page of it ever held other data. It is written next to its target and renamed into
place whole.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import sqlite_utils

from ..errors import UsageError
from ..readers.identity import identity, require_unchanged
from ..support.files import Unfinished
from .allowed import EVENT_ROLES, EVENTS, METADATA, METADATA_TABLES, ROLES, STRINGS, Columns, Kind, Role
from .names import Names
from .own_words import own_words
from .source import Source

SQL_TYPES = {Kind.NUMBER: int, Kind.TIME: int, Kind.STRING: int, Kind.TEXT: str}
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """What went into a copy, and what was changed on the way."""

    rows: int
    cut: dict[str, int]  # distinct private values cut out of names, by the word that replaces them
    renamed: int


def copy(report: Path, target: Path, *, rename_ranges: bool = False) -> Copied:
    """Write the shared copy of an nsys SQLite export, or of a recording.

    Raises NotAReport if the report cannot be read, and UsageError if the target cannot be written.
    """
    before = identity(report)
    source = Source(report)
    source.require_types()
    require_replaceable(target, report)
    names = Names(rename_ranges=rename_ranges, own_words=own_words(report))
    with _beside(target) as unfinished:
        rows = _Copy(source, unfinished, names).run()
        require_unchanged(report, before)
    renamed = len(names.renaming.letters) if names.renaming else 0
    return Copied(rows, dict(names.cut), renamed)


class _Copy:
    """One copy under way."""

    def __init__(self, source: Source, target: Path, names: Names) -> None:
        self.source, self.names = source, names
        self.database = sqlite_utils.Database(sqlite3.connect(target, isolation_level=None))
        self.epoch_ns = source.epoch_ns()
        self.roles = source.string_roles()
        self.new_ids: dict[tuple[int, Role], int] = {}  # of a string that is two things, and differs by which

    def run(self) -> int:
        """Copy everything; return how many rows that is."""
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY", "cache_size = -65536"):
            self.database.execute(f"PRAGMA {pragma}")
        self.database.execute("BEGIN")
        copied = self.strings() + sum(self.table(table) for table in self.source.tables)
        self.database.execute("COMMIT")
        self.database.close()
        return copied

    def strings(self) -> int:
        """Copy the strings that kept rows refer to, as far as they may be shared."""
        insert = self.create(STRINGS, {"id": Kind.STRING, "value": Kind.TEXT}, pk="id")
        unused, copied = (number for number in count(1) if number not in self.roles), 0
        for rows in self.source.strings():
            kept: dict[int, bytes] = {}
            for number, text in rows:
                for role in self.roles.get(number, Role(0)):
                    shared = self.text(role, text)
                    if shared is None:
                        continue
                    if kept.setdefault(number, shared) != shared:
                        self.new_ids[number, role] = next(unused)
                        kept[self.new_ids[number, role]] = shared
            insert(kept.items())
            copied += len(kept)
        return copied

    def table(self, table: str) -> int:
        """Copy one table."""
        columns = self.source.tables[table]
        insert, changed, copied = self.create(table, columns), self.changes(table, columns), 0
        for rows in self.source.rows(table):
            shared = list(filter(None, map(changed, rows))) if changed else rows
            insert(shared)
            copied += len(shared)
        return copied

    def create(self, table: str, columns: Columns, pk: str | None = None) -> Callable[[Any], object]:
        """Create a table; return what inserts rows into it. Texts come as bytes and are stored as they are."""
        self.database.table(table).create({name: SQL_TYPES[kind] for name, kind in columns.items()}, pk=pk)
        values = ", ".join("CAST(? AS TEXT)" if kind is Kind.TEXT else "?" for kind in columns.values())
        sql = f"INSERT OR REPLACE INTO {table} VALUES ({values})"  # noqa: S608
        return lambda rows: self.database.conn.executemany(sql, rows)

    def changes(self, table: str, columns: Columns) -> Callable[[Row], Row | None] | None:
        """Return a function that cleans or drops a row; None if all rows are copied unchanged."""
        if table in METADATA_TABLES:
            return self.metadata
        names, place = list(columns), {name: at for at, name in enumerate(columns)}
        times = [at for at, name in enumerate(names) if columns[name] is Kind.TIME] if self.epoch_ns else []
        texts = [at for at, name in enumerate(names) if columns[name] is Kind.TEXT]
        ids = [at for at, name in enumerate(names) if columns[name] is Kind.STRING] if self.new_ids else []
        if not (times or texts or ids):
            return None

        def changed(row: Row) -> Row:
            role = EVENT_ROLES[row[place["eventType"]]] if table == EVENTS else ROLES.get(table, Role.FACT)
            new = list(row)
            for at in times:
                new[at] = None if row[at] is None else max(row[at] - self.epoch_ns, -(2**63))
            for at in texts:
                new[at] = self.text(role, row[at])
            for at in ids:
                new[at] = self.new_ids.get((row[at], role), row[at])
            return tuple(new)

        return changed

    def metadata(self, row: Row) -> Row | None:
        """Keep a fact about the export itself."""
        name = (row[0] or b"").decode("utf-8", "replace")
        return (row[0], self.text(Role.FACT, row[1])) if name in METADATA else None

    def text(self, role: Role, text: bytes | None) -> bytes | None:
        """Return the replacement for a text; bytes that are not UTF-8 are kept."""
        if text is None:
            return None
        shared = self.names.rules[role](text.decode("utf-8", "surrogateescape"))
        return None if shared is None else shared.encode("utf-8", "surrogateescape")


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
