"""Readers turn a report file into a `Trace`; they know no presenter.

A report format is one line in `READERS`: what it is called, how a file of it is recognised, and where its reader
lives. The first that recognises the file reads it; a reader's module, which imports numpy, only then.

This room may import `report`, `moments`, `kernel_names` and what is below them. It promises that a stranger's file
can do no more than be refused: a reader raises NotAReport, with a next step, and runs nothing of it.
"""

from __future__ import annotations

import gzip
import importlib
import shlex
import stat
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING

from nvtx_kernels import APPLICATION_ID, SUMMARY_ID

from ..errors import NotAReport, UsageError
from .safety import identity, require_unchanged, with_bounded_names

if TYPE_CHECKING:
    from ..trace import Trace
    from .stack_frames import Functions

#: What has Python's functions.
STACKS = "Record with torch.profiler.profile(with_stack=True), and use its trace."
SQLITE_MAGIC = b"SQLite format 3\0"
GZIP_MAGIC = b"\x1f\x8b"
LFS_MAGIC = b"version https://git-lfs"
#: How packed files begin, what they are called, and what unpacks them.
PACKED = (
    (b"\xfd7zXZ\0", "xz", "xz -dk"),
    (b"(\xb5/\xfd", "zstd", "zstd -dk"),
    (b"BZh", "bzip2", "bzip2 -dk"),
    (b"PK\x03\x04", "zip", "unzip"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x"),
    (b"\x04\x22M\x18", "LZ4", "lz4 -dk"),
)


@dataclass(frozen=True, slots=True)
class Reader:
    """One report format. `recognises` gets the path and its first bytes (empty for a folder).

    `endings` are the suffixes of its files, by which they are found in folders.
    """

    format: str
    recognises: Callable[[Path, bytes], bool]
    module: str
    endings: tuple[str, ...] = ()


#: Where SQLite's header says which program's file it is (https://www.sqlite.org/fileformat2.html, 1.3.19).
ID_BYTES = slice(68, 72)


def is_sqlite(head: bytes) -> bool:
    """Return whether a file that begins so is SQLite."""
    return head.startswith(SQLITE_MAGIC)


def is_saved(head: bytes) -> bool:
    """Return whether a file that begins so is a report that nvtx-kernels saved."""
    return _has_number(head, APPLICATION_ID)


def _has_number(head: bytes, number: int) -> bool:
    """Return whether a file that begins so is SQLite with an application's number."""
    return is_sqlite(head) and head[ID_BYTES] == number.to_bytes(4, "big")


def is_summary(path: Path) -> bool:
    """Return whether a file is a summary of a rank: by its content, or its name if that is no SQLite file."""
    head = b""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(ID_BYTES.stop)
    if is_sqlite(head):
        return _has_number(head, SUMMARY_ID)
    return path.name.endswith((SUMMARY, PARQUET))


def _is_rocpd(path: Path, head: bytes) -> bool:
    if not is_sqlite(head):
        return False
    from .sqlite import has_table

    return has_table(path, "rocpd_")


NSYS_SQLITE = "nsys SQLite export"
PYTORCH_TRACE = "PyTorch profiler trace"
SAVED = "saved report"
READERS = (
    Reader(SAVED, lambda _, head: is_saved(head), "saved", (".sqlite",)),
    Reader("rocprofv3 database", _is_rocpd, "rocpd", ("_results.db",)),
    Reader(NSYS_SQLITE, lambda _, head: is_sqlite(head), "nsys_sqlite", (".sqlite",)),
    Reader(
        "nsys report", lambda path, head: path.suffix == ".nsys-rep" and head != b"", "nsys_rep", (".nsys-rep",)
    ),
    Reader("nsys Parquet folder", lambda path, _: path.is_dir() and any(path.glob("*.parquet")), "nsys_parquet"),
    Reader(
        PYTORCH_TRACE,
        lambda _, head: head.startswith(GZIP_MAGIC) or head.lstrip().startswith((b"{", b"[")),
        "pytorch_trace",
        (".pt.trace.json", ".pt.trace.json.gz"),
    ),
)
ENDINGS = tuple(dict.fromkeys(ending for reader in READERS for ending in reader.endings))
#: Trainers name PyTorch's traces as they like: JSON in a folder is one if one of these keys is in its head.
JSON = (".json", ".json.gz")
HEAD_BYTES = 1 << 14
TRACE_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
#: The suffix of summaries, and of those of earlier versions.
SUMMARY = ".summary.sqlite"
PARQUET = ".parquet"
#: nsys writes a Parquet file a table; a report has at least one of these tables.
TABLES = ("StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL")


def read(path: Path | str, *, functions: Functions = "") -> Trace:
    """Read a report of any known format.

    With `functions`, the Python functions of a PyTorch trace with stacks become ranges: "all" of the program and
    of libraries, or the program's "own".

    Raises NotAReport, with a sentence on what the file is and a next step, for anything else, and if the report
    is written meanwhile; UsageError for functions of another format.
    """
    from .many_names import with_joined_names
    from .module_names import with_module_names
    from .requirements import require_plausible

    path = Path(path)
    reader = reader_of(path)
    before = identity(path)
    if functions and reader.format != PYTORCH_TRACE:
        raise UsageError(f"{path} has no Python functions. {STACKS}")
    options = {"functions": functions} if functions else {}
    try:
        trace: Trace = importlib.import_module(f"{__name__}.{reader.module}").read(path, **options)
    except (NotAReport, OSError):
        require_unchanged(path, before)  # half of one state and half of another looks damaged
        raise
    require_unchanged(path, before)
    require_plausible(trace, path)
    return with_joined_names(with_module_names(with_bounded_names(trace)))


def reader_of(path: Path) -> Reader:
    """Return the reader that recognises a file by its first bytes; raises NotAReport as `read` does."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise NotAReport(f"{path} is not a regular file. Use the path of the report itself.")
        head = b""
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                head = file.read(4096)
    except FileNotFoundError:
        raise NotAReport(f"{path} does not exist. Use the path of a report, such as report1.sqlite.") from None
    except OSError as error:
        raise NotAReport(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError:  # a zero byte
        raise NotAReport(f"{path} is not a path: it contains a zero byte. Use the path of a report.") from None
    if _has_number(head, SUMMARY_ID):
        raise NotAReport(f"{path} is a summary: `rank`, `compare` and `page` read it. Use the report itself.")
    for reader in READERS:
        if reader.recognises(path, head):
            return reader
    formats = (
        "an nsys export (.sqlite, or the folder of --type parquetdir), a .nsys-rep, a PyTorch profiler trace "
        "(.pt.trace.json) or a database of rocprofv3's (-f rocpd)"
    )
    if path.is_dir():
        if inside := sorted(report.name for report in path.glob("*") if report.name.endswith(ENDINGS)):
            raise NotAReport(f"{path} is a folder of reports. Use one of them, such as {inside[0]}.")
        raise NotAReport(f"{path} is a folder without a report that can be read. Use {formats}.")
    if not head:
        cause = "is empty: its recording or export did not finish. Record it, or export the .nsys-rep, again"
    elif head.startswith(LFS_MAGIC):
        cause = "is a Git LFS pointer, not the report itself. Fetch it with `git lfs pull`"
    elif packed := next((packed for packed in PACKED if head.startswith(packed[0])), None):
        cause = f"is packed with {packed[1]}. Unpack it first: {packed[2]} {shlex.quote(str(path))}"
    elif not head.strip(b"\0"):
        cause = "begins with zeros: its export was interrupted. Run `nsys export --type sqlite` again"
    else:
        cause = f"is not a report that can be read. Use {formats}"
    raise NotAReport(f"{path} {cause}.")


def expand(paths: Sequence[Path]) -> list[Path]:
    """Replace folders of reports and patterns by the reports they contain, in the order of their names.

    Raises UsageError if a folder or pattern contains none.
    """
    return list(dict.fromkeys(report for path in paths for report in _reports_in(path)))


def _reports_in(path: Path) -> list[Path]:
    try:
        exists = path.exists()
    except OSError:  # a name that is too long; the reader says so
        return [path]
    if path.is_dir() and not _is_export(path):
        reports = [
            inside
            for inside in path.iterdir()
            if inside.name.endswith((*ENDINGS, PARQUET))
            or (inside.is_dir() and _is_export(inside))
            or _is_named_otherwise(inside)
        ]
    elif has_magic(str(path)) and not exists:
        reports = list(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    else:
        return [path]
    if not reports:
        raise UsageError(f"{path} contains no reports ({', '.join(ENDINGS)}, or folders of Parquet files).")
    exported = {report.with_suffix(".nsys-rep") for report in reports if report.suffix == ".sqlite"}
    return sorted(report for report in set(reports) if report not in exported)


def _is_named_otherwise(path: Path) -> bool:
    """Return whether a file of any other name is a trace of PyTorch's: `rank0_trace.json.gz`, `rank-0.json`."""
    if not (path.name.endswith(JSON) and path.is_file()):
        return False
    try:
        with (gzip.open if path.suffix == ".gz" else Path.open)(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    return any(key in head for key in TRACE_KEYS)


def _is_export(folder: Path) -> bool:
    """Return whether a folder is one report that nsys exported as Parquet, and not one of reports or summaries."""
    return any((folder / f"{table}{PARQUET}").exists() for table in TABLES)
