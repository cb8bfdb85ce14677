"""Show why the GPU is idle, by cause, phase and range, and what limits each phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..account.sums import IdlePlace, idle_places
from ..document import Column, Document, Row, Table, headed, seen_if
from ..errors import ReportError
from ..measures.agreement import prices
from ..measures.launch_lags import launch_lags
from ..report import Report
from ..report.account import IDLE, Account, GpuAccount
from ..report.limits import LAUNCH_BOUND, UNDECIDED
from ..report.recording import Recording
from ..summary.selection import naming_for
from ..support.units import time_text
from ..vocabulary import PHASES
from . import headings
from .account import CAUSES, called
from .registry import Subject
from .rows import common_length, label, more, per_step, price_notes, require_measured, share

MIXED = "mixed"
#: What people read for what limits a phase; programs get it unchanged.
WORDS = {LAUNCH_BOUND: called("launching"), UNDECIDED: MIXED}
NEVER_IDLE = "The GPU is never idle in what is measured."
NEVER_OUTSIDE = "The program always runs an operator in what is measured."
#: From this share of a place's idle time on, its line is named without its share.
ALONE_FROM = 0.9
UNKNOWN = "The cause of {} is unknown: the launch of the next work was not recorded."
LAGS = "A long lag is good: launches queue. At a few µs the GPU waits for the CPU."


def view(subject: Subject) -> Document:
    """Show why the GPU is idle, or on a CPU what the program does outside of operators.

    Raises ReportError for a selection without work, and where nothing is ever idle.
    """
    report = subject.report
    require_measured(report)
    account = report.account
    if account is None or not any(gpu.idle_ns for gpu in account.gpus):
        raise ReportError(NEVER_OUTSIDE if account and account.on_cpu else NEVER_IDLE)
    places = idle_places(subject.partition, naming_for(subject.detail, report), subject.phases)
    tables = [_by_cause(account)] if subject.detail.whole else [*_causes(account)]
    tables += [*_limits(report)] if not account.on_cpu else []
    tables.append(_places(subject, account, places))
    tables += [_lags(subject)] if subject.launches else []
    unknown_ns = sum(gpu.total_ns(kind=IDLE, what="unknown") for gpu in account.gpus)
    notes = [*report.notes, *([UNKNOWN.format(time_text(unknown_ns))] if unknown_ns else [])]
    notes += price_notes(report, prices(subject.attribution, include_warm_up=report.warm_up_included))
    accounting = headings.accounting_per_step(report) if account.has_steps else None
    return headings.answer(report, tables, notes, accounting=accounting)


def _per(account: Account) -> str:
    """Return the unit that an account's figures are per: they are always means of steps that count."""
    return f"per {account.evidence.unit}" if account.has_steps else "in all that was recorded"


def _gpu_steps(account: Account) -> int:
    """Return how many steps of all GPUs figures are means of; one of each GPU where no steps are known."""
    return max(sum(gpu.steps for gpu in account.gpus), 1)


def _mean_of(account: Account) -> str:
    """Return the end of a title over figures that are means of several GPUs."""
    return f", mean of {len(account.gpus)} GPUs" if len(account.gpus) > 1 else ""


def _idle_by_cause(gpu: GpuAccount) -> dict[str, dict[str, float]]:
    """Return the idle time of a GPU in a step by cause and phase, ns, the largest cause first."""
    causes: dict[str, dict[str, float]] = {}
    for part in gpu.parts:
        if part.kind == IDLE:
            phases = causes.setdefault(part.what, {})
            phases[part.phase] = phases.get(part.phase, 0) + part.total_ns / gpu.steps
    return dict(sorted(causes.items(), key=lambda item: -sum(item[1].values())))


def _causes(account: Account) -> Iterator[Table]:
    """Yield the causes of each GPU's idle time by phase; rows and columns add up to its idle time in a step."""
    for number, gpu in enumerate(account.gpus):
        causes = _idle_by_cause(gpu)
        phases = [phase for phase in PHASES if any(phase in of_cause for of_cause in causes.values())]
        own_ns = gpu.total_own_ns / gpu.steps
        rows = [_row(called(cause), of_cause, phases, own_ns) for cause, of_cause in causes.items()]
        together = {phase: sum(of_cause.get(phase, 0) for of_cause in causes.values()) for phase in phases}
        rows.append(_row("sum", together, phases, own_ns, strong=True))
        columns = headed("cause", **{f"{phase}_ns": headings.phase(phase) for phase in phases})
        columns += headed(idle_ns="idle", share="%")
        glosses = "; ".join("{}: {}".format(*CAUSES[cause]) for cause in [*causes][:2])
        on_gpu = f" of {gpu.gpu}" if len(account.gpus) > 1 else ""
        idle_time = "Time outside of operators" if account.on_cpu else "Idle time"
        title = f"{idle_time}{on_gpu} by cause and phase, {{unit}} {_per(account)}"
        caption = f"{glosses}." if number == 0 else ""
        step = "the step" if account.has_steps else "the time"
        yield Table("idle", title, columns, tuple(rows), f"% is of {step}. {caption}".strip())


