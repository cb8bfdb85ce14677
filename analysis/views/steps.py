"""How much the measured steps differ, as a whole and in every range."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from statistics import median

from analysis.errors import ReportError
from analysis.report import RangeRow, Report, tree_order
from analysis.selection import collapsed_path, with_indices_collapsed
from analysis.step_figures import RangeSteps, StepFigures, ranges_of, steps_of
from analysis.tables import Column, Document, Kind, Row, Table
from analysis.views import provenance, wording
from analysis.views.common import label, require_measured
from analysis.views.registry import Subject
from analysis.vocabulary import OTHER, PHASES

NO_STEPS = (
    "The report has no measured step ranges, so steps cannot be compared. Push a range named 'step' around each "
    "of them."
)
SHOWN_STEPS = 20


def view(subject: Subject) -> Document:
    """Show every step, and each range's kernel time over the steps.

    Raises ReportError where no step was measured.
    """
    report = subject.report
    if not report.steps:
        raise ReportError(NO_STEPS)
    require_measured(report)
    attribution, warm_up = subject.attribution(), report.warm_up_included
    steps = steps_of(attribution, include_warm_up=warm_up)
    naming = tuple if subject.every_index else collapsed_path
    rows = {(row.path, row.phase): row for row in ranges_of(attribution, naming, include_warm_up=warm_up)}
    asked = report if subject.every_index else with_indices_collapsed(report)
    ranges = [(row, rows[row.path, row.phase]) for row in asked.ranges if (row.path, row.phase) in rows]
    if subject.whole:
        tables: tuple[Table, ...] = (_every_value(report, [found for _, found in ranges]),)
    else:
        tables = (_steps(report, steps), _ranges(report, ranges))
    return wording.answer(report, tables, report.notes, accounting=provenance.accounting_per_step(report))


def _steps(report: Report, steps: tuple[StepFigures, ...]) -> Table:
    """Show one row per step, the slowest marked, and the median of each column."""
    held = [n for n, phase in enumerate(PHASES) if any(step.phase_ns[n] for step in steps)]
    columns = (
        Column("step", "step"), *(Column(f"{PHASES[n]}_ns", PHASES[n], "ns") for n in held),
        Column("kernel_ns", "all kernels", "ns"), Column("kernels", "launches", "count"),
        Column("span_ns", provenance.span(report), "ns"), Column("cpu_ns", "CPU range", "ns"),
    )  # fmt: skip
    slowest = max(steps, key=lambda step: step.cpu_ns)
    shown = sorted({*range(min(len(steps), SHOWN_STEPS)), slowest.step})
    rows = [Row((str(n), *_figures(steps[n], held)), strong=n == slowest.step) for n in shown]
    rows.append(Row(("median", *map(_median, zip(*(_figures(step, held) for step in steps), strict=True)))))
    facts = (
        (
            len(steps) > 1,
            f"Step {slowest.step} of 0 to {len(steps) - 1} has the longest CPU range.",
        ),
        (PHASES.index(OTHER) in held, "other: kernels in no phase's range."),
        (len(steps) > len(shown), f"{len(steps) - len(shown)} more steps: --format csv."),
    )
    caption = " ".join(text for holds, text in facts if holds)
    return Table(
        "steps", f"{provenance.kernel_time(report)} of each step by phase, {{unit}}", columns, tuple(rows), caption
    )


def _figures(step: StepFigures, held: Iterable[int]) -> tuple[int | None, ...]:
    return (*(step.phase_ns[n] for n in held), step.kernel_ns, step.kernels, step.span_ns, step.cpu_ns)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _ranges(report: Report, ranges: list[tuple[RangeRow, RangeSteps]]) -> Table:
    """Show the ranges as a tree, each with its kernel time over the steps; siblings by their medians."""
    order = tree_order([(found.path, (found.median_ns,)) for _, found in ranges])
    ranges = sorted(ranges, key=lambda pair: (order(pair[1].path), pair[1].phase))
    absent = any(len(found.steps) < report.steps for _, found in ranges)
    columns = (
        Column("range", "range", "name"), Column("median_ns", "median", "ns"), Column("min_ns", "min", "ns"),
        Column("max_ns", "max", "ns"), Column("spread", "spread %", "share"), Column("slowest", "slowest", "text"),
        Column("span_ns", provenance.span(report), "ns"), Column("steps", "steps", "count"),
    )[: 8 if absent else 7]  # fmt: skip
    top = min((len(row.path) for row, _ in ranges), default=1)
    rows = tuple(
        Row((found.path[-1], *_over_steps(found))[: len(columns)], indent=len(row.path) - top)
        for row, found in ranges
    )
    count = f"{report.steps} step{'s' if report.steps > 1 else ''}"
    title = f"{provenance.kernel_time(report)} inside each range per step, {{unit}}, of {count}"
    caption = (
        "spread: max - min, as a share of the median. slowest: the step with the most. "
        f"{provenance.span(report)}: median of the time from the first start to the last end of the range's work, "
        "added over its instances in a step." + (" steps: how many have work in the range." if absent else "")
    ) + (f" {provenance.LINKED}" if any(_span(found) is None for _, found in ranges) else "")
    return Table("ranges", title, columns, rows, caption)


def _over_steps(found: RangeSteps) -> tuple[object, ...]:
    times = found.kernel_ns
    return (
        found.median_ns, min(times), max(times), found.spread, str(found.slowest),
        _span(found), len(found.steps),
    )  # fmt: skip


def _span(found: RangeSteps) -> float | None:
    """Return the median span; None where a step has none, which a median of the others would hide."""
    return None if any(map(isnan, found.span_ns)) else median(found.span_ns)


def _every_value(report: Report, ranges: list[RangeSteps]) -> Table:
    """Return one row per path and step."""
    keys: tuple[tuple[str, Kind], ...] = (
        ("range", "name"), ("phase", "text"), ("step", "count"), ("kernel_ns", "ns"), ("span_ns", "ns"),
    )  # fmt: skip
    rows = tuple(
        Row((label(found.path), found.phase, step, kernel_ns, None if isnan(span) else int(span)))
        for found in ranges
        for step, kernel_ns, span in zip(found.steps, found.kernel_ns, found.span_ns, strict=True)
    )
    columns = tuple(Column(key, key, kind) for key, kind in keys)
    return Table("steps", f"each range in each of {report.steps} steps", columns, rows)
