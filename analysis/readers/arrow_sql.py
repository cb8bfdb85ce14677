"""SQL over a SQLite file into Arrow columns, without a Python object per value."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from analysis.errors import NotAReport

MAX_PARTS = 256
# Where SQLite's header has the page size, the number of pages, how often the file was changed, and the change for
# which that number was written (https://www.sqlite.org/fileformat2.html, 1.3).
HEADER_BYTES = 100
HEADER_FIELDS = slice(16, 18), slice(28, 32), slice(24, 28), slice(92, 96)


def read_only_uri(path: Path) -> str:
    """Return the URI that opens a SQLite file without ever writing to it or beside it."""
    return f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"


class Database:
    """A SQLite file, opened read-only: schema questions and small rows through `sqlite3`, columns through ADBC."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refuse_a_part()
        self.columns = self._schema()

    def _refuse_a_part(self) -> None:
        """Raise NotAReport where the file breaks off: in its last page, SQLite would only miss rows."""
        with self.path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        page, pages, counter, valid_for = (int.from_bytes(header[at]) for at in HEADER_FIELDS)
        size, whole = self.path.stat().st_size, (65_536 if page == 1 else page) * pages
        if counter == valid_for and size < whole:
            raise NotAReport(f"{self.path} breaks off after {size:,} of {whole:,} bytes. Copy or export it again.")

    def _schema(self) -> dict[str, tuple[str, ...]]:
        tables = [name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            table: tuple(row[0] for row in self.rows("SELECT name FROM pragma_table_info(?)", table))
            for table in tables
        }

    def has(self, table: str) -> bool:
        """Tell whether the table exists and holds at least one row."""
        return table in self.columns and bool(self.rows(f'SELECT 1 FROM "{table}" LIMIT 1'))  # noqa: S608

    def stretches(self, table: str, rows: int) -> list[str]:
        """Return SQL conditions that cut a table, by row id, into parts of about this many rows."""
        first, last = self.rows(f'SELECT min(rowid), max(rowid) FROM "{table}"')[0]  # noqa: S608
        count = min((last - first) // rows + 1, MAX_PARTS)
        bounds = [first + (last + 1 - first) * part // count for part in range(count + 1)]
        return [f"rowid >= {low} AND rowid < {high}" for low, high in pairwise(bounds)]

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a small result; text that is not UTF-8 is decoded with replacement characters.

        Raises NotAReport where SQLite fails, as it does on a truncated or damaged file.
        """
        try:
            with closing(sqlite3.connect(read_only_uri(self.path), uri=True)) as connection:
                connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
                return connection.execute(sql, parameters).fetchall()
        # A damaged schema can break sqlite3's own error message, which then is no UTF-8.
        except (sqlite3.Error, UnicodeError) as error:
            raise _damaged(self.path, error) from error

    def table(self, sql: str) -> pa.Table:
        """Return the result of a query as Arrow columns.

        Raises NotAReport where SQLite fails in the middle.
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
                statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
                statement.set_sql_query(sql)
                return pa.RecordBatchReader.from_stream(statement.execute_query()[0]).read_all()
        except (adbc.Error, pa.ArrowInvalid, OSError) as error:
            raise _damaged(self.path, error) from error


def _damaged(path: Path, error: BaseException) -> NotAReport:
    return NotAReport(f"{path} is damaged: {_first_line(error)}. Export it again.")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
