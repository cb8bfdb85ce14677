"""What a report would tell others about a machine and its people: kinds and counts, never a value."""

from __future__ import annotations

import re
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..readers.sqlite import Database
from . import looks
from .allowed import STRINGS
from .renaming import thread_name
from .source import Source, opened

TOGETHER = 1 << 20  # characters that are searched at once
BETWEEN = "\n\0\n"  # occurs in no private value, so none is found across two texts
FREED = "freed pages"
OWN_PLACES = (FREED, "events", "the trace")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one of nsys's tables that are of one kind: those with these columns where the condition holds."""

    kind: str
    table: str
    columns: tuple[str, ...]
    condition: str


_CAPTURE, _EXPORT, _OLD_EXPORT = "META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA"
_PAIR = ("name", "value")
ROWS = (
    Rows("environment variables", _CAPTURE, _PAIR, "name LIKE '%ENVIRONMENT_VARIABLE%'"),
    Rows("command lines", _CAPTURE, _PAIR, "name LIKE '%:COMMAND' OR name LIKE '%:ARGUMENT%'"),
    Rows("working folders", _CAPTURE, _PAIR, "name LIKE '%WORKING_DIR%' AND value <> ''"),
    Rows("user names", _CAPTURE, _PAIR, "name LIKE '%USER_NAME%' AND value <> ''"),
    Rows("user names", _EXPORT, _PAIR, "name = 'EXPORT_USER' AND value <> ''"),
    Rows("user names", _OLD_EXPORT, _PAIR, "name = 'EXPORT_USER' AND value <> ''"),
    Rows("host names", _CAPTURE, _PAIR, "name = 'DEVICE_DISPLAY_NAME' AND value <> ''"),
    Rows("host names", _EXPORT, _PAIR, "name = 'EXPORT_HOST' AND value <> ''"),
    Rows("host names", _OLD_EXPORT, _PAIR, "name = 'EXPORT_HOST' AND value <> ''"),
    Rows("host names", "TARGET_INFO_SYSTEM_ENV", _PAIR, "name = 'Hostname' AND value <> ''"),
    Rows("file names", _EXPORT, _PAIR, "name LIKE 'EXPORT_PARAM%FILE' OR name LIKE 'EXPORT_PARAM%PATH%'"),
    Rows("file names", _OLD_EXPORT, _PAIR, "name LIKE 'EXPORT_PARAM%FILE' OR name LIKE 'EXPORT_PARAM%PATH%'"),
    Rows("dates", _EXPORT, _PAIR, "name LIKE 'EXPORT_TIME_%'"),
    Rows("dates", _OLD_EXPORT, _PAIR, "name LIKE 'EXPORT_TIME_%'"),
    Rows("dates", "TARGET_INFO_SESSION_START_TIME", (), "1"),
    Rows("hardware identifiers", "TARGET_INFO_GPU", ("uuid",), "uuid <> ''"),
    Rows("hardware identifiers", "TARGET_INFO_GPU", ("busLocation",), "busLocation <> ''"),
    Rows("hardware identifiers", "TARGET_INFO_SYSTEM_ENV", _PAIR, "name = 'SystemUID' AND value <> ''"),
    Rows("hardware identifiers", "TARGET_INFO_NIC_INFO", (), "1"),
    Rows("facts about the machine", "TARGET_INFO_SYSTEM_ENV", _PAIR, "value <> ''"),
    Rows("process names", "PROCESSES", ("name",), "name <> ''"),
    Rows("program output", "ProcessStreams", (), "1"),
    Rows("program output", "ANALYSIS_FILE", (), "1"),
    Rows("diagnostic messages", "DIAGNOSTIC_EVENT", (), "1"),
    Rows("NVTX payloads", "NVTX_EVENTS", ("jsonText",), "jsonText IS NOT NULL"),
    Rows("NVTX payloads", "NVTX_EVENTS", ("jsonTextId",), "jsonTextId IS NOT NULL"),
    Rows("NVTX payloads", "NVTX_EVENTS", ("binaryData",), "binaryData IS NOT NULL"),
)

# What is found by its look, in any text of any table and in freed pages.
FOUND: Mapping[str, looks.Finder] = {
    "environment variables": looks.by(looks.ENVIRONMENT),
    "token-like strings": looks.secrets,
    "SSH keys": looks.LOOKS["key"],
    "web addresses": looks.LOOKS["url"],
    "e-mail addresses": looks.LOOKS["email"],
    "home folders": looks.by(looks.HOME),
    "file paths": looks.paths,
    "host names": looks.LOOKS["host"],
    "network addresses": looks.addresses,
    "UUIDs and PCI addresses": looks.LOOKS["id"],
}
RAW_FOUND = {**FOUND, "token-like strings": looks.by(looks.RAW_SECRET)}
# Any other table's name may itself be private.
NSYS_TABLES = re.compile(
    r"(?:META_DATA|EXPORT_META|TARGET_INFO|CUPTI_ACTIVITY|NVTX|ENUM|CUDA|OSRT|DIAGNOSTIC|ANALYSIS|PROFILER)_[A-Z_]+"
    r"|StringIds|ThreadNames|ProcessStreams|PROCESSES"
)


