"""Parts of a report: one phase, ranges whose names match, paths whose indices are collapsed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from analysis.errors import ReportError
from analysis.report import Path, Report, added, in_tree_order
from analysis.tables import PATH_SEPARATOR
from analysis.vocabulary import collapsed, some_of


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
        known = some_of(name for row in report.ranges for name in row.path)
        raise ReportError(f"No range matches {pattern!r}. Ranges: {known}.")
    return replace(report, ranges=ranges, kernels=tuple(row for row in report.kernels if matches(row.path)))


def with_indices_collapsed(report: Report) -> Report:
    """Merge paths that differ in an index only: `layer 0` … `layer 11` become `layer *`."""
    ranges = (replace(row, path=collapsed_path(row.path)) for row in report.ranges)
    kernels = (replace(row, path=collapsed_path(row.path)) for row in report.kernels)
    return replace(
        report,
        ranges=in_tree_order(added(ranges, ("path", "phase"))),
        kernels=added(kernels, ("path", "phase", "kind", "kernel")),
    )


@lru_cache(maxsize=65_536)
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
