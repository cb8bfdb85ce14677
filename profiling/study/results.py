"""A sweep's results: a file of JSON lines that only grows, so that nothing measured is ever lost.

Each line is one configuration's row. A line left incomplete by a kill or a full disk stays and is skipped when
read; later rows begin on a new line. One sweep at a time may append (an advisory lock).
"""

import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..cli import CommandError

Row = dict[str, Any]


class ResultsError(CommandError):
    """A file of results cannot be used; the text is a sentence for the user."""


VERSION = 1
# What a row measures: steps of the model, attention alone, or steps of a program that is not ours.
MODEL, ATTENTION, PROGRAM = "model", "attention", "program"
# Rows that hold what a configuration does; a `failed` one only that it was tried.
FINAL = ("ok", "oom")
# What else than the configuration must be equal for a measurement to be the same: other machines' rows stay apart.
MACHINE = ("device_name", "driver", "torch", "cuda", "threads")
# How the captures begin that run a configuration under nsys.
NSYS = "nsys-"


def read(path: Path, kind: str = MODEL) -> tuple[list[Row], int]:
    """Return the rows of one kind in a file, oldest first, and the number of lines that are not such rows."""
    try:
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}") from error
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("version") == VERSION and row.get("kind") == kind:
            rows.append(row)
    return rows, len(lines) - len(rows)


def rows_in(paths: Iterable[Path], kind: str = MODEL) -> list[Row]:
    """Return the rows of one kind in several files, one after the other."""
    return [row for path in paths for row in read(path, kind)[0]]


def latest(rows: list[Row]) -> list[Row]:
    """Return the last row of every configuration on every machine, in the order in which these first appeared.

    A failure counts only while its configuration has no result.
    """
    final = {_configuration(row) for row in rows if row["status"] in FINAL}
    counted = [row for row in rows if row["status"] in FINAL or _configuration(row) not in final]
    by_identity = {identity(row["cell"], row["state"]): row for row in counted}
    return list(by_identity.values())


def of_cells(rows: list[Row], cells: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the latest rows of configurations, given by what identifies them."""
    identities = {identity(cell, {}) for cell in cells}
    return [row for row in latest(rows) if _configuration(row) in identities]


def _configuration(row: Row) -> str:
    """Return a key of what a row measures, on any machine."""
    return identity(row["cell"], {})


def identity(cell: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """Return a key that rows share if they measure the same on the same machine, both profiled or neither."""
    machine = {name: state.get(name) for name in MACHINE}
    watcher = _uninvited(cell, state)
    if watcher:
        machine["watched_by"] = watcher
    return json.dumps([cell, machine], sort_keys=True)


def capture_of(row: Row) -> str:
    """Return how a row's steps were watched: by its configuration's capture, and by a profiler around it all."""
    capture = str(row["cell"].get("capture", "none"))
    watcher = _uninvited(row["cell"], row["state"])
    if watcher is None:
        return capture
    return watcher if capture == "none" else f"{watcher}, {capture}"


def _uninvited(cell: Mapping[str, Any], state: Mapping[str, Any]) -> str | None:
    """Return the profiler that watched where the configuration does not ask for one."""
    return None if cell.get("capture", "").startswith(NSYS) else state.get("watched_by")


@contextmanager
def appending(path: Path) -> Iterator[Callable[[Row], None]]:
    """Open a file of results alone, and yield what writes a row through to the disk.

    Raises ResultsError if that is not possible, or a row could not be written completely, as on a full disk.
    """

    def append(row: Row) -> None:
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = b"\n" + line if is_torn else line
        try:
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        except OSError as error:
            raise ResultsError(f"a row could not be written: {error.strerror}") from error

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        raise ResultsError(f"{path} cannot be written: {error.strerror}") from error
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise ResultsError(f"{path} is a pipe: results are read back from the file they are written to")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultsError(f"another sweep is writing to {path}") from error
        yield append
    finally:
        os.close(descriptor)
