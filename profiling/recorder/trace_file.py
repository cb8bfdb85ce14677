"""The report file: SQLite with the tables, columns and ids that `nsys export` writes.

One file is one `TraceFile`: rows go to a file next to the target, and only `publish` renames it into
place, so a reader finds either the old report or the complete new one. It contains the rows and metadata it is
given and the strings they refer to: nothing about the environment, paths, host or user.
"""

import itertools
import os
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlite_utils
from nvtx_kernels.analysis.support.files import Unfinished
from nvtx_kernels.analysis.support.units import bytes_text
from sqlite_utils.db import Table

Row = Mapping[str, int | float | str | None]

# Column names of nsys 2025.3 (schema 3.20), in its order; a star is its NOT NULL.
TABLES = {
    "StringIds": "id* value*",
    "NVTX_EVENTS": (
        "start* end eventType* rangeId category color text globalTid endGlobalTid textId domainId uint64Value"
        " int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText binaryData"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start* end* eventClass* globalTid correlationId nameId* returnValue* callchainId"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start* end* deviceId* contextId* greenContextId streamId* correlationId globalPid demangledName*"
        " shortName* mangledName launchType cacheConfig registersPerThread* gridX* gridY* gridZ* blockX*"
        " blockY* blockZ* staticSharedMemory* dynamicSharedMemory* localMemoryPerThread* localMemoryTotal*"
        " gridId* sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start* end* deviceId* contextId* greenContextId streamId* correlationId globalPid bytes* copyKind*"
        " deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause"
        " graphNodeId virtualAddress copyCount"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start* end* deviceId* contextId* greenContextId streamId* correlationId globalPid value* bytes*"
        " graphNodeId memKind"
    ),
    # Ours: nsys has no table of what PyTorch's allocator does (docs/memory.md).
    "NVTX_KERNELS_ALLOCATIONS": "start* globalTid* deviceId* block* bytes* totalBytes*",
    "PROFILER_OVERHEAD": "start* end* globalTid nameId* returnValue*",
    "ThreadNames": "nameId* priority globalTid",
    "TARGET_INFO_GPU": "vmId* id* name totalMemory smCount computeMajor computeMinor",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "META_DATA_EXPORT": "name* value",
}
TEXT_COLUMNS = {"value", "text", "jsonText", "binaryData", "name", "utcTime", "localTime"}
REAL_COLUMNS = {"doubleValue", "floatValue"}
# MEMSET's `value` is the byte it sets, not a text.
INTEGER_EXCEPTIONS = {("CUPTI_ACTIVITY_KIND_MEMSET", "value")}
SCHEMA_VERSION = "3.20.3"

# A report is rebuilt from the start after a crash, so SQLite's own journal would only cost time.
BATCH = 10_000
PRAGMAS = ("journal_mode = OFF", "synchronous = OFF")


class TraceFileError(Exception):
    """The report cannot be written; the text is a sentence for the user."""


def column_type(table: str, column: str) -> type:
    """Return the Python type of a column, by its type in nsys's schema."""
    if column in REAL_COLUMNS:
        return float
    if column in TEXT_COLUMNS and (table, column) not in INTEGER_EXCEPTIONS:
        return str
    return int


def global_tid(pid: int, tid: int) -> int:
    """Pack a process and thread id as nsys does: host 1 from bit 48, pid from bit 24, tid below."""
    return 1 << 48 | (pid & 0xFFFFFF) << 24 | (tid & 0xFFFFFF)


def global_pid(pid: int) -> int:
    """Pack a process id as nsys does: a global thread id whose thread is 0."""
    return global_tid(pid, 0)


