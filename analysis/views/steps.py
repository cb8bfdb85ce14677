"""How much the measured steps differ, as a whole and in every range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import isnan
from statistics import median

from ..attribution.causes import Attribution
from ..document import Column, Document, Row, Table, headed
from ..errors import ReportError
from ..measures.steps import RangeSteps, StepFigures, ranges_of, steps_of
from ..report import Report, tree_order
from ..report.step_time import StepRow
from ..summary.selection import naming_for, renamed
from ..support.units import time_in_digits
from ..vocabulary import PHASES
from ..vocabulary.served import NUMBERS, Held
from . import graphs, headings
from .registry import Subject
from .rows import depths, in_tree, label, last_names, more, require_measured

NO_STEPS = (
    "The report has no measured steps, so there is nothing to compare. Push a range named 'step' around each "
    "step, or name the ranges that are steps with --step NAME."
)
NO_RANGES = "No requested range contains work of a measured step, so there is nothing to compare."
SHOWN_STEPS = 20
#: How the numbers of what an engine's step held are headed.
SERVED = ("prompts", "prompt tokens", "generating", "their tokens")
#: Columns of steps that generate, by prefill and decode.
GENERATION = {"prefill_ns": "prefill", "decode_ns": "decode", "tokens": "tokens"}
NOTHING_HELD = (None,) * len(NUMBERS)


def view(subject: Subject) -> Document:
    """Show every step, and each range's kernel time over the steps.

    Raises ReportError if no step was measured.
    """
    report, attribution = subject.report, subject.attribution
    if not report.steps:
        raise ReportError(report.no_steps or NO_STEPS)
    require_measured(report)
    if subject.detail.whole:
        tables, notes = [_every_value(subject)], report.notes
    else:  # graphs that ran whole count among the kernels that they hide
        attribution = graphs.counted_work(attribution) if graphs.of_graphs(report) else attribution
        steps = steps_of(attribution, include_warm_up=report.warm_up_included)
        ranges = _ranges(report, _selected(subject, attribution), subject.detail.top)
        tables = [table for table in (_steps(report, steps), _served(steps), ranges) if table.rows]
        notes = report.notes if ranges.rows else (NO_RANGES, *report.notes)
    return headings.answer(report, tables, notes, accounting=headings.accounting_per_step(report))


def _selected(subject: Subject, attribution: Attribution) -> list[RangeSteps]:
    """Return the requested ranges in their steps."""
    report, naming = subject.report, naming_for(subject.detail, subject.report)
    rows = ranges_of(attribution, naming, include_warm_up=report.warm_up_included)
    by_range = {(row.path, row.phase): row for row in rows}
    keys = ((row.path, row.phase) for row in renamed(report, naming).ranges)
    return [by_range[key] for key in keys if key in by_range]


def _time(report: Report) -> str:
    return f"Time of {graphs.COUNTED}" if graphs.of_graphs(report) else headings.kernel_time(report)


def _steps(report: Report, steps: tuple[StepFigures, ...]) -> Table:
    """Show one row per step, the slowest marked, and the median of each column."""
    phases = [number for number in range(len(PHASES)) if any(step.phase_ns[number] for step in steps)]
    own = own_times(report)
    generates = any(row.prefill_ns is not None for row in own.values())
    compared = [row.step for row in report.step_time.compared] if report.step_time else []

    def own_figures(step: int) -> tuple[int | None, ...]:
        row = own.get(step)
        return (*_own(row), *(_generation(row) if generates else ()))

    def figures(step: StepFigures) -> tuple[int | None, ...]:
        times = (step.phase_ns[number] for number in phases)
        return *own_figures(step.step), *times, step.kernel_ns, step.kernels, step.span_ns, step.cpu_ns

    columns = headed("step", own_ns="step time", idle_between_ns="idle before")
    columns += headed(**GENERATION) if generates else ()
    columns += headed(**{f"{PHASES[number]}_ns": headings.phase(PHASES[number]) for number in phases})
    columns += headed(kernel_ns="all", kernels="launches", span_ns=headings.span(report), cpu_ns="CPU range")
    slowest = max(compared, key=lambda step: own[step].own_ns) if len(compared) > 1 else -1
    listed = sorted({*range(min(len(steps), SHOWN_STEPS)), *([slowest] if slowest >= 0 else [])})
    rows = [Row((str(step), *figures(steps[step])), strong=step == slowest) for step in listed]
    middle = [
        median(column) if column else None for column in map(_present, zip(*map(figures, steps), strict=True))
    ]
    if compared:  # of the steps whose time is known from end to end
        columns_of_own = [*map(_present, zip(*map(own_figures, compared), strict=True))]
        middle[: len(columns_of_own)] = [median(column) if column else None for column in columns_of_own]
    rows.append(Row(("median", *middle)))
    sentences = []
    if slowest >= 0:
        sentences.append(f"Step {slowest} takes the longest.")
    if len(steps) > 1 and any(row.first for row in own.values()):
        sentences.append("The first step's time counts only its own work, so the median leaves it out.")
    cost = report.recording
    if cost and cost.alone_ns:
        at_most = "at most " if cost.is_upper_limit else ""
        alone = time_in_digits(cost.alone_ns)
        sentences.append(f"Steps are as recorded; without recording, one takes {at_most}{alone}.")
    if len(steps) > len(listed):
        sentences.append(f"{len(steps) - len(listed)} more steps: --format csv.")
    title = f"Step time, and {headings.lowered(_time(report))} of each step by phase, {{unit}}"
    return Table("steps", title, columns, tuple(rows), " ".join(sentences))


def own_times(report: Report) -> dict[int, StepRow]:
    """Return the times of each step, by its number."""
    return {row.step: row for row in report.step_time.rows} if report.step_time else {}


def _own(row: StepRow | None) -> tuple[int | None, int | None]:
    """Return a step's own time, and how long a GPU was idle between the step before and its first work."""
    if row is None:
        return None, None
    busy_ns = (row.between_busy_ns or 0) / max(row.gpus, 1)
    return row.own_ns, None if row.first else round(row.between_ns - busy_ns)


