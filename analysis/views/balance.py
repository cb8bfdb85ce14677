"""Show how busy the GPU is and what limits it: busy share, lag, idle gaps by range, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ..document import Column, Document, Row, Table, headed
from ..errors import ReportError
from ..measures.agreement import prices
from ..measures.balance import Balance, balance
from ..measures.spans import ALL, NAMES, STEP
from ..report import Report, added
from ..report.recording import PhaseAlone, Recording
from ..summary.selection import naming_for
from ..support.units import time_text
from ..vocabulary import PHASES
from . import headings
from .registry import Subject
from .rows import (
    common_length,
    label,
    more,
    per_step,
    per_step_of_a_gpu,
    price_notes,
    require_measured,
    with_levels,
)

BUSY = "waiting for CPU: the next kernel was not launched yet."
MIXED_GLOSS = " mixed: no single cause."
QUEUE = "A long lag is good: launches queue. At a few µs the GPU waits for the CPU."
MIXED = "mixed"
#: What people read for a verdict; programs get it unchanged.
WORDS = {"launch-bound": "limited by the CPU", "undecided": MIXED, "see phases": MIXED}
SLOWED = " A profiler slowed launches while these were timed."
NO_RANGES = (
    "No range opens a phase or a step, so the span is that of all work but warm-up, with the pauses in between."
)


def view(subject: Subject) -> Document:
    """Show how busy the GPU is in each phase, and what it waits for.

    Raises ReportError for a report of a CPU, and for one that does not say when work was launched.
    """
    report = subject.report
    if report.provenance.unit_of_work == "CPU":
        raise ReportError("The report is of a CPU, so there is no GPU to be busy or idle. Record on a GPU.")
    if not subject.attribution.trace.launch_times_known:
        raise ReportError("The report does not say when work was launched. Record with rocprofv3 --hip-trace.")
    require_measured(report)
    balanced = balance(
        subject.attribution,
        subject.phases,
        include_warm_up=report.warm_up_included,
        recording=report.recording,
    )
    priced = prices(subject.attribution, include_warm_up=report.warm_up_included)
    tables = [] if subject.some_phases else list(_of_step_time(report))
    tables += [
        *_of_phases(report, balanced),
        *([_owners(subject, balanced)] if balanced.owners else []),
    ]
    notes = [*report.notes, *([NO_RANGES] if balanced.phases[0].name == NAMES[ALL] else [])]
    notes += price_notes(report, priced)
    # The verdicts that would be others if annotation cost nothing.
    changed = [
        f"{row.name} would be {WORDS.get(cheaper.verdict, cheaper.verdict)}"
        for row in balanced.phases
        if row.name in priced and (cheaper := row.without(priced[row.name].ns)).verdict != row.verdict
    ]
    if changed:
        others = ", ".join(changed)
        notes.append(f"Without this cost {others}. Annotate fewer modules, with depth= or only=.")
    return headings.answer(report, tables, notes)


#: The share of a step's time from which what was taken out of all steps is said.
LITTLE_TAKEN_OUT = 0.01
STEP_TIME, WITHIN, BETWEEN = "step time", "within steps", "between steps"


def _of_step_time(report: Report) -> Iterator[Table]:
    """Yield how long a GPU works in a step's time, within its work and between it and the step before."""
    time = report.step_time
    if time is None or time.busy_ns is None:
        return
    of_steps = 1 if report.per_step else len(time.compared)
    between_ns, between_busy_ns = time.between_ns or 0, time.between_busy_ns or 0
    parts = {
        WITHIN: (time.step_ns - between_ns, time.busy_ns - between_busy_ns),
        BETWEEN: (between_ns, between_busy_ns),
        STEP_TIME: (time.step_ns, time.busy_ns),
    }
    rows = []
    for name, (span_ns, busy_ns) in parts.items():
        figures = (span_ns, busy_ns, span_ns - busy_ns)
        cells = [cell for ns in figures for cell in (ns * of_steps, ns / time.step_ns if time.step_ns else None)]
        rows.append(Row((name, *cells), strong=name == STEP_TIME))
    columns = headed("part", part_ns="time", part_share="%", busy_ns="GPU busy", busy_share="%")
    columns += headed(idle_ns="idle", idle_share="%")
    count = len(time.compared)
    typical = f", median of {count}" if time.is_uneven and count > 1 else ""
    title = f"Step time, {{unit}} per step{typical}" if report.per_step else "Step time, {unit} over steps"
    caption = "% is of step time. between steps: before a step's first work, as in a loader."
    if time.is_known_by_window:
        caption = "% is of step time: from the first start to the last end of the step's work."
    caption += _without_recording(report.recording)
    if time.gpus > 1:
        caption += f" Mean of {time.gpus} GPUs."
    taken_out = time.taken_out_ns
    if sum(taken_out.values()) > LITTLE_TAKEN_OUT * time.step_ns:
        caption += f" Taken out: {', '.join(f'{time_text(ns)} of {name}' for name, ns in taken_out.items())}."
    yield Table("step_time", title, columns, tuple(rows), caption)


