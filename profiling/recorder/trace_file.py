"""The report file: SQLite with the tables, columns and ids that `nsys export` writes.

One file is one `TraceFile`: rows go to a file next to the target, and only `publish` renames it into place, so a
reader finds either the old report or the complete new one. If the process is killed, that file stays, and is a
report of all that was committed. What PyTorch saves is in a folder beside it that only this user can read.

    report.sqlite.unfinished-1234              until it is published; locked while its process runs
    report.sqlite.unfinished-1234-sessions/    what PyTorch saved, until it is read
    report-2.sqlite                            a recording that has less than the report that is there

A file that is no recording is never replaced. A report contains the rows and metadata it is given and the strings
they refer to: nothing about the environment, paths, host or user.
"""

import fcntl
import itertools
import os
import re
import secrets
import sqlite3
import stat
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote

import torch
from nvtx_kernels.analysis.support.files import Unfinished, standard_numbers_taken

import nvtx_kernels

Row = Mapping[str, int | float | str | None]

METADATA = "META_DATA_EXPORT"
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
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start* end* deviceId* contextId* greenContextId streamId* correlationId globalPid deprecatedSyncType"
        " syncType* eventId* eventSyncId"
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "deviceId* contextId* greenContextId streamId* correlationId globalPid eventId* eventSyncId"
    ),
    # Ours: nsys has no table of what PyTorch's allocator does (docs/memory.md).
    "NVTX_KERNELS_ALLOCATIONS": "start* globalTid* deviceId* block* bytes* totalBytes*",
    "PROFILER_OVERHEAD": "start* end* globalTid nameId* returnValue*",
    "ThreadNames": "nameId* priority globalTid",
    "TARGET_INFO_GPU": "vmId* id* name totalMemory smCount computeMajor computeMinor",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    METADATA: "name* value",
}
TEXT_COLUMNS = {"value", "text", "jsonText", "binaryData", "name", "utcTime", "localTime"}
REAL_COLUMNS = {"doubleValue", "floatValue"}
# MEMSET's `value` is the byte it sets, not a text.
INTEGER_EXCEPTIONS = {("CUPTI_ACTIVITY_KIND_MEMSET", "value")}
SCHEMA_VERSION = "3.20.3"
PRODUCT = "nvtx-kernels recorder"
VM_ID = 1 << 48
SCHEMA_PARTS = tuple(f"EXPORT_SCHEMA_VERSION_{part}" for part in ("MAJOR", "MINOR", "MICRO"))

BATCH = 10_000
NONE_ALIKE: Mapping[str, int] = {}
# Rows reach the file when they are committed, or are more than 16 MiB of pages: a journal would only cost time.
PRAGMAS = ("journal_mode = OFF", "synchronous = OFF", "cache_size = 4096")
# How the file is called until it is published: the report's name, this, the number of the process, and a token
# where another file has that name; and what its folder's name has besides.
UNFINISHED, SESSIONS = ".unfinished-", "-sessions"
NUMBER_AND_TOKEN = re.compile(r"([0-9]+)(?:-[0-9a-f]{4})?")
OF_SESSIONS = re.compile(r"session[0-9]+\.pt\.trace\.json(?:\.tmp|\.escaped)?")
# What the metadata says about the amount recorded.
STEPS, INCOMPLETE = "NVTX_KERNELS_STEPS", "NVTX_KERNELS_INCOMPLETE"


class TraceFileError(Exception):
    """The report cannot be written; the text is a sentence for the user."""


class AbandonedError(TraceFileError):
    """The user pressed Ctrl-C again while the report was written."""


class Content(NamedTuple):
    """How much a recording has: its measured steps, and whether these are as many as were asked for."""

    steps: int
    is_complete: bool

    def may_replace(self, old: "Content") -> bool:
        """Return whether this recording may replace an old one: nothing may give way to less."""
        if self.is_complete and (self.steps or not old.steps):
            return True
        return not old.is_complete and self.steps >= old.steps

    def metadata(self) -> dict[str, int]:
        """Return a report's metadata on this."""
        return {STEPS: self.steps, **({} if self.is_complete else {INCOMPLETE: 1})}


#: Of a recording that is not finished, and of a report that does not say it, as those of earlier versions.
NOTHING, UNKNOWN = Content(0, is_complete=False), Content(1, is_complete=True)


