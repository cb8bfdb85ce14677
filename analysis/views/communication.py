"""Communication by module and collective: time, what of it is exposed, waiting for other ranks, and bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..document import SHORT, Column, Detail, Document, Row, Table
from ..errors import ReportError
from ..measures.communication import Communication, CommunicationRow, Sums, communicated
from ..measures.exchanges import Exchanges, exchanges, together
from ..report import Number, Path, Report, quotient
from ..summary.parallel import Ranked
from ..summary.selection import path_matcher
from ..vocabulary import PHASES, opens_phase, some_of
from . import headings
from .registry import Subject
from .rows import common_length, label, more, require_measured, share

NOTHING = "No kernel communicates between GPUs: the report is of one GPU, or its program uses copies instead."
NO_MATCH = "No communication is in a range that matches {!r}. It is in: {}."
NARROWED = "All but the accounting is of the ranges that match {!r}, and of no other communication."
ON_CPU = "The report is of a CPU: no kernel communicates between GPUs. Record on a GPU."
NO_SIZES = (
    "The sizes of messages are unknown, so there are no bytes and no bandwidth: traces of PyTorch's profiler have "
    "them, nsys's exports of NCCL's ranges do not."
)
CAPTION = (
    "time: when any of them ran on that GPU; what runs at once counts for the first to start. exposed: no "
    "compute ran meanwhile; the rest is hidden."
)
MIXED = "Some of the reports have measured steps, and others have none: --totals shows sums of all of them."
WAITING = " waiting: until the last of the ranks had started."
OWN_CLOCKS = " waiting: what a rank needed longer than the fastest, for their clocks differ."
RATE = " bus B/s: as NCCL's tests define it, over the time without waiting where that is known."
IN_NO_MODULE = "(in no module)"
MEANS = "time, exposed: means of the GPUs. "
OF_EXPOSED = "%: of all exposed communication."
LAST = "last: collectives in which it was the last to start. others waited: the first of the others, for it."

Seen = Literal["all", "programs"]


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown: by GPU, the steps of its report and how many ranks share them; and what figures are of."""

    found: Communication
    steps: Mapping[str, tuple[int, int]]
    scope: str
    detail: Detail
    one_clock: bool = True

    @property
    def over(self) -> str:
        """Return what figures are of that no steps divide."""
        return "over the measured steps" if self.steps else "total"

    def each(self, gpu: str, value: Number) -> Number:
        """Divide a sum of a GPU by its steps."""
        steps, ranks = self.steps.get(gpu, (1, 1))
        return quotient(value * ranks, steps)


def view(subject: Subject) -> Document:
    """Show the communication of one report.

    Raises ReportError for a report of a CPU, and for one in which nothing communicates.
    """
    report = subject.report
    if report.provenance.unit_of_work == "CPU":
        raise ReportError(ON_CPU)
    require_measured(report)
    held = held_by(subject)
    found = _found(held, communicated(held))
    gpus = len(held.gpus)
    shown = Shown(found, _steps_of([(report, held.gpus)]), headings.scope_of_a_gpu(report, gpus), subject.detail)
    return headings.answer(report, _tables(shown), (*_narrowed(held), *report.notes, *_notes(shown)))


def _narrowed(held: Exchanges) -> tuple[str, ...]:
    return (NARROWED.format(held.ranges),) if held.ranges else ()


def _found(held: Exchanges, found: Communication) -> Communication:
    """Return what was found; raises ReportError if that is nothing, or in no range that was asked for."""
    if found.rows:
        return found
    if not len(held.kernels):
        raise ReportError(NOTHING)
    raise ReportError(NO_MATCH.format(held.ranges, some_of(label(path) for path, _ in held.places)))


def held_by(subject: Subject) -> Exchanges:
    """Return what communicates in a report; it can be sent to another process."""
    report = subject.report
    asked = {row.phase for row in report.phases} if subject.some_phases else PHASES
    found = exchanges(
        subject.attribution(), asked, include_warm_up=report.warm_up_included, step=report.step,
        matches=path_matcher(subject.ranges) if subject.ranges else None,
    )  # fmt: skip
    return replace(found, ranges=subject.ranges)