class TraceFile:
    """Write one report, row by row, next to its target.

    `path` is the report to be. The folder must exist and be writable, or TraceFileError is raised at once
    rather than after the run that was to be recorded.
    """

    def __init__(self, path: str | Path) -> None:
        # The program may go to another folder, or fork, before the file is published.
        self.path, self._pid = Path(path).absolute(), os.getpid()
        self._strings: dict[str, int] = {}
        if self.path.is_dir():
            raise TraceFileError(f"cannot write {path}: it is a folder")
        with self._explained():
            self._file = Unfinished(self.path)
            self._file.create()
            self._db = sqlite_utils.Database(self._file.path)
            for pragma in PRAGMAS:
                self._db.execute(f"PRAGMA {pragma}")

    def text_id(self, value: str) -> int:
        """Return the StringIds id of a text, giving it one when it is new."""
        return self._strings.setdefault(value, len(self._strings) + 1)

    def add(self, table: str, rows: Iterable[Row]) -> int:
        """Append rows to a table of `TABLES` and return how many; columns a row lacks are NULL.

        As in nsys's exports, a table exists once it has a row.
        """
        added = 0
        for batch in _batches(rows):
            with self._explained():
                if not self._table(table).exists():
                    self._create(table)
                self._insert(table, batch)
            added += len(batch)
        return added

    def add_metadata(self, values: Mapping[str, str]) -> None:
        """Append names and values to META_DATA_EXPORT, where readers look for provenance."""
        self.add("META_DATA_EXPORT", ({"name": name, "value": value} for name, value in values.items()))

    def publish(self) -> None:
        """Write what is left to disk and rename the file into place."""
        self.add("StringIds", ({"id": number, "value": value} for value, number in self._strings.items()))
        with self._explained():
            self._db.conn.commit()
            self._db.conn.close()
            self._file.publish()

    def discard(self) -> None:
        """Remove the unpublished file; a published one stays, and so does a parent process's."""
        if self._pid != os.getpid():
            return
        with suppress(sqlite3.Error):
            self._db.conn.close()
        self._file.discard()

    def _insert(self, table: str, rows: list[Row]) -> None:
        # sqlite-utils' own insert takes 20 us a row, and recordings have millions. Table and columns are ours.
        names = list(dict.fromkeys(name for row in rows for name in row))
        values = ", ".join("?" * len(names))
        statement = f"INSERT INTO [{table}] ([{'], ['.join(names)}]) VALUES ({values})"  # noqa: S608
        self._db.conn.executemany(statement, ([row.get(name) for name in names] for row in rows))

    def _table(self, name: str) -> Table:
        table = self._db[name]
        assert isinstance(table, Table)
        return table

    def _create(self, table: str) -> None:
        columns = TABLES[table].split()
        names = [column.rstrip("*") for column in columns]
        self._table(table).create(
            {name: column_type(table, name) for name in names},
            not_null={column.rstrip("*") for column in columns if column.endswith("*")},
            pk="id" if table == "StringIds" else None,
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise TraceFileError(f"cannot write {self.path}: {reason}") from error


def check_writable(path: str | Path) -> None:
    """Raise TraceFileError unless a report can be written there; leave everything as it is."""
    TraceFile(path).discard()


@contextmanager
def writing(path: str | Path) -> Iterator[TraceFile]:
    """Open a report, publish it when the block ends and discard it when the block raises."""
    trace = TraceFile(path)
    try:
        yield trace
        trace.publish()
    finally:
        trace.discard()


def written(path: Path, steps: int, works: int) -> str:
    """Return a sentence: what was written, of so many steps and pieces of work, and the next command."""
    if not works:
        return f"{path} is an empty recording: no work was seen. Next: run the training steps inside the block"
    counted = f"{steps} step{'' if steps == 1 else 's'}" if steps else "no range `step`"
    per_step = " --per-step" if steps else ""
    size = bytes_text(path.stat().st_size)
    return f"{path}, {size}, {counted}. Next: nvtx-kernels rank {shlex.quote(str(path))}{per_step}"


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    remaining = iter(rows)
    while batch := list(itertools.islice(remaining, BATCH)):
        yield batch
