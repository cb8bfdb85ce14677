"""Parts of a report: one phase, ranges whose names match, paths whose indices are collapsed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields, replace
from typing import Any, TypeVar

from analysis.errors import ReportError
from analysis.report import KernelRow, Path, RangeRow, Report, in_tree_order
from analysis.tables import PATH_SEPARATOR
from analysis.vocabulary import collapsed

AnyRow = TypeVar("AnyRow", RangeRow, KernelRow)


def of_phase(report: Report, phase: str) -> Report:
    """Keep one phase.

    Raises ReportError where the report has none of it.
    """
    if phase not in {row.phase for row in report.phases}:
        present = ", ".join(row.phase for row in report.phases) or "none"
        raise ReportError(f"The report has no {phase} work. Its phases: {present}.")
    return replace(
        report,
        phases=tuple(row for row in report.phases if row.phase == phase),
        ranges=tuple(row for row in report.ranges if row.phase == phase),
        kernels=tuple(row for row in report.kernels if row.phase == phase),
    )


def of_ranges(report: Report, pattern: str) -> Report:
    """Keep the ranges that match a pattern, and what is inside them.

    A pattern is a part of a range's name, or with `*` and `?` a whole name; `a > b` asks for b somewhere inside
    a. Case does not count. The totals and phases stay those of the whole report.

    Raises ReportError where nothing matches.
    """
    matches = _matcher(pattern)
    ranges = tuple(row for row in report.ranges if matches(row.path))
    if not ranges:
        names = list(dict.fromkeys(collapsed(name) for row in report.ranges for name in row.path))
        some = ", ".join(names[:12]) or "none"
        raise ReportError(f"No range matches {pattern!r}. Ranges: {some}{', …' if len(names) > 12 else ''}.")
    return replace(report, ranges=ranges, kernels=tuple(row for row in report.kernels if matches(row.path)))


def with_indices_collapsed(report: Report) -> Report:
    """Merge paths that differ in an index only: `layer 0` … `layer 11` become `layer *`."""
    return replace(
        report,
        ranges=in_tree_order(_merged(report.ranges, lambda row: (row.path, row.phase))),
        kernels=_merged(report.kernels, lambda row: (row.path, row.phase, row.kind, row.kernel)),
    )


def _merged(rows: Iterable[AnyRow], key: Callable[[AnyRow], Hashable]) -> tuple[AnyRow, ...]:
    merged: dict[Hashable, AnyRow] = {}
    for row in rows:
        row = replace(row, path=collapsed_path(row.path))
        merged[key(row)] = _sum(merged[key(row)], row) if key(row) in merged else row
    return tuple(merged.values())


def _sum(a: AnyRow, b: AnyRow) -> AnyRow:
    return replace(a, **{field.name: _combined(field.name, a, b) for field in fields(a)})


def _combined(name: str, a: Any, b: Any) -> Any:
    one, two = getattr(a, name), getattr(b, name)
    if name in ("min_ns", "max_ns"):
        return min(one, two) if name == "min_ns" else max(one, two)
    if isinstance(one, bool) or not isinstance(one, int | float) or two is None:
        return two if one is None else one
    return one + two


def collapsed_path(path: Path) -> Path:
    """Collapse the indices in every name of a path."""
    return tuple(collapsed(name) for name in path)


def _matcher(pattern: str) -> Callable[[Path], bool]:
    parts = [_name_matcher(part.strip()) for part in pattern.split(PATH_SEPARATOR.strip())]

    def matches(path: Path) -> bool:
        at = 0
        for name in path:
            if at < len(parts) and parts[at](name):
                at += 1
        return at == len(parts)

    return matches


def _name_matcher(pattern: str) -> Callable[[str], bool]:
    wild = any(character in pattern for character in "*?[")
    regex = fnmatch.translate(pattern) if wild else re.escape(pattern)
    compiled = re.compile(regex, re.IGNORECASE)
    return lambda name: bool(compiled.match(name) if wild else compiled.search(name))
