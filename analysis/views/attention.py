"""The cost of attention's parts, in time and FLOPs: scores, scale, mask, softmax and final matmul."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..document import Document, Row, Table, headed, rows_by_key
from ..errors import ReportError
from ..measures.attention_parts import FUSED, MATMULS, SOFTMAX, Part, fused_of, names_attention, parts_of
from ..measures.efficiency import counts_of
from ..report import Number, Report
from ..summary.totals import summarize
from ..vocabulary import BACKWARD, FORWARD, some_of
from . import headings
from .efficiency import why_unfit
from .registry import Subject
from .rows import require_measured, share, with_levels

NONE = (
    "No range is named as a part of attention. Open nk.annotate.region('computing attention scores'), ('computing "
    "softmax') and ('final matmul') around the parts. nn.MultiheadAttention and scaled_dot_product_attention "
    "are one "
    "call without parts: write attention out to see them."
)
ELSEWHERE = (
    "The ranges of attention have no work in the measured steps. --totals counts work in no step, and "
    "--include-warmup that of warm-up."
)
TIMES = "% is of the phase's attention. scores: with scale and mask inside them."
RATES = "Rates are over the time shown: of a matmul, only its GEMMs."
RATIOS = "ranges: all kernels of scores and final matmul, with scale and mask."
NO_COUNTS = (
    "FLOPs and bytes were not counted: record with nk.profile(…, flops=True) or nvtx-kernels record --flops, and "
    "at least one warm-up step."
)
NOT_HERE = "FLOPs of {} were not counted: open nk.annotate.region around them, and record with this version."
NO_WORK = "No {} work is inside {}."
IN_PHASES = "No {} work is inside the ranges of attention: they contain work of {}."
ONLY_FORWARD = " NVTX ranges cover forward only. To see the parts in backward, use nk.annotate.region."
#: What a row is of, by its indent: the time of those inside scores is in that of scores too.
LEVELS = ("phase", "part", "inside scores")
IS_FUSED = "Attention is one range here: it is fused, or its parts are not annotated."


def view(subject: Subject) -> Document:
    """Show the time, the FLOPs and the ratios of attention's parts, per phase.

    Raises ReportError if no range is named as a part of attention.
    """
    report = subject.report
    require_measured(report)
    parts = parts_of(report, subject.whole)
    notes = list(report.notes)
    if not parts:
        parts = fused_of(report, subject.whole)
        notes.append(IS_FUSED)
    if not parts:  # in the requested phase, or in the whole report
        everything = summarize(subject.attribution, include_warm_up=report.warm_up_included)
        phases = list(dict.fromkeys(part.phase for part in parts_of(everything) or fused_of(everything)))
        if not phases:
            raise ReportError(ELSEWHERE if names_attention(subject.attribution) else NONE)
        requested = ", ".join(row.phase for row in report.phases)
        raise ReportError(IN_PHASES.format(requested, " and ".join(phases)))
    notes += why_no_flops(subject.whole, parts)
    phases_with_parts = {part.phase for part in parts}
    for row in report.phases:
        if row.gemm_kernels and row.phase in {FORWARD, BACKWARD} - phases_with_parts:
            notes.append(no_work(row.phase, "these ranges"))
    trees = _parts(report, parts)
    tables = map(_flat, trees) if subject.detail.whole else trees
    return headings.answer(report, [*tables, *_ratios(report, parts)], notes)


def _flat(table: Table) -> Table:
    """Name each row's phase and level for a program; a phase's row without figures is left out."""
    phase = ""
    rows = []
    levels = []
    for row in table.rows:
        name, *figures = row.values
        if row.strong:
            phase, name = name, ""
        if any(value != "" for value in figures):
            rows.append(Row((phase, name, *figures)))
            levels.append(LEVELS[row.indent])
    return with_levels(replace(table, columns=headed("phase") + table.columns, rows=tuple(rows)), levels)


def _parts(report: Report, parts: tuple[Part, ...]) -> list[Table]:
    """Show the time of each part, and if the report has FLOPs what it computes and moves, and how fast."""

    def cells(*added: Part) -> tuple[object, ...]:
        kernel_ns = sum(part.kernel_ns for part in added)
        gemm_ns = sum(part.gemm_ns for part in added)
        kernels = sum(part.kernels for part in added)
        return kernel_ns, share(kernel_ns, phase_ns), gemm_ns, kernel_ns - gemm_ns, kernels

    def rate(amount: Number | None, time_ns: Number) -> float | None:
        return amount / (time_ns / 1e9) if amount is not None and time_ns else None

    time_rows, rate_rows = [], []
    for phase, phase_parts in _by_phase(parts).items():
        outer = [part for part in phase_parts if not part.inner]
        phase_ns = sum(part.kernel_ns for part in outer)
        time_rows.append(Row((phase, *cells(*outer)), strong=True))
        rate_rows.append(Row((phase, "", "", "", "", ""), strong=True))
        for part in phase_parts:
            time_rows.append(Row((part.name, *cells(part)), indent=1 + part.inner))
            time_ns = part.computing_ns
            rates = (part.flops, rate(part.flops, time_ns), part.bytes, rate(part.bytes, time_ns), time_ns)
            rate_rows.append(Row((part.name, *rates), indent=1 + part.inner))
    scope, name = headings.scope(report), headed(part="part of attention")
    columns = headed(kernel_ns="time", share="%", gemm_ns="GEMMs", other_ns="all else", kernels="launches")
    title = f"{headings.kernel_time(report)} of attention by part, {{unit}} {scope}"
    tables = [Table("attention", title, name + columns, tuple(time_rows), TIMES)]
    if any(part.flops is not None or part.bytes is not None for part in parts):
        columns = headed(
            flops="FLOPs", flops_per_s="FLOP/s", bytes="least bytes", bytes_per_s="B/s", time_ns="time"
        )
        convention = report.provenance.run.get("flops_convention")
        caption = f"{RATES} FLOPs: {convention}." if convention else RATES
        title = f"FLOPs and least bytes of attention, {scope}"
        tables.append(Table("rates", title, name + columns, tuple(rate_rows), caption))
    return tables


def _by_phase(parts: tuple[Part, ...]) -> dict[str, list[Part]]:
    phases = dict.fromkeys(part.phase for part in parts)
    return {phase: [part for part in parts if part.phase == phase] for phase in phases}


def _ratios(report: Report, parts: tuple[Part, ...]) -> tuple[Table, ...]:
    """Compare the ratio of the times of softmax and matmuls with that of their FLOPs."""
    by_name = ({part.name: part for part in phase_parts} for phase_parts in _by_phase(parts).values())
    rows = [row for row in map(ratio, by_name) if row]
    if not rows:
        return ()
    states_flops = any(row["flops_ratio"] is not None for row in rows)
    columns = headed("phase", softmax_ns="softmax", gemm_ns="GEMMs", softmax_to_gemms="softmax/GEMMs")
    columns += headed(matmul_ns="ranges", softmax_to_ranges="softmax/ranges")
    if states_flops:
        columns += headed(flops_ratio="FLOPs GEMMs/softmax")
    title = f"Softmax against the two matmuls: kernel time, {{unit}} {headings.scope(report)}"
    return (Table("ratios", title, columns, rows_by_key(columns, rows), RATIOS),)


def no_work(phase: str, ranges: str) -> str:
    """Return that no work of a phase is inside some ranges, and in backward why that can be."""
    return NO_WORK.format(phase, ranges) + (ONLY_FORWARD if phase == BACKWARD else "")


def why_no_flops(whole: Report, parts: Iterable[Part]) -> list[str]:
    """Return, if a matmul or softmax has no FLOPs, in a sentence why, and what to do; `whole` has all phases."""
    lacking = [part for part in parts if part.flops is None and part.name in (SOFTMAX, FUSED, *MATMULS)]
    if not lacking:
        return []
    counts = counts_of(whole)
    if counts is None:
        return [NO_COUNTS]
    names = some_of(f"{part.name} in {part.phase}" for part in lacking)
    return [why_unfit(whole, counts) or NOT_HERE.format(names)]


def ratio(parts: Mapping[str, Part]) -> dict[str, Any]:
    """Return one phase's cells in the table of ratios by key; none where softmax or a matmul is missing."""
    if SOFTMAX not in parts or not all(name in parts for name in MATMULS):
        return {}
    softmax = parts[SOFTMAX]
    matmuls = [parts[name] for name in MATMULS]
    gemm_ns = sum(part.gemm_ns for part in matmuls)
    range_ns = sum(part.kernel_ns for part in matmuls)
    flops = None
    if softmax.flops and all(part.flops for part in matmuls):
        flops = sum(part.flops or 0 for part in matmuls) / softmax.flops
    return {
        "phase": softmax.phase,
        "softmax_ns": softmax.kernel_ns,
        "gemm_ns": gemm_ns,
        "softmax_to_gemms": share(softmax.kernel_ns, gemm_ns),
        "matmul_ns": range_ns,
        "softmax_to_ranges": softmax.kernel_ns / range_ns,
        "flops_ratio": flops,
    }
