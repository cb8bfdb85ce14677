"""Several reports side by side: each one's phases, all of them together, and how far they differ per range."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from ..document import SHORT, Column, Detail, Document, Row, Table, headed
from ..errors import ReportError
from ..presenters import as_json
from ..report import TO_HAVE_STEPS, Number, Path, Report, merged
from ..report import per_step as divided
from ..summary.parallel import Ranked
from ..summary.selection import naming_for, renamed
from ..vocabulary import PHASES
from . import fix as fix_view
from . import headings
from . import job as job_view
from .job import SOME, JobAnswer, named_by_rank, notes_of
from .kernels import ranges_with_kernels
from .modules import slowest
from .overview import LINES_OF_RANKS
from .rows import kernels_of, label, more, time_of, with_levels

COMMUNICATION = "communication"
NO_STEPS = (
    "None of the reports has measured steps, so there are no figures per step. "
    f"{TO_HAVE_STEPS}, or leave --per-step out."
)


def ranks(
    ranked: Sequence[Ranked[Report]],
    detail: Detail = SHORT,
    *,
    per_step: bool = False,
    of_job: JobAnswer | None = None,
    is_short: bool = False,
) -> Document:
    """Compare the reports of several ranks; clocks do not matter, only durations are compared.

    `of_job` is the answer for their job, where they are of one, and all that is shown if that `is_short`.

    Raises ReportError if some count a GPU's work and some a CPU's, or if none has steps but `per_step` asks for
    them.
    """
    compared: dict[str, Report] = {}
    stepless = []
    for name, report in named_by_rank(ranked, detail).items():
        if per_step and not report.steps:
            stepless.append(name)
        else:
            compared[name] = renamed(report, naming_for(detail, report))
    if not compared:
        raise ReportError(NO_STEPS)
    units = {report.provenance.unit_of_work: name for name, report in compared.items()}
    if len(units) > 1:
        some = " and ".join(f"{name} counts {unit} work" for unit, name in units.items())
        raise ReportError(f"{some}: their times cannot be compared. Rank the reports of each alone.")
    reports = compared
    together = merged(list(compared.values()), "all reports")
    if per_step:
        reports = {name: divided(report) for name, report in compared.items()}
        together = divided(together)
    differences = _different_runs(reports)
    of_job = None if differences else of_job
    tables = [] if of_job is None else [job_view.table(of_job.job), *fix_view.first(of_job.advice)]
    is_screen = bool(tables) and is_short and not detail.whole
    if not is_screen:
        tables += [_by_report(reports, together, summed=not differences), _spread(reports, detail.top)]
        if not differences:
            tables.append(ranges_with_kernels(together, detail))
    else:
        tables.append(slowest(together))
    steps = sorted({report.steps for report in reports.values()})
    uneven = []
    if len(steps) > 1:
        advice = "" if per_step or not steps[0] else "; --per-step compares one step of each"
        uneven = [f"The reports measured different numbers of steps ({', '.join(map(str, steps))}){advice}."]
    notes = [
        *(f"{entry.name} is left out: {entry.problem}" for entry in ranked if entry.problem),
        *(f"{name} is left out: it has no measured steps." for name in stepless),
        *differences,
        *uneven,
        *notes_of(reports),
    ]
    device = headings.NO_GPU if "CPU" in units else headings.gpus(compared.values())
    heading = " · ".join(filter(None, (f"{len(reports)} of {len(ranked)} reports", device)))
    of_work = headings.unplaced if is_screen else headings.accounting_of
    accounting = () if differences else of_work(together)
    document = headings.document(together.provenance, heading, tables, accounting, notes)
    if of_job is None:
        return document
    if detail.whole:
        return replace(document, promised=partial(_as_object, document, of_job))
    answer = job_view.sentences(of_job.job) + fix_view.without_changes(of_job.advice)
    return replace(document, verdict=answer, lines=LINES_OF_RANKS * is_screen)


def _as_object(document: Document, of_job: JobAnswer) -> dict[str, Any]:
    """Return the tables as JSON has them, with the account of the job, and what to change in it."""
    account, fixes = job_view.as_object(of_job.job), fix_view.as_object(of_job.advice)
    return {**as_json.content(document), "account": account, **fixes}


def _different_runs(reports: dict[str, Report]) -> list[str]:
    """Describe how runs differ, by their marks; those of one run's ranks are equal."""
    facts = {name: headings.run_facts(report.provenance) for name, report in reports.items()}
    common = headings.common(list(facts.values()))
    texts = []
    for name, of_run in facts.items():
        if differing := [fact for fact in of_run if fact not in common]:
            texts.append(f"{name}: {', '.join(differing)}")
    if not texts:
        return []
    if len(texts) > SOME:
        texts[SOME:] = ["…"]
    return [f"These runs have different settings, so they are not added up ({'; '.join(texts)})."]


