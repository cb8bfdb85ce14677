"""Write files so that readers find either the old file or the complete new one.

What is not a regular file is never replaced: links are followed, pipes and terminals are written to, and folders,
sockets and disks are refused. A new file is made next to its target, under a name of `UNFINISHED`, and renamed;
the next one made in the same folder removes those that a killed process left.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

#: The machine (and its process namespace) and the process that make it; whose process has ended is a leftover.
UNFINISHED = re.compile(r"\.unfinished-nvtx-kernels-([0-9a-f]{12})-(\d+)-\w{8}\.tmp")
MOST_LINKS = 40
# Links in this folder are open files, not names: what they lead to has no name that could be replaced.
OPEN_FILES = re.compile(r"/proc/\d+(?:/task/\d+)?/fd")


def replace_file(path: Path, data: bytes) -> None:
    """Write a file next to its target and rename it; raises OSError as `replacing` does."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write: next to the path and renamed when the block succeeds, or a pipe or device itself.

    Raises OSError if that fails; the old file is then unchanged, and nothing else is left.
    """
    if (stream := _stream(path)) is not None:
        with stream:
            yield stream
        return
    unfinished = Unfinished(path)
    try:
        unfinished.create()
        with unfinished.path.open("wb") as file:
            yield file
        unfinished.publish()
    finally:
        unfinished.discard()


class Unfinished:
    """A new file next to a target, which replaces the target when it is published.

    `target` is the path with links followed, absolute, so that neither a changed folder nor a link that is changed
    meanwhile leads elsewhere. Raises OSError if the target is not a regular file, or cannot be written.
    """

    def __init__(self, target: Path) -> None:
        self.target, is_open_file = _followed(target)
        status = _status(self.target)
        if is_open_file or (status and not stat.S_ISREG(status.st_mode)):
            raise OSError(errno.EINVAL, _refusal(status), str(target))
        remove_leftovers(self.target.parent)
        self.path = self.target.with_name(f"{_unfinished()}{secrets.token_hex(4)}.tmp")
        self._mode = stat.S_IMODE(status.st_mode) & 0o777 if status else None

    def create(self) -> None:
        """Create the file; an interrupt may come at once, so do it where `discard` is sure to follow."""
        _create(self.path, self._mode)

    def publish(self) -> None:
        """Write the file through to the disk and rename it into place."""
        _to_disk(self.path)
        self.path.replace(self.target)
        with suppress(OSError):  # some file systems cannot do this to a folder
            _to_disk(self.target.parent)

    def discard(self) -> None:
        """Remove the file if it was not published."""
        self.path.unlink(missing_ok=True)


def _create(path: Path, mode: int | None) -> None:
    """Create an empty file, as open to others as the one that it will replace, or as the umask lets it be."""
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666 if mode is None else mode
    )
    try:
        if mode is not None:
            with suppress(OSError):  # not every file system knows modes
                os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files of ours in a folder whose processes, on this machine, have ended."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = UNFINISHED.fullmatch(entry.name)
            if found and found[1] == _place() and not _runs(int(found[2])):
                _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    """Remove a file or folder of this user's, and nothing that a link leads to."""
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.geteuid():
        return
    if stat.S_ISREG(status.st_mode):
        Path(entry.path).unlink(missing_ok=True)
    elif stat.S_ISDIR(status.st_mode):
        shutil.rmtree(entry.path, ignore_errors=True)


@contextmanager
def temporary_folder(inside: Path | None = None) -> Iterator[Path]:
    """Yield a folder that is removed after the block, or by the next run if this process is killed."""
    remove_leftovers(Path(tempfile.gettempdir()) if inside is None else inside)
    with tempfile.TemporaryDirectory(prefix=_unfinished(), suffix=".tmp", dir=inside) as folder:
        yield Path(folder)


def _unfinished() -> str:
    return f".unfinished-nvtx-kernels-{_place()}-{os.getpid()}-"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


@cache
def _place() -> str:
    """Return a word for the scope of process ids: this boot of the machine, and the container."""
    facts = [socket.gethostname()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        facts.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:12]


def _stream(path: Path) -> IO[bytes] | None:
    """Open a pipe, a terminal or another device that takes characters; None for what is, or will be, a file.

    Raises OSError for a folder, a disk, a socket, and a pipe without a reader.
    """
    target, is_open_file = _followed(path)
    status = _status(target)
    is_file = status is None or stat.S_ISREG(status.st_mode)
    if is_file and not is_open_file:
        return None
    if status and not (is_file or stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode)):
        raise OSError(errno.EINVAL, _refusal(status), str(path))
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK  # never waits for a reader to come
    try:
        descriptor = os.open(target, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "No process reads from it", str(path)) from error
        raise
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def _followed(path: Path) -> tuple[Path, bool]:
    """Return where a path leads, absolute, and whether that is an open file instead of a name."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - keeps links, as `Path.absolute` does, and drops `..`
    for _ in range(MOST_LINKS):
        folder = os.path.realpath(path.parent)
        here = Path(folder, path.name)
        if not here.is_symlink():
            return here, False
        if OPEN_FILES.fullmatch(folder):
            return here, True
        path = Path(folder, here.readlink())
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


_KINDS = (
    (stat.S_ISDIR, "It is a folder"),
    (stat.S_ISBLK, "It is a disk"),
    (stat.S_ISSOCK, "It is a socket"),
)


def _refusal(status: os.stat_result | None) -> str:
    """Return why an existing file is not replaced."""
    found = [reason for is_kind, reason in _KINDS if status and is_kind(status.st_mode)]
    return found[0] if found else "It is not a regular file"


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
