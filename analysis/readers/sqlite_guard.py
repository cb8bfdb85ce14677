"""What SQLite may do with an untrusted file: read ordinary tables, and run nothing that the file's author wrote.

Views, virtual tables, triggers, computed columns and defaults are expressions in the file, and run for as long as
their author likes. Three things protect a command from them: the schema is read first, and only what SQLite
itself calls an ordinary table is read; an authorizer refuses anything else when a statement is compiled; and a
statement ends when it takes more operations than a report of its size needs.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import AGAIN, NotAReport

# SQLite writes the text of an ordinary table so; that of a virtual one begins otherwise.
ORDINARY = "create table "
SCHEMA_SQL = """
SELECT tables.name, columns.name, columns.hidden
FROM sqlite_master AS tables, pragma_table_xinfo(tables.name) AS columns
WHERE lower(tables.type) = 'table' AND tables.rootpage > 0 ORDER BY tables.rowid, columns.cid
"""
# What a statement is made of, by SQLite's action codes; sqlite3 names only some of them before Python 3.13.
READ, SELECT, FUNCTION, PRAGMA, INSERT, UPDATE = 20, 21, 31, 19, 18, 23
# SQLite says that it changes this one when it declares its own json_each; the file is opened read-only.
SCHEMA = "sqlite_master"
PRAGMAS = frozenset({"table_xinfo", "freelist_count"})
NO_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "zeroblob", "randomblob"})
# Operations of SQLite's virtual machine: a lookup takes some twenty, and no statement here visits a byte so often.
OPERATIONS, OPERATIONS_PER_BYTE, STEP = 50_000_000, 4, 100_000


def read_only_uri(path: Path, *, locking: bool = False) -> str:
    """Return the URI that opens an SQLite file without ever writing to it or next to it.

    Any name is accepted, also one that is not valid UTF-8.
    """
    name = quote(os.fsencode(path.absolute()))
    return f"file:{name}?mode=ro" if locking else f"file:{name}?mode=ro&immutable=1"


@contextmanager
def guarded(path: Path, uri: str) -> Iterator[sqlite3.Connection]:
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

    def is_allowed(*request: Any) -> int:
        nonlocal denials
        answer = _authorized(*request)
        denials += answer == sqlite3.SQLITE_DENY
        return answer

    with closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_authorizer(is_allowed)
        connection.set_progress_handler(is_over, STEP)
        try:
            yield connection
        except sqlite3.DatabaseError as error:
            if left < 0:
                raise NotAReport(f"{path} keeps SQLite busy for longer than a report does. {AGAIN}") from error
            # SQLite takes a Ctrl-C inside one of these functions as its answer.
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_INTERRUPT or (code == sqlite3.SQLITE_AUTH and not denials):
                raise KeyboardInterrupt from error
            raise


def _authorized(action: int, first: str | None, second: str | None, _: str | None, through: str | None) -> int:
    """Allow reading tables, and functions that only calculate; nothing that comes `through` a view or trigger."""
    allowed = {
        READ: True,
        SELECT: True,
        FUNCTION: (second or "").lower() not in NO_FUNCTIONS,
        PRAGMA: (first or "").lower() in PRAGMAS,
        INSERT: first == SCHEMA,
        UPDATE: first == SCHEMA,
    }
    return sqlite3.SQLITE_OK if through is None and allowed.get(action, False) else sqlite3.SQLITE_DENY


def has_table(path: Path, begins: str) -> bool:
    """Return whether a SQLite file has a table whose name begins so; False for one that cannot be looked at."""
    try:
        with guarded(path, read_only_uri(path)) as connection:
            sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND substr(name, 1, ?) = ? LIMIT 1"
            return connection.execute(sql, (len(begins), begins)).fetchone() is not None
    except (sqlite3.Error, UnicodeError, NotAReport):
        return False


def columns_of_tables(path: Path, connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Return the columns of every table that stores rows.

    Raises NotAReport where the file has virtual tables or computes columns.
    """
    for name, text in connection.execute("SELECT name, sql FROM sqlite_master WHERE lower(type) = 'table'"):
        if not str(text).lower().startswith(ORDINARY):
            raise NotAReport(f"{path} has a virtual table, {name!r}, as no report does. {AGAIN}")
    columns: dict[str, tuple[str, ...]] = {}
    for table, column, computed in connection.execute(SCHEMA_SQL):
        if computed:
            raise NotAReport(f"{path} computes columns, as no report does. {AGAIN}")
        columns[table] = (*columns.get(table, ()), column)
    return columns


def require_plain(path: Path, connection: sqlite3.Connection, sql: str) -> None:
    """Compile a statement that another driver is to run; raise NotAReport where it would open a virtual table.

    Raises sqlite3.Error where the authorizer refuses it.
    """
    if any(row[1] == "VOpen" for row in connection.execute(f"EXPLAIN {sql}")):
        raise NotAReport(f"{path} has a virtual table in place of a table. {AGAIN}")
