"""The parts of attention: kernel times of scores, scale, mask, softmax and final matmul, and their FLOPs.

Parts are found by their ranges' names. FLOPs and bytes are what the run states in its mark, for one step and by
range; else what annotation counted in one step (`efficiency.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from ..attribution.causes import Attribution
from ..report import Number, Path, RangeRow, Report
from ..support.small_numbers import distinct
from ..vocabulary import PATH_SEPARATOR, PHASES
from .efficiency import NOTHING, Figures, counts_of, joined, other_calls

SCORES, SCALE, MASK, SOFTMAX, FINAL = "scores", "scale", "mask", "softmax", "final matmul"
FUSED = "fused attention"
MATMULS = (SCORES, FINAL)
# How the parts' ranges are named, in full and in any case. Scale and mask count only next to or inside scores.
NAMES = {
    SCORES: re.compile(r"(computing )?attention scores", re.IGNORECASE),
    SCALE: re.compile(r"scal(e|ing)", re.IGNORECASE),
    MASK: re.compile(r"(causal )?mask(ing)?", re.IGNORECASE),
    SOFTMAX: re.compile(r"(computing )?softmax", re.IGNORECASE),
    FINAL: re.compile(r"(computing )?final matmul", re.IGNORECASE),
    FUSED: re.compile(r"scaled dot product attention", re.IGNORECASE),
}
PARTS = (SCORES, SCALE, MASK, SOFTMAX, FINAL)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of attention in one phase: its ranges with everything inside, ns, and its FLOPs and bytes.

    `flops` and `bytes` are over the same steps as the times; None if the report does not state them. Counted FLOPs
    are a matmul's products alone, and of the others all; counted bytes are known of the others alone. `inner` is
    true if its ranges are inside those of scores, whose times then include its own.
    """

    phase: str
    name: str
    kernel_ns: Number
    gemm_ns: Number
    kernels: Number
    flops: Number | None
    bytes: Number | None
    inner: bool = False

    @property
    def computing_ns(self) -> Number:
        """The time its FLOPs take: that of a matmul's GEMMs, else all of it."""
        return self.gemm_ns if self.name in MATMULS else self.kernel_ns


def names_attention(attribution: Attribution) -> bool:
    """Return whether any range is named as attention or a part of it, with work or without."""
    names = attribution.trace.names
    named = [names[name_id].lstrip(":").strip() for name_id in distinct(attribution.ranges.name_id).tolist()]
    return any(NAMES[part].fullmatch(name) for name in named for part in (SCORES, SOFTMAX, FINAL, FUSED))


def parts_of(report: Report, everything: Report | None = None) -> tuple[Part, ...]:
    """Return the parts that the report's ranges name, by phase and in the order of the computation.

    `everything` is the report with the steps around them, if `report` has only some of its phases or ranges.
    """
    paths = {name: _paths(report.ranges, name) for name in PARTS}
    near = {path[:-1] for path in paths[SCORES]} | paths[SCORES]
    for name in (SCALE, MASK):
        paths[name] = {path for path in paths[name] if path[:-1] in near}
    return _measured(report, paths, everything or report)


def fused_of(report: Report, everything: Report | None = None) -> tuple[Part, ...]:
    """Return attention as a whole, if it is one range."""
    return _measured(report, {FUSED: _paths(report.ranges, FUSED)}, everything or report)


def _paths(rows: Iterable[RangeRow], name: str) -> set[Path]:
    """Find the paths that end in a part's name, the outermost of each."""
    pattern = NAMES[name]
    named = {row.path for row in rows if pattern.fullmatch(row.path[-1].lstrip(":").strip())}
    return {path for path in named if not _is_below(path[:-1], named)}


def _is_below(path: Path, paths: set[Path]) -> bool:
    """Return whether a path is one of some others, or below one."""
    return any(path[:length] in paths for length in range(1, len(path) + 1))


def _measured(report: Report, paths_by_part: Mapping[str, set[Path]], everything: Report) -> tuple[Part, ...]:
    counted = _counted(everything) if any(paths_by_part.values()) else {}
    parts = []
    for phase, (name, paths) in product(PHASES, paths_by_part.items()):
        ranges = [row for row in report.ranges if row.path in paths and row.phase == phase]
        if not sum(row.inclusive_ns for row in ranges):  # kernels without duration cannot be compared
            continue
        gemms = [row for row in report.kernels if row.kind == "kernel" and row.category == "gemm"]
        flops = _stated(report, "flops", phase, name)
        moved = _stated(report, "bytes", phase, name)
        if flops is None and all((row.path, row.phase) in counted for row in ranges):
            figures = sum((counted[row.path, row.phase] for row in ranges), NOTHING)
            if name in MATMULS:  # its bytes would be those of scale and mask too
                flops = figures.total or None
            else:
                flops = figures.total + figures.elementwise or None
                moved = figures.bytes
        parts.append(
            Part(
                phase=phase,
                name=name,
                kernel_ns=sum(row.inclusive_ns for row in ranges),
                gemm_ns=sum(row.total_ns for row in gemms if row.phase == phase and _is_below(row.path, paths)),
                kernels=sum(row.kernels for row in ranges),
                flops=flops,
                bytes=moved,
                inner=name in (SCALE, MASK) and all(row.path[:-1] in paths_by_part[SCORES] for row in ranges),
            )
        )
    return tuple(parts)


def _counted(report: Report) -> dict[tuple[Path, str], Figures]:
    """Return what was counted in each range and phase, over what the report's figures are."""
    counts = counts_of(report)
    if counts is None or counts.is_stated or not report.steps or other_calls(report, counts):
        return {}
    return {(row.path, row.phase): row.figures for row in joined(report, counts).rows}


def _stated(report: Report, figure: str, phase: str, name: str) -> Number | None:
    """Return a part's figure in the run's mark, over all measured steps or per step like the report."""
    stated = report.provenance.run.get(figure)
    if not isinstance(stated, Mapping) or not report.steps:
        return None
    paths = {key: key.split(PATH_SEPARATOR) for key in stated}
    values = [stated[key] for key, path in paths.items() if path[0] == phase and NAMES[name].fullmatch(path[-1])]
    return sum(values) * (1 if report.per_step else report.steps) if values else None
