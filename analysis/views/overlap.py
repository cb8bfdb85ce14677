"""How much communication and copying is hidden behind compute, on each GPU."""

from __future__ import annotations

from ..document import Column, Document, Row, Table, with_columns
from ..errors import ReportError
from ..kernel_names.short import names_by_kernel
from ..measures.overlap import COMMUNICATION, Overlap, communicated_ns, overlap
from ..support.units import time_text
from ..vocabulary import PHASES
from . import headings
from .communication import ELSEWHERE
from .registry import Subject
from .rows import more, per_step_of_a_gpu, require_measured, share

WHOLE = (
    "span: from the first start to the last end of {}; busy, % of it: any work ran then. compute: kernels except "
    "communication, and CUDA graphs. hidden: communication while any compute ran, also that of no step or of "
    "warm-up; exposed: the rest. Times are unions: what overlaps its own kind counts once."
)
OF_STEPS, OF_ALL, OF_PHASES = "a step's work", "all work but warm-up", "the phase's work"
TRANSFERS = (
    "time: when any of them ran, overlaps counted once. hidden: while any compute ran on that GPU; % is of time."
)
NO_COMMUNICATION = "No kernel communicates between GPUs."
NONE_KNOWN = "No kernel is known to communicate between GPUs, but {}: what is not known counts as compute here."


def view(subject: Subject) -> Document:
    """Show each GPU's compute, communication and copies, and how much of the latter is hidden.

    Raises ReportError for a report of a CPU.
    """
    report = subject.report
    if report.provenance.unit_of_work == "CPU":
        raise ReportError("The report is of a CPU: nothing is copied to a GPU or between GPUs. Record on a GPU.")
    require_measured(report)
    phases = {row.phase for row in report.phases} if subject.some_phases else PHASES
    overlaps = overlap(subject.attribution, phases, include_warm_up=report.warm_up_included)
    notes = [] if any(gpu.communication_ns for gpu in overlaps.gpus) else [_absence(subject)]
    tables = [_gpus(subject, overlaps), *([_transfers(subject, overlaps)] if overlaps.transfers else [])]
    return headings.answer(report, tables, (*report.notes, *notes))


def _absence(subject: Subject) -> str:
    """Return that nothing communicates between GPUs, in what is shown or at all, or is not known to."""
    if elsewhere_ns := communicated_ns(subject.attribution):
        return ELSEWHERE.format(time_text(elsewhere_ns))
    doubts = headings.doubts_of_absence(subject.whole, subject.attribution.trace.shortfalls)
    return NONE_KNOWN.format(doubts) if doubts else NO_COMMUNICATION


def _gpus(subject: Subject, overlaps: Overlap) -> Table:
    """Show each GPU; a phase alone has no span of its own here, as it comes and goes."""
    report, gpus = subject.report, len(overlaps.gpus)
    columns = (
        Column("gpu", "GPU"),
        Column("streams", "streams", "count"),
        Column("span_ns", "span", "ns"),
        Column("busy_share", "%", "share"),
        Column("busy_ns", "busy", "ns"),
        Column("compute_ns", "compute", "ns"),
        Column("communication_ns", "commun.", "ns"),
        Column("hidden_ns", "hidden", "ns"),
        Column("exposed_ns", "exposed", "ns"),
    )
    rows = []
    for gpu in overlaps.gpus:
        exposed_ns = gpu.communication_ns - gpu.hidden_ns
        times = (gpu.span_ns, gpu.busy_ns, gpu.compute_ns, gpu.communication_ns, gpu.hidden_ns, exposed_ns)
        span_ns, *others = (per_step_of_a_gpu(report, time_ns, gpus) for time_ns in times)
        rows.append(Row((gpu.gpu, gpu.streams, span_ns, share(gpu.busy_ns, gpu.span_ns), *others)))
    title = f"Compute and communication by GPU, {{unit}} {headings.scope_of_a_gpu(report, gpus)}"
    hidden = ("span_ns", "busy_share") if subject.some_phases else ()
    seen = [place for place, column in enumerate(columns) if column.key not in hidden]
    windows = OF_PHASES if subject.some_phases else OF_STEPS if subject.attribution.part_of else OF_ALL
    if report.warm_up_included:
        windows = windows.removesuffix(" but warm-up")
    return with_columns(Table("overlap", title, columns, tuple(rows), WHOLE.format(windows)), seen)


def _transfers(subject: Subject, overlaps: Overlap) -> Table:
    """Rank what communicates and copies; the names of kernels are short, and those of copies always are."""
    report, gpus, transfers = subject.report, len(overlaps.gpus), overlaps.transfers[: subject.detail.top]
    kernels = (row.name for row in transfers if row.kind == COMMUNICATION)
    short_names = names_by_kernel(kernels, subject.detail.full_names)
    columns = (
        Column("name", "communication, copy or memset", "name"),
        Column("gpu", "GPU"),
        Column("count", "launches", "count"),
        Column("total_ns", "sum", "ns"),
        Column("union_ns", "time", "ns"),
        Column("hidden_ns", "hidden", "ns"),
        Column("hidden_share", "%", "share"),
    )
    rows = []
    for row in transfers:
        values = (row.count, row.total_ns, row.union_ns, row.hidden_ns)
        means = (per_step_of_a_gpu(report, value, gpus) for value in values)
        rows.append(Row((short_names.get(row.name, row.name), row.gpu, *means, row.hidden_share)))
    title = f"Communication and copies hidden behind compute, {{unit}} {headings.scope_of_a_gpu(report, gpus)}"
    caption = TRANSFERS + more(overlaps.transfers, subject.detail.top, "row")
    return Table("transfers", title, columns, tuple(rows), caption)
