"""Several reports side by side: each one's phases, all of them together, and how far they differ per range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from ..document import SHORT, Column, Detail, Document, Row, Table
from ..errors import ReportError
from ..report import TO_HAVE_STEPS, Number, Path, Report, merged
from ..report import per_step as divided
from ..summary.parallel import Ranked
from ..summary.selection import with_indices_collapsed
from ..vocabulary import PATH_SEPARATOR, PHASES
from . import headings
from .overview import ranges_with_kernels
from .rows import more, with_levels

SOME = 6
NO_STEPS = (
    "None of the reports has measured step ranges, so figures per step are not available. "
    f"{TO_HAVE_STEPS}, or leave --per-step out."
)


def ranks(ranked: Sequence[Ranked[Report]], detail: Detail = SHORT, *, per_step: bool = False) -> Document:
    """Compare the reports of several ranks; clocks do not matter, only durations are compared.

    Raises ReportError if some count a GPU's work and some a CPU's, or if none has steps but `per_step` asks for
    them.
    """
    found = {one.name: one.report for one in ranked if one.report is not None}
    shown = found if detail.every_index else {name: with_indices_collapsed(one) for name, one in found.items()}
    stepless = [name for name, report in shown.items() if per_step and not report.steps]
    kept = {name: report for name, report in shown.items() if name not in stepless}
    if not kept:
        raise ReportError(NO_STEPS)
    _require_one_unit(kept)
    reports = {name: divided(report) for name, report in kept.items()} if per_step else kept
    added_up = merged(list(kept.values()), "all reports")
    together = divided(added_up) if per_step else added_up
    differing = _different_runs(reports)
    by_report = _by_report(reports, together, summed=not differing)
    levels = ["report"] * len(reports) + ["all"] * (len(by_report.rows) - len(reports))
    tables: tuple[Table, ...] = (with_levels(by_report, levels), _spread(reports, detail.top))
    if not differing:
        tables = (*tables, ranges_with_kernels(together, detail))
    notes = (*_left_out(ranked, stepless), *differing, *_uneven(reports), *_notes(reports))
    on = headings.NO_GPU if _on_cpu(together) else headings.gpus(kept.values())
    heading = " · ".join(filter(None, (f"{len(reports)} of {len(ranked)} reports", on)))
    accounting = () if differing else headings.accounting_of(together)
    return headings.document(together.provenance, heading, tables, accounting, notes)


def _different_runs(reports: dict[str, Report]) -> tuple[str, ...]:
    """Describe how runs differ, by their marks; those of one run's ranks are equal."""
    facts = {name: headings.run_facts(report.provenance) for name, report in reports.items()}
    common = headings.common(list(facts.values()))
    own = {name: [fact for fact in said if fact not in common] for name, said in facts.items()}
    told = [f"{name}: {', '.join(words)}" for name, words in own.items() if words]
    if not told:
        return ()
    some = "; ".join(told[:SOME]) + ("; …" if len(told) > SOME else "")
    return (f"These are different runs, so they are not added up ({some}).",)


def _left_out(ranked: Sequence[Ranked[Report]], stepless: Sequence[str]) -> Iterator[str]:
    yield from (f"{one.name} is left out: {one.problem}" for one in ranked if one.problem)
    yield from (f"{name} is left out: it has no measured step ranges." for name in stepless)


def _uneven(reports: dict[str, Report]) -> Iterator[str]:
    steps = sorted({report.steps for report in reports.values()})
    if len(steps) > 1:
        per_step = any(report.per_step for report in reports.values())
        advice = "" if per_step or not steps[0] else "; --per-step compares one step of each"
        yield f"The reports measured different numbers of steps ({', '.join(map(str, steps))}){advice}."


def _notes(reports: dict[str, Report]) -> Iterator[str]:
    return (f"{name}: {note}" for name, report in reports.items() for note in report.notes)


def _on_cpu(report: Report) -> bool:
    return report.provenance.unit_of_work == "CPU"


def _require_one_unit(reports: dict[str, Report]) -> None:
    """Raise ReportError if some reports count a GPU's work and some a CPU's."""
    units = {report.provenance.unit_of_work: name for name, report in reports.items()}
    if len(units) > 1:
        some = " and ".join(f"{name} counts {unit} work" for unit, name in units.items())
        raise ReportError(f"{some}: their times cannot be compared. Rank the reports of each alone.")


def _by_report(reports: dict[str, Report], together: Report, *, summed: bool) -> Table:
    """Show a row per report, and if asked last their sum; per step that is the mean of a rank's step."""
    phases = [phase for phase in PHASES if _phase_ns(together, phase)]
    columns = (
        Column("report", "report", "name"),
        *(Column(f"{phase}_ns", phase, "ns") for phase in phases),
        Column("kernel_ns", "all kernel time", "ns"),
        Column("work_ns", "all work", "ns"),
        Column("steps", "steps", "count"),
    )
    rows = [_report_row(name, report, phases) for name, report in reports.items()]
    last = _report_row("mean of all" if together.per_step else "all reports", together, phases)
    rows += [replace(last, strong=True)] * summed
    title = f"{headings.kernel_time(together)} of each report by phase, {{unit}} {_scope(together)}"
    work = "" if _on_cpu(together) else "All work counts copies, memsets and CUDA graphs too. "
    caption = f"{work}Warm-up is left out."
    return Table("reports", title, columns, tuple(rows), caption)


def _scope(report: Report) -> str:
    """Return what one rank's figures count."""
    if report.per_step:
        return "per step"
    return "over all its measured steps" if report.steps else "total"


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
    title = f"Ranges: kernel time inside, across reports, {{unit}} {_scope(next(iter(reports.values())))}"
    return Table("spread", title, columns, rows, more(ranked, top, "range").strip())


def _spread_row(path: Path, times: list[Number], names: list[str]) -> Row:
    low, high = min(times), max(times)
    slowest = names[times.index(high)]
    return Row((PATH_SEPARATOR.join(path), low, median(times), high, high / low if low else None, slowest))


def _phase_ns(report: Report, phase: str) -> Number:
    return sum(row.kernel_ns for row in report.phases if row.phase == phase)


def _work_ns(report: Report) -> Number:
    return report.totals.work_ns - report.totals.excluded_ns
