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
from ..summary.collapsing import naming_of
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
    "it when any kernel, copy, memset or CUDA graph ran; % is of the span. unlaunched: idle time before the "
    "launch call of the next work had returned."
)
VERDICTS = (
    f"GPU-bound: busy at least {GPU_BOUND_FROM:.0%} of the span; copy-bound or communication-bound where only "
    f"copies or only communication ran for {FILLED_FROM:.0%} of that. launch-bound: busy less than "
    f"{LAUNCH_BOUND_BELOW:.0%}, and at least {WAITING_FROM:.0%} of the idle time unlaunched. undecided: neither."
)

NO_RANGES = (
    "No range opens a phase or a step, so the span is that of all work, with whatever the program did in between."
)


def view(subject: Subject) -> Document:
    """Show how busy the GPU is in each phase, and what it waits for.

    Raises ReportError for a report of a CPU.
    """
    report = subject.report
    if report.provenance.unit_of_work == "CPU":
        raise ReportError("The report is of a CPU, which waits for no launches. Record on a GPU.")
    asked = {row.phase for row in report.phases}
    whole = subject.attribution()
    require_measured(report)
    found = balance(whole, asked if subject.some_phases else PHASES, include_warm_up=report.warm_up_included)
    drawing = _Drawing(report, found, subject.detail)
    priced = prices(whole, include_warm_up=report.warm_up_included)
    without_ranges = [NO_RANGES] if found.phases[0].name == NAMES[ALL] else []
    notes = (*report.notes, *without_ranges, *price_notes(report, priced), *_doubted(found, priced))
    tables = [drawing.busy(), drawing.queue()]
    if found.owners:
        tables.append(drawing.owners())
    return headings.answer(report, tables, notes)


def _doubted(found: Balance, priced: Mapping[str, Price]) -> list[str]:
    """Name the verdicts that would be others if annotation cost nothing."""
    changed = [
        f"{row.name} would be {cheaper.verdict}"
        for row in found.phases
        if row.name in priced and (cheaper := row.without(priced[row.name].ns)).verdict != row.verdict
    ]
    said = f"Without the time of these ranges {', '.join(changed)}: annotate fewer modules with depth= or only=."
    return [said] if changed else []


class _Drawing:
    """Draws one balance."""

    def __init__(self, report: Report, found: Balance, detail: Detail) -> None:
        self.report, self.found, self.detail = report, found, detail
        self.gpus = len({row.gpu for row in found.phases})
        self.several = self.gpus > 1
        self.scope = headings.scope_of_a_gpu(report, self.gpus)

    def busy(self) -> Table:
        """Show how long each phase's work ran and how long nothing did; the two sum to the span."""
        columns = (
            Column("span_ns", "GPU span", "ns"), Column("busy_ns", "busy", "ns"),
            Column("busy_share", "%", "share"), Column("idle_ns", "idle", "ns"),
            Column("unlaunched_ns", "unlaunched", "ns"), Column("unlaunched_share", "% of idle", "share"),
            Column("verdict", "verdict"),
        )  # fmt: skip
        rows = [
            (
                self.gpu_mean(row.span_ns), self.gpu_mean(row.busy_ns), row.busy_share, self.gpu_mean(row.idle_ns),
                self.gpu_mean(row.waiting_ns), row.waiting_share, row.verdict,
            )
            for row in self.found.phases
        ]  # fmt: skip
        title = f"How busy the GPU is, {{unit}} {self.scope}"
        return self.table("balance", title, columns, rows, f"{BUSY} {VERDICTS}")

    def queue(self) -> Table:
        """Show how far the launches run ahead of the GPU."""
        columns = (
            Column("kernels", "launches", "count"), Column("gaps", "idle gaps", "count"),
            Column("median_lag_ns", "median lag", "ns", own_unit=True),
            Column("p95_lag_ns", "95% below", "ns", own_unit=True),
        )  # fmt: skip
        rows = [
            (self.gpu_mean(row.kernels), self.gpu_mean(row.gaps), row.median_lag_ns, row.p95_lag_ns)
            for row in self.found.phases
        ]
        caption = (
            "launches: of kernels. idle gaps: before work of any kind. lag: from the start of a launch call to "
            "the start of its work on the GPU; median, and what 95% are below. It is long where launches queue up "
            "before a busy GPU, and as short as a launch can be where the GPU waits for each."
        )
        title = f"Launches {self.scope}, and how long their work waits"
        return self.table("queue", title, columns, rows, caption)

    def owners(self) -> Table:
        """Rank the ranges by the idle time that ended when their work began."""
        naming = tuple if self.detail.every_index else naming_of(self.report)
        named = added((replace(owner, path=naming(owner.path)) for owner in self.found.owners), ("path",))
        owners = sorted(named, key=lambda owner: (-owner.idle_ns, owner.path))
        whole = sum(owner.idle_ns for owner in owners)
        common = 0 if self.detail.whole else common_length(owner.path for owner in owners)
        columns = (
            Column("range", "range that launched the next work", "name"), Column("idle_ns", "idle", "ns"),
            Column("share", "%", "share"), Column("gaps", "gaps", "count"), Column("largest_ns", "largest", "ns"),
            Column("unlaunched_share", "unlaunched %", "share"),
        )  # fmt: skip
        rows = [
            Row((label(owner.path, common), self.mean(owner.idle_ns), owner.idle_ns / whole, self.mean(owner.gaps),
                 owner.largest_ns, owner.waiting_ns / owner.idle_ns))
            for owner in owners[: self.detail.top]
        ]  # fmt: skip
        where = self.where()
        caption = f"% is of the idle time {where}, unlaunched % of the row's."
        title = f"Idle gaps {where} by the range that ends them, {{unit}} {headings.scope(self.report)}"
        return Table("gaps", title, columns, tuple(rows), caption + more(owners, self.detail.top, "range"))

    def where(self) -> str:
        """Return inside which spans the gaps are: the steps' spans include those of their phases."""
        names = {row.name for row in self.found.phases}
        idle_ns = sum(row.idle_ns for row in self.found.phases if row.name == NAMES[STEP])
        if idle_ns == sum(owner.idle_ns for owner in self.found.owners):
            return "of the steps"
        return f"of {names.pop()}" if len(names) == 1 else "of the spans above"

    def table(
        self, key: str, title: str, columns: tuple[Column, ...], rows: Sequence[tuple[object, ...]], caption: str
    ) -> Table:
        """Put a table of phases together; the GPU is named only where there are several."""
        keys = (Column("phase", "phase"), *((Column("gpu", "GPU"),) if self.several else ()))
        of = [(row.name, *((row.gpu,) if self.several else ())) for row in self.found.phases]
        lines = tuple(Row((*what, *cells)) for what, cells in zip(of, rows, strict=True))
        table = Table(key, title, (*keys, *columns), lines, caption)
        return with_levels(table, [level(row.name) for row in self.found.phases])

    def gpu_mean(self, value: Number) -> Number:
        """Divide one GPU's figure by its own rank's steps where figures are per step."""
        return per_step_of_a_gpu(self.report, value, self.gpus)

    def mean(self, value: Number) -> Number:
        """Divide by the steps where figures are per step."""
        return per_step(self.report, value)
