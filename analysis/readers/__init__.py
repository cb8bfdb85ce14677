"""Readers turn a report file into a `Trace`; they know no presenter.

A report format is one line in `READERS`: what it is called, how a file of it is recognised, and where its reader
lives. The first that recognises the file reads it; a reader's module is imported only then.
"""

from __future__ import annotations

import importlib
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotAReport
from .safety import identity, require_unchanged

if TYPE_CHECKING:
    from ..trace import Trace

SQLITE_MAGIC = b"SQLite format 3\0"
GZIP_MAGIC = b"\x1f\x8b"
LFS_MAGIC = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Reader:
    """One report format. `recognises` gets the path and its first bytes (empty for a folder).

    `endings` are the suffixes of its files, by which they are found in folders.
    """

    format: str
    recognises: Callable[[Path, bytes], bool]
    module: str
    endings: tuple[str, ...] = ()


NSYS_SQLITE, PYTORCH_TRACE = "nsys SQLite export", "PyTorch profiler trace"
READERS = (
    Reader(
        "rocprofv3 database",
        lambda path, head: head.startswith(SQLITE_MAGIC) and _has_table(path, "rocpd_"),
        "nvtx_kernels.analysis.readers.rocpd",
        ("_results.db",),
    ),
    Reader(
        NSYS_SQLITE,
        lambda _, head: head.startswith(SQLITE_MAGIC),
        "nvtx_kernels.analysis.readers.nsys_sqlite",
        (".sqlite",),
    ),
    Reader(
        "nsys report",
        lambda path, head: path.suffix == ".nsys-rep" and head != b"",
        "nvtx_kernels.analysis.readers.nsys_rep",
        (".nsys-rep",),
    ),
    Reader(
        "nsys Parquet folder",
        lambda path, _: path.is_dir() and any(path.glob("*.parquet")),
        "nvtx_kernels.analysis.readers.nsys_parquet",
    ),
    Reader(
        PYTORCH_TRACE,
        lambda _, head: head.startswith(GZIP_MAGIC) or head.lstrip().startswith(b"{"),
        "nvtx_kernels.analysis.readers.pytorch_trace",
        (".pt.trace.json", ".pt.trace.json.gz"),
    ),
)

# Imports numpy, as the readers do: when a report is read, not before.
REQUIREMENTS = "nvtx_kernels.analysis.readers.requirements"
SQLITE_GUARD = "nvtx_kernels.analysis.readers.sqlite_guard"
MODULE_NAMES = "nvtx_kernels.analysis.readers.module_names"
ENDINGS = tuple(ending for reader in READERS for ending in reader.endings)


def read(path: Path | str) -> Trace:
    """Read a report of any known format.

    Raises NotAReport, with a sentence on what the file is and a next step, for anything else, and if the report
    is written meanwhile.
    """
    path = Path(path)
    reader, before = reader_of(path), identity(path)
    try:
        trace: Trace = importlib.import_module(reader.module).read(path)
    except (NotAReport, OSError):
        require_unchanged(path, before)  # half of one state and half of another looks damaged
        raise
    require_unchanged(path, before)
    importlib.import_module(REQUIREMENTS).require_plausible(trace, path)
    named: Trace = importlib.import_module(MODULE_NAMES).with_module_names(trace)
    return named


def reader_of(path: Path) -> Reader:
    """Return the reader that recognises a file by its first bytes; raises NotAReport as `read` does."""
    head = _first_bytes(path)
    for reader in READERS:
        if reader.recognises(path, head):
            return reader
    raise NotAReport(_what_it_is(path, head))


def _has_table(path: Path, begins: str) -> bool:
    has_table: bool = importlib.import_module(SQLITE_GUARD).has_table(path, begins)
    return has_table


def _first_bytes(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return b""
        if not stat.S_ISREG(mode):
            raise NotAReport(f"{path} is not a regular file. Use the path of the report itself.")
        with path.open("rb") as file:
            return file.read(4096)
    except FileNotFoundError:
        raise NotAReport(f"{path} does not exist. Use the path of a report, such as report1.sqlite.") from None
    except OSError as error:
        raise NotAReport(f"{path} cannot be read: {error.strerror}.") from error


def _what_it_is(path: Path, head: bytes) -> str:
    formats = (
        "an nsys export (.sqlite, or the folder of --type parquetdir), a .nsys-rep, a PyTorch profiler trace "
        "(.pt.trace.json) or a database of rocprofv3's (-f rocpd)"
    )
    if path.is_dir() and (
        inside := sorted(inside_path.name for inside_path in path.glob("*") if inside_path.name.endswith(ENDINGS))
    ):
        return f"{path} is a folder of reports. Use one of them, such as {inside[0]}."
    if path.is_dir():
        return f"{path} is a folder without a report that can be read. Use {formats}."
    if not head:
        return (
            f"{path} is empty: its recording or export did not finish. Record it, or export the .nsys-rep, again."
        )
    if head.startswith(LFS_MAGIC):
        return f"{path} is a Git LFS pointer, not the report itself. Fetch it with `git lfs pull`."
    if not head.strip(b"\0"):
        return f"{path} begins with zeros: its export was interrupted. Run `nsys export --type sqlite` again."
    return f"{path} is not a report that can be read. Use {formats}."