def _generation(row: StepRow | None) -> tuple[int | None, ...]:
    """Return how long a step's prompts and the tokens after them take, and how many of these there are."""
    return tuple(getattr(row, name, None) for name in GENERATION)


def _present(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]


def _served(steps: tuple[StepFigures, ...]) -> Table:
    """Show the requests and tokens of a serving engine's steps, and of all of them; no rows for other programs."""
    columns = headed(
        "step", **dict(zip(NUMBERS, SERVED, strict=True)), span_ns="GPU span", tokens_per_s="tokens/s"
    )
    serving = [step for step in steps if step.held]
    rows = [Row((str(step.step), *_numbers(step))) for step in serving[:SHOWN_STEPS]]
    if serving:
        held = Held(*map(_sum, zip(*(step.held or () for step in serving), strict=True)))
        all_steps = replace(serving[0], held=held, span_ns=_sum(step.span_ns for step in serving))
        rows.append(Row(("all", *_numbers(all_steps)), strong=True))
    caption = "By the steps' names. tokens/s: a step's tokens over its GPU span."
    hidden = len(serving) - SHOWN_STEPS
    caption += f" {hidden} more steps: --format csv." if hidden > 0 else ""
    return Table("served", "What the steps of the engine held", columns, tuple(rows), caption)