def _without_recording(cost: Recording | None) -> str:
    """Return a sentence on the step and each timed phase without recording; the table is as recorded."""
    if cost is None or not cost.unrecorded_step_ns:
        return " Without recording, idle time is shorter."
    if not cost.alone_ns:
        return f" {cost.reason}"
    spans = {"step": PhaseAlone(cost.alone_ns, cost.alone_busy_share or 0.0), **cost.phases}
    limits = {name for name, span in spans.items() if cost.is_limit(span.busy_share)}
    alone = []
    for name, span in spans.items():
        at_most, at_least = ("at most ", "at least ") if name in limits else ("", "")
        alone.append(f"{name} {at_most}{time_text(span.span_ns)} ({at_least}{span.busy_share:.0%})")
    slowed = SLOWED if limits else ""
    return f" Without recording, and GPU busy: {', '.join(alone)}. The verdicts use these.{slowed}"


def _of_phases(report: Report, balanced: Balance) -> Iterator[Table]:
    """Yield how long each phase's work ran and nothing did, which sums to the span, and how long launches wait."""
    gpus = len({row.gpu for row in balanced.phases})
    scope, mean = headings.scope_of_a_gpu(report, gpus), partial(per_step_of_a_gpu, report, gpus=gpus)
    phases = [row for row in balanced.phases if row.name in PHASES]
    bound = {row.gpu for row in phases if row.verdict != "undecided"}
    busy_rows, queue_rows = [], []
    for row in balanced.phases:
        phase = (row.name, *[row.gpu] * (gpus > 1))  # the GPU is named only where there are several
        busy = (mean(row.span_ns), mean(row.busy_ns), row.busy_share)
        idle = (mean(row.idle_ns), mean(row.waiting_ns), row.waiting_share)
        is_mixed = row not in phases and row.gpu in bound and row.verdict == "undecided"
        verdict = "see phases" if is_mixed else row.verdict
        busy_rows.append(Row((*phase, *busy, *idle, verdict, WORDS.get(verdict, verdict))))
        queue_rows.append(Row((*phase, mean(row.kernels), mean(row.gaps), row.median_lag_ns, row.p95_lag_ns)))
    of_phase = headed("phase", **({"gpu": "GPU"} if gpus > 1 else {}))
    busy_columns = headed(span_ns="GPU span", busy_ns="busy", busy_share="%", idle_ns="idle")
    busy_columns += headed(unlaunched_ns="waiting for CPU", unlaunched_share="% of idle")
    busy_columns += (
        Column("verdict", "verdict", seen_by="programs"),
        Column("limit", "verdict", seen_by="people"),
    )
    lags = headed(median_lag_ns="median lag", p95_lag_ns="95% below")
    queue_columns = (*headed(kernels="launches", gaps="idle gaps"), *(replace(lag, own_unit=True) for lag in lags))
    names = [row.name for row in balanced.phases]
    busy_caption = BUSY + MIXED_GLOSS * any(row.values[-1] == MIXED for row in busy_rows)
    for key, title, columns, rows, caption in (
        ("balance", f"How busy the GPU is, {{unit}} {scope}", busy_columns, busy_rows, busy_caption),
        ("queue", f"Launches {scope}, and the lag from launch to start", queue_columns, queue_rows, QUEUE),
    ):
        yield with_levels(Table(key, title, of_phase + columns, tuple(rows), caption), names)


def _owners(subject: Subject, balanced: Balance) -> Table:
    """Rank the ranges by the idle time that ended when their work began."""
    report, detail, naming = subject.report, subject.detail, naming_for(subject.detail, subject.report)
    named = added((replace(owner, path=naming(owner.path)) for owner in balanced.owners), ("path",))
    owners = sorted(named, key=lambda owner: (-owner.idle_ns, owner.path))
    all_idle_ns = sum(owner.idle_ns for owner in owners)
    common = 0 if detail.whole else common_length(owner.path for owner in owners)
    columns = headed(range="range of the next work", idle_ns="idle", share="%", gaps="gaps")
    columns += headed(largest_ns="largest", unlaunched_share="waiting %", cause="main cause")
    rows = []
    for owner in owners[: detail.top]:
        idle = (per_step(report, owner.idle_ns), owner.idle_ns / all_idle_ns, per_step(report, owner.gaps))
        unlaunched = owner.waiting_ns / owner.idle_ns
        rows.append(Row((label(owner.path, common), *idle, owner.largest_ns, unlaunched, owner.cause)))
    # The steps' spans include those of their phases.
    names = {row.name for row in balanced.phases}
    idle_in_steps_ns = sum(row.idle_ns for row in balanced.phases if row.name == NAMES[STEP])
    where = "of the spans above" if len(names) > 1 else f"of {names.pop()}"
    where = "of the steps" if idle_in_steps_ns == all_idle_ns else where
    caption = f"% is of the idle time {where}.{more(owners, detail.top, 'range')}"
    title = f"GPU idle before the work of a range, {{unit}} {headings.scope(report)}"
    return Table("gaps", title, columns, tuple(rows), caption)
