"""What annotation's marks say of fused kernels, and no more than they may: the bytes that each part writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

WRITES_MARK = "nvtx-kernels writes: "
PHASES_OF_MARKS = ("forward", "backward")
# Limits of what is read; a graph has a few rows, a row a few parts.
MOST_ROWS, MOST_PARTS, MOST_NAMES, LONGEST, MOST_BYTES = 20_000, 256, 64, 1024, 2**50

#: The parts of a shared row, by their names below what they share, and the bytes that each writes.
Parts: TypeAlias = list[tuple[list[str], int]]
#: By phase and path; None where that is not known, or graphs say different things of one path.
Writes: TypeAlias = dict[str, dict[str, Parts | None]]


def join(known: Writes, said: Mapping[str, Any]) -> None:
    """Add what a mark says to what others said."""
    phase, rows = said.get("phase"), said.get("rows")
    if phase not in PHASES_OF_MARKS or not isinstance(rows, dict):
        return
    of_phase = known.setdefault(phase, {})
    for path, parts in _sane(rows):
        if path not in of_phase:
            if len(of_phase) < MOST_ROWS:
                of_phase[path] = parts
        elif not _agree(of_phase[path], parts):
            of_phase[path] = None


def _sane(rows: Mapping[str, Any]) -> Iterator[tuple[str, Parts | None]]:
    for path, parts in rows.items():
        if 0 < len(path) <= LONGEST:
            yield path, parts if _are_parts(parts) else None


def _are_parts(parts: Any) -> bool:
    if not isinstance(parts, list) or not 2 <= len(parts) <= MOST_PARTS or not all(map(_is_part, parts)):
        return False
    return len({tuple(names) for names, _ in parts}) == len(parts) and any(size for _, size in parts)


def _is_part(part: Any) -> bool:
    if not isinstance(part, list) or len(part) != 2 or not isinstance(part[0], list):
        return False
    names, size = part
    are_names = len(names) <= MOST_NAMES and all(isinstance(one, str) and 0 < len(one) <= LONGEST for one in names)
    return are_names and isinstance(size, int) and not isinstance(size, bool) and 0 <= size < MOST_BYTES


def _agree(one: Parts | None, other: Parts | None) -> bool:
    """Return whether two graphs give the same shares to the same parts, as for batches of other sizes."""
    if one is None or other is None:
        return False
    a, b = ({tuple(names): size for names, size in parts} for parts in (one, other))
    whole_a, whole_b = sum(a.values()), sum(b.values())
    return a.keys() == b.keys() and all(a[names] * whole_b == b[names] * whole_a for names in a)
