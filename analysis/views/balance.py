"""Show whether and where the GPU waits for launches: busy share, lag, idle gaps by range, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..document import Column, Detail, Document, Row, Table
from ..errors import ReportError
from ..measures.annotation import Price, prices
from ..measures.balance import (
    FILLED_FROM,
    GPU_BOUND_FROM,
    LAUNCH_BOUND_BELOW,
    WAITING_FROM,
    Balance,
    balance,
)
from ..measures.spans import ALL, NAMES, STEP
from ..report import Number, Report, added
from ..summary.selection import naming_for
from ..vocabulary import PHASES
from . import headings
from .registry import Subject
from .rows import (
    common_length,
    label,
    level,
    more,
    per_step,
    per_step_of_a_gpu,
    price_notes,
    require_measured,
    with_levels,
)

BUSY = (
    "GPU span: from the first start to the last end of a phase's work, added over its ranges. busy: the time in "
    "it when any kernel, copy, memset or CUDA graph ran, of whatever range; % is of the span. unlaunched: idle "
    "time before the launch call of the next work had returned. "
    f"GPU-bound: busy at least {GPU_BOUND_FROM:.0%} of the span; copy-bound or communication-bound where only "
    f"copies or only communication ran for {FILLED_FROM:.0%} of that. launch-bound: busy less than "
    f"{LAUNCH_BOUND_BELOW:.0%}, and at least {WAITING_FROM:.0%} of the idle time unlaunched. undecided: neither; "
    "see phases: neither of the whole, but of a phase in it."
)
QUEUE = (
    "launches: of kernels. idle gaps: before work of any kind. lag: from the start of a launch call to the start "
    "of its work on the GPU; median, and what 95% are below. It is long where launches queue up before a busy "
    "GPU, and as short as a launch can be where the GPU waits for each."
)
NO_RANGES = (
    "No range opens a phase or a step, so the span is that of all work but warm-up, with whatever the program did "
    "in between."
)


def view(subject: Subject) -> Document:
    """Show how busy the GPU is in each phase, and what it waits for.

    Raises ReportError for a report of a CPU, and for one that does not say when work was launched.
    """
    report = subject.report
    if report.provenance.unit_of_work == "CPU":
        raise ReportError("The report is of a CPU, which waits for no launches. Record on a GPU.")
    if not subject.attribution.trace.launch_times_known:
        raise ReportError("The report does not say when work was launched. Record with rocprofv3 --hip-trace.")
    require_measured(report)
    phases = {row.phase for row in report.phases} if subject.some_phases else PHASES
    balanced = balance(subject.attribution, phases, include_warm_up=report.warm_up_included)
    drawing = _Drawing(report, balanced, subject.detail)
    tables = [drawing.busy(), drawing.queue(), *([drawing.owners()] if balanced.owners else [])]
    priced = prices(subject.attribution, include_warm_up=report.warm_up_included)
    without_ranges = [NO_RANGES] if balanced.phases[0].name == NAMES[ALL] else []
    notes = (*report.notes, *without_ranges, *price_notes(report, priced), *_doubted(balanced, priced))
    return headings.answer(report, tables, notes)


def _doubted(balanced: Balance, priced: Mapping[str, Price]) -> list[str]:
    """Name the verdicts that would be others if annotation cost nothing."""
    changed = [
        f"{row.name} would be {cheaper.verdict}"
        for row in balanced.phases
        if row.name in priced and (cheaper := row.without(priced[row.name].ns)).verdict != row.verdict
    ]
    if not changed:
        return []
    return [f"Without the time of these ranges {', '.join(changed)}: annotate fewer modules with depth= or only=."]


class _Drawing:
    """Draws one balance."""

    def __init__(self, report: Report, balanced: Balance, detail: Detail) -> None:
        self.report, self.balanced, self.detail = report, balanced, detail
        self.gpus = len({row.gpu for row in balanced.phases})
        self.scope = headings.scope_of_a_gpu(report, self.gpus)

    def busy(self) -> Table:
        """Show how long each phase's work ran and how long nothing did; the two sum to the span."""
        columns = (
            Column("span_ns", "GPU span", "ns"),
            Column("busy_ns", "busy", "ns"),
            Column("busy_share", "%", "share"),
            Column("idle_ns", "idle", "ns"),
            Column("unlaunched_ns", "unlaunched", "ns"),
            Column("unlaunched_share", "% of idle", "share"),
            Column("verdict", "verdict"),
        )
        phases = [row for row in self.balanced.phases if row.name in PHASES]
        bound = {row.gpu for row in phases if row.verdict != "undecided"}
        rows = []
        for row in self.balanced.phases:
            is_mixed = row not in phases and row.gpu in bound and row.verdict == "undecided"
            verdict = "see phases" if is_mixed else row.verdict
            span_ns, busy_ns, idle_ns, waiting_ns = map(
                self.gpu_mean, (row.span_ns, row.busy_ns, row.idle_ns, row.waiting_ns)
            )
            rows.append((span_ns, busy_ns, row.busy_share, idle_ns, waiting_ns, row.waiting_share, verdict))
        return self.table("balance", f"How busy the GPU is, {{unit}} {self.scope}", columns, rows, BUSY)

    def queue(self) -> Table:
        """Show how far the launches run ahead of the GPU."""
        columns = (
            Column("kernels", "launches", "count"),
            Column("gaps", "idle gaps", "count"),
            Column("median_lag_ns", "median lag", "ns", own_unit=True),
            Column("p95_lag_ns", "95% below", "ns", own_unit=True),
        )
        rows = [
            (self.gpu_mean(row.kernels), self.gpu_mean(row.gaps), row.median_lag_ns, row.p95_lag_ns)
            for row in self.balanced.phases
        ]
        return self.table("queue", f"Launches {self.scope}, and how long their work waits", columns, rows, QUEUE)

    def owners(self) -> Table:
        """Rank the ranges by the idle time that ended when their work began."""
        naming = naming_for(self.detail, self.report)
        named = added((replace(owner, path=naming(owner.path)) for owner in self.balanced.owners), ("path",))
        owners = sorted(named, key=lambda owner: (-owner.idle_ns, owner.path))
        all_idle_ns = sum(owner.idle_ns for owner in owners)
        common = 0 if self.detail.whole else common_length(owner.path for owner in owners)
        columns = (
            Column("range", "range that launched the next work", "name"),
            Column("idle_ns", "idle", "ns"),
            Column("share", "%", "share"),
            Column("gaps", "gaps", "count"),
            Column("largest_ns", "largest", "ns"),
            Column("unlaunched_share", "unlaunched %", "share"),
        )
        rows = tuple(
            Row(
                (
                    label(owner.path, common),
                    per_step(self.report, owner.idle_ns),
                    owner.idle_ns / all_idle_ns,
                    per_step(self.report, owner.gaps),
                    owner.largest_ns,
                    owner.waiting_ns / owner.idle_ns,
                )
            )
            for owner in owners[: self.detail.top]
        )
        # The steps' spans include those of their phases.
        names = {row.name for row in self.balanced.phases}
        idle_in_steps_ns = sum(row.idle_ns for row in self.balanced.phases if row.name == NAMES[STEP])
        where = "of the spans above" if len(names) > 1 else f"of {names.pop()}"
        where = "of the steps" if idle_in_steps_ns == all_idle_ns else where
        caption = f"% is of the idle time {where}, unlaunched % of the row's."
        title = f"Idle gaps {where} by the range that ends them, {{unit}} {headings.scope(self.report)}"
        return Table("gaps", title, columns, rows, caption + more(owners, self.detail.top, "range"))

    def table(
        self, key: str, title: str, columns: tuple[Column, ...], rows: Sequence[tuple[object, ...]], caption: str
    ) -> Table:
        """Put a table of phases together; the GPU is named only where there are several."""
        several = self.gpus > 1
        keys = (Column("phase", "phase"), *((Column("gpu", "GPU"),) if several else ()))
        lines = tuple(
            Row((phase.name, *((phase.gpu,) if several else ()), *cells))
            for phase, cells in zip(self.balanced.phases, rows, strict=True)
        )
        table = Table(key, title, (*keys, *columns), lines, caption)
        return with_levels(table, [level(row.name) for row in self.balanced.phases])

    def gpu_mean(self, value: Number) -> Number:
        """Divide one GPU's figure by its own rank's steps where figures are per step."""
        return per_step_of_a_gpu(self.report, value, self.gpus)
