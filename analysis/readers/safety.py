"""How a report's file is kept from harming its reader: it must not change meanwhile, nor unpack to too much.

A trace in gzip is a tenth to a thirtieth of its text, and a Parquet file of nsys a fifth of its columns; a file
made to exhaust the reader's memory has a thousandth or less.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotAReport, UsageError
from ..support.files import OPEN_FILES

if TYPE_CHECKING:
    from ..trace import Trace

MAX_SIZE = "NVTX_KERNELS_MAX_SIZE"
# A file may unpack to this many times its own size, and any file to this many bytes.
MOST_TIMES = 100
FLOOR_BYTES = 256 << 20
# What a value of a column takes as an object of Python's: rows of 17 columns took 1,700 bytes each.
OBJECT_BYTES = 100
# No compiler or framework writes such names; each is written in every path through its range.
LONGEST_NAME = 1 << 18
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

# Which file it is, its size, and when its content and its entry were last changed.
Identity = tuple[tuple[str, int, int, int, int, int], ...]


# The folder whose reports are served: no file outside is opened.
_SERVED: ContextVar[Path | None] = ContextVar("served", default=None)
_OPENED = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def served_from(folder: Path) -> Iterator[None]:
    """Open files of this folder alone in the block, all links followed, whichever file a reader looks for."""
    token = _SERVED.set(folder)
    try:
        yield
    finally:
        _SERVED.reset(token)


def opened_file(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a file of a report for reading: of one found beside it, `within` is the folder in which it must be.

    All links are followed first. Raises NotAReport for a file outside of that folder or of the one that is served,
    and for a pipe or a device, from which reading may wait or never end; OSError where a path leads nowhere. What
    this process has open, such as /dev/stdin, may be anything.
    """
    folders = [folder for folder in (within, _SERVED.get()) if folder is not None]
    if not folders and str(path).startswith(OPEN_FILES):
        return path.open("rb")
    real = Path(os.path.realpath(path, strict=True))
    for folder in folders:
        if not real.is_relative_to(os.path.realpath(folder)):
            raise NotAReport(f"{path} is not in {folder}: it is a link that leads elsewhere. Move it away.")
    descriptor = os.open(real, _OPENED)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAReport(f"{path} is not a regular file. Use the path of the file itself.")
    return os.fdopen(descriptor, "rb")


def newest_beside(folder: Path, pattern: str) -> tuple[Path | None, str]:
    """Return the newest of a folder's files of a pattern that may be opened; and a note on others, or "".

    No file is read, and no note given, in a folder outside of the one that is served.
    """
    served = _SERVED.get()
    files = list[tuple[float, Path]]()
    problems = list[str]()
    if served is not None and not Path(os.path.realpath(folder)).is_relative_to(served):
        return None, ""
    for path in sorted(folder.glob(pattern)):
        try:
            with opened_file(path, within=folder) as file:
                files.append((os.fstat(file.fileno()).st_mtime, path))
        except NotAReport as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}.")
    more = f" So are {len(problems) - 1:,} others." if len(problems) > 1 else ""
    return max(files)[1] if files else None, f"Left out: {problems[0]}{more}" if problems else ""


def content_of(path: Path, most_bytes: int, within: Path | None = None) -> bytes:
    """Return the content of a small file of a report; raises NotAReport for a larger one, and as `opened_file`."""
    with opened_file(path, within) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise NotAReport(f"{path} is larger than {most_bytes >> 20} MiB. Move it away, or write it again.")
    return content


def require_within(path: Path, unpacked_bytes: int) -> None:
    """Raise NotAReport where a file unpacks to more bytes than it may; UsageError for an invalid limit."""
    if unpacked_bytes <= FLOOR_BYTES and MAX_SIZE not in os.environ:
        return
    most = allowed_bytes(path)
    if unpacked_bytes > most:
        gigabytes = max(1, -(-unpacked_bytes * 4 // 10**9))
        raise NotAReport(
            f"{path} unpacks to more than {most / 1e6:,.0f} MB, far more than any report of its size. If "
            f"you trust it, allow more: {MAX_SIZE}={gigabytes}G"
        )


def allowed_bytes(path: Path) -> int:
    """Return how many bytes a file may unpack to: by the environment variable, else by its own size."""
    limit = os.environ.get(MAX_SIZE)
    if limit is None:
        return max(FLOOR_BYTES, MOST_TIMES * path.stat().st_size)
    size = re.fullmatch(r"(\d{1,9}(?:\.\d+)?) *([KMGT]?)(?:i?B)?", limit.strip(), re.IGNORECASE)
    if not size:
        raise UsageError(f"{MAX_SIZE}={limit!r} is not a size. Use a value such as 8G.")
    return int(float(size[1]) * UNITS[size[2].upper()])


def with_bounded_names(trace: Trace) -> Trace:
    """Leave out the middle of names of more than `LONGEST_NAME` characters; different names stay different."""
    origin = trace.provenance
    texts = [*trace.names, origin.tool, origin.schema, *origin.gpus]
    for named in (trace.threads, trace.processes, trace.domains):
        texts += [row.name for row in named]
    if max(map(len, texts)) <= LONGEST_NAME:
        return trace

    def bounded(name: str) -> str:
        if len(name) <= LONGEST_NAME:
            return name
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
        end = LONGEST_NAME // 4
        return f"{name[:end]}… {len(name):,} characters, SHA-256 {digest} …{name[-end:]}"

    long_count = sum(len(text) > LONGEST_NAME for text in texts)
    note = f"Of names with more than {LONGEST_NAME:,} characters ({long_count:,}), the middle is left out."
    return replace(
        trace,
        names=list(map(bounded, trace.names)),
        threads=[replace(thread, name=bounded(thread.name)) for thread in trace.threads],
        processes=[replace(process, name=bounded(process.name)) for process in trace.processes],
        domains=[replace(domain, name=bounded(domain.name)) for domain in trace.domains],
        provenance=replace(
            origin, tool=bounded(origin.tool), schema=bounded(origin.schema), gpus=tuple(map(bounded, origin.gpus))
        ),
        notes=(*trace.notes, note),
    )


def identity(path: Path) -> Identity:
    """Return values that change if a report is written, moved or replaced; a folder has its Parquet files' values.

    Raises NotAReport if one of those is no regular file of the folder, such as a pipe or a link that leads
    elsewhere, and OSError if a file cannot be inspected.
    """
    if not path.is_dir():
        return (_entry(path),)
    files = sorted(path.glob("*.parquet"))
    for file in files:
        try:
            opened_file(file, within=path).close()
        except NotAReport:
            raise
        except OSError as error:
            reason = f"cannot be opened: {error.strerror}"
            raise NotAReport(f"{file} {reason}. Export the folder again, or remove it.") from error
    return tuple(map(_entry, files))


def _entry(file: Path) -> tuple[str, int, int, int, int, int]:
    status = file.stat()
    return file.name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def require_unchanged(path: Path, before: Identity) -> None:
    """Raise NotAReport where a report was written since `before`."""
    with suppress(OSError):
        if identity(path) == before:
            return
    raise NotAReport(f"{path} was changed while it was read. Wait until it is written.")
