"""Several reports side by side: each one's phases, all of them together, and how far they differ per range."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from analysis.many import Ranked
from analysis.report import Number, Path, Report, merged
from analysis.selection import with_indices_collapsed
from analysis.tables import PATH_SEPARATOR, Column, Document, Row, Table
from analysis.views import provenance
from analysis.views.overview import ranges_with_kernels
from analysis.vocabulary import PHASES


def ranks(ranked: Sequence[Ranked], *, top: int = 10) -> Document:
    """Compare the reports of several ranks; clocks do not matter, only durations are compared."""
    reports = {one.name: with_indices_collapsed(one.report) for one in ranked if one.report is not None}
    steps = {report.steps for report in reports.values()}
    problems = tuple(f"{one.name} is left out: {one.problem}" for one in ranked if one.problem)
    notes = tuple(f"{name}: {note}" for name, report in reports.items() for note in report.notes)
    heading = f"{len(reports)} of {len(ranked)} reports" + (
        f" · {provenance.gpus(reports.values())}" if reports else ""
    )
    if len(steps) > 1:
        notes = (f"The reports measured different numbers of steps: {', '.join(map(str, sorted(steps)))}.", *notes)
    together = merged(list(reports.values()), "all reports")
    tables = (_by_report(reports), _spread(reports, top), ranges_with_kernels(together, top, full_names=False))
    return Document(heading, tables, provenance.accounting(together), (*problems, *notes))


def _by_report(reports: dict[str, Report]) -> Table:
    phases = [phase for phase in PHASES if any(_phase_ns(report, phase) for report in reports.values())]
    columns = (
        Column("report", "report", "name"),
        *(Column(f"{phase}_ns", phase, "ns") for phase in phases),
        Column("kernel_ns", "all kernels", "ns"),
        Column("work_ns", "all work", "ns"),
        Column("steps", "steps", "count"),
    )
    rows = [_report_row(name, report, phases) for name, report in reports.items()]
    together = [sum(_number(row.values[place]) for row in rows) for place in range(1, len(columns))]
    return Table(
        "reports",
        "Kernel time of each report by phase, {unit} over all its measured steps",
        columns,
        (*rows, Row(("all reports", *together), strong=True)),
        "All work counts copies, memsets and CUDA graphs too; warm-up is left out of the phases.",
    )


def _report_row(name: str, report: Report, phases: Sequence[str]) -> Row:
    times = [_phase_ns(report, phase) for phase in phases]
    return Row((name, *times, sum(row.kernel_ns for row in report.phases), _work_ns(report), report.steps))


def _spread(reports: dict[str, Report], top: int) -> Table:
    """Rank ranges by their longest report; slow is the one that spent most kernel time in the range."""
    times: dict[tuple[Path, str], dict[str, Number]] = {}
    for name, report in reports.items():
        for row in report.ranges:
            times.setdefault((row.path, row.phase), {})[name] = row.inclusive_ns
    ranked = sorted(times.items(), key=lambda item: -max(item[1].values()))
    rows = tuple(
        _spread_row(path, [each.get(name, 0) for name in reports], list(reports))
        for (path, _), each in ranked[:top]
    )
    columns = (
        Column("range", "range", "name"), Column("min_ns", "min", "ns"), Column("median_ns", "median", "ns"),
        Column("max_ns", "max", "ns"), Column("spread", "max/min", "ratio"), Column("slowest", "slowest", "name"),
    )  # fmt: skip
    title = "Ranges: kernel time inside, across reports, {unit} over all measured steps"
    rest = len(ranked) - len(rows)
    return Table("spread", title, columns, rows, f"{rest} more ranges: --top {len(ranked)}." if rest else "")


def _spread_row(path: Path, times: list[Number], names: list[str]) -> Row:
    low, high = min(times), max(times)
    slowest = names[times.index(high)]
    return Row((PATH_SEPARATOR.join(path), low, median(times), high, high / low if low else None, slowest))


def _phase_ns(report: Report, phase: str) -> Number:
    return sum(row.kernel_ns for row in report.phases if row.phase == phase)


def _work_ns(report: Report) -> Number:
    return report.totals.work_ns - report.totals.excluded_ns


def _number(value: object) -> Number:
    return value if isinstance(value, int | float) else 0
