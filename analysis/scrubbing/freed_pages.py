"""The pages of a SQLite file that deleting left behind: their bytes stay until somebody runs VACUUM.

Format: https://www.sqlite.org/fileformat2.html#the_freelist
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

HEADER = struct.Struct(">16xH14xII")  # page size, first trunk of the free list, how many pages it has


def freed_pages(path: Path) -> Iterator[bytes]:
    """Yield the content of every page on the free list; a damaged list ends where it makes no sense."""
    with path.open("rb") as file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            return
        size, trunk, left = HEADER.unpack(header)
        size = 65536 if size == 1 else size
        while trunk and left > 0:
            page = _page(file, size, trunk)
            trunk, count = struct.unpack_from(">II", page) if len(page) >= 8 else (0, 0)
            count = min(count, (len(page) - 8) // 4, left - 1)
            yield page[8 + 4 * max(count, 0) :]
            for (number,) in struct.iter_unpack(">I", page[8 : 8 + 4 * max(count, 0)]):
                yield _page(file, size, number)
            left -= 1 + count


def _page(file: BinaryIO, size: int, number: int) -> bytes:
    file.seek((number - 1) * size if number else 0)
    return file.read(size)
