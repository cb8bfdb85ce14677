"""A sweep's results: a file of JSON lines that only grows, so that nothing measured is ever lost.

Each line is one cell's row. A line left incomplete by a kill or a full disk stays and is skipped when read;
later rows begin on a new line. One sweep at a time may append (an advisory lock).
"""

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..cli import CommandError

Row = dict[str, Any]


class ResultsError(CommandError):
    """A file of results cannot be used; the text is a sentence for the user."""


VERSION = 1
# What a row measures: steps of the model, or attention alone.
MODEL, ATTENTION = "model", "attention"
# Rows that say what a cell does; a `failed` one only that it was tried.
FINAL = ("ok", "oom")
# What else than the cell must be equal for a measurement to be the same: other machines' rows stay apart.
MACHINE = ("device_name", "driver", "torch", "cuda", "threads")
# How the captures begin that run a cell under nsys.
NSYS = "nsys-"


class Began:
    """The moment at which a run began."""

    def __init__(self) -> None:
        self._at, self._at_s = datetime.now(UTC), time.monotonic()

    def completed(self, row: Row) -> Row:
        """Return a row with the time its run began, and the seconds since."""
        seconds = round(time.monotonic() - self._at_s, 3)
        return {"started": self._at.strftime("%Y-%m-%dT%H:%M:%SZ"), **row, "seconds": seconds}


def read(path: Path, kind: str = MODEL) -> tuple[list[Row], int]:
    """Return the rows of one kind in a file, oldest first, and the number of lines that are not such rows."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from error
    rows = [row for line in lines if line.strip() and (row := _row(line, kind)) is not None]
    return rows, sum(1 for line in lines if line.strip()) - len(rows)


def rows_in(paths: Iterable[Path], kind: str = MODEL) -> list[Row]:
    """Return the rows of one kind in several files, one after the other."""
    return [row for path in paths for row in read(path, kind)[0]]


def _row(line: bytes, kind: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_ours = isinstance(row, dict) and row.get("version") == VERSION and row.get("kind") == kind
    return row if is_ours else None


def latest(rows: list[Row]) -> list[Row]:
    """Return the last row of every cell on every machine, in the order in which cells first appeared.

    A failure counts only while its cell has no result.
    """
    done = {identity(row["cell"], {}) for row in rows if row["status"] in FINAL}
    counted = [row for row in rows if row["status"] in FINAL or identity(row["cell"], {}) not in done]
    return list({identity(row["cell"], row["state"]): row for row in counted}.values())


def of_cells(rows: list[Row], cells: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the latest rows of cells, given by what identifies them."""
    keys = {identity(cell, {}) for cell in cells}
    return [row for row in latest(rows) if identity(row["cell"], {}) in keys]


def identity(cell: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """Return what two rows share if they measure the same on the same machine, both profiled or neither."""
    machine = {name: state.get(name) for name in MACHINE}
    return json.dumps([cell, {**machine, **_uninvited(cell, state)}], sort_keys=True)


def capture_of(row: Row) -> str:
    """Return how a row's steps were watched: by its cell's capture, and by a profiler of the whole command."""
    capture = str(row["cell"]["capture"])
    around = _uninvited(row["cell"], row["state"]).get("watched_by")
    if around is None:
        return capture
    return around if capture == "none" else f"{around}, {capture}"


def _uninvited(cell: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, str]:
    """Return `watched_by` where a profiler watched that the cell does not ask for."""
    watched_by = state.get("watched_by")
    return {"watched_by": watched_by} if watched_by and not cell.get("capture", "").startswith(NSYS) else {}


class ResultsFile:
    """A file that rows are appended to, each written through to the disk before the next is measured."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def append(self, row: Row) -> None:
        """Write one row; raises ResultsError if it could not be written completely, as on a full disk."""
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if self._is_torn():
            line = b"\n" + line
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise ResultsError(f"a row could not be written: {error.strerror}") from error

    def _is_torn(self) -> bool:
        size = os.fstat(self._descriptor).st_size
        return size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"


@contextmanager
def appending(path: Path) -> Iterator[ResultsFile]:
    """Open a file of results to append to, alone. Raises ResultsError if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    except OSError as error:
        raise ResultsError(f"{path} cannot be written: {error.strerror}") from error
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise ResultsError(f"{path} is a pipe: results are read back from the file they are written to")
        _lock(descriptor, path)
        yield ResultsFile(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ResultsError(f"another sweep is writing to {path}") from error