def creating(table: str) -> str:
    """Return SQL that creates a table of `TABLES`, with the types of nsys's schema."""
    columns = []
    for name in TABLES[table].split():
        column = name.rstrip("*")
        is_text = (table, name.rstrip("*")) not in INTEGER_EXCEPTIONS
        kind = "REAL" if column in REAL_COLUMNS else "TEXT" if column in TEXT_COLUMNS and is_text else "INTEGER"
        columns.append(f"{column} {kind}{' NOT NULL' * name.endswith('*')}")
    key = ", PRIMARY KEY (id)" * (table == "StringIds")
    return f"CREATE TABLE {table} ({', '.join(columns)}{key})"


def writable(text: str) -> str:
    """Return a text as UTF-8 can hold it: a surrogate alone becomes a question mark."""
    return text.encode(errors="replace").decode()


def global_tid(pid: int, tid: int) -> int:
    """Pack a process and thread id as nsys does: host 1 from bit 48, pid from bit 24, tid below."""
    return 1 << 48 | (pid & 0xFFFFFF) << 24 | (tid & 0xFFFFFF)


class TraceFile:
    """Write one report, row by row, next to its target.

    `path` is the report to be; where another process is writing that one, it is another, and `other_writer` is the
    number of that process. The folder must exist and be writable, or TraceFileError is raised at once rather than
    after the run that was to be recorded.
    """

    def __init__(self, path: str | Path) -> None:
        # The program may go to another folder, or fork, before the file is published.
        self.path = Path(path).absolute()
        self._pid = os.getpid()
        self._strings: dict[str, int] = {}
        self._strings_written = 0
        self._tables: set[str] = set()
        self.is_abandoned = self._is_left = False
        self._sessions: Path | None = None
        _refuse_folder(path)
        content_of(self.path)
        with self._explained(), standard_numbers_taken():
            self._file = self._created()
            _lock(self, self._file.path)
            self.other_writer = next((pid for pid, file in self._leftovers() if _is_locked(file)), 0)
            if self.other_writer:
                _unlock(self)
                self._file.discard()
                self.path = with_part(self.path, f"pid{self._pid}")
                self._file = self._created()
                _lock(self, self._file.path)
            self._db = sqlite3.connect(self._file.path)
            for pragma in PRAGMAS:
                self._db.execute(f"PRAGMA {pragma}")

    def text_id(self, value: str) -> int:
        """Return the StringIds id of a text, giving it one when it is new."""
        return self._strings.setdefault(value, len(self._strings) + 1)

    def add(self, table: str, rows: Iterable[Row]) -> int:
        """Append rows to a table of `TABLES` and return how many; columns a row lacks are NULL.

        As in nsys's exports, a table exists once it has a row.
        """
        added, remaining = 0, iter(rows)
        while batch := list(itertools.islice(remaining, BATCH)):
            names = list(dict.fromkeys(name for row in batch for name in row))
            values = [tuple(map(row.get, names)) for row in batch]
            added += self._insert(table, names, values)
        return added

    def add_columns(self, table: str, **columns: Any) -> int:
        """Append rows given as columns, arrays or lists, or one whole number for all rows; return how many."""
        lists: dict[str, Any] = {}
        alike: dict[str, int] = {}
        for name, column in columns.items():
            if isinstance(column, int):
                alike[name] = column
            else:
                lists[name] = column.tolist() if hasattr(column, "tolist") else column
        count = len(next(iter(lists.values())))
        remaining = zip(*lists.values(), strict=True)
        while batch := list(itertools.islice(remaining, BATCH)):
            self._insert(table, [*lists], batch, alike)
        return count

    def _insert(
        self,
        table: str,
        names: list[str],
        rows: list[tuple[Any, ...]],
        alike: Mapping[str, int] = NONE_ALIKE,
    ) -> int:
        """Append rows; a value common to all of them is a part of the statement, which takes less time."""
        if self.is_abandoned:
            raise AbandonedError(f"abandoned: {self.path} was not written")
        with self._explained():
            if table not in self._tables:
                self._db.execute(creating(table))
                self._tables.add(table)
            values = ", ".join([*"?" * len(names), *map(str, alike.values())])
            statement = f"INSERT INTO {table} ({', '.join([*names, *alike])}) VALUES ({values})"  # noqa: S608
            self._db.executemany(statement, rows)
        return len(rows)

    def commit(self, metadata: Iterable[Row] = ()) -> None:
        """Make a readable report of the rows so far, with metadata in place of what it had, if there is any."""
        if rows := list(metadata):
            if METADATA in self._tables:
                with self._explained():
                    self._db.execute(f"DELETE FROM {METADATA}")  # noqa: S608
            self.add(METADATA, rows)
        names = itertools.islice(self._strings.items(), self._strings_written, None)
        self._strings_written += self.add(
            "StringIds", ({"id": id_, "value": writable(text)} for text, id_ in names)
        )
        with self._explained():
            self._db.commit()

    def publish(self, content: Content = UNKNOWN) -> None:
        """Write what is left to disk, and rename the file to `path`: another, if the report there has more."""
        self.commit()
        with self._explained():
            self._db.close()
            _unlock(self)
            old = content_of(self.path)
            if old is None or content.may_replace(old):
                self._file.publish()
            else:
                self.path = self._file.publish_beside()
        self._remove_sessions(self._sessions)
        with suppress(OSError):
            for _, file in self._leftovers():
                # One on another machine has written meanwhile if it still runs.
                if not _is_locked(file) and file.stat().st_mtime < self._began_s:
                    self._remove_sessions(file.with_name(f"{file.name}{SESSIONS}"))
                    file.unlink(missing_ok=True)

    def _created(self) -> Unfinished:
        """Create the file, which is not hidden: what a killed process leaves is a report."""
        file = Unfinished(self.path)
        name = f"{file.target.name}{UNFINISHED}{self._pid}"
        file.path = file.target.with_name(name)
        if file.path.exists():  # of a killed process that had the same number
            file.path = file.target.with_name(f"{name}-{secrets.token_hex(2)}")
        self._began_s = time.time()
        file.create()
        return file

    def _leftovers(self) -> Iterator[tuple[int, Path]]:
        """Yield the unfinished files of this report that other processes, running or killed, have written."""
        beginning = f"{self._file.target.name}{UNFINISHED}"
        ours = {trace._file.path for trace in _locked}
        for file in self._file.target.parent.iterdir():
            ending = NUMBER_AND_TOKEN.fullmatch(file.name.removeprefix(beginning))
            is_other = file.name.startswith(beginning) and file not in ours
            if ending and is_other and stat.S_ISREG(file.lstat().st_mode):
                yield int(ending[1]), file

    @property
    def unfinished(self) -> Path:
        """Return where the report is until it is published."""
        return self._file.path

    def session_path(self, number: int) -> Path:
        """Return where PyTorch is to save a session: in a folder that only this user can read. Raises OSError."""
        if self._sessions is None:
            folder = self._file.path.with_name(f"{self._file.path.name}{SESSIONS}")
            if os.path.lexists(folder):
                folder = folder.with_name(f"{folder.name}-{secrets.token_hex(8)}")
            folder.mkdir(0o700)
            self._sessions = folder
        return self._sessions / f"session{number}.pt.trace.json"

    def _remove_sessions(self, folder: Path | None) -> None:
        """Remove what PyTorch saved in a folder of ours, and the folder, unless it has something else."""
        if folder is None or folder.is_symlink():
            return
        with suppress(OSError):
            for file in folder.iterdir():
                if OF_SESSIONS.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            folder.rmdir()

    def leave(self) -> None:
        """Leave the unfinished file where it is, as far as it was committed."""
        if self._pid == os.getpid():
            with suppress(sqlite3.Error):
                self._db.close()
            _unlock(self)
            self._is_left = True

    def discard(self) -> None:
        """Remove the unpublished file; a published one stays, and so does a parent process's."""
        if self._pid != os.getpid() or self._is_left:
            return
        with suppress(sqlite3.Error):
            self._db.close()
        _unlock(self)
        self._file.discard()
        self._remove_sessions(self._sessions)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise TraceFileError(f"cannot write {self.path}: {reason}") from error


