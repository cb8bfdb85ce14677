"""The size to which a report may unpack: a small file that becomes a huge one is refused before it is unpacked.

A trace in gzip is a tenth to a thirtieth of its text, and a Parquet file of nsys a fifth of its columns; a file
made to exhaust the reader's memory has a thousandth or less.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import NotAReport, UsageError

MAX_SIZE = "NVTX_KERNELS_MAX_SIZE"
# A file may unpack to this many times its own size, and any file to this many bytes.
MOST_TIMES, FLOOR_BYTES = 100, 256 << 20
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def require_within(path: Path, unpacked_bytes: int) -> None:
    """Raise NotAReport where a file unpacks to more bytes than it may; UsageError for an invalid limit."""
    if unpacked_bytes <= FLOOR_BYTES and MAX_SIZE not in os.environ:
        return
    most = allowed_bytes(path)
    if unpacked_bytes > most:
        raise NotAReport(
            f"{path} unpacks to more than {most / 1e6:,.0f} MB, far more than any report of its size. If "
            f"you trust it, allow more: {MAX_SIZE}={_raised(unpacked_bytes)}"
        )


def allowed_bytes(path: Path) -> int:
    """Return how many bytes a file may unpack to: by the environment variable, else by its own size."""
    said = os.environ.get(MAX_SIZE)
    if said is None:
        return max(FLOOR_BYTES, MOST_TIMES * path.stat().st_size)
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?) *([KMGT]?)(?:i?B)?", said.strip(), re.IGNORECASE)
    if not found:
        raise UsageError(f"{MAX_SIZE}={said!r} is not a size. Use a value such as 8G.")
    return int(float(found[1]) * UNITS[found[2].upper()])


def _raised(unpacked_bytes: int) -> str:
    return f"{max(1, -(-unpacked_bytes * 4 // 10**9))}G"