@dataclass(frozen=True, slots=True)
class Leak:
    """One kind of private value, how many there are, and in which tables."""

    kind: str
    count: int
    where: tuple[str, ...]


def leaks(report: Path) -> list[Leak]:
    """Find what a report would leak; the content of a shared copy does not count, except private values in names.

    Raises NotAReport if the report cannot be read.
    """
    source, found = Source(report), Found()
    columns = Database(report).columns
    with opened(report, lambda raw: raw.decode("utf-8", "replace")) as connection:
        _count_rows(connection, columns, found)
        _count_strings(source, found)
        _count_looks(connection, columns, found)
    _count_freed(report, found)
    return found.leaks()


class Found:
    """Counts by kind and table."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, kind: str, table: str, count: int) -> None:
        """Count values of a kind in a table."""
        named = table if table in OWN_PLACES or NSYS_TABLES.fullmatch(table) else "other tables"
        self._counts[kind, named] += count

    def leaks(self) -> list[Leak]:
        """Return the kinds that occur, in the order in which they were looked for."""
        kinds = dict.fromkeys(kind for (kind, _), count in self._counts.items() if count)
        return [self._leak(kind) for kind in kinds]

    def _leak(self, kind: str) -> Leak:
        where = {table: count for (other, table), count in self._counts.items() if other == kind and count}
        return Leak(kind, sum(where.values()), tuple(where))


def _count_rows(connection: sqlite3.Connection, columns: Mapping[str, tuple[str, ...]], found: Found) -> None:
    for rows in ROWS:
        if rows.table in columns and set(rows.columns) <= set(columns[rows.table]):
            sql = f"SELECT count(*) FROM {rows.table} WHERE {rows.condition}"  # noqa: S608 - literals
            found.add(rows.kind, rows.table, connection.execute(sql).fetchone()[0])


def _count_strings(source: Source, found: Found) -> None:
    """Count the strings that no kept row refers to, and the names of threads that reveal a program."""
    roles = source.string_roles()
    names = source.thread_names()
    found.add("names of threads", "ThreadNames", sum(thread_name(name) != name for name in names))
    referred = roles.keys() | source.other_kernel_names()
    for rows in source.strings():
        found.add("strings of other rows", STRINGS, sum(number not in referred for number, _ in rows))


def _count_looks(connection: sqlite3.Connection, columns: Mapping[str, tuple[str, ...]], found: Found) -> None:
    for table, names in columns.items():
        for name in names:
            for text in _texts(connection, table, name):
                count_in(text, table, found)


def _texts(connection: sqlite3.Connection, table: str, column: str) -> Iterator[str]:
    """Yield a column's texts, many in one, each on a line of its own."""
    table, column = (name.replace('"', '""') for name in (table, column))
    sql = f"""SELECT CAST("{column}" AS TEXT) FROM "{table}" WHERE typeof("{column}") IN ('text', 'blob')"""  # noqa: S608
    texts: list[str] = []
    length = 0
    for (text,) in connection.execute(sql):
        texts.append(text)
        length += len(text)
        if length > TOGETHER:
            yield BETWEEN.join(texts)
            texts, length = [], 0
    yield BETWEEN.join(texts)


def count_in(text: str, table: str, found: Found, finders: Mapping[str, looks.Finder] = FOUND) -> None:
    """Count what is found in a text by its look."""
    for kind, find in finders.items():
        found.add(kind, table, len(find(text)))


def _count_freed(report: Path, found: Found) -> None:
    """Count the pages with deleted rows, and the private values in them."""
    for page in freed_pages(report):
        found.add("pages with deleted rows", FREED, any(page))
        count_in(page.decode("utf-8", "replace"), FREED, found, RAW_FOUND)


HEADER = struct.Struct(">16xH14xII")  # page size, first trunk of the free list, how many pages it has


def freed_pages(path: Path) -> Iterator[bytes]:
    """Yield the content of every page on the free list; a damaged list ends where it makes no sense."""
    with path.open("rb") as file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            return
        size, trunk, left = HEADER.unpack(header)
        size = 65536 if size == 1 else size
        while trunk and left > 0:
            page = _page(file, size, trunk)
            trunk, count = struct.unpack_from(">II", page) if len(page) >= 8 else (0, 0)
            count = min(count, (len(page) - 8) // 4, left - 1)
            yield page[8 + 4 * max(count, 0) :]
            for (number,) in struct.iter_unpack(">I", page[8 : 8 + 4 * max(count, 0)]):
                yield _page(file, size, number)
            left -= 1 + count


def _page(file: BinaryIO, size: int, number: int) -> bytes:
    file.seek((number - 1) * size if number else 0)
    return file.read(size)
