"""Writing a file that is too large to hold in memory: beside its place, and moved there when it is whole."""

from __future__ import annotations

import gzip
import io
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

BUFFER = 2**18
COMPRESSION = 4  # of 1 to 9: a larger file, written in half the time of the default


def write_lines(lines: Iterable[str], path: Path) -> None:
    """Write text to a file, compressed if its name ends with .gz.

    Raises OSError where that fails; whatever was there before is then still there, and nothing else.
    """
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            _write(lines, file, compressed=path.suffix == ".gz")
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(0o666 & ~_umask())
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def _write(lines: Iterable[str], file: IO[bytes], *, compressed: bool) -> None:
    if not compressed:
        file.writelines(line.encode() for line in lines)
        return
    packed = gzip.GzipFile(filename="", mode="wb", compresslevel=COMPRESSION, fileobj=file, mtime=0)
    with packed, io.BufferedWriter(packed, BUFFER) as buffered:
        buffered.writelines(line.encode() for line in lines)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
