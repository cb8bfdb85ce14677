"""(e): softmax against the matrix products of attention, in time and in FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..document import Column, Table
from ..measures.attention_parts import MATMULS, SOFTMAX, Part, fused_of
from ..support.units import digits_text, time_text
from ..views.attention import FORMULAS, IS_FUSED, NO_MARK, NONE, ratio
from ..vocabulary import BACKWARD, FORWARD, OTHER
from .figures import Answered
from .sweep import Answer, Sweep, lacking, led, no_kernels

CAPTION = (
    "softmax: the time of all kernels in its ranges. GEMMs: that of the matrix products in the ranges of the "
    "scores, of the final matmul, and in both."
)


def answer(sweep: Sweep) -> Answer:
    """Show softmax against the GEMMs of scores and final matmul, and both ratios."""
    phases = _shown(sweep)
    tables = led(_sentence(sweep), [_table(sweep, phase) for phase in phases])
    lacks = lacking(sweep, _missing, [phase for phase in phases if phase != OTHER] or [FORWARD])
    unstated = [
        (name, NO_MARK)
        for name, report in sweep.named
        if any(_flops(report, phase) is None for phase in _phases(report))
    ]
    return Answer(tables, (*lacks, *unstated))


def _shown(sweep: Sweep) -> list[str]:
    """Return the phases that have kernels, where any of them has a part; what a phase lacks is a dash."""
    asked = (FORWARD, BACKWARD, OTHER)
    named = {phase for phase in asked for report in sweep.counted if _named(_parts(report, phase))}
    worked = {phase for phase in asked[:2] for report in sweep.counted if not no_kernels(report, phase)}
    return [phase for phase in asked if named and phase in named | worked]


def _named(parts: Mapping[str, Part]) -> list[str]:
    return [name for name in (SOFTMAX, *MATMULS) if name in parts]


def _sentence(sweep: Sweep) -> str:
    """Hold softmax against the GEMMs, in time and in FLOPs, in the first phase that has both."""
    report = sweep.alone
    phase = next(iter(_phases(report)), None) if report else None
    if report is None or phase is None:
        return ""
    found = ratio(_parts(report, phase))
    to_gemms, flops = found["softmax_to_gemms"], found["flops_ratio"]
    times = f"{digits_text(to_gemms, 3)} times the" if to_gemms else "against"
    that_do = f", which do {digits_text(flops, 3)} times its FLOPs" if flops else ""
    where = "Outside all phases" if phase == OTHER else f"In {phase}"
    return (
        f"(e) {where}, softmax takes {time_text(found['softmax_ns'])}{sweep.each}, {times} "
        f"{time_text(found['gemm_ns'])} of attention's GEMMs{that_do}."
    )


def _parts(report: Answered, phase: str) -> Mapping[str, Part]:
    return {part.name: part for part in report.parts if part.phase == phase}


def _phases(report: Answered) -> list[str]:
    return [phase for phase in (FORWARD, BACKWARD, OTHER) if ratio(_parts(report, phase))]


def _flops(report: Answered, phase: str) -> float | None:
    return ratio(_parts(report, phase)).get("flops_ratio")


def _missing(report: Answered, phase: str) -> str:
    if ratio(_parts(report, phase)):
        return ""
    if not report.parts:
        return IS_FUSED if fused_of(report) else NONE
    return no_kernels(report, phase) or f"No {phase} work is inside a range of {_absent(_parts(report, phase))}."


def _absent(parts: Mapping[str, Part]) -> str:
    *most, last = (name for name in (SOFTMAX, *MATMULS) if name not in parts)
    return f"{', '.join(most)} or {last}" if most else last


def _table(sweep: Sweep, phase: str) -> Table:
    stated = any(_flops(report, phase) is not None for report in sweep.counted)
    columns = (
        Column("softmax_ns", "softmax", "ns"), Column("scores_gemm_ns", "scores GEMMs", "ns"),
        Column("final_gemm_ns", "final GEMMs", "ns"), Column("gemm_ns", "both GEMMs", "ns"),
        Column("softmax_to_gemms", "softmax / GEMMs", "ratio"),
        *([Column("flops_ratio", "FLOPs GEMMs / softmax", "ratio")] if stated else []),
    )  # fmt: skip
    where = "work in no phase" if phase == OTHER else phase
    title = f"(e) {where}: softmax against attention's GEMMs, {{unit}} {sweep.scope}"
    caption = f"{CAPTION} {FORMULAS}" if stated else CAPTION
    cells = partial(_cells, [column.key for column in columns], phase)
    return sweep.table(f"e_{phase}", title, columns, cells, caption, phase)


def _cells(keys: Sequence[str], phase: str, report: Answered) -> tuple[Any, ...] | None:
    parts = _parts(report, phase)
    gemms = {key: parts[name].gemm_ns for key, name in zip(keys[1:3], MATMULS, strict=True) if name in parts}
    softmax = {"softmax_ns": parts[SOFTMAX].kernel_ns} if SOFTMAX in parts else {}
    found = {**softmax, **gemms, **ratio(parts)}
    return tuple(map(found.get, keys)) if found else None
