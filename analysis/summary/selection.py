"""Parts of a report: one phase, ranges whose names match, paths whose indices are collapsed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from ..errors import ReportError
from ..report import Path, Report, added, in_tree_order
from ..vocabulary import PATH_SEPARATOR, collapsed, some_of
from .collapsing import Naming, naming_of


def of_phases(report: Report, *phases: str) -> Report:
    """Keep some phases.

    Raises ReportError if the report has no work of one of them.
    """
    present = [row.phase for row in report.phases]
    if missing := [phase for phase in phases if phase not in present]:
        raise ReportError(
            f"The report has no {missing[0]} work{_where(report)}. Its phases: {', '.join(present) or 'none'}."
        )
    return replace(
        report,
        phases=tuple(row for row in report.phases if row.phase in phases),
        ranges=tuple(row for row in report.ranges if row.phase in phases),
        kernels=tuple(row for row in report.kernels if row.phase in phases),
        busy=tuple(row for row in report.busy if row.phase in phases),
    )


def of_ranges(report: Report, pattern: str) -> Report:
    """Keep the ranges that match a pattern, and what is inside them.

    A pattern is a part of a range's name, or with `*` and `?` a whole name; `a > b` asks for b somewhere inside
    a. Case is ignored. The totals and phases stay those of the whole report.

    Raises ReportError if nothing matches.
    """
    matches = path_matcher(pattern)
    ranges = tuple(row for row in report.ranges if matches(row.path))
    if not ranges:
        names = some_of(name for row in report.ranges for name in row.path)
        raise ReportError(f"No range matches {pattern!r}{_where(report)}. Ranges: {names}.")
    return replace(report, ranges=ranges, kernels=tuple(row for row in report.kernels if matches(row.path)))


def _where(report: Report) -> str:
    """Return a sentence: only the measured steps were searched, and how to search everything."""
    beyond = report.per_step and (report.unmeasured_ns or report.warm_up_ns)
    return " in the measured steps (--totals counts all work)" if beyond else ""


def with_indices_collapsed(report: Report, naming: Naming | None = None) -> Report:
    """Merge paths that differ in an index only: `layer 0` … `layer 11` become `layer *`.

    Modules known to be of different classes are not merged; `naming` names the paths instead, if given.
    """
    named = naming or naming_of(report)
    ranges = (replace(row, path=named(row.path)) for row in report.ranges)
    kernels = (replace(row, path=named(row.path)) for row in report.kernels)
    return replace(
        report,
        ranges=in_tree_order(added(ranges, ("path", "phase"))),
        kernels=added(kernels, ("path", "phase", "kind", "kernel")),
    )


@lru_cache(maxsize=65_536)
def collapsed_path(path: Path) -> Path:
    """Collapse the indices in every name of a path."""
    return tuple(collapsed(name) for name in path)


def path_matcher(pattern: str) -> Callable[[Path], bool]:
    """Return what tells whether a path holds the names of a pattern, in their order; see `of_ranges`."""
    find = named_by(pattern)
    return lambda path: find(path) is not None


def named_by(pattern: str) -> Callable[[Path], Path | None]:
    """Return what finds the names of a path that a pattern's parts are for, the outermost of each, or None."""
    parts = [_name_matcher(part.strip()) for part in pattern.split(PATH_SEPARATOR.strip())]

    def find(path: Path) -> Path | None:
        names: list[str] = []
        for name in path:
            if len(names) < len(parts) and parts[len(names)](name):
                names.append(name)
        return tuple(names) if len(names) == len(parts) else None

    return find


def _name_matcher(pattern: str) -> Callable[[str], bool]:
    wild = any(character in pattern for character in "*?[")
    regex = fnmatch.translate(pattern) if wild else re.escape(pattern)
    compiled = re.compile(regex, re.IGNORECASE)
    return lambda name: bool(compiled.match(name) if wild else compiled.search(name))
