"""Parts of a report: one phase, ranges whose names match, paths whose indices are collapsed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from ..document import Detail
from ..errors import ReportError
from ..report import Path, Report, added, in_tree_order, under_paths
from ..trace import Provenance
from ..vocabulary import PATH_SEPARATOR, some_of
from ..vocabulary.modules import ModuleName, Naming, agreed, naming


def of_phases(report: Report, *phases: str) -> Report:
    """Keep some phases.

    Raises ReportError if the report has no work of one of them.
    """
    present = [row.phase for row in report.phases]
    if missing := [phase for phase in phases if phase not in present]:
        raise ReportError(
            f"The report has no {missing[0]} work{where(report)}. Its phases: {', '.join(present) or 'none'}."
        )
    return replace(
        report,
        phases=tuple(row for row in report.phases if row.phase in phases),
        ranges=tuple(row for row in report.ranges if row.phase in phases),
        kernels=tuple(row for row in report.kernels if row.phase in phases),
        account=report.account.of_phases(phases) if report.account else None,
    )


def of_ranges(report: Report, pattern: str) -> Report:
    """Keep the ranges that match a pattern, and what is inside them.

    A pattern is a part of a range's name, or with `*` and `?` a whole name; `a > b` asks for b somewhere inside
    a. A module is named as recorded (`layer 3 > mlp`), or as screens write it (`layers.3.mlp`), by whole
    attributes. Case is ignored. The totals and phases stay those of the whole report.

    Raises ReportError if nothing matches.
    """
    matches = path_matcher(pattern, naming_of(report, every_index=True))
    ranges = tuple(row for row in report.ranges if matches(row.path))
    if not ranges:
        names = some_of(name for row in report.ranges for name in row.path)
        raise ReportError(f"No range matches {pattern!r}{where(report)}. Ranges: {names}.")
    return replace(report, ranges=ranges, kernels=tuple(row for row in report.kernels if matches(row.path)))


def part_of(report: Report, pattern: str | None, phases: Collection[str] | None) -> Report:
    """Keep the ranges that match a pattern, and some phases, where any are given."""
    report = of_ranges(report, pattern) if pattern else report
    if phases:
        return of_phases(report, *phases)
    return report


def where(report: Report) -> str:
    """Return the end of a sentence: what of the report was searched, if not all, and how to search the rest."""
    of_warm_up = "--include-warmup counts warm-up" if report.warm_up_ns or report.totals.excluded_ns else ""
    of_no_step = "--totals counts all work" if report.per_step and report.unmeasured_ns else ""
    options = ", ".join(filter(None, (of_no_step, of_warm_up)))
    if options:
        return f" in {'the measured steps' if report.per_step else 'what is measured'} ({options})"
    return ""


class OfReport(Protocol):
    """Anything with a provenance: a report, a trace or a summary's head."""

    @property
    def provenance(self) -> Provenance: ...  # noqa: D102


def naming_of(*reports: OfReport, every_index: bool = False) -> Naming:
    """Return the naming of these reports' paths on screens; several reports are compared.

    One report's modules apply to the others too, unless another report contradicts.
    """
    classes = agreed(report.provenance.models for report in reports)
    attributes = agreed(report.provenance.attributes for report in reports)
    return naming(classes, attributes, every_index=every_index)


def naming_for(detail: Detail, *reports: OfReport) -> Naming:
    """Return how an answer of this detail names paths: programs get them as they are recorded."""
    if detail.whole and detail.every_index:
        return tuple
    return naming_of(*reports, every_index=detail.every_index)


def renamed(report: Report, naming: Naming | None = None) -> Report:
    """Name the paths of a report as screens do, and merge those that get one name; `layer 3` is `layer *`.

    `naming` names them instead, if given.
    """
    named = naming or naming_of(report)
    if named is tuple:
        return report
    return replace(
        report,
        ranges=in_tree_order(added(under_paths(report.ranges, named), ("path", "phase"))),
        kernels=added(under_paths(report.kernels, named), ("path", "phase", "kind", "kernel")),
    )


def path_matcher(pattern: str, naming: Naming) -> Callable[[Path], bool]:
    """Return a test of whether a path has the names of a pattern, in their order; see `of_ranges`."""
    find = named_by(pattern, naming)
    return lambda path: find(path) is not None


def named_by(pattern: str, naming: Naming) -> Callable[[Path], Path | None]:
    """Return a finder of a path's names that match a pattern's parts, the outermost of each, or None.

    `naming` knows modules, and keeps every index.
    """
    parts = [part.strip() for part in pattern.split(PATH_SEPARATOR.strip())]
    matchers = [(_name_matcher(part), _module_matcher(part), part.count(".") + 1) for part in parts]

    def find(path: Path) -> Path | None:
        left = iter(matchers)
        names = []
        is_named, is_module, attributes = next(left)
        modules: list[ModuleName] = []
        for name in naming(path):
            modules += [name] if isinstance(name, ModuleName) else []
            if is_named(name):
                names.append(name)
            elif isinstance(name, ModuleName) and any(map(is_module, (name.dotted or name.alone).split(" "))):
                names += modules[-attributes:]
            else:
                continue
            following = next(left, None)
            if following is None:
                return tuple(names)
            is_named, is_module, attributes = following
        return None

    return find


def _name_matcher(pattern: str) -> Callable[[str], bool]:
    wild = any(character in pattern for character in "*?[")
    regex = fnmatch.translate(pattern) if wild else re.escape(pattern)
    compiled = re.compile(regex, re.IGNORECASE)
    return lambda name: bool(compiled.match(name) if wild else compiled.search(name))


def _module_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a test of whether a dotted path has a pattern's whole attributes, or ends with one with wildcards."""
    pieces = ("[^.]".join(map(re.escape, piece.split("?"))) for piece in re.split(r"\*+", pattern))
    regex, *after_stars = pieces
    # What a `*` stands for ends at the first place that fits, and is not tried again: then no pattern runs away.
    regex += "".join(f"(?>[^.]*?{piece})" for piece in after_stars[:-1])
    regex += "".join(f"[^.]*{piece}" for piece in after_stars[-1:])
    end = "$" if set("*?").intersection(pattern) else r"(?:\.|$)"
    compiled = re.compile(rf"(?:^|\.){regex}{end}", re.IGNORECASE)
    return lambda dotted: bool(compiled.search(dotted))
