"""nsys's own report files: exported through nsys, where it is installed, into a temporary folder.

nsys 2025.3 and later write the tables that are needed as Parquet, which is faster to write and to read; earlier
ones, and any that fail at it, write everything as SQLite.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ..errors import NotAReport, UsageError
from ..support.progress import advance, expect, stage
from ..support.text import fit
from ..trace import Trace
from . import nsys_parquet, nsys_sqlite
from .nsys_tables import STRINGS, TABLES
from .safety import identity

EXPORT_TIMEOUT_S = 3600
VERSION_TIMEOUT_S = 60
# Names the folder in which what nsys exported is kept.
KEEP = "NVTX_KERNELS_KEEP_EXPORT"
# The first nsys whose `--tables` takes the tables' full names for Parquet.
FIRST_WITH_TABLES = (2025, 3)
# An export without any of these is treated as failed: some versions silently leave out what they do not know.
PROOFS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")
# How the names of exports end.
PARQUET_ENDING = "_pqtdir"
SQLITE_ENDING = ".sqlite"
LAST_WORDS = 4096
LONGEST_REASON = 300


def read(path: Path) -> Trace:
    """Export a .nsys-rep with nsys and read the result; nothing is written next to the report.

    Where the environment names a folder in NVTX_KERNELS_KEEP_EXPORT, what nsys exported is kept there.

    Raises NotAReport where nsys is not installed, or cannot read the report, and UsageError where what would be
    kept exists already.
    """
    nsys = shutil.which("nsys")
    keep = None
    if named := os.environ.get(KEEP):
        keep = Path(named)
        for ending in (PARQUET_ENDING, SQLITE_ENDING):
            if (exported := keep / f"{path.stem}{ending}").exists():
                raise UsageError(f"{exported} exists already: read it instead of {path.name}, or move it away.")
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{keep}, which {KEEP} names, cannot be created: {error.strerror}.") from error
    if nsys is None:
        raise NotAReport(
            f"{path} needs nsys to be read, and nsys is not on the PATH. On a machine that has it, run: "
            f"nsys export --type sqlite {path.name}"
        )
    with tempfile.TemporaryDirectory(prefix=".nvtx-kernels-", dir=keep) as folder:
        exported = _exported(nsys, path, Path(folder))
        trace = nsys_parquet.read(exported) if exported.is_dir() else nsys_sqlite.read(exported)
        if keep is not None:
            exported.rename(keep / exported.name)
    return replace(trace, provenance=replace(trace.provenance, file=path.name))


def _exported(nsys: str, path: Path, folder: Path) -> Path:
    """Return nsys's export: a folder of Parquet files, or an SQLite file; raises NotAReport if it fails."""
    try:
        with _started([nsys, "--version"], errors_to=subprocess.DEVNULL) as process:
            version = re.search(rb"(\d{4})\.(\d{1,4})", process.communicate(timeout=VERSION_TIMEOUT_S)[0])
    except (OSError, subprocess.TimeoutExpired):
        version = None
    if version and tuple(map(int, version.groups())) >= FIRST_WITH_TABLES:
        target = folder / f"{path.stem}{PARQUET_ENDING}"
        tables = f"--tables={','.join(TABLES)}"
        _export([nsys, "export", "--type", "parquetdir", tables, "--output", str(target), "--", str(path)])
        exported = {file.stem for file in target.glob("*.parquet")}
        if target.is_dir():
            identity(target)  # refuses pipes and links to nowhere
        if STRINGS in exported and not exported.isdisjoint(PROOFS):
            return target
    target = folder / f"{path.stem}{SQLITE_ENDING}"
    status, last_line = _export([nsys, "export", "--type", "sqlite", "--output", str(target), "--", str(path)])
    if status or not target.is_file():
        raise NotAReport(f"nsys could not export {path}: {last_line}. A newer report needs a newer nsys.")
    return target


@contextmanager
def _started(command: list[str], *, errors_to: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in a session of its own; where the block raises, all that it started is killed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors_to, start_new_session=True) as process:
        try:
            yield process
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started, which would hold its output open."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _export(command: list[str]) -> tuple[int, str]:
    """Run an export, showing its own progress; return its exit status, and the last line of its output.

    It is killed after an hour, or if we are stopped.
    """
    output = b""
    progress = 0
    with stage("exporting with nsys"):
        expect(100)
        try:
            with _started(command, errors_to=subprocess.STDOUT) as process:
                assert process.stdout is not None
                clock = threading.Timer(EXPORT_TIMEOUT_S, _end, [process])
                clock.start()
                try:
                    while piece := os.read(process.stdout.fileno(), LAST_WORDS):
                        output = (output + piece)[-LAST_WORDS:]
                        percent = max([progress, *map(int, re.findall(rb"\b(\d{1,2}|100) ?%", output))])
                        advance(percent - progress)
                        progress = percent
                    status = process.wait()
                finally:
                    clock.cancel()
        except OSError as error:
            raise NotAReport(f"{command[0]} could not be run on {command[-1]}: {error}.") from error
    lines = output.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"]
    return status, fit(lines[-1].strip(), LONGEST_REASON)
