"""Writing a file that is too large to hold in memory: beside its place, and moved there when it is whole."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from analysis.files import replacing

BUFFER = 2**18
COMPRESSION = 4  # of 1 to 9: a larger file, written in half the time of the default


def write_lines(lines: Iterable[str], path: Path) -> None:
    """Write text to a file, compressed if its name ends with .gz; raises OSError as `replacing` does."""
    with replacing(path) as file:
        _write(lines, file, compressed=path.suffix == ".gz")


def _write(lines: Iterable[str], file: IO[bytes], *, compressed: bool) -> None:
    if not compressed:
        file.writelines(line.encode() for line in lines)
        return
    packed = gzip.GzipFile(filename="", mode="wb", compresslevel=COMPRESSION, fileobj=file, mtime=0)
    with packed, io.BufferedWriter(packed, BUFFER) as buffered:
        buffered.writelines(line.encode() for line in lines)
