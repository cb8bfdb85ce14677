"""How much the measured steps differ, as a whole and in every range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isnan
from statistics import median

from ..attribution.causes import Attribution
from ..document import Column, Document, Row, Table, headed, rows_by_key
from ..errors import ReportError
from ..measures.steps import RangeSteps, StepFigures, ranges_of, steps_of
from ..report import Report, tree_order
from ..report.account import StepRow
from ..summary.selection import naming_for, renamed
from ..support.units import time_in_digits
from ..vocabulary import PHASES
from ..vocabulary.served import NUMBERS, Held
from . import graphs, headings
from .account import CALLED, KINDS_DRAWN
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


def view(subject: Subject) -> Document:
    """Show every step, and each range's kernel time over the steps that count.

    Raises ReportError if no step was measured.
    """
    report = subject.report
    if not report.steps:
        raise ReportError(report.no_steps or NO_STEPS)
    require_measured(report)
    if subject.detail.whole:
        tables, notes = [_every_value(subject)], report.notes
    else:
        attribution = _with_graphs(subject, subject.partition.of_counted_steps)
        ranges = _ranges(report, _selected(subject, attribution), subject.detail.top)
        tables = [table for table in (_steps(subject), _served(_figures(subject)), ranges) if table.rows]
        notes = report.notes if ranges.rows else (NO_RANGES, *report.notes)
    return headings.answer(report, tables, notes, accounting=headings.accounting_per_step(report))


def _figures(subject: Subject) -> tuple[StepFigures, ...]:
    """Return the figures of all measured steps, in order."""
    attribution = _with_graphs(subject, subject.partition.attribution)
    return steps_of(attribution, include_warm_up=subject.report.warm_up_included)


def _with_graphs(subject: Subject, attribution: Attribution) -> Attribution:
    """Count graphs that ran whole among the kernels that they hide."""
    return graphs.counted_work(attribution) if graphs.of_graphs(subject.report) else attribution


def _selected(subject: Subject, attribution: Attribution) -> list[RangeSteps]:
    """Return the requested ranges in their steps."""
    report = subject.report
    naming = naming_for(subject.detail, report)
    rows = ranges_of(attribution, naming, include_warm_up=report.warm_up_included)
    by_range = {(row.path, row.phase): row for row in rows}
    keys = ((row.path, row.phase) for row in renamed(report, naming).ranges)
    return [by_range[key] for key in keys if key in by_range]


def _steps(subject: Subject) -> Table:
    """Show one row per step with work, and the mean of those that count."""
    account = subject.report.account
    assert account is not None
    kinds = [kind for kind in KINDS_DRAWN if any(gpu.total_ns(kind=kind) for gpu in account.gpus)]
    launches = {step.step: step.kernels for step in _figures(subject)}
    generates = any(row.prefill_ns is not None for row in account.rows)
    has_processes = len(account.loops) > 1

    def figures(row: StepRow) -> list[float | None]:
        times = [row.kind_ns(kind) / max(row.gpus, 1) for kind in kinds]
        generation = _generation(row).values() if generates else ()
        return [row.own_ns, *times, *generation, launches[row.step]]

    columns = headed("step")
    if has_processes:
        columns += headed("process")
    columns += headed(own_ns="step time", **{f"{kind}_ns": CALLED[kind] for kind in kinds})
    if generates:
        columns += headed(**GENERATION)
    columns += headed(kernels="launches", counted="counts")
    rows = []
    for row in account.rows[:SHOWN_STEPS]:
        names = [str(row.step), str(row.process_id)] if has_processes else [str(row.step)]
        counts = "" if row.counted else "no"
        rows.append(Row((*names, *figures(row), counts), strong=not row.counted))
    means = [_mean(values) for values in zip(*map(figures, account.counted), strict=True)]
    rows.append(Row(("mean", *[""] * has_processes, *means, ""), strong=True))
    caption = f"mean: of the {len(account.counted)} that count."
    cost = subject.report.recording
    if cost and cost.alone_ns:
        at_most = "at most " if cost.is_upper_limit else ""
        caption += f" As recorded; without recording, a step takes {at_most}{time_in_digits(cost.alone_ns)}."
    caption += _more_steps(account.rows)
    gpus = ", mean of a GPU" if account.gpus_of_a_loop > 1 else ""
    return Table("steps", f"Where the time of each step goes, {{unit}}{gpus}", columns, tuple(rows), caption)


def _more_steps(steps: Sequence[object]) -> str:
    left_out = len(steps) - SHOWN_STEPS
    return f" {left_out} more steps: --format csv." if left_out > 0 else ""


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _idle_before(row: StepRow) -> int | None:
    """Return how long a GPU was idle between the step before and this step's first work."""
    busy_ns = (row.between_busy_ns or 0) / max(row.gpus, 1)
    return None if row.first else round(row.between_ns - busy_ns)


def _generation(row: StepRow) -> dict[str, int | None]:
    """Return how long a step's prompts and the tokens after them take, and how many of these there are."""
    return {name: getattr(row, name) for name in GENERATION}


