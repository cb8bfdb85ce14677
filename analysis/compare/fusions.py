"""What a compiler fused, saved and lost: the differences of two reports of one program by ranges that both have.

A fusion is a row of its own, for its kernels do the work of several ranges. Every kernel is in one row, so the
differences of the rows sum to that of the reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from ..report import KernelRow, Path
from ..vocabulary import fused_parts
from ..vocabulary.modules import Naming
from .changes import Change, Comparison, by_size, filed

Group = Literal["fused", "saved", "lost", "unchanged"]
GROUPS: dict[Group, str] = {
    "fused": "fused: the work of several ranges",
    "saved": "saved: shorter in B",
    "lost": "lost: longer in B",
    "unchanged": "unchanged",
}


def grouped(comparison: Comparison, naming: Naming) -> dict[Group, list[Change]]:
    """Return the differences by what a compiler did, the largest first; {} where neither report has a fusion.

    Ranges to which `naming` gives one name are taken together.
    """
    a, b = comparison.a, comparison.b
    paths = [{naming(row.path) for row in report.ranges} for report in (a, b)]
    fusions = {path for of_report in paths for path in of_report if fused_parts(path[-1])}
    if not fusions:
        return {}
    common, places = paths[0] & paths[1], {path[:-1] for path in fusions}

    def row_of(row: KernelRow) -> Path:
        return _row_of(naming(row.path), fusions, common, places)

    groups: dict[Group, list[Change]] = {group: [] for group in GROUPS}
    for change in by_size(filed(comparison.rows(a), comparison.rows(b), row_of)):
        groups[_group(change)].append(change)
    return {group: changes for group, changes in groups.items() if changes}


def _row_of(path: Path, fusions: Collection[Path], common: Collection[Path], places: Collection[Path]) -> Path:
    """Return the fusion that a path is or leads into, else the deepest range that stands for it in both reports.

    A range next to a fusion stands for itself although one report lacks it: the fusion may be all there is of it.
    """
    depths = range(len(path), 0, -1)
    around: Iterable[Path] = [path[:depth] for depth in depths]
    fusion = next((outer for outer in around if outer in fusions), None)
    return fusion or next((outer for outer in around if outer in common or outer[:-1] in places), ())


def _group(change: Change) -> Group:
    if change.key and fused_parts(change.key[-1]):
        return "fused"
    return "saved" if change.delta_ns < 0 else "lost" if change.delta_ns else "unchanged"
