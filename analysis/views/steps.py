"""How much the measured steps differ, as a whole and in every range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import isnan
from statistics import median
from typing import TypeVar

from ..attribution.causes import Attribution
from ..document import Column, Document, Kind, Row, Table
from ..errors import ReportError
from ..measures.steps import RangeSteps, StepFigures, ranges_of, steps_of
from ..report import Report, tree_order
from ..summary.collapsing import naming_of
from ..summary.selection import with_indices_collapsed
from ..vocabulary import OTHER, PHASES
from . import graphs, headings
from .registry import Subject
from .rows import depths, in_tree, label, last_names, more, require_measured

NO_STEPS = (
    "The report has no measured step ranges, so steps cannot be compared. Push a range named 'step' around each "
    "of them, or use --step NAME for ranges with another name."
)
NO_RANGES = "No requested range contains work of a measured step, so there is nothing to compare."
SHOWN_STEPS = 20
Measured = TypeVar("Measured")


def view(subject: Subject) -> Document:
    """Show every step, and each range's kernel time over the steps.

    Raises ReportError if no step was measured.
    """
    report = subject.report
    if not report.steps:
        raise ReportError(NO_STEPS)
    require_measured(report)
    tables = (_every_value(subject),) if subject.detail.whole else _for_people(subject)
    shown = [table for table in tables if table.rows]
    notes = report.notes if len(shown) == len(tables) else (NO_RANGES, *report.notes)
    return headings.answer(report, shown, notes, accounting=headings.accounting_per_step(report))


def _for_people(subject: Subject) -> tuple[Table, ...]:
    """Show the steps and the ranges; graphs that ran whole count among the kernels that they hide."""
    report, attribution = subject.report, subject.attribution()
    attribution = graphs.counted_work(attribution) if graphs.of_graphs(report) else attribution
    steps = steps_of(attribution, include_warm_up=report.warm_up_included)
    return _steps(report, steps), _ranges(report, _asked(subject, attribution), subject.detail.top)


def _asked(subject: Subject, attribution: Attribution) -> list[RangeSteps]:
    """Return the requested ranges in their steps."""
    report, naming = subject.report, tuple if subject.detail.every_index else naming_of(subject.report)
    found = ranges_of(attribution, naming, include_warm_up=report.warm_up_included)
    rows = {(row.path, row.phase): row for row in found}
    asked = report if subject.detail.every_index else with_indices_collapsed(report)
    return [rows[row.path, row.phase] for row in asked.ranges if (row.path, row.phase) in rows]


def _time(report: Report) -> str:
    return f"Time of {graphs.COUNTED}" if graphs.of_graphs(report) else headings.kernel_time(report)


def _steps(report: Report, steps: tuple[StepFigures, ...]) -> Table:
    """Show one row per step, the slowest marked, and the median of each column."""
    held = [n for n, phase in enumerate(PHASES) if any(step.phase_ns[n] for step in steps)]
    columns = (
        Column("step", "step"), *(Column(f"{PHASES[n]}_ns", PHASES[n], "ns") for n in held),
        Column("kernel_ns", "all", "ns"), Column("kernels", "launches", "count"),
        Column("span_ns", headings.span(report), "ns"), Column("cpu_ns", "CPU range", "ns"),
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
        (PHASES.index(OTHER) in held, "other: kernels of no phase."),
        (len(steps) > len(shown), f"{len(steps) - len(shown)} more steps: --format csv."),
    )
    caption = " ".join(text for holds, text in facts if holds)
    return Table("steps", f"{_time(report)} of each step by phase, {{unit}}", columns, tuple(rows), caption)


def _figures(step: StepFigures, held: Iterable[int]) -> tuple[int | None, ...]:
    return (*(step.phase_ns[n] for n in held), step.kernel_ns, step.kernels, step.span_ns, step.cpu_ns)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _ranges(report: Report, asked: list[RangeSteps], most: int) -> Table:
    """Show the longest ranges and those around them, with their time over the steps; siblings by their medians."""
    order = tree_order([(found.path, (found.median_ns,)) for found in asked])
    asked = sorted(asked, key=lambda found: (order(found.path), found.phase))
    ranges = in_tree(asked, "median_ns", most, report.phase_names)
    absent = any(len(found.steps) < report.steps for found in ranges)
    columns = (
        Column("range", "range", "name"), Column("median_ns", "median", "ns"), Column("min_ns", "min", "ns"),
        Column("max_ns", "max", "ns"), Column("spread", "spread %", "share"), Column("slowest", "slowest", "text"),
        Column("span_ns", headings.span(report), "ns"), Column("steps", "steps", "count"),
    )[: 8 if absent else 7]  # fmt: skip
    rows = tuple(
        Row((name, *_over_steps(found))[: len(columns)], indent=depth)
        for name, depth, found in zip(last_names(ranges), depths(ranges), ranges, strict=True)
    )
    count = f"{report.steps} step{'s' if report.steps > 1 else ''}"
    title = f"{_time(report)} inside each range per step, {{unit}}, of {count}"
    caption = (
        "spread: max - min, as a share of the median. slowest: the step with the most. "
        f"{headings.span(report)}: median of the time from the first start to the last end of the range's work, "
        "added over its instances in a step." + (" steps: how many have work in the range." if absent else "")
    ) + (f" {headings.LINKED}" if any(_span(found) is None for found in ranges) else "")
    return Table("ranges", title, columns, rows, caption + more(asked, len(ranges), "range"))


def _over_steps(found: RangeSteps) -> tuple[object, ...]:
    times = found.kernel_ns
    return (
        found.median_ns, min(times), max(times), found.spread, str(found.slowest),
        _span(found), len(found.steps),
    )  # fmt: skip


def _span(found: RangeSteps) -> float | None:
    """Return the median span; None where a step has none, which a median of the others would hide."""
    return None if any(map(isnan, found.span_ns)) else median(found.span_ns)


def _every_value(subject: Subject) -> Table:
    """Return one row per step, per step and phase, and per step and range, each with its level."""
    keys: tuple[tuple[str, Kind], ...] = (
        ("level", "text"), ("range", "name"), ("phase", "text"), ("step", "count"), ("kernel_ns", "ns"),
        ("graph_ns", "ns"), ("kernels", "count"), ("span_ns", "ns"), ("cpu_ns", "ns"),
    )  # fmt: skip
    columns = tuple(Column(key, key, kind) for key, kind in keys)
    rows = tuple(map(Row, (*_every_step(subject), *_every_range(subject))))
    return Table("steps", f"each of {subject.report.steps} steps, its phases and its ranges", columns, rows)


def _every_step(subject: Subject) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the steps and of their phases."""
    for step, counted in _both(subject, partial(steps_of, include_warm_up=subject.report.warm_up_included)):
        graph_ns = counted.kernel_ns - step.kernel_ns
        yield "step", "", "", step.step, step.kernel_ns, graph_ns, step.kernels, step.span_ns, step.cpu_ns
        for phase, ns, counted_ns in zip(PHASES, step.phase_ns, counted.phase_ns, strict=True):
            if counted_ns:
                yield "phase", "", phase, step.step, ns, counted_ns - ns, None, None, None


def _every_range(subject: Subject) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the requested ranges."""
    for found, counted in _both(subject, partial(_asked, subject)):
        times = (found.steps, found.kernel_ns, counted.kernel_ns, found.span_ns)
        for step, ns, counted_ns, span in zip(*times, strict=True):
            span_ns = None if isnan(span) else int(span)
            yield "range", label(found.path), found.phase, step, ns, counted_ns - ns, None, span_ns, None


def _both(
    subject: Subject, measure: Callable[[Attribution], Sequence[Measured]]
) -> Iterator[tuple[Measured, Measured]]:
    """Yield what is measured of the kernels alone, and with the graphs that ran whole."""
    attribution = subject.attribution()
    alone = measure(attribution)
    counted = graphs.of_graphs(subject.report)
    return zip(alone, measure(graphs.counted_work(attribution)) if counted else alone, strict=True)
