"""Folders as overlays: a program sees its files, and what it writes is in memory and gone with its process.

    ~/project       the program's folder         overlay: reads the folder, writes to memory
    /tmp, ~/.cache  temporary files and caches   the same
    /dev/shm        shared memory                new and empty
    all else                                     may not be written

This is a mount namespace of the process (in a user namespace where it is not root), so that nothing is left when
it ends, however it ends, and nobody else sees any of it. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_SETATTR, MOUNT_ATTR_RDONLY = 442, 1
SHARED_MEMORY = "/dev/shm"  # noqa: S108


@dataclass(frozen=True)
class Place:
    """Where a program runs: its folders, which are overlays, and those that it may write for real.

    `results` is the folder of ours, in which files are handed out; `bytes` the most that all overlays may hold.
    Where `is_in_place`, nothing is an overlay.
    """

    folders: tuple[str, ...]
    allowed: tuple[str, ...]
    results: str
    bytes: int
    is_in_place: bool = False
    may_connect: bool = False

    @property
    def writable(self) -> tuple[str, ...]:
        """Return all folders that the program may write to."""
        return (*self.folders, *self.allowed, self.results)


def enter(place: Place) -> None:
    """Make the folders of this process overlays; it must have one thread. Raises OSError where that is impossible.

    Whatever is opened, made or mounted before stays what it was.
    """
    folder = Path.cwd()
    _unshare()
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    overlaid = _to_overlay(place.folders)
    real = (*place.allowed, place.results)
    held = {path: os.open(path, os.O_PATH) for path in (*overlaid, *real)}
    before = {path: f"/proc/self/fd/{number}" for path, number in held.items()}
    shared_bytes = _size_of(SHARED_MEMORY)
    _set_read_only("/")
    scratch = Path(place.results, "scratch")
    _mount("tmpfs", str(scratch), "tmpfs", 0, f"size={place.bytes},mode=700")
    held[str(scratch)] = os.open(scratch, os.O_PATH)
    for number, path in enumerate(overlaid):
        _overlay(path, before[path], f"/proc/self/fd/{held[str(scratch)]}/{number}")
    for path in real:
        _mount(before[path], path, "", MS_BIND)
        _set_writable(path)
    _set_writable("/proc")
    if shared_bytes:
        _mount("tmpfs", SHARED_MEMORY, "tmpfs", 0, f"size={shared_bytes},mode=1777")
    for number in held.values():
        os.close(number)
    os.chdir(folder)  # into the overlay


def _to_overlay(folders: Sequence[str]) -> list[str]:
    """Return the folders, with what is mounted below them, each once, outer ones first.

    A folder on the file system of one above it is in that one's overlay.
    """
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    mounted = [_unescaped(line.split()[4]) for line in mounts]
    chosen: list[str] = []
    for folder in sorted({os.path.realpath(folder) for folder in folders}):
        outer = [path for path in chosen if _is_below(folder, path)]
        if folder in chosen or (outer and _device_of(outer[-1]) == _device_of(folder)):
            continue
        below = [path for path in mounted if _is_below(path, folder) and Path(path).is_dir()]
        with_mounts = dict.fromkeys([folder, *sorted(below)])
        chosen += [path for path in with_mounts if path not in chosen]
    return sorted(chosen)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}{os.sep}")


def _device_of(path: str) -> int:
    """Return the number of the device that a path's file system is on."""
    return Path(path).stat().st_dev


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), path)


def _overlay(path: str, lower: str, upper: str) -> None:
    for part in ("new", "work"):
        Path(upper, part).mkdir(parents=True)
    Path(upper, "new").chmod(Path(lower).stat().st_mode & 0o7777)
    _mount("overlay", path, "overlay", 0, f"lowerdir={lower},upperdir={upper}/new,workdir={upper}/work")


def _size_of(path: str) -> int:
    try:
        facts = os.statvfs(path)
    except OSError:
        return 0
    return facts.f_blocks * facts.f_frsize


_libc = ctypes.CDLL(None, use_errno=True)


def _call(action: str, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")


def _unshare() -> None:
    """Have mounts of our own: as root at once, else as root of a user namespace."""
    user = os.getuid()
    group = os.getgid()
    if user == 0 and _libc.unshare(CLONE_NEWNS) == 0:
        return
    _call("a user namespace", _libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _mount(
    source: str,
    target: str,
    kind: str,
    flags: int,
    data: str = "",
) -> None:
    words = (word.encode() for word in (source, target, kind, data))
    source_, target_, kind_, data_ = words
    _call(f"mounting {target}", _libc.mount(source_, target_, kind_ or None, flags, data_ or None))


def _set_read_only(path: str) -> None:
    _set_attributes(path, MOUNT_ATTR_RDONLY, 0, AT_RECURSIVE)


def _set_writable(path: str) -> None:
    _set_attributes(path, 0, MOUNT_ATTR_RDONLY, 0)


def _set_attributes(path: str, on: int, off: int, flags: int) -> None:
    attributes = struct.pack("QQQQ", on, off, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    result = _libc.syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, attributes, size)
    _call(f"what may be written in {path}", result)
