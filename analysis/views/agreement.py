"""Compare a timer around each phase with the GPU's span and the kernels in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..document import Column, Document, Row, Table, headed
from ..errors import ReportError, UsageError
from ..measures.agreement import AGREES_WITHIN, PhaseTimes, agrees, phase_times, prices
from ..report import Report
from ..support.units import share_text, time_text
from . import graphs, headings
from .registry import Subject
from .rows import per_step, price_notes, with_levels

AGREE = f"agree: within {AGREES_WITHIN:.0%}."
VERDICTS = {
    "CPU longer": " CPU longer: {} started late or finished early.",
    "not synchronized": " not synchronized: {} worked on after the range.",
}
TIMED = f"agree: within {AGREES_WITHIN:.0%} of the time given with --timed; else longer here or shorter here."


def view(subject: Subject) -> Document:
    """Compare CPU ranges, GPU spans, kernel times, and times measured elsewhere.

    Raises ReportError if no range opens a phase or a step, and UsageError for a time of a phase that is not
    in the report.
    """
    report = subject.report
    times = phase_times(subject.attribution, subject.phases, include_warm_up=report.warm_up_included)
    if not any(row.ranges for row in times):
        raise ReportError(
            "No range with GPU work opens a phase or a step, so there is no CPU range to compare with. Push "
            "ranges named 'forward', 'backward', 'optimizer' or 'step'."
        )
    span = headings.span(report)
    rows = tuple(Row(tuple(cells(report, row).values())) for row in times)
    title = f"CPU range, {span} and kernel time, {{unit}} {headings.scope(report)}"
    verdicts = {row.verdict for row in times}
    worker = "operators" if report.provenance.unit_of_work == "CPU" else "the GPU"
    caption = AGREE + "".join(text.format(worker) for verdict, text in VERDICTS.items() if verdict in verdicts)
    agreement = Table("agreement", title, columns(span), rows, caption)
    tables = [with_levels(agreement, [row.name for row in times])]
    if subject.timed:
        tables.append(_against_times(subject, times))
    priced = prices(subject.attribution, include_warm_up=report.warm_up_included)
    notes = (*report.notes, *_notes(report, times), *price_notes(report, priced))
    return headings.answer(report, tables, notes)


def columns(span: str) -> tuple[Column, ...]:
    """Return the columns of `cells`, where spans are called so."""
    columns = headed("phase", "ranges", cpu_ns="CPU range", span_ns=span, span_share="%")
    return columns + headed(kernel_ns="kernel time", kernel_share="%", verdict="range and span")


def cells(report: Report, times: PhaseTimes) -> dict[str, Any]:
    """Return a phase's cells by the keys of their columns, per step where the report is."""
    return {
        "phase": times.name,
        "ranges": per_step(report, times.ranges) or None,
        "cpu_ns": None if times.cpu_ns is None else per_step(report, times.cpu_ns),
        "span_ns": per_step(report, times.span_ns),
        "span_share": times.span_share,
        "kernel_ns": per_step(report, times.kernel_ns),
        "kernel_share": times.kernel_share,
        "verdict": times.verdict,
    }


def _against_times(subject: Subject, times: tuple[PhaseTimes, ...]) -> Table:
    """Compare with times measured elsewhere, per range.

    Raises UsageError for a time of a phase that the report lacks.
    """
    with_ranges = {row.name: row for row in times if row.ranges}
    if strangers := sorted(set(subject.timed) - set(with_ranges)):
        phases = ", ".join(with_ranges)
        raise UsageError(f"The report has no {strangers[0]!r} to compare a time with; it has {phases}.")
    rows = []
    for name, timed_ns in subject.timed.items():
        row = with_ranges[name]
        cpu_ns, span_ns, kernel_ns = row.of_one_ns.values()
        word = "agree" if agrees(timed_ns, cpu_ns) else "longer here" if cpu_ns > timed_ns else "shorter here"
        verdict = "not synchronized" if row.late else word
        rows.append(Row((name, timed_ns, cpu_ns, cpu_ns / timed_ns, span_ns, kernel_ns, verdict)))
    columns = headed("phase", timed_ns="timed", cpu_ns="CPU range", ratio="CPU/timed", span_ns="GPU span")
    columns += headed(kernel_ns="kernel time", verdict="verdict")
    title = "Against times measured elsewhere, {unit} per range, means"
    return with_levels(Table("timed", title, columns, tuple(rows), TIMED), subject.timed)


def _notes(report: Report, times: tuple[PhaseTimes, ...]) -> Iterator[str]:
    """Name the phases whose ranges closed before their work was done, and those that their kernels do not fill."""
    for row in (row for row in times if row.late):
        yield (
            f"{row.name}: the GPU worked on for {time_text(row.late_ns / row.late)} after {row.late} of "
            f"{row.with_parts} ranges had closed, so their CPU range does not measure the GPU. Read the GPU "
            "span, or "
            "synchronize before the range closes."
        )
    shares = [
        f"{row.name} ({share_text(row.kernel_ns / row.span_ns)})"
        for row in times
        if row.span_ns and row.kernel_ns < (1 - AGREES_WITHIN) * row.span_ns
    ]
    # A CPU's operators and hidden kernels cannot tell.
    if shares and report.provenance.unit_of_work == "GPU" and not graphs.of_graphs(report):
        yield (
            f"Kernels fill only part of the GPU span of {', '.join(shares)}: `nvtx-kernels view idle` shows why "
            "the "
            "GPU is idle."
        )