def _served(steps: tuple[StepFigures, ...]) -> Table:
    """Show the requests and tokens of a serving engine's steps, and of all of them; no rows for other programs."""
    served = dict(zip(NUMBERS, SERVED, strict=True))
    columns = headed("step", **served, span_ns="GPU span", tokens_per_s="tokens/s")
    serving = [step for step in steps if step.held]
    rows = [Row((str(step.step), *_numbers(step))) for step in serving[:SHOWN_STEPS]]
    if serving:
        by_number = zip(*(step.held or () for step in serving), strict=True)
        span_ns = _sum([step.span_ns for step in serving])
        all_steps = replace(serving[0], held=Held(*map(_sum, by_number)), span_ns=span_ns)
        rows.append(Row(("all", *_numbers(all_steps)), strong=True))
    caption = "By the steps' names. tokens/s: a step's tokens over its GPU span." + _more_steps(serving)
    return Table("served", "What the steps of the engine held", columns, tuple(rows), caption)


def _numbers(step: StepFigures) -> tuple[int | None, ...]:
    return *(step.held or ()), step.span_ns, _rounded(step.tokens_per_s)


def _sum(numbers: Sequence[int | None]) -> int | None:
    """Add numbers up; None where one is not known."""
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
    if any(len(row.steps) < report.counted_steps for row in ranges):
        caption += " steps: those with work in the range."
        columns += headed("steps")
    rows = []
    is_linked = False
    for name, depth, row in zip(last_names(ranges), depths(ranges), ranges, strict=True):
        times = row.kernel_ns
        # A median of the steps that have a span would hide that one has none.
        span_ns = None if any(map(isnan, row.span_ns)) else median(row.span_ns)
        is_linked |= span_ns is None
        cells = (row.median_ns, min(times), max(times), row.spread, str(row.slowest), span_ns, len(row.steps))
        rows.append(Row((name, *cells)[: len(columns)], indent=depth))
    if is_linked:
        caption += f" {headings.LINKED}"
    time = f"Time of {graphs.COUNTED}" if graphs.of_graphs(report) else headings.kernel_time(report)
    title = f"{time} inside each range, {{unit}} per step"
    return Table("ranges", title, columns, tuple(rows), caption + more(selected, len(ranges), "range"))


def _every_value(subject: Subject) -> Table:
    """Return one row per step, per step and phase, and per step and range, each with its level."""
    columns = (*headed("level", "range", "phase"), Column("step", "step", "count"))
    columns += headed("kernel_ns", "graph_ns", "kernels", "span_ns", "cpu_ns", *NUMBERS, "tokens_per_s")
    columns += headed("own_ns", "between_ns", "idle_between_ns", "taken_out_ns", *GENERATION)
    records = [*_step_records(subject), *_range_records(subject)]
    title = f"each of {subject.report.steps} steps, its phases and its ranges"
    return Table("steps", title, columns, rows_by_key(columns, records))


def _step_records(subject: Subject) -> Iterator[dict[str, object]]:
    """Yield a row for each step and one for each of its phases, by the columns' keys.

    Work is that of the kernels alone; `graph_ns` is what the graphs that ran whole add to it.
    """
    account = subject.report.account
    own_rows = {row.step: row for row in account.rows} if account else {}
    alone = steps_of(subject.partition.attribution, include_warm_up=subject.report.warm_up_included)
    for step, counted in zip(alone, _figures(subject), strict=True):
        record: dict[str, object] = {
            "level": "step",
            "range": "",
            "phase": "",
            "step": step.step,
            "kernel_ns": step.kernel_ns,
            "graph_ns": counted.kernel_ns - step.kernel_ns,
            "kernels": step.kernels,
            "span_ns": step.span_ns,
            "cpu_ns": step.cpu_ns,
            "tokens_per_s": _rounded(step.tokens_per_s),
        }
        if step.held:
            record |= zip(NUMBERS, step.held, strict=True)
        if step.step in own_rows:
            record |= _own_figures(own_rows[step.step])
        yield record
        for phase, ns, counted_ns in zip(PHASES, step.phase_ns, counted.phase_ns, strict=True):
            if counted_ns:
                yield {
                    "level": "phase",
                    "range": "",
                    "phase": phase,
                    "step": step.step,
                    "kernel_ns": ns,
                    "graph_ns": counted_ns - ns,
                }


def _own_figures(row: StepRow) -> dict[str, object]:
    """Return a step's own time by the columns' keys, ns, and what it generates."""
    return {
        "own_ns": row.own_ns,
        "between_ns": row.between_ns,
        "idle_between_ns": _idle_before(row),
        "taken_out_ns": row.evaluation_ns + row.warm_up_ns + row.recorder_ns,
        **_generation(row),
    }


def _range_records(subject: Subject) -> Iterator[dict[str, object]]:
    """Yield a row for each range in each step with work of it, by the columns' keys."""
    alone = subject.partition.attribution
    of_ranges = _selected(subject, alone), _selected(subject, _with_graphs(subject, alone))
    for row, counted in zip(*of_ranges, strict=True):
        of_steps = row.steps, row.kernel_ns, counted.kernel_ns, row.span_ns
        for number, ns, counted_ns, span_ns in zip(*of_steps, strict=True):
            yield {
                "level": "range",
                "range": label(row.path),
                "phase": row.phase,
                "step": number,
                "kernel_ns": ns,
                "graph_ns": counted_ns - ns,
                "span_ns": None if isnan(span_ns) else int(span_ns),
            }
