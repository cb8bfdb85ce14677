"""The cost of attention's parts, in time and FLOPs: scores, scale, mask, softmax and final matmul."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..document import Column, Document, Row, Table
from ..errors import ReportError
from ..measures.attention import MATMULS, SOFTMAX, Part, fused_of, parts_of
from ..report import Number, Report
from ..summary.totals import summarize
from ..vocabulary import BACKWARD, FORWARD
from . import headings
from .registry import Subject
from .rows import require_measured, share, with_levels

NONE = (
    "No range is named as a part of attention, so scores, softmax and matmuls cannot be distinguished. Push "
    "ranges named 'computing attention scores', 'computing softmax' and 'final matmul' around them; torch.compile "
    "drops ranges inside the model."
)
TIMES = (
    "time: of all kernels inside the part's ranges, scale and mask with scores where they are inside. GEMMs: of "
    "these the matrix products. % is of the phase's attention."
)
RATES = (
    "FLOPs and least bytes are what the run states for its shapes. FLOP/s and B/s divide by the time shown: that "
    "of a matmul's GEMMs, and of all of the others' kernels."
)
FORMULAS = (
    "FLOPs of the two matmuls together: 4·B·H·T²·d_head forward, 8·B·H·T²·d_head backward; of softmax: 5·B·H·T² "
    "forward, 4·B·H·T² backward; per layer and step."
)
RATIOS = (
    "GEMMs: of scores and final matmul together. ranges: all kernels in the two, with scale and mask where they "
    "are inside."
)
NO_MARK = (
    "The report has no mark with the run's settings, so FLOPs and bytes are unknown; nvtx-kernels run writes one."
)
#: What a row is of, by its indent: the time of those inside scores is in that of scores too.
LEVELS = ("phase", "part", "inside scores")
IS_FUSED = "Attention is one range here, so its parts cannot be distinguished: it is fused, or not annotated."


def view(subject: Subject) -> Document:
    """Show the time, the FLOPs and the ratios of attention's parts, per phase.

    Raises ReportError if no range is named as a part of attention.
    """
    report = subject.report
    require_measured(report)
    parts, notes = parts_of(report), list(report.notes)
    if not parts:
        parts = fused_of(report)
        notes.append(IS_FUSED)
    if not parts:
        raise ReportError(_none(subject))
    stated = any(part.flops is not None or part.bytes is not None for part in parts)
    notes += [*([] if stated else [NO_MARK]), *_missing(report, parts)]
    trees = (_times(report, parts), *((_rates(report, parts),) if stated else ()))
    tables = (*(map(_flat, trees) if subject.detail.whole else trees), *_ratios(report, parts))
    return headings.answer(report, tables, notes)


def _none(subject: Subject) -> str:
    """Return why there is nothing to show: in the requested phase, or in the whole report."""
    whole = summarize(subject.attribution(), include_warm_up=subject.report.warm_up_included)
    phases = list(dict.fromkeys(part.phase for part in parts_of(whole) or fused_of(whole)))
    if not phases:
        return NONE
    asked = ", ".join(row.phase for row in subject.report.phases)
    return f"No {asked} work is inside the ranges of attention: they contain work of {' and '.join(phases)}."


def _flat(table: Table) -> Table:
    """Name each row's phase and level for a program; a phase's row without figures is left out."""
    phase, rows, levels = "", [], []
    for row in table.rows:
        phase = row.values[0] if row.strong else phase
        if any(value != "" for value in row.values[1:]):
            rows.append(Row((phase, "" if row.strong else row.values[0], *row.values[1:])))
            levels.append(LEVELS[row.indent])
    columns = (Column("phase", "phase"), *table.columns)
    return with_levels(replace(table, columns=columns, rows=tuple(rows)), levels)


def _missing(report: Report, parts: tuple[Part, ...]) -> list[str]:
    """Name the phases that multiply matrices, but in no part of attention."""
    present = {part.phase for part in parts}
    return [
        f"No {row.phase} work is inside these ranges: the cost of attention there is unknown."
        for row in report.phases
        if row.gemm_kernels and row.phase in (FORWARD, BACKWARD) and row.phase not in present
    ]


def _times(report: Report, parts: tuple[Part, ...]) -> Table:
    columns = (
        Column("part", "part of attention"), Column("kernel_ns", "time", "ns"), Column("share", "%", "share"),
        Column("gemm_ns", "GEMMs", "ns"), Column("other_ns", "all else", "ns"),
        Column("kernels", "launches", "count"),
    )  # fmt: skip
    rows: list[Row] = []
    for phase, mine in _by_phase(parts).items():
        outer = [part for part in mine if not part.inner]
        whole = sum(part.kernel_ns for part in outer)
        rows.append(Row((phase, *_cells(outer, whole)), strong=True))
        rows += [Row((part.name, *_cells([part], whole)), indent=1 + part.inner) for part in mine]
    title = f"{headings.kernel_time(report)} of attention by part, {{unit}} {headings.scope(report)}"
    return Table("attention", title, columns, tuple(rows), TIMES)


def _by_phase(parts: tuple[Part, ...]) -> dict[str, list[Part]]:
    phases = dict.fromkeys(part.phase for part in parts)
    return {phase: [part for part in parts if part.phase == phase] for phase in phases}


def _cells(parts: list[Part], whole: Number) -> tuple[object, ...]:
    kernel_ns, gemm_ns = sum(part.kernel_ns for part in parts), sum(part.gemm_ns for part in parts)
    return kernel_ns, share(kernel_ns, whole), gemm_ns, kernel_ns - gemm_ns, sum(part.kernels for part in parts)


def _rates(report: Report, parts: tuple[Part, ...]) -> Table:
    """Show what each part computes and moves, and how fast."""
    columns = (
        Column("part", "part of attention"), Column("flops", "FLOPs", "flops"),
        Column("flops_per_s", "FLOP/s", "flops/s"), Column("bytes", "least bytes", "bytes"),
        Column("bytes_per_s", "B/s", "bytes/s"), Column("time_ns", "time", "ns"),
    )  # fmt: skip
    rows: list[Row] = []
    for phase, mine in _by_phase(parts).items():
        rows.append(Row((phase, "", "", "", "", ""), strong=True))
        for part in mine:
            time = part.computing_ns
            cells = (part.flops, _rate(part.flops, time), part.bytes, _rate(part.bytes, time), time)
            rows.append(Row((part.name, *cells), indent=1 + part.inner))
    convention = report.provenance.run.get("flops_convention")
    stated = f" The run counts {convention}." if convention else ""
    title = f"FLOPs and least bytes of attention, {headings.scope(report)}"
    return Table("rates", title, columns, tuple(rows), f"{RATES}{stated}")


def _rate(amount: Number | None, time_ns: Number) -> float | None:
    return amount / (time_ns / 1e9) if amount is not None and time_ns else None


def _ratios(report: Report, parts: tuple[Part, ...]) -> tuple[Table, ...]:
    """Compare the ratio of the times of softmax and matmuls with that of their FLOPs."""
    rows = [row for mine in _by_phase(parts).values() if (row := ratio({part.name: part for part in mine}))]
    if not rows:
        return ()
    stated = any(row[-1] is not None for row in rows)
    columns = (
        Column("phase", "phase"), Column("softmax_ns", "softmax", "ns"), Column("gemm_ns", "GEMMs", "ns"),
        Column("softmax_to_gemms", "softmax/GEMMs", "ratio"), Column("matmul_ns", "ranges", "ns"),
        Column("softmax_to_ranges", "softmax/ranges", "ratio"),
        Column("flops_ratio", "FLOPs GEMMs/softmax", "ratio"),
    )[: 7 if stated else 6]  # fmt: skip
    title = f"Softmax against the two matmuls: kernel time, {{unit}} {headings.scope(report)}"
    shown = tuple(Row(row[: len(columns)]) for row in rows)
    return (Table("ratios", title, columns, shown, f"{RATIOS} {FORMULAS}" if stated else RATIOS),)


def ratio(parts: Mapping[str, Part]) -> tuple[object, ...] | None:
    """Return one phase's cells in the table of ratios; None where softmax or one of the matmuls is missing."""
    if SOFTMAX not in parts or not all(name in parts for name in MATMULS):
        return None
    softmax, matmuls = parts[SOFTMAX], [parts[name] for name in MATMULS]
    gemm_ns, range_ns = (sum(getattr(part, name) for part in matmuls) for name in ("gemm_ns", "kernel_ns"))
    flops = None
    if softmax.flops and all(part.flops for part in matmuls):
        flops = sum(part.flops or 0 for part in matmuls) / softmax.flops
    to_gemms = softmax.kernel_ns / gemm_ns if gemm_ns else None
    return (
        parts[SOFTMAX].phase,
        softmax.kernel_ns,
        gemm_ns,
        to_gemms,
        range_ns,
        softmax.kernel_ns / range_ns,
        flops,
    )
