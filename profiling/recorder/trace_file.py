"""The report file while it is recorded: the container of a `Trace`, to which each session appends.

One file is one `TraceFile`: rows go to a file next to the target, and only `publish` renames it into place, so a
reader finds either the old report or the complete new one. If the process is killed, that file stays, and is a
report of all that was committed. What PyTorch saves is in a folder beside it that only this user can read.

    report.sqlite.unfinished-1234              until it is published; locked while its process runs
    report.sqlite.unfinished-1234-sessions/    what PyTorch saved, until it is read
    report-2.sqlite                            a recording that has less than the report that is there

A file that is no recording is never replaced. A report contains the rows and the head it is given and the names
they refer to: nothing about the environment, paths, host or user.
"""

import fcntl
import itertools
import json
import os
import re
import secrets
import sqlite3
import stat
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import quote

import torch
from nvtx_kernels.analysis.container import HEAD, RECORDING, RECORDS, TABLES, VERSION, Container, Values
from nvtx_kernels.analysis.support.files import Unfinished, standard_numbers_taken
from nvtx_kernels.analysis.trace import Domain, Process, Provenance, Thread
from nvtx_kernels.analysis.vocabulary.calls import kinds_of_calls

import nvtx_kernels
from nvtx_kernels import APPLICATION_ID

PRODUCT = "nvtx-kernels recorder"
#: Rows that are written between two looks at whether the user gave up.
BATCH = 10_000
#: Rows reach the file when they are committed, or are more than 16 MiB of pages.
CACHE_PAGES = 4096
#: The parts that every report has.
NEEDED = ("launches", "work", "ranges")
# How the file is called until it is published: the report's name, this, the number of the process, and a token
# where another file has that name; and what its folder's name has besides.
UNFINISHED, SESSIONS = ".unfinished-", "-sessions"
NUMBER_AND_TOKEN = re.compile(r"([0-9]+)(?:-[0-9a-f]{4})?")
OF_SESSIONS = re.compile(r"session[0-9]+\.pt\.trace\.json(?:\.tmp|\.escaped)?")
# What the metadata of a recording of an earlier version, whose tables are nsys's, says about the amount recorded.
METADATA = "SELECT name, value FROM META_DATA_EXPORT"
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

    def head(self) -> dict[str, int | bool]:
        """Return what a recording's head says of this."""
        return {"steps": self.steps, "is_complete": self.is_complete}


#: Of a recording that is not finished, and of a report that does not say it, as those of earlier versions.
NOTHING, UNKNOWN = Content(0, is_complete=False), Content(1, is_complete=True)


def writable(text: str) -> str:
    """Return a text as UTF-8 can hold it: a surrogate alone becomes a question mark."""
    return text.encode(errors="replace").decode()


