"""(e): softmax beside the matrix products of attention, in time and in FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from analysis.attention import FINAL, SCORES, Part, fused_of, parts_of
from analysis.question_parts.answered import Answered
from analysis.question_parts.sweep import Answer, Sweep, answer_by_phase, no_kernels
from analysis.tables import Column, Table
from analysis.views.attention import FORMULAS, IS_FUSED, NO_MARK, NONE, ratio
from analysis.vocabulary import BACKWARD, FORWARD, OTHER

CAPTION = (
    "softmax: the time of all kernels in its ranges. GEMMs: that of the matrix products in the ranges of the "
    "scores, of the final matmul, and in both."
)


def answer(sweep: Sweep) -> Answer:
    """Show softmax beside the GEMMs of scores and final matmul, and both ratios."""
    found = answer_by_phase(sweep, _missing, partial(_table, sweep), (FORWARD, BACKWARD, OTHER))
    unstated = [
        (name, NO_MARK)
        for name, report in sweep.named
        if any(_flops(report, phase) is None for phase in _phases(report))
    ]
    return Answer(found.tables, (*found.lacks, *unstated))


def _parts(report: Answered, phase: str) -> Mapping[str, Part]:
    return {part.name: part for part in parts_of(report) if part.phase == phase}


def _phases(report: Answered) -> list[str]:
    return [phase for phase in (FORWARD, BACKWARD, OTHER) if ratio(_parts(report, phase))]


def _flops(report: Answered, phase: str) -> object:
    found = ratio(_parts(report, phase))
    return found[-1] if found else None


def _missing(report: Answered, phase: str) -> str:
    if ratio(_parts(report, phase)):
        return ""
    if not parts_of(report):
        return IS_FUSED if fused_of(report) else NONE
    return (
        no_kernels(report, phase) or f"No {phase} work is inside the ranges of softmax, scores and final matmul."
    )


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
    return sweep.table(f"e_{phase}", title, columns, lambda report: _cells(report, phase, stated), caption)


def _cells(report: Answered, phase: str, stated: bool) -> tuple[object, ...] | None:
    parts = _parts(report, phase)
    found = ratio(parts)
    if found is None:
        return None
    _, softmax_ns, gemm_ns, to_gemms, *_, flops = found
    scores, final = parts[SCORES].gemm_ns, parts[FINAL].gemm_ns
    return (softmax_ns, scores, final, gemm_ns, to_gemms, *([flops] if stated else []))
