"""SQLite files of strangers: read without a lock, if they are complete, and nothing in them is run.

Views, virtual tables, triggers, computed columns and defaults are expressions in the file, and run for as long as
their author likes. Three things protect a command from them: the schema is read first, and only what SQLite
itself calls an ordinary table is read; an authorizer refuses anything else when a statement is compiled; and a
statement ends when it takes more operations than a report of its size needs.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from ..errors import AGAIN, NotAReport
from ..support.progress import expect
from .safety import OBJECT_BYTES, opened_file, require_within

# Where SQLite's header has the page size, the number of pages, how often the file was changed, and the change for
# which that number was written (https://www.sqlite.org/fileformat2.html, 1.3).
HEADER_BYTES = 100
HEADER_FIELDS = slice(16, 18), slice(28, 32), slice(24, 28), slice(92, 96)
READ_VERSION = 19
WAL_VERSION = b"\2"
WAL_HEADER_BYTES = 32

# SQLite writes the text of an ordinary table so; that of a virtual one begins otherwise.
ORDINARY = "create table "
SCHEMA_SQL = """
SELECT tables.name, columns.name, columns.hidden
FROM sqlite_master AS tables, pragma_table_xinfo(tables.name) AS columns
WHERE lower(tables.type) = 'table' AND tables.rootpage > 0 ORDER BY tables.rowid, columns.cid
"""
# What a statement is made of, by SQLite's action codes; sqlite3 names only some of them before Python 3.13.
READ = 20
SELECT = 21
FUNCTION = 31
PRAGMA = 19
INSERT = 18
UPDATE = 23
# SQLite says that it changes this one when it declares its own json_each; the file is opened read-only.
SCHEMA = "sqlite_master"
PRAGMAS = frozenset({"table_xinfo", "freelist_count"})
#: What SQLite says where the authorizer does not allow something.
REFUSALS = ("not authorized", "is prohibited")
NO_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "zeroblob", "randomblob"})
# Operations of SQLite's virtual machine: a lookup takes some twenty, and no statement here visits a byte so often.
OPERATIONS = 50_000_000
OPERATIONS_PER_BYTE = 4
STEP = 100_000

MAX_PARTS = 256
# Few enough that a batch of the longest names there are fits in memory before it is looked at.
BATCH_ROWS = 8192
FEW_ROWS = 256
# Arrow's types of values that can occur in place of a number.
NO_NUMBERS = {"string": "text", "large_string": "text", "binary": "bytes", "large_binary": "bytes"}
# SQLite's names for a row's number; a column can take one of them.
ROW_NUMBERS = ("rowid", "_rowid_", "oid")
_MISSING = re.compile(r"no such (table|column): (?:\w+\.)*(\w+)")


def read_only_uri(path: Path, *, locking: bool = False) -> str:
    """Return the URI that opens an SQLite file without ever writing to it or next to it.

    Any name is accepted, also one that is not valid UTF-8.
    """
    name = quote(os.fsencode(path.absolute()))
    if locking:
        return f"file:{name}?mode=ro"
    return f"file:{name}?mode=ro&immutable=1"


def has_table(path: Path, begins: str) -> bool:
    """Return whether a SQLite file has a table whose name begins so; False for one that cannot be looked at."""
    try:
        with _guarded(path) as connection:
            sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND substr(name, 1, ?) = ? LIMIT 1"
            return connection.execute(sql, (len(begins), begins)).fetchone() is not None
    except (sqlite3.Error, UnicodeError, NotAReport):
        return False


class Database:
    """A SQLite file, opened read-only: schema questions and small rows through `sqlite3`, columns through ADBC.

    Raises NotAReport, here and in its methods, for a file that is damaged, incomplete or being written, and for
    one that has virtual tables or computes columns. `again` says what to do then.
    """

    def __init__(self, path: Path, again: str = AGAIN) -> None:
        self.path = path
        self.again = again
        _require_complete(path)
        self.size_bytes = path.stat().st_size
        self.bytes_read = 0
        self.columns: dict[str, tuple[str, ...]] = {}  # of every table that stores rows
        with self._connected() as connection:
            for name, text in connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE lower(type) = 'table'"
            ):
                if not str(text).lower().startswith(ORDINARY):
                    raise NotAReport(f"{path} has a virtual table, {name!r}, as no report does. {self.again}")
            for table, column, computed in connection.execute(SCHEMA_SQL):
                if computed:
                    raise NotAReport(f"{path} computes columns, as no report does. {self.again}")
                self.columns[table] = (*self.columns.get(table, ()), column)

    def has(self, table: str) -> bool:
        """Return whether the table exists and has at least one row."""
        return table in self.columns and bool(self.rows(f'SELECT 1 FROM "{table}" LIMIT 1'))  # noqa: S608

    def has_columns(self, table: str, *columns: str) -> bool:
        """Return whether a table has these columns; SQLite ignores the case of names."""
        return {name.lower() for name in columns} <= {name.lower() for name in self.columns.get(table, ())}

    def parts(self, table: str, sql: str, rows: int) -> list[Callable[[], pa.Table]]:
        """Divide a statement by the row ids of a table, into parts of about `rows` rows; [] for an empty table.

        `sql` has `{}` for the condition on the rows, and its columns but `text` are numbers. Raises NotAReport
        unless it reads ordinary tables only.
        """
        if not self.has(table):
            return []
        columns = {name.lower() for name in self.columns[table]}
        row = next((name for name in ROW_NUMBERS if name not in columns), ROW_NUMBERS[0])
        # Asked one at a time, either end is one step down the tree; both at once would scan the table.
        first, last = (self.rows(f'SELECT {end}({row}) FROM "{table}"')[0][0] for end in ("min", "max"))  # noqa: S608
        if first is None or last is None or last < first:  # it has rows; a page of another table numbers none
            raise NotAReport(f"{self.path} is damaged: the rows of {table} are out of order. {self.again}")
        count = min((last - first) // rows + 1, MAX_PARTS)
        expect(last - first + 1)
        bounds = [first + (last + 1 - first) * part // count for part in range(count + 1)]
        statements = [
            (sql.format(f"{row} >= {low} AND {row} < {high}"), high - low) for low, high in pairwise(bounds)
        ]
        if any(step[1] == "VOpen" for step in self.rows(f"EXPLAIN {statements[0][0]}")):
            raise NotAReport(f"{self.path} has a virtual table in place of a table. {self.again}")
        return [partial(self._part, statement, most) for statement, most in statements]

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a small result; text that is not UTF-8 is decoded with replacement characters."""
        with self._connected() as connection:
            return connection.execute(sql, parameters).fetchall()

    def bounded_rows(self, statements: Iterable[str]) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of each result, of numbers and texts; raises NotAReport for more than a file may have."""
        with self._connected() as connection:
            connection.text_factory = self._counted_text
            for sql in statements:
                rows: list[tuple[Any, ...]] = []
                cursor = connection.execute(sql)
                while batch := cursor.fetchmany(FEW_ROWS):
                    if bytes in set(map(type, chain.from_iterable(batch))):
                        raise NotAReport(f"{self.path} is damaged: it has bytes for a text. {self.again}")
                    self.bytes_read += OBJECT_BYTES * len(batch) * len(batch[0])
                    require_within(self.path, self.bytes_read)
                    rows += batch
                yield rows

    def _counted_text(self, raw: bytes) -> str:
        self.bytes_read += len(raw)
        return raw.decode("utf-8", "replace")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with _guarded(self.path) as connection:
                connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
                yield connection
        # A damaged schema can break sqlite3's own error message, which then is not UTF-8.
        except (sqlite3.Error, UnicodeError) as error:
            raise self._damaged(error) from error

    def table(self, sql: str, most_rows: int | None = None) -> pa.Table:
        """Return the result of a query as Arrow columns; a damaged tree can have more rows or bytes than fit."""
        # Deferred: answering from the cache needs no driver. Its DB-API layer would import pandas.
        import adbc_driver_manager as adbc
        import adbc_driver_sqlite

        batches = []
        rows = 0
        try:
            with (
                adbc_driver_sqlite.connect(read_only_uri(self.path)) as database,
                adbc.AdbcConnection(database) as connection,
                adbc.AdbcStatement(connection) as statement,
            ):
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
                statement.set_sql_query(sql)
                reader = pa.RecordBatchReader.from_stream(statement.execute_query()[0])
                for batch in reader:
                    rows += batch.num_rows
                    self.bytes_read += batch.nbytes
                    require_within(self.path, self.bytes_read)
                    if rows > min(most_rows or rows, self.size_bytes):
                        raise NotAReport(
                            f"{self.path} is damaged: it has more rows than fit into it. {self.again}"
                        )
                    batches.append(batch)
                return pa.Table.from_batches(batches, reader.schema)
        except (adbc.Error, pa.ArrowInvalid, OSError) as error:
            raise self._damaged(error) from error

    def _part(self, sql: str, most_rows: int) -> pa.Table:
        """Return a part of a table; SQLite stores what it is given, also text for a number."""
        part = self.table(sql, most_rows)
        for field in part.schema:
            if field.name != "text" and (wrong_type := NO_NUMBERS.get(str(field.type))):
                raise NotAReport(f"{self.path} is damaged: it has {wrong_type} for a {field.name}. {self.again}")
        return part

    def _damaged(self, error: BaseException) -> NotAReport:
        if missing := _MISSING.search(str(error)):
            return NotAReport(
                f"{self.path} has no {missing[1]} {missing[2]}: it is an export that was trimmed, or another "
                "program's. Export or record the whole report."
            )
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        return NotAReport(f"{self.path} is damaged: {first_line}. {self.again}")


@contextmanager
def _guarded(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads only ordinary tables, for a limited number of operations.

    Raises NotAReport if a statement takes more of them, and sqlite3.Error if SQLite or the authorizer
    refuses, and KeyboardInterrupt as always.
    """
    left = (OPERATIONS + OPERATIONS_PER_BYTE * path.stat().st_size) // STEP
    denials = 0

    def is_over() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    def is_allowed(action: int, first: str | None, second: str | None, _: str | None, through: str | None) -> int:
        """Allow reading tables, and functions that only calculate; nothing `through` a view or trigger."""
        nonlocal denials
        only_reads = (
            action in (READ, SELECT)
            or (action == FUNCTION and (second or "").lower() not in NO_FUNCTIONS)
            or (action == PRAGMA and (first or "").lower() in PRAGMAS)
            or (action in (INSERT, UPDATE) and first == SCHEMA)
        )
        if through is None and only_reads:
            return sqlite3.SQLITE_OK
        denials += 1
        return sqlite3.SQLITE_DENY

    with closing(sqlite3.connect(read_only_uri(path), uri=True)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_authorizer(is_allowed)
        connection.set_progress_handler(is_over, STEP)
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            if left < 0:
                raise NotAReport(f"{path} keeps SQLite busy for longer than a report does. {AGAIN}") from error
            # SQLite takes a Ctrl-C inside one of these functions as its answer.
            is_interrupted = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
            is_refused = any(words in str(error) for words in REFUSALS)  # their codes differ
            if is_interrupted or (is_refused and not denials):
                raise KeyboardInterrupt from error
            raise


def _require_complete(path: Path) -> None:
    """Raise NotAReport if the file is truncated, is being written, or its writing was interrupted.

    In the last page of a truncated file, SQLite would only miss rows. A journal next to it belongs to it, and
    without a lock SQLite would not read that.
    """
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    page, pages, counter, valid_for = (int.from_bytes(header[field]) for field in HEADER_FIELDS)
    size = path.stat().st_size
    complete = (65_536 if page == 1 else page) * pages
    if counter == valid_for and size < complete:
        raise NotAReport(
            f"{path} is truncated after {size:,} of {complete:,} bytes. Copy, export or record it again."
        )
    for ending in ("-wal", "-journal", "-shm"):
        beside = path.with_name(f"{path.name}{ending}")
        with suppress(OSError):
            if not stat.S_ISREG(beside.lstat().st_mode):  # SQLite opens it too, and waits for a pipe
                raise NotAReport(f"{beside} next to the report is not a regular file. Move it away.")
    with suppress(OSError):
        if path.with_name(f"{path.name}-wal").stat().st_size > WAL_HEADER_BYTES:
            raise NotAReport(
                f"{path} is incomplete: {path.name}-wal next to it has changes to it. Close the program that "
                f"writes it, or run: sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
            )
    with suppress(OSError), opened_file(path.with_name(f"{path.name}-journal"), within=path.parent) as journal:
        if journal.read(8).strip(b"\0"):  # changes to undo; that of a finished change begins with zeros
            raise NotAReport(
                f"{path} is being written, or its writing was interrupted: {path.name}-journal is next to it. "
                "Wait until it is written, or export or record it again."
            )
    if header[READ_VERSION : READ_VERSION + 1] == WAL_VERSION:
        return  # SQLite would create files next to it
    try:
        with closing(sqlite3.connect(read_only_uri(path, locking=True), uri=True, timeout=0)) as connection:
            connection.execute("PRAGMA schema_version")
    except (sqlite3.Error, UnicodeError) as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise NotAReport(f"{path} is being written by another program. Wait until it is written.") from error
