"""Cache the summary of a large report in the user's cache folder, so that it opens at once the next time.

What is kept is small JSON (what `--format json` prints), for a report of a million kernels must open in less time
than importing a Parquet library takes. It is used only if the report (which file it is, its size, its times of
change and samples of its content) and this package's own code are those that made it, and only from a folder and a
file that are this user's alone. Any number of commands may do so at once: each writes a whole file and moves it to
its place. A folder that cannot be used is not an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from ..report import Report
from ..report.plain import as_object, from_object
from ..support.files import replace_file
from ..support.user_cache import content_of, folder, is_ours_alone

# A report that is read in no time needs nothing kept.
SMALLEST_BYTES = 32 * 2**20
SAMPLES, SAMPLE_BYTES = 16, 4096
SUFFIX = ".summary"
# Of one summary, and of all that are kept; the oldest go first.
MOST_BYTES, MOST_KEPT_BYTES = 32 * 2**20, 256 * 2**20
DIGEST_BYTES = 64


def kept(path: Path, options: Mapping[str, Any], rank: Callable[[], Report]) -> Report:
    """Return the cached summary of a report if it is still valid, else a new one, which is cached."""
    if not _is_big(path):
        return rank()
    place, fingerprint = place_of(path, options), fingerprint_of(path)
    known = _load(place, fingerprint) if place else None
    if known is not None:
        return known
    report = rank()
    if place and fingerprint_of(path) == fingerprint:  # it did not change while it was read
        _keep(place, fingerprint, report)
    return report


def place_of(path: Path, options: Mapping[str, Any]) -> Path | None:
    """Return the path of a report's cached summary for these options; None if it cannot be cached."""
    with suppress(OSError):
        if is_ours_alone(home := folder()):
            key = json.dumps([os.path.realpath(path), options], sort_keys=True)
            return home / (hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32] + SUFFIX)
    return None


def _is_big(path: Path) -> bool:
    """Return whether a file is large enough; an inaccessible one is not, and the reader reports it."""
    try:
        return path.is_file() and path.stat().st_size >= SMALLEST_BYTES
    except OSError:
        return False


def fingerprint_of(path: Path) -> str:
    """Return a digest of this report and this code, which changes with either; empty if it cannot be read.

    A journal next to a SQLite report belongs to it.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(repr(_identity(file)).encode())
            for sample in _samples(file):
                digest.update(sample)
    except OSError:
        return ""
    beside = [path.with_name(path.name + ending).exists() for ending in ("-wal", "-journal")]
    digest.update(repr((beside, _code())).encode())
    return digest.hexdigest()


def _identity(file: BinaryIO) -> tuple[int, ...]:
    """Return which file is open, its size, and when its content and its entry were last changed."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _samples(file: BinaryIO) -> list[bytes]:
    last = max(0, os.fstat(file.fileno()).st_size - SAMPLE_BYTES)
    return [os.pread(file.fileno(), SAMPLE_BYTES, last * sample // (SAMPLES - 1)) for sample in range(SAMPLES)]


def _code() -> list[tuple[str, int, int]]:
    """List the files of this package: any change to them invalidates the cache."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return [(file.name, status.st_size, status.st_mtime_ns) for file in files for status in [file.stat()]]


def _load(place: Path, fingerprint: str) -> Report | None:
    try:
        content = content_of(place, MOST_BYTES)
        digest, content = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if not fingerprint or digest != _digest(content):
            return None
        found = json.loads(content)
        if found["fingerprint"] != fingerprint:
            return None
        measured = from_object(found["measured"]) if found["measured"] else None
        return replace(from_object(found["summary"]), measured=measured)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _keep(place: Path, fingerprint: str, report: Report) -> None:
    measured = as_object(report.measured) if report.measured else None
    whole = {"fingerprint": fingerprint, "summary": as_object(report), "measured": measured}
    content = json.dumps(whole).encode()
    if not fingerprint or len(content) + DIGEST_BYTES > MOST_BYTES:
        return
    with suppress(OSError):
        _make_room(place.parent, len(content))
        if not all(stat.S_ISREG(status.st_mode) for status in _of(place)):
            place.unlink()
        replace_file(place, _digest(content) + content)
        place.chmod(0o600)


def _make_room(home: Path, needed: int) -> None:
    """Remove the oldest summaries until the others and a new one of this size may be kept."""
    found = [
        (status.st_mtime_ns, status.st_size, file) for file in home.glob(f"*{SUFFIX}") for status in _of(file)
    ]
    total = needed + sum(size for _, size, _ in found)
    for _, size, file in sorted(found):
        if total <= MOST_KEPT_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= size


def _of(file: Path) -> list[os.stat_result]:
    try:
        return [file.lstat()]
    except OSError:
        return []  # another process was quicker
