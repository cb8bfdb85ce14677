"""How much communication and copying is hidden behind compute, on each GPU."""

from __future__ import annotations

from ..document import Document, Row, Table, headed
from ..errors import ReportError
from ..kernel_names.short import names_by_kernel
from ..measures.overlap import COMMUNICATION, Overlap, communicated_ns, overlap
from ..support.units import time_text
from . import headings
from .communication import ELSEWHERE
from .registry import Subject
from .rows import more, per_step_of_a_gpu, require_measured, share

WHOLE = "hidden: communication while compute ran; exposed: the rest."
TRANSFERS = "hidden: while compute ran on that GPU. % is of time."
NO_COMMUNICATION = "No kernel communicates between GPUs."
NONE_KNOWN = "No kernel is known to communicate between GPUs, but {}; unknown kernels count as compute."


def view(subject: Subject) -> Document:
    """Show each GPU's compute, communication and copies, and how much of the latter is hidden.

    Raises ReportError for a report of a CPU.
    """
    report = subject.report
    if report.provenance.unit_of_work == "CPU":
        raise ReportError("The report is of a CPU: nothing is copied to a GPU or between GPUs. Record on a GPU.")
    require_measured(report)
    overlaps = overlap(subject.attribution, subject.phases, include_warm_up=report.warm_up_included)
    notes = list(report.notes)
    if not any(gpu.communication_ns for gpu in overlaps.gpus):
        elsewhere_ns = communicated_ns(subject.attribution)
        doubts = headings.doubts_of_absence(subject.whole, subject.attribution.trace.shortfalls)
        absence = NONE_KNOWN.format(doubts) if doubts else NO_COMMUNICATION
        notes.append(ELSEWHERE.format(time_text(elsewhere_ns)) if elsewhere_ns else absence)
    tables = [_gpus(subject, overlaps), *([_transfers(subject, overlaps)] if overlaps.transfers else [])]
    return headings.answer(report, tables, notes)


def _gpus(subject: Subject, overlaps: Overlap) -> Table:
    """Show each GPU; a single phase has no span, because it recurs."""
    report, gpus = subject.report, len(overlaps.gpus)
    spans = {} if subject.some_phases else {"span_ns": "span", "busy_share": "%"}
    columns = headed(gpu="GPU", streams="streams", **spans, busy_ns="busy", compute_ns="compute")
    columns += headed(communication_ns="commun.", hidden_ns="hidden", exposed_ns="exposed")
    rows = []
    for gpu in overlaps.gpus:
        exposed_ns = gpu.communication_ns - gpu.hidden_ns
        times = (gpu.span_ns, gpu.busy_ns, gpu.compute_ns, gpu.communication_ns, gpu.hidden_ns, exposed_ns)
        span_ns, *others = (per_step_of_a_gpu(report, time_ns, gpus) for time_ns in times)
        span = (span_ns, share(gpu.busy_ns, gpu.span_ns)) if spans else ()
        rows.append(Row((gpu.gpu, gpu.streams, *span, *others)))
    title = f"Compute and communication by GPU, {{unit}} {headings.scope_of_a_gpu(report, gpus)}"
    return Table("overlap", title, columns, tuple(rows), WHOLE)


def _transfers(subject: Subject, overlaps: Overlap) -> Table:
    """Rank what communicates and copies; the names of kernels are short, and those of copies always are."""
    report, gpus, transfers = subject.report, len(overlaps.gpus), overlaps.transfers[: subject.detail.top]
    kernels = (row.name for row in transfers if row.kind == COMMUNICATION)
    short_names = names_by_kernel(kernels, subject.detail.full_names)
    columns = headed(name="communication, copy or memset", gpu="GPU", count="launches", total_ns="sum")
    columns += headed(union_ns="time", hidden_ns="hidden", hidden_share="%")
    rows = []
    for row in transfers:
        values = (row.count, row.total_ns, row.union_ns, row.hidden_ns)
        means = (per_step_of_a_gpu(report, value, gpus) for value in values)
        rows.append(Row((short_names.get(row.name, row.name), row.gpu, *means, row.hidden_share)))
    title = f"Communication and copies hidden behind compute, {{unit}} {headings.scope_of_a_gpu(report, gpus)}"
    caption = TRANSFERS + more(overlaps.transfers, subject.detail.top, "row")
    return Table("transfers", title, columns, tuple(rows), caption)
