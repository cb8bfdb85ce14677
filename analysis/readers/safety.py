"""How a report's file is kept from harming its reader: it must not change meanwhile, nor unpack to too much.

A trace in gzip is a tenth to a thirtieth of its text, and a Parquet file of nsys a fifth of its columns; a file
made to exhaust the reader's memory has a thousandth or less.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NotAReport, UsageError
from ..support.files import OPEN_FILES

if TYPE_CHECKING:
    from ..trace import Trace

MAX_SIZE = "NVTX_KERNELS_MAX_SIZE"
# A file may unpack to this many times its own size, and any file to this many bytes.
MOST_TIMES, FLOOR_BYTES = 100, 256 << 20
# What a value of a column takes as an object of Python's: rows of 17 columns took 1,700 bytes each.
OBJECT_BYTES = 100
# No compiler or framework writes such names; each is written in every path through its range.
LONGEST_NAME = 1 << 18
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

# Which file it is, its size, and when its content and its entry were last changed.
Identity = tuple[tuple[str, int, int, int, int, int], ...]


def require_file(path: Path) -> None:
    """Raise NotAReport where a path leads to a pipe or a device, from which reading may wait or never end.

    Raises OSError for a path that leads nowhere. What this process has open, such as /dev/stdin, may be anything.
    """
    if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir() and not str(path).startswith(OPEN_FILES):
        raise NotAReport(f"{path} is not a regular file. Use the path of the file itself.")


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
        digest, end = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest(), LONGEST_NAME // 4
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

    Raises NotAReport if one of those is no regular file, as a pipe or a dangling link, and OSError if a file
    cannot be inspected.
    """
    if not path.is_dir():
        return (_entry(path),)
    files = sorted(path.glob("*.parquet"))
    if other := next((file for file in files if not file.is_file()), None):
        raise NotAReport(f"{other} is not a regular file. Export the folder again, or remove it.")
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