def _row(
    cause: str, phases_ns: Mapping[str, float], phases: list[str], own_ns: float, *, strong: bool = False
) -> Row:
    idle_ns = sum(phases_ns.values())
    return Row(
        (cause, *(phases_ns.get(phase, 0) for phase in phases), idle_ns, share(idle_ns, own_ns)), strong=strong
    )


def _by_cause(account: Account) -> Table:
    """Return a row for each GPU, cause and phase, for programs."""
    rows: list[Row] = []
    for gpu in account.gpus:
        own_ns = gpu.total_own_ns / gpu.steps
        for cause, phases in _idle_by_cause(gpu).items():
            rows += (Row((gpu.gpu, cause, phase, ns, share(ns, own_ns))) for phase, ns in phases.items())
    columns = headed("gpu", "cause", "phase", "idle_ns", "share")
    return Table("idle", f"Idle time {_per(account)}", columns, tuple(rows))


def _limits(report: Report) -> Iterator[Table]:
    """Yield how long each phase takes on the GPUs, for how long they are busy in it, and what limits it."""
    account = report.account
    assert account is not None
    steps = _gpu_steps(account) / (len(account.counted) if report.per_step else 1)
    rows = []
    for row in report.busy:
        figures = (row.span_ns / steps, row.busy_ns / steps, share(row.busy_ns, row.span_ns))
        idle = ((row.span_ns - row.busy_ns) / steps, row.waiting_ns / steps)
        is_sum = row.phase not in PHASES
        words = (row.verdict, WORDS.get(row.verdict, called(row.verdict)))
        rows.append(Row((headings.phase(row.phase), *figures, *idle, *words), strong=is_sum))
    columns = headed("phase", time_ns="time", busy_ns="busy", busy_share="%", idle_ns="idle")
    columns += headed(waiting_ns="waiting for CPU")
    columns += (
        Column("verdict", "limited by", seen_by="programs"),
        Column("limit", "limited by", seen_by="people"),
    )
    caption = "waiting for CPU: the next work was not launched yet." + _without_recording(report.recording)
    title = f"What limits each phase, {{unit}} {_per(account)}{_mean_of(account)}"
    yield Table("limits", title, columns, tuple(rows), caption)


def _without_recording(cost: Recording | None) -> str:
    """Return how busy a GPU is without recording, by which the limits are judged; "" if it is not known."""
    if cost is None or not cost.alone_ns or cost.alone_busy_share is None:
        return ""
    spans = {"step": cost.alone_busy_share} | {name: phase.busy_share for name, phase in cost.phases.items()}
    parts = []
    for name, busy_share in spans.items():
        at_least = "at least " if cost.is_limit(busy_share) else ""
        parts.append(f"{headings.phase(name)} {at_least}{busy_share:.0%}")
    return f" limited by: as without recording, where the GPU is busy: {', '.join(parts)}."


def _places(subject: Subject, account: Account, places: list[IdlePlace]) -> Table:
    """Rank causes in ranges by their idle time."""
    detail = subject.detail
    total_ns = sum(place.total_ns for place in places)
    steps = _gpu_steps(account)
    common = 0 if detail.whole else common_length(place.path for place in places)
    has_functions = any(place.function for place in places)
    top_places = places[: detail.top]
    has_lines = any(place.lines for place in top_places)
    has_calls = any(place.after for place in top_places)
    rows = []
    for place in top_places:
        cause = place.cause if detail.whole else called(place.cause)
        names = (cause, label(place.path, common), place.function, line_of(place, whole=detail.whole))
        figures = (place.total_ns / steps, share(place.total_ns, total_ns))
        rows.append(Row((*names, *figures, place.after)))
    columns = (
        *headed("cause", "range"),
        seen_if(has_functions, Column("function", "function")),
        seen_if(has_lines and not has_functions, Column("line", "line")),
        *headed(idle_ns="idle", share="%"),
        seen_if(has_calls, Column("after", "after")),
    )
    idle_time = "Time outside of operators" if account.on_cpu else "Idle time"
    per = f"{_per(account)}{_mean_of(account)}"
    caption = f"% is of the {headings.lowered(idle_time)}."
    if has_calls:
        caption += " after: the call that waited for the GPU before."
    cut = more(places, detail.top, "row" if has_functions else "range")
    return Table("places", f"{idle_time} by range, {{unit}} {per}", columns, tuple(rows), caption + cut)


def line_of(place: IdlePlace, *, whole: bool = False) -> str:
    """Return the line with most of a place's idle time, for people with its share unless it has nearly all."""
    if not place.lines:
        return ""
    most = place.lines[0]
    part = most.total_ns / place.total_ns
    return most.called if whole or part >= ALONE_FROM else f"{most.called} {part:.0%}"


def _lags(subject: Subject) -> Table:
    """Show how long after its launch call work starts, by phase."""
    rows = []
    for lags in launch_lags(subject.attribution, subject.phases):
        launches = per_step(subject.report, lags.launches)
        rows.append(Row((headings.phase(lags.phase), launches, lags.median_ns, lags.p95_ns)))
    columns = headed("phase", "launches", median_lag_ns="median lag", p95_lag_ns="95% below")
    title = f"Launches {headings.over_steps(subject.report)}, and the lag from launch to start, {{unit}}"
    return Table("launches", title, columns, tuple(rows), LAGS)