def of_ranks(ranked: Sequence[Ranked[tuple[Report, Exchanges]]], detail: Detail = SHORT) -> Document:
    """Show the communication of several ranks' reports, aligned on their collectives.

    Raises ReportError if nothing communicates in any of them, or if some have measured steps and others none.
    """
    read = {one.name: one.report for one in ranked if one.report is not None}
    if len({report.per_step for report, _ in read.values()}) > 1:
        raise ReportError(MIXED)
    held = together([(name, exchanged) for name, (_, exchanged) in read.items()])
    reports = [report for report, _ in read.values()]
    found = _found(held, communicated(held, one_clock=False, one_run=_of_one_run(reports)))
    names = iter(held.gpus)
    gpus = [(report, tuple(next(names) for _ in exchanged.gpus)) for report, exchanged in read.values()]
    scope = "per step of each rank" if reports[0].per_step else "total of each rank"
    shown = Shown(found, _steps_of(gpus), scope, detail, one_clock=False)
    left_out = (f"{one.name} is left out: {one.problem}" for one in ranked if one.problem)
    said = (f"{name}: {note}" for name, (report, _) in read.items() for note in report.notes)
    heading = " · ".join(filter(None, (f"{len(read)} of {len(ranked)} reports", headings.gpus(reports))))
    source = replace(reports[0].provenance, file="all reports")
    return headings.document(
        source, heading, _tables(shown), (), (*_narrowed(held), *left_out, *_notes(shown), *said)
    )


def _of_one_run(reports: Sequence[Report]) -> bool:
    """Return whether reports can be those of one run's ranks: equal settings, and no rank twice."""
    sources = [report.provenance for report in reports]
    ranks = [source.run["rank"] for source in sources if "rank" in source.run]
    settings = {tuple(headings.run_facts(source)) for source in sources}
    return len(settings) == 1 and len(set(ranks)) == len(ranks)


def _steps_of(found: Sequence[tuple[Report, Sequence[str]]]) -> dict[str, tuple[int, int]]:
    """Return by GPU the steps that divide its figures, if they are per step, and how many ranks share these."""
    return {
        gpu: (report.steps, max(report.ranks, 1) if len(gpus) > 1 else 1)
        for report, gpus in found
        if report.per_step
        for gpu in gpus
    }


def _tables(shown: Shown) -> Iterator[Table]:
    by_module = _by_module(shown)
    if shown.detail.whole or len(by_module) < len(shown.found.rows):
        yield _modules(shown, by_module)
    yield _ranges(shown)
    yield _gpus(shown)
    if shown.found.last:
        yield _last(shown)
    if shown.found.steps:
        yield _by_step(shown)


def _columns(shown: Shown) -> tuple[Column, ...]:
    """Return the columns of sums; what nothing is known of is only for programs."""
    waits: Seen = "all" if any(sums.aligned_ns for sums in shown.found.gpus.values()) else "programs"
    sized: Seen = "all" if any(sums.bus_bytes for sums in shown.found.gpus.values()) else "programs"
    return (
        Column("count", "kernels", "count"), Column("total_ns", "sum", "ns", seen_by="programs"),
        Column("time_ns", "time", "ns"), Column("hidden_ns", "hidden", "ns", seen_by="programs"),
        Column("exposed_ns", "exposed", "ns"), Column("waiting_ns", "waiting", "ns", seen_by=waits),
        Column("transferring_ns", "transferring", "ns", seen_by="programs"),
        Column("bytes", "bytes", "bytes", seen_by=sized),
        Column("bus_bytes_per_s", "bus B/s", "bytes/s", seen_by=sized),
    )  # fmt: skip


def _cells(shown: Shown, gpu: str, sums: Sums) -> tuple[object, ...]:
    times = sums.count, sums.total_ns, sums.time_ns, sums.hidden_ns, sums.exposed_ns
    waited = (sums.waiting_ns, sums.aligned_ns - sums.waiting_ns) if sums.aligned_ns else (None, None)
    divided = (None if value is None else shown.each(gpu, value) for value in (*times, *waited))
    size = shown.each(gpu, sums.message_bytes) if sums.message_bytes else None
    return *divided, size, sums.bus_bytes_per_s


def _by_module(shown: Shown) -> list[tuple[Path, Number, Number]]:
    """Return each module with its time and exposed time, ns, in all phases and collectives: means of the GPUs."""
    gpus = len(shown.found.gpus)
    times: dict[Path, Number] = {}
    exposed: dict[Path, Number] = {}
    for row in shown.found.rows:
        module = _module(row)
        times[module] = times.get(module, 0) + shown.each(row.gpu, row.sums.time_ns)
        exposed[module] = exposed.get(module, 0) + shown.each(row.gpu, row.sums.exposed_ns)
    order = sorted(exposed, key=exposed.__getitem__, reverse=True)
    return [(module, quotient(times[module], gpus), quotient(exposed[module], gpus)) for module in order]


def _module(row: CommunicationRow) -> Path:
    """Return the ranges of a row below its phase's."""
    phases = [at for at, name in enumerate(row.path) if opens_phase(name)]
    return row.path[phases[-1] + 1 :] if phases else row.path


