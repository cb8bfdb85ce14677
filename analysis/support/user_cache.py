"""The user's cache folder, where only this user puts files: what another user could have written is not read.

Short, because what is kept there, and when it is still valid, is known by those who keep it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

FOLDER_VARIABLE = "NVTX_KERNELS_CACHE"


def folder() -> Path:
    """Return where files are kept: what NVTX_KERNELS_CACHE names, or a folder of ours in the user's cache."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("nvtx-kernels", appauthor=False)


def is_ours_alone(home: Path) -> bool:
    """Make the folder if it is missing; return whether no other user can put files there.

    Raises OSError if it can be neither created nor read.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.stat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def content_of(place: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file that this user owns, of bounded size; raises OSError for others."""
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if not is_ours or status.st_size > most_bytes:
            raise OSError(f"{place} is not a file of ours")
        return file.read(status.st_size)
