"""A report that is in place, to which what is known only later is added."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from nvtx_kernels.analysis.container import MARKS
from nvtx_kernels.analysis.support.files import Unfinished, standard_numbers_taken

from ..harmless import say
from .trace_file import UNFINISHED, TraceFileError

_LIKE_THE_LAST_MARK = f"""
INSERT INTO {MARKS} (at_ns, thread, text)
SELECT at_ns, thread, ? FROM {MARKS} ORDER BY at_ns DESC LIMIT 1"""  # noqa: S608 - a name of ours


class Written:
    """A report as it is now at this path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = _version(path)
        self._process = os.getpid()

    def add_times(self, mark: str) -> None:
        """Add the mark of steps that were timed after the recording, if there is one; say so where that fails."""
        try:
            if mark:
                self.add_mark(mark)
        except TraceFileError as error:
            say(f"{error}: it lacks what a step takes without recording.")

    def add_mark(self, text: str) -> None:
        """Add a mark at the moment and thread of the last one, unless another file is in place by now.

        A forked child adds none. Raises TraceFileError if it cannot be written; the report is then as it was.
        """
        is_ours = self._version is not None and self._process == os.getpid()
        if not is_ours or _version(self._path) != self._version:
            return
        try:
            self._replace_by_copy_with(text)
        except (OSError, sqlite3.Error) as error:
            raise TraceFileError(f"cannot add to {self._path}: {error}") from error

    def _replace_by_copy_with(self, mark: str) -> None:
        """Add a mark to a copy that then takes the report's place: a killed process leaves the report whole."""
        copy = Unfinished(self._path)
        name = f"{copy.target.name}{UNFINISHED}{self._process}-{secrets.token_hex(2)}"
        copy.path = copy.target.with_name(name)  # the next recording removes what a killed process leaves
        try:
            copy.create()
            shutil.copyfile(self._path, copy.path)
            with (
                standard_numbers_taken(),
                closing(sqlite3.connect(f"file:{quote(str(copy.path))}?mode=rw", uri=True)) as database,
                database,
            ):
                database.execute("PRAGMA journal_mode = OFF")
                database.execute(_LIKE_THE_LAST_MARK, (mark,))
            if _version(self._path) == self._version:
                copy.publish()
                self._version = _version(self._path)
        finally:
            copy.discard()


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return an identity of the file at this path, None without one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