def of_rank(path: Path) -> Path:
    """Return the path for this process of a distributed program, which names its rank."""
    rank = os.environ.get("RANK", "")
    if not re.fullmatch("[0-9]+", rank) or re.findall("[0-9]+", path.stem)[-1:] == [rank]:
        return path
    return with_part(path, f"rank{rank}")


def with_part(path: Path, part: str) -> Path:
    """Return the path with a part before its suffix: report.rank0.sqlite."""
    return path.with_name(f"{path.stem}.{part}{path.suffix}")


# A number tells little of a process: that of a container is 1, and others are used again.
_locked: weakref.WeakKeyDictionary[TraceFile, IO[bytes]] = weakref.WeakKeyDictionary()


def _lock(trace: TraceFile, path: Path) -> None:
    """Lock an unfinished file until its process ends, where the file system has locks."""
    with suppress(OSError):
        _locked[trace] = path.open("rb")
        fcntl.flock(_locked[trace], fcntl.LOCK_EX)


def _unlock(trace: TraceFile) -> None:
    if (file := _locked.pop(trace, None)) is not None:
        file.close()


def _is_locked(path: Path) -> bool:
    """Return whether a process that runs is writing an unfinished file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it has gone, or there are no locks
        return False
    return False


def _forget_locks() -> None:
    """Have a forked child keep no lock of its parent, which may end before it does."""
    for file in _locked.values():
        file.close()
    _locked.clear()


os.register_at_fork(after_in_child=_forget_locks)


def _refuse_folder(path: str | Path) -> None:
    if Path(path).is_dir():
        raise TraceFileError(f"cannot write {path}: it is a folder")


def content_of(path: Path) -> Content | None:
    """Return how much the recording at a path has; None without a file, or for an empty one.

    Raises TraceFileError for a file that is no recording, which is not to be replaced.
    """
    if not path.is_file() or not path.stat().st_size:
        return None
    query = f"SELECT name, value FROM {METADATA}"  # noqa: S608
    where = f"file:{quote(str(path))}?mode=ro"
    try:
        with standard_numbers_taken(), closing(sqlite3.connect(where, uri=True)) as database:
            rows: dict[str, str] = dict(database.execute(query))
    except sqlite3.Error:
        rows = {}
    if rows.get("EXPORT_PRODUCT_NAME") != PRODUCT:
        raise TraceFileError(f"cannot write {path}: that file is no recording, and stays. Name another one")
    steps = rows.get(STEPS, "")
    return Content(int(steps), INCOMPLETE not in rows) if re.fullmatch("[0-9]+", steps) else UNKNOWN


def free_path(path: Path) -> Path:
    """Return the path, with a number from 2 on (report-2.sqlite) where there is such a file."""
    free, number = path, 2
    while os.path.lexists(free):
        free, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return free


def check_recordable(path: str | Path) -> None:
    """Raise TraceFileError unless a report can be written there; leave everything as it is."""
    TraceFile(path).discard()


def check_writable(path: str | Path) -> None:
    """Raise TraceFileError unless a file can be written there; leave everything as it is."""
    _refuse_folder(path)
    try:
        file = Unfinished(Path(path))
        file.create()
        file.discard()
    except OSError as error:
        raise TraceFileError(f"cannot write {path}: {error.strerror or error}") from error


def export_metadata(*, on_gpu: bool) -> dict[str, str]:
    """Return who wrote a recording, after which schema, and whether its work is the GPU's or a CPU's operators."""
    return {
        "EXPORT_PRODUCT_NAME": PRODUCT,
        "EXPORT_PRODUCT_VERSION": nvtx_kernels.__version__,
        "EXPORT_SCHEMA_VERSION": SCHEMA_VERSION,
        **dict(zip(SCHEMA_PARTS, SCHEMA_VERSION.split("."), strict=True)),
        "NVTX_KERNELS_WORK": "GPU" if on_gpu else "CPU",
        "NVTX_KERNELS_TORCH_VERSION": torch.__version__,
    }


def gpu_rows() -> Iterator[Row]:
    """Yield one TARGET_INFO_GPU row per GPU that this process sees."""
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        yield {
            "vmId": VM_ID,
            "id": index,
            "name": gpu.name,
            "totalMemory": gpu.total_memory,
            "smCount": gpu.multi_processor_count,
            "computeMajor": gpu.major,
            "computeMinor": gpu.minor,
        }


def start_row(origin_ns: int) -> Row:
    """Return the row that ties the report's time 0 to UTC."""
    began = datetime.fromtimestamp(origin_ns / 1e9, UTC)
    return {"utcEpochNs": origin_ns, "utcTime": began.strftime("%Y-%m-%dT%H:%M:%S")}
