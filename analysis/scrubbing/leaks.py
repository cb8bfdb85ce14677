"""What a report would tell others about a machine and its people: kinds and counts, never a value."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from analysis.errors import NotAReport
from analysis.readers.arrow_sql import Database
from analysis.readers.sqlite_file import read_only_uri
from analysis.scrubbing import patterns
from analysis.scrubbing.allowed import STRINGS
from analysis.scrubbing.freed_pages import freed_pages
from analysis.scrubbing.names import thread_name
from analysis.scrubbing.source import Source

TOGETHER = 1 << 20  # characters that are searched at once
FREED = "freed pages"


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
LOOKS: Mapping[str, re.Pattern[str]] = {
    "environment variables": patterns.ENVIRONMENT,
    "token-like strings": patterns.SECRET,
    "SSH keys": patterns.SSH_KEY,
    "e-mail addresses": patterns.E_MAIL,
    "home folders": patterns.HOME,
    "file paths": patterns.PATH,
    "network addresses": patterns.ADDRESS,
    "UUIDs and PCI addresses": patterns.IDENTIFIER,
}
RAW_LOOKS = {**LOOKS, "token-like strings": patterns.RAW_SECRET}
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
    """Find what a report would leak; nothing that a shared copy holds counts, but private values in its names do.

    Raises NotAReport where the report cannot be read.
    """
    source, found = Source(report), _Found()
    columns = Database(report).columns
    try:
        with closing(sqlite3.connect(read_only_uri(report), uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            _count_rows(connection, columns, found)
            _count_strings(source, found)
            _count_looks(connection, columns, found)
    except (sqlite3.Error, UnicodeError) as error:
        raise NotAReport(f"{report} is damaged: {error}. Export it again.") from error
    _count_freed(report, found)
    return found.leaks()


class _Found:
    """Counts by kind and table."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, kind: str, table: str, count: int) -> None:
        """Count values of a kind in a table."""
        named = table if table == FREED or NSYS_TABLES.fullmatch(table) else "other tables"
        self._counts[kind, named] += count

    def leaks(self) -> list[Leak]:
        """Return the kinds that occur, in the order in which they were looked for."""
        kinds = dict.fromkeys(kind for (kind, _), count in self._counts.items() if count)
        return [self._leak(kind) for kind in kinds]

    def _leak(self, kind: str) -> Leak:
        where = {table: count for (other, table), count in self._counts.items() if other == kind and count}
        return Leak(kind, sum(where.values()), tuple(where))


def _count_rows(connection: sqlite3.Connection, columns: Mapping[str, tuple[str, ...]], found: _Found) -> None:
    for rows in ROWS:
        if rows.table in columns and set(rows.columns) <= set(columns[rows.table]):
            sql = f"SELECT count(*) FROM {rows.table} WHERE {rows.condition}"  # noqa: S608 - literals
            found.add(rows.kind, rows.table, connection.execute(sql).fetchone()[0])


def _count_strings(source: Source, found: _Found) -> None:
    """Count the strings that no kept row refers to, and the names of threads that tell of a program."""
    roles = source.string_roles()
    names = source.thread_names()
    found.add("names of threads", "ThreadNames", sum(thread_name(name) != name for name in names))
    referred = roles.keys() | source.other_kernel_names()
    for rows in source.strings():
        found.add("strings of other rows", STRINGS, sum(number not in referred for number, _ in rows))


def _count_looks(connection: sqlite3.Connection, columns: Mapping[str, tuple[str, ...]], found: _Found) -> None:
    for table, names in columns.items():
        for name in names:
            for text in _texts(connection, table, name):
                _count_in(text, table, found)


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
            yield "\n".join(texts)
            texts, length = [], 0
    yield "\n".join(texts)


def _count_in(text: str, table: str, found: _Found, looks: Mapping[str, re.Pattern[str]] = LOOKS) -> None:
    for kind, pattern in looks.items():
        found.add(kind, table, sum(1 for _ in pattern.finditer(text)))


def _count_freed(report: Path, found: _Found) -> None:
    """Count the pages that rows were deleted from and that still hold them, and what stands there."""
    for page in freed_pages(report):
        found.add("pages that still hold deleted rows", FREED, any(page))
        _count_in(page.decode("utf-8", "replace"), FREED, found, RAW_LOOKS)
