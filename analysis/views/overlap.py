"""How much communication and copying is hidden behind compute, on each GPU."""

from __future__ import annotations

from collections.abc import Sequence

from ..document import Column, Document, Row, Table, with_columns
from ..errors import ReportError
from ..kernel_names.short import names_by_kernel
from ..measures.overlap import COMMUNICATION, GpuOverlap, Overlap, TransferOverlap, overlap
from ..report import Number, Report
from ..vocabulary import PHASES
from . import headings
from .registry import Subject
from .rows import more, per_step_of_a_gpu, require_measured

WHOLE = (
    "span: from the first start to the last end of all work, with that between steps and in warm-up; % of it the "
    "GPU is busy. compute: kernels except communication, and CUDA graphs. hidden: communication while "
    "compute ran; exposed: the rest of it. Times are unions: what overlaps its own kind counts once."
)
TRANSFERS = (
    "time: when any of them ran, overlaps counted once. hidden: while compute ran on that GPU; % is of time."
)
NO_COMMUNICATION = "No kernel communicates between GPUs."


def view(subject: Subject) -> Document:
    """Show each GPU's compute, communication and copies, and how much of the latter is hidden.

    Raises ReportError for a report of a CPU.
    """
    report = subject.report
    if report.provenance.unit_of_work == "CPU":
        raise ReportError("The report is of a CPU: nothing is copied to a GPU or between GPUs. Record on a GPU.")
    asked = {row.phase for row in report.phases} if subject.some_phases else PHASES
    require_measured(report)
    found = overlap(subject.attribution(), asked, include_warm_up=report.warm_up_included)
    notes = [] if any(gpu.communication_ns for gpu in found.gpus) else [NO_COMMUNICATION]
    tables = (_gpus(subject, found), *((_transfers(subject, found),) if found.transfers else ()))
    return headings.answer(report, tables, (*report.notes, *notes))


def _gpus(subject: Subject, found: Overlap) -> Table:
    """Show each GPU; a phase alone has no span of its own here, as it comes and goes."""
    columns = (
        Column("gpu", "GPU"), Column("streams", "streams", "count"), Column("span_ns", "span", "ns"),
        Column("busy_share", "%", "share"), Column("busy_ns", "busy", "ns"), Column("compute_ns", "compute", "ns"),
        Column("communication_ns", "commun.", "ns"), Column("hidden_ns", "hidden", "ns"),
        Column("exposed_ns", "exposed", "ns"),
    )  # fmt: skip
    hidden = ("span_ns", "busy_share") if subject.some_phases else ()
    shown = [place for place, column in enumerate(columns) if column.key not in hidden]
    rows = tuple(Row(_gpu(subject.report, gpu, len(found.gpus))) for gpu in found.gpus)
    scope = headings.scope_of_a_gpu(subject.report, len(found.gpus))
    title = f"Compute and communication by GPU, {{unit}} {scope}"
    return with_columns(Table("overlap", title, columns, rows, WHOLE), shown)


def _gpu(report: Report, gpu: GpuOverlap, gpus: int) -> tuple[object, ...]:
    exposed = gpu.communication_ns - gpu.hidden_ns
    share = gpu.busy_ns / gpu.span_ns if gpu.span_ns else None
    times = (gpu.span_ns, gpu.busy_ns, gpu.compute_ns, gpu.communication_ns, gpu.hidden_ns, exposed)
    span, *others = (per_step_of_a_gpu(report, time, gpus) for time in times)
    return gpu.gpu, gpu.streams, span, share, *others


def _transfers(subject: Subject, found: Overlap) -> Table:
    report, shown = subject.report, found.transfers[: subject.detail.top]
    names = _names(shown, subject.detail.full_names)
    columns = (
        Column("name", "communication, copy or memset", "name"), Column("gpu", "GPU"),
        Column("count", "launches", "count"), Column("total_ns", "sum", "ns"), Column("union_ns", "time", "ns"),
        Column("hidden_ns", "hidden", "ns"), Column("hidden_share", "%", "share"),
    )  # fmt: skip
    rows = tuple(
        Row((name, row.gpu, *_times(report, row, len(found.gpus)), row.hidden_share))
        for name, row in zip(names, shown, strict=True)
    )
    scope = headings.scope_of_a_gpu(report, len(found.gpus))
    title = f"Communication and copies hidden behind compute, {{unit}} {scope}"
    return Table("transfers", title, columns, rows, TRANSFERS + more(found.transfers, subject.detail.top, "row"))


def _times(report: Report, row: TransferOverlap, gpus: int) -> tuple[Number, ...]:
    values = (row.count, row.total_ns, row.union_ns, row.hidden_ns)
    return tuple(per_step_of_a_gpu(report, value, gpus) for value in values)


def _names(rows: Sequence[TransferOverlap], full: bool) -> list[str]:
    """Shorten the names of kernels; those of copies are short."""
    short = names_by_kernel((row.name for row in rows if row.kind == COMMUNICATION), full)
    return [short.get(row.name, row.name) for row in rows]