def _by_report(reports: dict[str, Report], together: Report, *, summed: bool) -> Table:
    """Show a row per report, and if asked last their sum; per step that is the mean of a rank's step."""
    phases = [phase for phase in PHASES if any(row.phase == phase and row.kernel_ns for row in together.phases)]

    def cells(report: Report) -> tuple[object, ...]:
        kernels = [row for row in kernels_of(report) if row.category != COMMUNICATION]
        times = [time_of(row for row in kernels if row.phase == phase) for phase in phases]
        return *times, sum(times), report.totals.work_ns - report.totals.excluded_ns, report.steps

    columns = headed("report", **{f"{phase}_ns": headings.phase(phase) for phase in phases})
    columns += headed(kernel_ns="all kernel time", work_ns="all work", steps="steps")
    rows = [Row((name, *cells(report))) for name, report in reports.items()]
    if summed:
        name = "mean of all" if together.per_step else "all reports"
        rows.append(Row((name, *cells(together)), strong=True))
    title = f"{headings.kernel_time(together)} of each report by phase, {{unit}} {_scope(together)}"
    on_cpu = together.provenance.unit_of_work == "CPU"
    caption = "" if on_cpu else "all work: with copies, memsets and CUDA graphs."
    table = Table("reports", title, columns, tuple(rows), caption)
    return with_levels(table, ["report"] * len(reports) + ["all"] * summed)


def _scope(report: Report) -> str:
    """Return the scope of one rank's figures."""
    if report.per_step:
        return f"per {report.unit}"
    return "over all its measured steps" if report.steps else "total"


def _computed(report: Report) -> dict[tuple[Path, str], Number]:
    """Return the time of the kernels inside each range and phase that do not communicate, ns."""
    times: dict[tuple[Path, str], Number] = defaultdict(int)
    for row in kernels_of(report):
        if row.category != COMMUNICATION:
            for depth in range(1, len(row.path) + 1):
                times[row.path[:depth], row.phase] += row.total_ns
    return times


def _spread(reports: dict[str, Report], top: int) -> Table:
    """Rank ranges by their longest report; slow is the one that computed longest in the range."""
    times_by_range: dict[tuple[Path, str], dict[str, Number]] = {}
    for name, report in reports.items():
        for key, time_ns in _computed(report).items():
            of_range = times_by_range.setdefault(key, dict.fromkeys(reports, 0))
            of_range[name] = time_ns
    ranked = sorted(times_by_range.items(), key=lambda item: -max(item[1].values()))
    rows = []
    for (path, _), of_range in ranked[:top]:
        slowest = max(of_range, key=of_range.__getitem__)
        low, high = min(of_range.values()), of_range[slowest]
        spread = high / low if low else None
        rows.append(Row((label(path), low, median(of_range.values()), high, spread, slowest)))
    columns = headed("range", min_ns="min", median_ns="median", max_ns="max")
    columns += (Column("spread", "max/min", "ratio"), Column("slowest", "slowest", "name"))
    title = f"Ranges: kernel time inside, across reports, {{unit}} {_scope(next(iter(reports.values())))}"
    return Table("spread", title, columns, tuple(rows), more(ranked, top, "range").strip())
