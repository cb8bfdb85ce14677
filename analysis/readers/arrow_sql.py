"""SQL over a SQLite file into Arrow columns, without a Python object per value."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.errors import NotAReport
from analysis.progress import expect
from analysis.readers.sqlite_file import read_only_uri, require_at_rest, require_whole

MAX_PARTS = 256
# SQLite's names for a row's number; a column can take one of them.
ROW_NUMBERS = ("rowid", "_rowid_", "oid")
SCHEMA_SQL = """
SELECT tables.name, columns.name, columns.hidden
FROM sqlite_master AS tables, pragma_table_xinfo(tables.name) AS columns
WHERE tables.type = 'table' AND tables.rootpage > 0 ORDER BY tables.rowid, columns.cid
"""


class Database:
    """A SQLite file, opened read-only: schema questions and small rows through `sqlite3`, columns through ADBC."""

    def __init__(self, path: Path) -> None:
        self.path = path
        require_whole(path)
        require_at_rest(path)
        self.columns = self._schema()

    def _schema(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of every table that stores rows.

        Views, virtual tables and computed columns run what the file's author wrote, for as long as that takes.
        """
        columns: dict[str, tuple[str, ...]] = {}
        for table, column, computed in self.rows(SCHEMA_SQL):
            if computed:
                raise NotAReport(f"{self.path} computes columns, as no export does. Export it again.")
            columns[table] = (*columns.get(table, ()), column)
        return columns

    def has(self, table: str) -> bool:
        """Tell whether the table exists and holds at least one row."""
        return table in self.columns and bool(self.rows(f'SELECT 1 FROM "{table}" LIMIT 1'))  # noqa: S608

    def stretches(self, table: str, rows: int) -> list[str]:
        """Return SQL conditions that cut a table, by row id, into parts of about this many rows.

        Raises NotAReport where the table's tree is damaged.
        """
        columns = {name.lower() for name in self.columns[table]}
        row = next((name for name in ROW_NUMBERS if name not in columns), ROW_NUMBERS[0])
        # Asked one at a time, either end is one step down the tree; both at once would scan the table.
        first, last = (self.rows(f'SELECT {end}({row}) FROM "{table}"')[0][0] for end in ("min", "max"))  # noqa: S608
        if last < first:
            raise NotAReport(f"{self.path} is damaged: the rows of {table} are out of order. Export it again.")
        count = min((last - first) // rows + 1, MAX_PARTS)
        expect(last - first + 1)
        bounds = [first + (last + 1 - first) * part // count for part in range(count + 1)]
        return [f"{row} >= {low} AND {row} < {high}" for low, high in pairwise(bounds)]

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