def _numbers(step: StepFigures) -> tuple[int | None, ...]:
    return *(step.held or ()), step.span_ns, _rounded(step.tokens_per_s)


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Add numbers up; None where one is not known."""
    numbers = list(numbers)
    return None if None in numbers else sum(number or 0 for number in numbers)


def _rounded(rate: float | None) -> int | None:
    return None if rate is None else round(rate)


def _ranges(report: Report, selected: list[RangeSteps], top: int) -> Table:
    """Show the longest ranges and those around them, with their time over the steps; siblings by their medians."""
    order = tree_order([(row.path, (row.median_ns,)) for row in selected])
    selected = sorted(selected, key=lambda row: (order(row.path), row.phase))
    ranges = in_tree(selected, "median_ns", top, report.phase_names)
    span = headings.span(report)
    columns = headed("range", median_ns="median", min_ns="min", max_ns="max")
    columns += (Column("spread", "spread %", "share"), *headed("slowest", span_ns=span))
    caption = "spread: (max − min) / median."
    if any(len(row.steps) < report.steps for row in ranges):
        caption += " steps: those with work in the range."
        columns += headed("steps")
    rows = []
    for name, depth, row in zip(last_names(ranges), depths(ranges), ranges, strict=True):
        times = row.kernel_ns
        # A median of the steps that have a span would hide that one has none.
        span_ns = None if any(map(isnan, row.span_ns)) else median(row.span_ns)
        cells = (row.median_ns, min(times), max(times), row.spread, str(row.slowest), span_ns, len(row.steps))
        rows.append(Row((name, *cells)[: len(columns)], indent=depth))
    if any(row.values[6] is None for row in rows):
        caption += f" {headings.LINKED}"
    title = f"{_time(report)} inside each range, {{unit}} per step"
    return Table("ranges", title, columns, tuple(rows), caption + more(selected, len(ranges), "range"))


def _time_of(row: StepRow | None) -> tuple[int | None, ...]:
    """Return the columns of a step's own time for programs."""
    if row is None:
        return (None,) * 4
    own_ns, idle_ns = _own(row)
    return own_ns, row.between_ns, idle_ns, row.evaluation_ns + row.warm_up_ns + row.recorder_ns


def _every_value(subject: Subject) -> Table:
    """Return one row per step, per step and phase, and per step and range, each with its level."""
    columns = (*headed("level", "range", "phase"), Column("step", "step", "count"))
    columns += headed("kernel_ns", "graph_ns", "kernels", "span_ns", "cpu_ns", *NUMBERS, "tokens_per_s")
    columns += headed("own_ns", "between_ns", "idle_between_ns", "taken_out_ns", *GENERATION)
    own = own_times(subject.report)
    rows: list[tuple[object, ...]] = []
    # Each figure of the kernels alone, and with the graphs that ran whole.
    measured = [subject.attribution]
    measured += [graphs.counted_work(subject.attribution)] if graphs.of_graphs(subject.report) else []
    steps = [steps_of(work, include_warm_up=subject.report.warm_up_included) for work in measured]
    for step, counted in zip(steps[0], steps[-1], strict=True):
        graph_ns = counted.kernel_ns - step.kernel_ns
        figures = (step.step, step.kernel_ns, graph_ns, step.kernels, step.span_ns, step.cpu_ns)
        rows.append(
            (
                "step",
                "",
                "",
                *figures,
                *(step.held or NOTHING_HELD),
                _rounded(step.tokens_per_s),
                *_time_of(own.get(step.step)),
                *_generation(own.get(step.step)),
            )
        )
        rows += [
            ("phase", "", phase, step.step, ns, counted_ns - ns, None, None, None, *NOTHING_HELD, *[None] * 8)
            for phase, ns, counted_ns in zip(PHASES, step.phase_ns, counted.phase_ns, strict=True)
            if counted_ns
        ]
    ranges = [_selected(subject, work) for work in measured]
    for row, counted_row in zip(ranges[0], ranges[-1], strict=True):
        of_steps = (row.steps, row.kernel_ns, counted_row.kernel_ns, row.span_ns)
        for number, ns, counted_ns, span in zip(*of_steps, strict=True):
            times = (ns, counted_ns - ns, None, None if isnan(span) else int(span), None)
            rows.append(("range", label(row.path), row.phase, number, *times, *NOTHING_HELD, *[None] * 8))
    title = f"each of {subject.report.steps} steps, its phases and its ranges"
    return Table("steps", title, columns, tuple(map(Row, rows)))
