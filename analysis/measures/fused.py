"""The time of fused kernels split over the ranges that share them, by the bytes that each writes: an estimate.

A kernel that is bound by memory takes about as long as it moves bytes, and what each part of a fused one writes is
known from its compilation. What its parts read and compute is not, so this is asked for, and labelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from ..report import Number, Path, RangeRow, Report, in_tree_order
from ..support.units import share_text
from ..vocabulary import fused_parts, some_of
from .counts import keys_of

NOT_SAID = (
    "The report does not say what the parts of fused kernels write, so their time cannot be split. Record again: "
    "compiled programs that this release annotates say it."
)
NOTHING_SHARED = "No kernel time is shared by several ranges, so --split-fused changes nothing."

Place: TypeAlias = tuple[Path, str]
#: A part's path, and the bytes that it writes.
Parts: TypeAlias = list[tuple[Path, int]]


@dataclass(frozen=True, slots=True)
class SplitRow(RangeRow):
    """A range whose times have its estimated shares of fused kernels: how much of `self_ns` and `inclusive_ns`."""

    estimated_self_ns: Number = 0
    estimated_ns: Number = 0


def split_fused(report: Report) -> Report:
    """Split the time of fused kernels over the ranges that share them; launches stay with the shared row."""
    splitting = _Splitting(report)
    return replace(
        report,
        ranges=in_tree_order(splitting.rows.values()),
        notes=(*report.notes, splitting.note()),
        measured=split_fused(report.measured) if report.measured else None,
        split_fused=True,
    )


class _Splitting:
    """Goes through the shared rows of a report, and moves their time."""

    def __init__(self, report: Report) -> None:
        self.rows = {(row.path, row.phase): _as_split(row) for row in report.ranges}
        self._kernel_ns = sum(row.total_ns for row in report.kernels if row.kind == "kernel")
        self._split_ns = self._whole_ns = 0
        self._writing_nothing: list[Path] = []
        for row in [row for row in report.ranges if row.self_ns]:
            path = _shared(row.path)
            parts = parts_of(report.provenance.writes, path, row.phase) if path else None
            if parts is not None:
                self._split(row, path, parts)
            elif path:
                self._whole_ns += int(row.self_ns)

    def note(self) -> str:
        """Return what was split, what stays whole and which parts get nothing, as sentences."""
        whole_ns = self._kernel_ns or 1
        if not self._split_ns and not self._whole_ns:
            return NOTHING_SHARED
        texts = [
            f"Estimated by --split-fused: {share_text(self._split_ns / whole_ns)} of the kernel time is of "
            "kernels that several ranges share, and is split over these by the bytes that each writes."
        ]
        if self._whole_ns:
            texts.append(
                f"{share_text(self._whole_ns / whole_ns)} stays in shared rows, as the report does not say what "
                "their parts write, or says several things."
            )
        if self._writing_nothing:
            names = some_of(path[-1] for path in self._writing_nothing)
            texts.append(f"Parts that write nothing get nothing: {names}.")
        return " ".join(texts)

    def _split(self, row: RangeRow, shared: Path, parts: Parts) -> None:
        """Move the own time of a shared row, or of one inside it, to the parts of the shared one."""
        time_ns = int(row.self_ns)
        self._split_ns += time_ns
        self._add((row.path, row.phase), -time_ns, *_OWN)
        self._add_to_all(shared, row.path, row.phase, -time_ns, *_INCLUSIVE)
        for (path, written), share_ns in zip(parts, shares(time_ns, [size for _, size in parts]), strict=True):
            if written:
                self._add((path, row.phase), share_ns, *_OWN, "estimated_self_ns")
                self._add_to_all(shared, path, row.phase, share_ns, *_INCLUSIVE, "estimated_ns")
            else:
                self._writing_nothing.append(path)

    def _add_to_all(self, shared: Path, path: Path, phase: str, time_ns: int, *names: str) -> None:
        """Add to a path and to what is around it, inside the range that all parts of the shared row are in."""
        for length in range(len(shared), len(path) + 1):
            self._add((path[:length], phase), time_ns, *names)

    def _add(self, place: Place, time_ns: int, *names: str) -> None:
        row = self.rows.get(place) or SplitRow(*place, None, 0, 0, 0, 0, 0, 0, None, None)
        changes: dict[str, Any] = {name: getattr(row, name) + time_ns for name in names}
        self.rows[place] = replace(row, **changes)


_OWN, _INCLUSIVE = ("self_ns", "self_work_ns"), ("inclusive_ns", "inclusive_work_ns")


def parts_of(writes: Mapping[str, Mapping[str, Any]], path: Path, phase: str) -> Parts | None:
    """Return the parts of a shared row and what they write; None where the report does not say it, or not clearly.

    A report says it by the path below the range around the compiled code, which may be any of the row's.
    """
    of_phase = writes.get(phase, {})
    for key in _keys(path, phase):
        if key in of_phase:
            parts = of_phase[key]
            return [((*path[:-1], *names), size) for names, size in parts] if parts else None
    return None


def _keys(path: Path, phase: str) -> Iterator[str]:
    for start in range(len(path)):
        yield from (text for _, text in keys_of(phase, path[start:]))


def _shared(path: Path) -> Path:
    """Return the path of the shared row that this one is, or is inside of; () if it is in none."""
    return next((path[: at + 1] for at, name in enumerate(path) if fused_parts(name)), ())


def shares(whole: int, sizes: Sequence[int]) -> list[int]:
    """Divide an integer in proportion to sizes, without a rest: the largest remainders get one more."""
    total = sum(sizes)
    parts = [whole * size // total for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda at: (-(whole * sizes[at] % total), at))
    for at in by_remainder[: whole - sum(parts)]:
        parts[at] += 1
    return parts


def _as_split(row: RangeRow) -> SplitRow:
    return SplitRow(*(getattr(row, field.name) for field in fields(RangeRow)))
