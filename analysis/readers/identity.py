"""Whether a report changed while it was read: an answer is about one state of it, or is refused."""
# Short: every reader and the cache need this, before anything heavier is imported.

from __future__ import annotations

import os
from pathlib import Path

from ..errors import NotAReport

# Which file it is, its size, and when its content and its entry were last changed.
Identity = tuple[tuple[str, int, int, int, int, int], ...]


def identity(path: Path) -> Identity:
    """Return what changes when a report is written, moved or replaced: of a folder, that of its Parquet files.

    Raises OSError if it is inaccessible.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    return tuple(_of_file(os.fspath(file.name), file.stat()) for file in files)


def _of_file(name: str, found: os.stat_result) -> tuple[str, int, int, int, int, int]:
    return name, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def require_unchanged(path: Path, before: Identity) -> None:
    """Raise NotAReport if a report was written since `before`."""
    if not is_unchanged(path, before):
        raise NotAReport(f"{path} was changed while it was read. Wait until it is written.")


def is_unchanged(path: Path, before: Identity) -> bool:
    """Return whether a report is unchanged."""
    try:
        return identity(path) == before
    except OSError:
        return False
