"""A second look at a big report is instant: its summary is kept beside it.

What is kept is small JSON (what `--format json` prints), for a report of a million kernels must open in less time
than importing a Parquet library takes. It is used only if the report (its size, time of change and samples of its
content) and this package's own code are those that made it. Any number of commands may do so at once: each writes
a whole file and moves it into place. A folder that cannot be written is no error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from analysis.files import replace_file
from analysis.report import Report, as_object, from_object

# A report that is read in no time needs nothing kept.
SMALLEST_BYTES = 32 * 2**20
SAMPLES, SAMPLE_BYTES = 16, 4096


def kept(path: Path, options: Mapping[str, Any], rank: Callable[[], Report]) -> Report:
    """Return the summary kept beside a report if it is still true, else a new one, and keep that."""
    if not _is_big(path):
        return rank()
    place, fingerprint = place_of(path, options), fingerprint_of(path)
    known = _load(place, fingerprint)
    if known is not None:
        return known
    report = rank()
    if fingerprint_of(path) == fingerprint:  # it did not change while it was read
        _keep(place, fingerprint, report)
    return report


def _is_big(path: Path) -> bool:
    """Tell whether a file is large enough; what cannot be looked at is not, and the reader says why."""
    try:
        return path.is_file() and path.stat().st_size >= SMALLEST_BYTES
    except OSError:
        return False


def place_of(path: Path, options: Mapping[str, Any]) -> Path:
    """Return where the summary under these options is kept."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]
    return path.with_name(f".{path.name}.{digest}.nvtx-kernels.json")


def fingerprint_of(path: Path) -> str:
    """Tell this report, read by this code, from any other: changes with either."""
    status = path.stat()
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} {status.st_ino}".encode())
    with path.open("rb") as file:
        for sample in range(SAMPLES):
            file.seek(max(0, status.st_size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    for name, size, changed in _code():
        digest.update(f"{name} {size} {changed}".encode())
    return digest.hexdigest()


def _code() -> list[tuple[str, int, int]]:
    """List the files of this package: any change of them makes what is kept stale."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return [(file.name, status.st_size, status.st_mtime_ns) for file in files for status in [file.stat()]]


def _load(place: Path, fingerprint: str) -> Report | None:
    try:
        found = json.loads(place.read_bytes())
        return from_object(found["summary"]) if found["fingerprint"] == fingerprint else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(place: Path, fingerprint: str, report: Report) -> None:
    if not os.access(place.parent, os.W_OK):
        return
    try:
        replace_file(place, json.dumps({"fingerprint": fingerprint, "summary": as_object(report)}).encode())
    except OSError:
        return