def _modules(shown: Shown, found: Sequence[tuple[Path, Number, Number]]) -> Table:
    """Show a row per module, the most exposed first."""
    columns = (
        Column("module", "module", "name"), Column("time_ns", "time", "ns"),
        Column("exposed_ns", "exposed", "ns"), Column("share", "%", "share"),
    )  # fmt: skip
    whole, top = sum(exposed_ns for *_, exposed_ns in found), shown.detail.top
    rows = tuple(
        Row((label(module) if module else IN_NO_MODULE, time_ns, exposed_ns, share(exposed_ns, whole)))
        for module, time_ns, exposed_ns in found[:top]
    )
    caption = MEANS * (len(shown.found.gpus) > 1) + OF_EXPOSED + more(found, top, "row")
    title = f"Communication by module, in all phases, {{unit}} {shown.scope}"
    return Table("modules", title, columns, rows, caption)


def _ranges(shown: Shown) -> Table:
    """Show a row per range, collective and GPU, the most exposed first."""
    rows, detail = shown.found.rows, shown.detail
    gpus: Seen = "all" if len(shown.found.gpus) > 1 else "programs"
    columns = (
        Column("range", "range", "name"), Column("phase", "phase", seen_by="programs"),
        Column("collective", "collective"), Column("gpu", "GPU", "name", seen_by=gpus), *_columns(shown),
    )  # fmt: skip
    common = 0 if detail.whole else common_length(row.path for row in rows)
    lines = tuple(
        Row((*_place(row, common, whole=detail.whole), *_cells(shown, row.gpu, row.sums)))
        for row in rows[: detail.top]
    )
    title = f"Communication by range, the most exposed first, {{unit}} {shown.scope}"
    caption = CAPTION + _more_said(shown) + more(rows, detail.top, "row")
    return Table("communication", title, columns, lines, caption)


def _place(row: CommunicationRow, common: int, *, whole: bool) -> tuple[str, ...]:
    """Name a row; people see its phase where the path does not begin with it."""
    name = label(row.path, common)
    if not whole and row.phase not in row.path and row.phase != "other":
        name += f" ({row.phase})"
    return name, row.phase, row.collective, row.gpu


def _more_said(shown: Shown) -> str:
    sums = shown.found.gpus.values()
    waits = WAITING if shown.one_clock else OWN_CLOCKS
    return waits * any(one.aligned_ns for one in sums) + RATE * any(one.bus_bytes for one in sums)


def _gpus(shown: Shown) -> Table:
    """Show each GPU's sums, which are those of `--view overlap`."""
    columns = (Column("gpu", "GPU", "name"), *_columns(shown))
    rows = tuple(Row((gpu, *_cells(shown, gpu, sums))) for gpu, sums in shown.found.gpus.items())
    return Table("gpus", f"Communication by GPU, {{unit}} {shown.scope}", columns, rows)


def _last(shown: Shown) -> Table:
    """Show how often each GPU was the last of a collective; its others waited for it."""
    columns = (
        Column("collective", "collective"), Column("gpu", "last", "name"), Column("count", "times", "count"),
        Column("share", "%", "share"), Column("others_waited_ns", "others waited", "ns"),
    )  # fmt: skip
    rows = tuple(
        Row((row.collective, row.gpu, row.count, row.count / row.of, row.held_ns)) for row in shown.found.last
    )
    return Table("slowest", f"Which rank the others wait for, {{unit}} {shown.over}", columns, rows, LAST)


def _by_step(shown: Shown) -> Table:
    """Show each step's communication on each GPU; these figures are never divided."""
    rows, top = shown.found.steps, shown.detail.top
    columns = (Column("step", "step", "count"), Column("gpu", "GPU", "name"), *_columns(shown))
    whole = replace(shown, steps={})
    lines = tuple(Row((row.step, row.gpu, *_cells(whole, row.gpu, row.sums))) for row in rows[:top])
    title = "Communication of each measured step, {unit}"
    return Table("steps", title, columns, lines, more(rows, top, "row").strip())


def _notes(shown: Shown) -> Iterator[str]:
    """Yield what is not known, and why."""
    if not any(sums.bus_bytes for sums in shown.found.gpus.values()):
        yield NO_SIZES
    reasons: dict[str, list[str]] = {}
    for collective, reason in shown.found.undecided:
        reasons.setdefault(reason, []).append(collective)
    for reason, names in reasons.items():
        yield f"The waiting of {', '.join(names)} cannot be separated from transferring: {reason}."
