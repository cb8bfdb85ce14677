"""Compare a timer around each phase with the GPU's span and the kernels in it."""

from __future__ import annotations

from ..document import Column, Document, Row, Table
from ..errors import ReportError, UsageError
from ..measures.agreement import AGREES_WITHIN, PhaseTimes, agrees, phase_times
from ..measures.annotation import prices
from ..support.units import share_text, time_text
from ..vocabulary import PHASES
from . import headings
from .registry import Subject
from .rows import level, per_step, price_notes, with_levels

RANGES = "ranges: the phase's outermost ranges."
CPU_RANGE = "CPU range: their own durations, which is what a timer around them sees."
SPAN = "{span}: from the first start to the last end of their work."
KERNEL_TIME = "kernel time: the sum of their kernels' times."
SHARE = "% is of the CPU range."
CAPTION = (
    f"{RANGES} {CPU_RANGE} {SPAN} {KERNEL_TIME} {SHARE} agree: the {{span}} is within {AGREES_WITHIN:.0%} of it. "
    "CPU longer: it is longer, as the work began later or was done sooner. not synchronized: work ran on after "
    "the range had closed."
)
TIMED = (
    f"timed: measured elsewhere, as given with --timed. agree: the CPU range is within {AGREES_WITHIN:.0%} of it. "
    "longer here, shorter here: the CPU range is not. not synchronized: as above, so that it cannot be compared."
)


def view(subject: Subject) -> Document:
    """Compare CPU ranges, GPU spans, kernel times, and times measured elsewhere.

    Raises ReportError if no range opens a phase or a step, and UsageError for a time of a phase that is not
    in the report.
    """
    report = subject.report
    asked = {row.phase for row in report.phases} if subject.some_phases else PHASES
    times = phase_times(subject.attribution(), asked, include_warm_up=report.warm_up_included)
    if not any(row.ranges for row in times):
        raise ReportError(
            "No range with GPU work opens a phase or a step, so there is no CPU range to compare with. Push "
            "ranges named 'forward', 'backward', 'optimizer' or 'step'."
        )
    tables = (_together(subject, times), *_timed(subject, times))
    priced = prices(subject.attribution(), include_warm_up=report.warm_up_included)
    notes = (*report.notes, *_late(times), *_unfilled(subject, times), *price_notes(report, priced))
    return headings.answer(report, tables, notes)


def _together(subject: Subject, times: tuple[PhaseTimes, ...]) -> Table:
    report = subject.report
    columns = (
        Column("phase", "phase"), Column("ranges", "ranges", "count"), Column("cpu_ns", "CPU range", "ns"),
        Column("span_ns", headings.span(report), "ns"), Column("span_share", "%", "share"),
        Column("kernel_ns", "kernel time", "ns"), Column("kernel_share", "%", "share"),
        Column("verdict", "verdict"),
    )  # fmt: skip
    rows = []
    for row in times:
        ranges, cpu_ns, span_ns, kernel_ns = (
            None if value is None else per_step(report, value)
            for value in (row.ranges or None, row.cpu_ns, row.span_ns, row.kernel_ns)
        )
        cells = (row.name, ranges, cpu_ns, span_ns, row.span_share, kernel_ns, row.kernel_share, row.verdict)
        rows.append(Row(cells))
    title = f"CPU range, {headings.span(report)} and kernel time, {{unit}} {headings.scope(report)}"
    table = Table("agreement", title, columns, tuple(rows), CAPTION.format(span=headings.span(report)))
    return with_levels(table, [level(row.name) for row in times])


def _timed(subject: Subject, times: tuple[PhaseTimes, ...]) -> tuple[Table, ...]:
    """Compare with times measured elsewhere, per range."""
    known = {row.name: row for row in times if row.ranges}
    if strangers := sorted(set(subject.timed) - set(known)):
        raise UsageError(f"The report has no {strangers[0]!r} to compare a time with; it has {', '.join(known)}.")
    if not subject.timed:
        return ()
    columns = (
        Column("phase", "phase"), Column("timed_ns", "timed", "ns"), Column("cpu_ns", "CPU range", "ns"),
        Column("ratio", "CPU/timed", "ratio"), Column("span_ns", "GPU span", "ns"),
        Column("kernel_ns", "kernel time", "ns"), Column("verdict", "verdict"),
    )  # fmt: skip
    rows = tuple(Row(_against(known[name], timed_ns)) for name, timed_ns in subject.timed.items())
    table = Table("timed", "Against times measured elsewhere, {unit} per range, means", columns, rows, TIMED)
    return (with_levels(table, [level(name) for name in subject.timed]),)


def _against(row: PhaseTimes, timed_ns: float) -> tuple[object, ...]:
    cpu_ns, span_ns, kernel_ns = (value / row.ranges for value in (row.cpu_ns or 0, row.span_ns, row.kernel_ns))
    word = "agree" if agrees(timed_ns, cpu_ns) else "longer here" if cpu_ns > timed_ns else "shorter here"
    verdict = "not synchronized" if row.late else word
    return row.name, timed_ns, cpu_ns, cpu_ns / timed_ns, span_ns, kernel_ns, verdict


def _late(times: tuple[PhaseTimes, ...]) -> list[str]:
    """Name the phases whose CPU ranges closed before their work was done."""
    return [
        f"{row.name}: in {row.late} of {row.ranges} ranges the GPU worked on after the range had closed, on "
        f"average for {time_text(row.late_ns / row.late)}. Their CPU range does not measure the GPU: "
        "synchronize before the range closes, or read the GPU span."
        for row in times
        if row.late
    ]


def _unfilled(subject: Subject, times: tuple[PhaseTimes, ...]) -> list[str]:
    """Name the phases that their kernels do not fill; not for a CPU's operators or hidden kernels."""
    shares = [
        f"{row.name} ({share_text(row.kernel_ns / row.span_ns)})"
        for row in times
        if row.span_ns and row.kernel_ns < (1 - AGREES_WITHIN) * row.span_ns
    ]
    report = subject.report
    hidden = report.provenance.unit_of_work == "CPU" or any(row.kind == "graph" for row in report.kernels)
    if hidden or not shares:
        return []
    return [
        f"Kernels do not fill the GPU span of {', '.join(shares)}: --view balance says what the GPU waits for in "
        "the rest."
    ]
