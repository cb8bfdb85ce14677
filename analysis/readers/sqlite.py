"""Whether an SQLite file is complete and not being written, so that it can be read without lock and journal."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import AGAIN, NotAReport
from ..support.progress import expect
from .safety import require_within
from .sqlite_guard import columns_of_tables, guarded, read_only_uri, require_plain

# Where SQLite's header has the page size, the number of pages, how often the file was changed, and the change for
# which that number was written (https://www.sqlite.org/fileformat2.html, 1.3).
HEADER_BYTES = 100
HEADER_FIELDS = slice(16, 18), slice(28, 32), slice(24, 28), slice(92, 96)
READ_VERSION, WAL_VERSION = 19, b"\2"
WAL_HEADER_BYTES = 32


def require_whole(path: Path) -> None:
    """Raise NotAReport if the file is truncated: in its last page, SQLite would only miss rows."""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    page, pages, counter, valid_for = (int.from_bytes(header[field]) for field in HEADER_FIELDS)
    size, complete = path.stat().st_size, (65_536 if page == 1 else page) * pages
    if counter == valid_for and size < complete:
        raise NotAReport(
            f"{path} is truncated after {size:,} of {complete:,} bytes. Copy, export or record it again."
        )


def require_at_rest(path: Path) -> None:
    """Raise NotAReport if a program is writing the file, or was interrupted while writing it.

    A journal next to it belongs to it, and without a lock SQLite would not read that.
    """
    log_bytes = 0
    with suppress(OSError):
        log_bytes = path.with_name(f"{path.name}-wal").stat().st_size
    if log_bytes > WAL_HEADER_BYTES:
        raise NotAReport(
            f"{path} is incomplete: {path.name}-wal next to it has changes to it. Close the program that writes "
            f"it, or run: sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        )
    if _is_hot(path):
        raise NotAReport(
            f"{path} is being written, or its writing was interrupted: {path.name}-journal is next to it. Wait "
            "until it is written, or export or record it again."
        )
    if _is_locked(path):
        raise NotAReport(f"{path} is being written by another program. Wait until it is written.")


def _is_hot(path: Path) -> bool:
    """Return whether a journal contains changes to undo; one of a finished change begins with zeros."""
    try:
        with path.with_name(f"{path.name}-journal").open("rb") as journal:
            return journal.read(8).strip(b"\0") != b""
    except OSError:
        return False


def _is_locked(path: Path) -> bool:
    """Return whether another process prevents reading; False if that cannot be determined.

    A database with a write-ahead log is not queried: SQLite would create files next to it.
    """
    with path.open("rb") as file:
        if file.read(HEADER_BYTES)[READ_VERSION : READ_VERSION + 1] == WAL_VERSION:
            return False
    try:
        with closing(sqlite3.connect(read_only_uri(path, locking=True), uri=True, timeout=0)) as connection:
            connection.execute("PRAGMA schema_version")
    except (sqlite3.Error, UnicodeError) as error:
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
    return False


MAX_PARTS = 256
# Few enough that a batch of the longest names there are fits in memory before it is looked at.
BATCH_ROWS = 8192
# Arrow's types of values that can occur in place of a number.
NO_NUMBERS = {"string": "text", "large_string": "text", "binary": "bytes", "large_binary": "bytes"}
# SQLite's names for a row's number; a column can take one of them.
ROW_NUMBERS = ("rowid", "_rowid_", "oid")
_MISSING = re.compile(r"no such (table|column): (?:\w+\.)*(\w+)")


class Database:
    """A SQLite file, opened read-only: schema questions and small rows through `sqlite3`, columns through ADBC."""

    def __init__(self, path: Path) -> None:
        self.path = path
        require_whole(path)
        require_at_rest(path)
        self.size_bytes, self.bytes_read = path.stat().st_size, 0
        with self._guarded() as connection:
            self.columns = columns_of_tables(path, connection)

    def has(self, table: str) -> bool:
        """Return whether the table exists and has at least one row."""
        return table in self.columns and bool(self.rows(f'SELECT 1 FROM "{table}" LIMIT 1'))  # noqa: S608

    def has_columns(self, table: str, *columns: str) -> bool:
        """Return whether a table has these columns; SQLite ignores the case of names."""
        return {name.lower() for name in columns} <= {name.lower() for name in self.columns.get(table, ())}

    def stretches(self, table: str, rows: int) -> list[tuple[str, int]]:
        """Return SQL conditions that cut a table, by row id, into parts of about this many rows, and their most.

        Raises NotAReport if the table's tree is damaged.
        """
        columns = {name.lower() for name in self.columns[table]}
        row = next((name for name in ROW_NUMBERS if name not in columns), ROW_NUMBERS[0])
        # Asked one at a time, either end is one step down the tree; both at once would scan the table.
        first, last = (self.rows(f'SELECT {end}({row}) FROM "{table}"')[0][0] for end in ("min", "max"))  # noqa: S608
        if first is None or last is None or last < first:  # it has rows; a page of another table numbers none
            raise NotAReport(f"{self.path} is damaged: the rows of {table} are out of order. {AGAIN}")
        count = min((last - first) // rows + 1, MAX_PARTS)
        expect(last - first + 1)
        bounds = [first + (last + 1 - first) * part // count for part in range(count + 1)]
        return [(f"{row} >= {low} AND {row} < {high}", high - low) for low, high in pairwise(bounds)]

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a small result; text that is not UTF-8 is decoded with replacement characters.

        Raises NotAReport if SQLite fails, as it does on a truncated or damaged file.
        """
        with self._guarded() as connection:
            return connection.execute(sql, parameters).fetchall()

    def each_row(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a large result, as `rows` returns them."""
        with self._guarded() as connection:
            yield from connection.execute(sql)

    def require_plain(self, sql: str) -> None:
        """Raise NotAReport unless a statement, which `table` is to run, reads ordinary tables only."""
        with self._guarded() as connection:
            require_plain(self.path, connection, sql)

    @contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection]:
        try:
            with guarded(self.path, read_only_uri(self.path)) as connection:
                connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
                yield connection
        # A damaged schema can break sqlite3's own error message, which then is not UTF-8.
        except (sqlite3.Error, UnicodeError) as error:
            raise _damaged(self.path, error) from error

    def table(self, sql: str, most_rows: int | None = None) -> pa.Table:
        """Return the result of a query as Arrow columns.

        Raises NotAReport where SQLite fails in the middle, and where a damaged tree has more rows or bytes than
        fit into the file.
        """
        # Deferred: answering from the cache needs no driver. Its DB-API layer would import pandas.
        import adbc_driver_manager as adbc
        import adbc_driver_sqlite

        try:
            with (
                adbc_driver_sqlite.connect(read_only_uri(self.path)) as database,
                adbc.AdbcConnection(database) as connection,
                adbc.AdbcStatement(connection) as statement,
            ):
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
                statement.set_sql_query(sql)
                return self._whole(pa.RecordBatchReader.from_stream(statement.execute_query()[0]), most_rows)
        except (adbc.Error, pa.ArrowInvalid, OSError) as error:
            raise _damaged(self.path, error) from error

    def part(self, sql: str, most_rows: int) -> pa.Table:
        """Return a part of a table, all of whose columns but `text` are numbers.

        Raises NotAReport as `table` does, and for another value in place of a number: SQLite stores what it is
        given.
        """
        part = self.table(sql, most_rows)
        for field in part.schema:
            if field.name != "text" and (wrong_type := NO_NUMBERS.get(str(field.type))):
                raise NotAReport(f"{self.path} is damaged: it has {wrong_type} for a {field.name}. {AGAIN}")
        return part

    def _whole(self, batches: pa.RecordBatchReader, most_rows: int | None) -> pa.Table:
        read, rows = [], 0
        for batch in batches:
            rows += batch.num_rows
            self.bytes_read += batch.nbytes
            require_within(self.path, self.bytes_read)
            if rows > min(most_rows or rows, self.size_bytes):
                raise NotAReport(f"{self.path} is damaged: it has more rows than fit into it. {AGAIN}")
            read.append(batch)
        return pa.Table.from_batches(read, batches.schema)


def _damaged(path: Path, error: BaseException) -> NotAReport:
    if missing := _MISSING.search(str(error)):
        return trimmed(path, f"{missing[1]} {missing[2]}")
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return NotAReport(f"{path} is damaged: {first_line}. {AGAIN}")


def trimmed(path: Path, missing: str) -> NotAReport:
    """Return the error for a complete database that lacks tables or columns of an export."""
    return NotAReport(
        f"{path} has no {missing}: it is an export that was trimmed, or another program's. Export or record the "
        "whole report."
    )
