"""Whether a SQLite file is whole and at rest, so that it may be read without a lock and without its journal."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from analysis.errors import NotAReport

# Where SQLite's header has the page size, the number of pages, how often the file was changed, and the change for
# which that number was written (https://www.sqlite.org/fileformat2.html, 1.3).
HEADER_BYTES = 100
HEADER_FIELDS = slice(16, 18), slice(28, 32), slice(24, 28), slice(92, 96)
READ_VERSION, WAL_VERSION = 19, b"\2"
WAL_HEADER_BYTES = 32


def read_only_uri(path: Path, *, locking: bool = False) -> str:
    """Return the URI that opens a SQLite file without ever writing to it or beside it.

    Any name will do, also one that is no UTF-8.
    """
    name = quote(os.fsencode(path.absolute()))
    return f"file:{name}?mode=ro" if locking else f"file:{name}?mode=ro&immutable=1"


def state(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file is written: which one it is, its size, and when it was last changed."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def require_whole(path: Path) -> None:
    """Raise NotAReport where the file breaks off: in its last page, SQLite would only miss rows."""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    page, pages, counter, valid_for = (int.from_bytes(header[at]) for at in HEADER_FIELDS)
    size, whole = path.stat().st_size, (65_536 if page == 1 else page) * pages
    if counter == valid_for and size < whole:
        raise NotAReport(f"{path} breaks off after {size:,} of {whole:,} bytes. Copy or export it again.")


def require_at_rest(path: Path) -> None:
    """Raise NotAReport where somebody is writing the file, or was interrupted.

    What stands in a journal beside it belongs to it, and without a lock SQLite would not look there.
    """
    if _size(path, "-wal") > WAL_HEADER_BYTES:
        raise NotAReport(
            f"{path} is not whole: {path.name}-wal beside it holds changes to it. Close the program that writes "
            f"it, or run: sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'"
        )
    if _is_hot(path):
        raise NotAReport(
            f"{path} is being written, or its writing was interrupted: {path.name}-journal stands beside it. Wait "
            "until it is written, or export it again."
        )
    if _is_locked(path):
        raise NotAReport(f"{path} is being written by another program. Wait until it is written.")


def require_unchanged(path: Path, before: tuple[int, int, int]) -> None:
    """Raise NotAReport where a file was written since `before`."""
    if state(path) != before:
        raise NotAReport(f"{path} was changed while it was read. Wait until it is written.")


def _size(path: Path, suffix: str) -> int:
    try:
        return path.with_name(path.name + suffix).stat().st_size
    except OSError:
        return 0


def _is_hot(path: Path) -> bool:
    """Tell whether a journal holds what must be undone; one of a finished change begins with zeros."""
    try:
        with path.with_name(f"{path.name}-journal").open("rb") as journal:
            return journal.read(8).strip(b"\0") != b""
    except OSError:
        return False


def _is_locked(path: Path) -> bool:
    """Tell whether another process keeps everybody from reading; where that cannot be told, nobody does.

    A database with a write-ahead log is not asked: SQLite would create files beside it.
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
