"""Write files so that readers find either the old file or the complete new one, and never over a device.

Links are followed, pipes and terminals are written to, and folders, sockets and disks are refused. A new file is
made next to its target and renamed.
"""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

# Names of open files: what they lead to is appended to, for others write there too.
OPEN_FILES = ("/dev/std", "/dev/fd/", "/proc/")
REFUSED = {stat.S_IFDIR: "It is a folder", stat.S_IFBLK: "It is a disk", stat.S_IFSOCK: "It is a socket"}
BUFFER = 2**18
STANDARD_ERROR = 2
COMPRESSION = 4  # of 1 to 9: a larger file, written in half the time of the default


class Unfinished:
    """A new file next to a target, which replaces the target when it is published.

    `target` is the path with links followed, so that a link that changes later does not lead elsewhere. Raises
    OSError if the target is not a regular file.
    """

    def __init__(self, target: Path) -> None:
        self.target, kind = _followed(target)
        if kind not in (0, stat.S_IFREG):
            raise OSError(errno.EINVAL, REFUSED.get(kind, "It is not a regular file"), str(target))
        self.path = self.target.with_name(f".unfinished-nvtx-kernels-{secrets.token_hex(8)}.tmp")

    def create(self) -> None:
        """Create the file, as open to others as the one that it will replace, or as the umask lets it be."""
        mode = stat.S_IMODE(self.target.stat().st_mode) & 0o777 if self.target.exists() else None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        os.close(os.open(self.path, flags, 0o666 if mode is None else mode))
        if mode is not None:
            with suppress(OSError):  # not every file system knows modes
                self.path.chmod(mode)

    def publish(self) -> None:
        """Write the file through to the disk and rename it into place."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(self.target)

    def publish_beside(self) -> Path:
        """Publish the file under a new name with a number from 2 on, and return that path."""
        for number in itertools.count(2):
            path = self.target.with_stem(f"{self.target.stem}-{number}")
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                continue
            self.target = path
            self.publish()
            return path
        raise AssertionError

    def discard(self) -> None:
        """Remove the file if it was not published."""
        self.path.unlink(missing_ok=True)


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """Yield a new file next to a target, which replaces it when the block succeeds, and is removed otherwise.

    Raises OSError if the target is not a regular file, or if writing fails.
    """
    unfinished = Unfinished(target)
    try:
        unfinished.create()
        yield unfinished.path
        unfinished.publish()
    finally:
        unfinished.discard()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write: next to the path and renamed when the block succeeds, or a pipe or device itself.

    Raises OSError if that fails; the old file is then unchanged, and no other file is left.
    """
    target, kind = _followed(path)
    is_open_file = str(path).startswith(OPEN_FILES)  # its target may have no path, as a pipe
    if kind in (stat.S_IFIFO, stat.S_IFCHR) or (kind == stat.S_IFREG and is_open_file):
        with _stream(path if is_open_file else target) as stream:
            yield stream
        return
    with beside(path) as unfinished, unfinished.open("wb") as file:
        yield file


def replace_file(path: Path, data: bytes) -> None:
    """Write a file next to its target and rename it; raises OSError as `replacing` does."""
    with replacing(path) as file:
        file.write(data)


def write_lines(lines: Iterable[str], path: Path) -> None:
    """Write text to a file, compressed if its name ends with .gz; raises OSError as `replacing` does."""
    with replacing(path) as file:
        if path.suffix != ".gz":
            file.writelines(line.encode() for line in lines)
            return
        packed = gzip.GzipFile(filename="", mode="wb", compresslevel=COMPRESSION, fileobj=file, mtime=0)
        with packed, io.BufferedWriter(packed, BUFFER) as buffered:
            buffered.writelines(line.encode() for line in lines)


def _followed(path: Path) -> tuple[Path, int]:
    """Return where a path leads, and the kind of file there, 0 for none; raise OSError for a circle of links."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        kind = 0
    return Path(os.path.realpath(path)), kind


def _stream(path: Path) -> IO[bytes]:
    """Open a pipe, a device or an open file to append to it; raise OSError for a pipe without a reader."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "No process reads from it", str(path)) from error
        raise
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


@contextmanager
def standard_numbers_taken() -> Iterator[None]:
    """Have no file that is opened in the block get the number of a standard stream that is closed.

    SQLite would take it for good, for nothing.
    """
    taken = []
    try:
        while (number := os.open(os.devnull, os.O_RDONLY)) <= STANDARD_ERROR:
            taken.append(number)
        taken.append(number)
        yield
    finally:
        for number in taken:
            os.close(number)


def discard_output() -> None:
    """Send what this process still prints nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