class TraceFile:
    """Write one report, part by part, next to its target.

    Names, threads, domains and calls are numbered in the order in which they are asked for.

    `path` is the report to be; where another process is writing that one, it is another, and `other_writer` is the
    number of that process. The folder must exist and be writable, or TraceFileError is raised at once rather than
    after the run that was to be recorded.
    """

    def __init__(self, path: str | Path) -> None:
        # The program may go to another folder, or fork, before the file is published.
        self.path = Path(path).absolute()
        self._pid = os.getpid()
        self._names: dict[str, int] = {}
        self._threads: dict[int, int] = {}  # by the system's ids
        self._thread_names: dict[int, str] = {}
        self._domains: dict[Domain, int] = {}
        self._calls: dict[str, int] = {}
        self._head: Mapping[str, object] = {}
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
            self._container = Container(self._db)
            self._db.execute(f"PRAGMA cache_size = {CACHE_PAGES}")
            for part in NEEDED:
                self._container.append(part, TABLES[part].empty().columns())

    def name_number(self, name: str) -> int:
        """Return the position of a name in the report's names."""
        return self._names.setdefault(name, len(self._names))

    def thread_number(self, thread_id: int) -> int:
        """Return the position of a thread in the report's threads, by its number of the system."""
        return self._threads.setdefault(thread_id, len(self._threads))

    def name_thread(self, thread_id: int, name: str) -> None:
        """Say how a thread is called, the first time that it is known; `thread_name` tells of others."""
        if name:
            self._thread_names.setdefault(thread_id, name)

    def domain_number(self, number: int, name: str) -> int:
        """Return the position of a domain in the report's domains."""
        return self._domains.setdefault(Domain(0, number, name), len(self._domains))

    def call_number(self, name: str) -> int:
        """Return the position of a call's name."""
        return self._calls.setdefault(name, len(self._calls))

    def count(self, table: str) -> int:
        """Return how many rows a table has."""
        return self._container.rows.get(table, 0)

    def append(self, table: str, columns: Mapping[str, Values]) -> None:
        """Append rows to a table, given as columns; raises AbandonedError where the user gave up meanwhile."""
        count = len(next(iter(columns.values())))
        for begin in range(0, max(count, 1), BATCH):
            if self.is_abandoned:
                raise AbandonedError(f"abandoned: {self.path} was not written")
            with self._explained():
                self._container.append(
                    table, {name: values[begin : begin + BATCH] for name, values in columns.items()}
                )

    def commit(self, head: Mapping[str, object] | None = None) -> None:
        """Make a readable report of the rows so far, with this head; without one, with that of before."""
        self._head = self._head if head is None else head
        names = itertools.islice(self._names, self.count("names"), None)
        thread_ids = [*self._threads]
        for thread_id in thread_ids:
            self._thread_names.setdefault(thread_id, thread_name(thread_id))
        records: dict[str, Sequence[object]] = {
            "threads": [Thread(0, thread_id, self._thread_names[thread_id]) for thread_id in thread_ids],
            "processes": [Process(self._pid)],
            "domains": [*self._domains],
        }
        with self._explained():
            self._container.append("names", {"value": [*names]})
            for table, rows in records.items():
                columns = [field.name for field in fields(RECORDS[table])]
                self._container.replace(table, {name: [getattr(row, name) for row in rows] for name in columns})
            if self._calls:
                self._container.replace("calls_names", {"value": [*self._calls]})
                self._container.replace("calls_kind_of_name", {"value": kinds_of_calls([*self._calls])})
            self._container.commit(self._head)

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
    where = f"file:{quote(str(path))}?mode=ro"
    try:
        with standard_numbers_taken(), closing(sqlite3.connect(where, uri=True)) as database:
            content = _content_in(database)
    except (sqlite3.Error, ValueError, KeyError, TypeError):
        content = None
    if content is None:
        raise TraceFileError(f"cannot write {path}: that file is no recording, and stays. Name another one")
    return content


def _content_in(database: sqlite3.Connection) -> Content | None:
    """Return how much a recording has, of this or an earlier version; None for another file."""
    is_ours = database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    if is_ours:
        said = database.execute(f"SELECT value FROM {HEAD} WHERE what = ?", (RECORDING,)).fetchone()  # noqa: S608 - a name of ours
        recording = json.loads(said[0]) if said else None
        return Content(int(recording["steps"]), bool(recording["is_complete"])) if recording else None
    rows: dict[str, str] = dict(database.execute(METADATA))
    if rows.get("EXPORT_PRODUCT_NAME") != PRODUCT:
        return None
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


def provenance(*, on_gpu: bool) -> Provenance:
    """Return who writes a recording, the GPUs that this process sees, and whose work it has."""
    version = nvtx_kernels.__version__.removesuffix(".0").replace("unknown", "")
    seen = range(torch.cuda.device_count()) if on_gpu else ()
    return Provenance(
        file="",
        tool=f"{PRODUCT} {version}".strip(),
        schema=str(VERSION),
        gpus=tuple(dict.fromkeys(torch.cuda.get_device_properties(index).name for index in seen)),
        unit_of_work="GPU" if on_gpu else "CPU",
    )


def thread_name(thread_id: int) -> str:
    """Return the operating system's name of a thread of this process, empty when it has gone."""
    try:
        return Path(f"/proc/self/task/{thread_id}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
