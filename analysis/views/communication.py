"""Communication by module and collective, and copies: time, what of it is exposed, waiting, and bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..document import SHORT, Column, Detail, Document, Row, Table, headed, seen_if
from ..errors import ReportError
from ..measures.communication import Communication, Sums, communicated
from ..measures.exchanges import Exchanges, exchanges, together
from ..measures.overlap import Copying, copies
from ..report import Number, Path, Report, quotient
from ..summary.parallel import Ranked
from ..summary.selection import naming_for, naming_of, path_matcher
from ..support.units import time_text
from ..vocabulary import OTHER, opens_phase, some_of
from ..vocabulary.modules import Naming
from . import headings
from .job import named_by_rank, notes_of
from .registry import Subject
from .rows import common_length, in_phase, label, more, per_step_of_a_gpu, require_measured, share

NOTHING = "No kernel communicates between GPUs: the report is of one GPU, or its program uses copies instead."
NONE_KNOWN = "No kernel is known to communicate between GPUs, but {}: --by kernel names all kernels."
ELSEWHERE = (
    "All communication between GPUs ({}) is in another phase, in warm-up or in no measured step. --totals and "
    "--include-warmup count it."
)
NO_MATCH = "No communication is in a range that matches {!r}. It is in: {}."
NARROWED = "The tables are of the ranges that match {!r} only."
ON_CPU = "The report is of a CPU: no kernel communicates between GPUs. Record on a GPU."
NO_SIZES = "Bytes and bandwidth are left out, as the sizes of messages are unknown: {}."
NOT_IN_NSYS = "nsys's exports have them since 2025.6, where NCCL's ranges carry payloads"
NOT_IN_TRACE = "PyTorch's profiler writes them for process groups of NCCL, and this trace has none"
CAPTION = "exposed: no compute ran meanwhile."
MIXED = "Only some of the reports have measured steps: --totals shows sums of all of them."
WAITING = " waiting: until the last rank had started."
OWN_CLOCKS = " waiting: what a rank needed longer than the fastest."
OF_THOSE_HERE = (
    "The number of ranks of a collective is unknown: waiting is for the last rank whose report is here."
)
LAST = "last: the rank started last. others waited: how long the first of them waited."

GPU = Column("gpu", "GPU", "name")


def view(subject: Subject) -> Document:
    """Show the communication of one report, and its copies.

    Raises ReportError for a report of a CPU, and for one in which nothing communicates or is copied.
    """
    report = subject.report
    if report.provenance.unit_of_work == "CPU":
        raise ReportError(ON_CPU)
    require_measured(report)
    held = held_by(subject)
    communication = communicated(held, world_size=headings.world_size(report.provenance))
    copied = copies(subject.attribution, subject.phases, include_warm_up=report.warm_up_included)
    doubts = headings.doubts_of_absence(subject.whole, subject.attribution.trace.shortfalls)
    if not copied or subject.ranges:
        _require_communication(held, communication, doubts)
    drawing = _Drawing(
        communication,
        reports=dict.fromkeys(held.gpus, (report, len(held.gpus))),
        scope=headings.scope_of_a_gpu(report, len(held.gpus)),
        of_pytorch=report.provenance.is_of_pytorch,
        detail=subject.detail,
    )
    tables = list(drawing.tables()) if communication.rows else []
    if copied and not subject.ranges:
        tables.append(_copies(subject, copied, drawing))
    notes = [NARROWED.format(held.ranges)] if held.ranges else []
    notes += report.notes
    notes += drawing.notes() if communication.rows else [_absence(held, doubts)]
    return headings.answer(report, tables, notes)


def _copies(subject: Subject, copied: Sequence[Copying], drawing: _Drawing) -> Table:
    """Rank copies and memsets by the time in which no compute ran."""
    rows = []
    for row in copied[: subject.detail.top]:
        values = (row.count, row.union_ns, row.hidden_ns, row.exposed_ns)
        figures = (drawing.each(row.gpu, value) for value in values)
        rows.append(Row((row.name, row.gpu, *figures)))
    columns = (
        Column("name", "copy or memset", "name"),
        seen_if(len(drawing.reports) > 1, GPU),
        *headed(count="times", union_ns="time", hidden_ns="hidden", exposed_ns="exposed"),
    )
    title = f"Copies behind compute, the most exposed first, {{unit}} {drawing.scope}"
    caption = f"hidden: while compute ran on that GPU.{more(copied, subject.detail.top, 'row')}"
    return Table("copies", title, columns, tuple(rows), caption)


def _absence(held: Exchanges, doubts: str) -> str:
    """Return the reason that no communication is shown."""
    if held.report_ns:
        return ELSEWHERE.format(time_text(held.report_ns))
    return NONE_KNOWN.format(doubts) if doubts else NOTHING


def _require_communication(held: Exchanges, communication: Communication, doubts: str) -> None:
    """Raise ReportError if nothing communicates, or nothing in the ranges that were chosen."""
    if communication.rows:
        return
    if len(held.kernels):
        raise ReportError(NO_MATCH.format(held.ranges, some_of(label(path) for path, _ in held.places)))
    raise ReportError(_absence(held, doubts))


def held_by(subject: Subject) -> Exchanges:
    """Return a report's exchanges, which can be sent to another process."""
    report = subject.report
    communicating = exchanges(
        subject.attribution,
        subject.phases,
        include_warm_up=report.warm_up_included,
        step=report.step,
        matches=path_matcher(subject.ranges, naming_of(report, every_index=True)) if subject.ranges else None,
    )
    return replace(communicating, ranges=subject.ranges)


def of_ranks(ranked: Sequence[Ranked[tuple[Report, Exchanges]]], detail: Detail = SHORT) -> Document:
    """Show the communication of several ranks' reports, aligned on their collectives.

    Raises ReportError if nothing communicates in any of them, or if some have measured steps and others none.
    """
    held_by_file = [entry.report[1] for entry in ranked if entry.report is not None]
    of_files = [Ranked(entry.name, entry.report[0] if entry.report else None) for entry in ranked]
    by_name = named_by_rank(of_files, detail)
    reports = list(by_name.values())
    if len({report.per_step for report in reports}) > 1:
        raise ReportError(MIXED)
    held = together(list(zip(by_name, held_by_file, strict=True)))
    sources = [report.provenance for report in reports]
    # Reports of one run's ranks have equal settings, and no rank twice.
    rank_numbers = [source.run["rank"] for source in sources if "rank" in source.run]
    settings = {tuple(headings.run_facts(source)) for source in sources}
    one_run = len(settings) == 1 and len(set(rank_numbers)) == len(rank_numbers)
    world_size = max(map(headings.world_size, sources))
    communication = communicated(held, one_clock=False, one_run=one_run, world_size=world_size)
    doubts = [doubt for doubt in map(headings.doubts_of_absence, reports) if doubt]
    _require_communication(held, communication, doubts[0] if doubts else "")
    of_gpus: list[tuple[Report, int]] = []
    for report, exchanged in zip(reports, held_by_file, strict=True):
        gpus = len(exchanged.gpus)
        of_gpus += [(report, gpus)] * gpus
    drawing = _Drawing(
        communication,
        reports=dict(zip(held.gpus, of_gpus, strict=True)),
        scope="per step of each rank" if reports[0].per_step else "total of each rank",
        detail=detail,
        one_clock=False,
        of_pytorch=all(source.is_of_pytorch for source in sources),
    )
    notes = [
        *([NARROWED.format(held.ranges)] if held.ranges else []),
        *(f"{entry.name} is left out: {entry.problem}" for entry in ranked if entry.problem),
        *drawing.notes(),
        *notes_of(by_name),
    ]
    heading = " · ".join(filter(None, (f"{len(reports)} of {len(ranked)} reports", headings.gpus(reports))))
    return headings.document(replace(sources[0], file="all reports"), heading, drawing.tables(), (), notes)


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Draws one answer, of figures of a scope; `reports` are each GPU's report and how many GPUs that has."""

    communication: Communication
    reports: Mapping[str, tuple[Report, int]]
    scope: str
    detail: Detail
    one_clock: bool = True
    of_pytorch: bool = False

    def tables(self) -> Iterator[Table]:
        """Yield the tables; modules only where they are fewer than ranges, or for programs."""
        reports = [report for report, _ in self.reports.values()]
        naming = naming_for(replace(self.detail, every_index=True), *reports)
        by_module = self.by_module()
        if self.detail.whole or len(by_module) < len(self.communication.rows):
            yield self.modules(by_module, naming)
        yield self.ranges(naming)
        columns = (GPU, *self.columns())
        rows = [Row((gpu, *self.cells(gpu, sums))) for gpu, sums in self.communication.gpus.items()]
        title = f"Communication by GPU, {{unit}} {self.scope}"
        yield Table("gpus", title, columns, tuple(rows))
        if self.communication.last:
            yield self.last()
        if self.communication.steps:
            top = self.detail.top
            steps = self.communication.steps
            rows = []
            for row in steps[:top]:
                cells = self.cells(row.gpu, row.sums, of_steps=False)
                rows.append(Row((row.step, row.gpu, *cells)))
            title = "Communication of each measured step, {unit}"
            columns = (Column("step", "step", "count"), *columns)
            yield Table("steps", title, columns, tuple(rows), more(steps, top, "row").strip())

    def columns(self) -> tuple[Column, ...]:
        """Return the columns of sums; what nothing is known of is only for programs."""
        columns = headed(
            count="kernels",
            total_ns="sum",
            time_ns="time",
            hidden_ns="hidden",
            exposed_ns="exposed",
            waiting_ns="waiting",
            transferring_ns="transferring",
            bytes="bytes",
            bus_bytes_per_s="bus B/s",
        )
        hidden = {"total_ns", "hidden_ns", "transferring_ns"}
        if not self.waiting_is_known():
            hidden.add("waiting_ns")
        if not self.sizes_are_known():
            hidden |= {"bytes", "bus_bytes_per_s"}
        return tuple(seen_if(column.key not in hidden, column) for column in columns)

    def waiting_is_known(self) -> bool:
        """Return whether some collectives could be aligned over the ranks."""
        return any(sums.aligned_ns for sums in self.communication.gpus.values())

    def sizes_are_known(self) -> bool:
        """Return whether some collectives say what they carry."""
        return any(sums.bus_bytes for sums in self.communication.gpus.values())

    def each(self, gpu: str, value: Number) -> Number:
        """Divide a sum of a GPU by its steps, if figures are per step."""
        report, gpus = self.reports[gpu]
        return per_step_of_a_gpu(report, value, gpus)

    def cells(self, gpu: str, sums: Sums, *, of_steps: bool = True) -> tuple[object, ...]:
        """Return a GPU's cells in these columns, divided if they are of its steps."""
        values = (
            sums.count,
            sums.total_ns,
            sums.time_ns,
            sums.hidden_ns,
            sums.exposed_ns,
            sums.waiting_ns if sums.aligned_ns else None,
            sums.aligned_ns - sums.waiting_ns if sums.aligned_ns else None,
            sums.message_bytes or None,
        )
        divided = (self.each(gpu, value) if of_steps and value is not None else value for value in values)
        return *divided, sums.bus_bytes_per_s

    def by_module(self) -> dict[Path, tuple[Number, Number]]:
        """Return the time and the exposed time of each module, ns, in all phases: sums of the GPUs' means."""
        times: dict[Path, tuple[Number, Number]] = {}
        for row in self.communication.rows:
            phases = [depth for depth, name in enumerate(row.path) if opens_phase(name)]
            module = row.path[phases[-1] + 1 :] if phases else row.path
            time_ns, exposed_ns = times.get(module, (0, 0))
            time_ns += self.each(row.gpu, row.sums.time_ns)
            exposed_ns += self.each(row.gpu, row.sums.exposed_ns)
            times[module] = time_ns, exposed_ns
        return times

    def modules(self, by_module: Mapping[Path, tuple[Number, Number]], naming: Naming) -> Table:
        """Show a row per module, the most exposed first: means of the GPUs."""
        gpus = len(self.communication.gpus)
        ranked = sorted(by_module.items(), key=lambda item: item[1][1], reverse=True)
        all_exposed_ns = sum(quotient(exposed_ns, gpus) for _, (_, exposed_ns) in ranked)
        rows = []
        for module, (time_ns, exposed_ns) in ranked[: self.detail.top]:
            name = label(naming(module)) if module else "(in no module)"
            mean_ns, mean_exposed_ns = quotient(time_ns, gpus), quotient(exposed_ns, gpus)
            rows.append(Row((name, mean_ns, mean_exposed_ns, share(mean_exposed_ns, all_exposed_ns))))
        columns = headed("module", time_ns="time", exposed_ns="exposed", share="%")
        means = "time, exposed: means of the GPUs. " if gpus > 1 else ""
        caption = f"{means}%: of all exposed communication.{more(ranked, self.detail.top, 'row')}"
        title = f"Communication by module, in all phases, {{unit}} {self.scope}"
        return Table("modules", title, columns, tuple(rows), caption)

    def ranges(self, naming: Naming) -> Table:
        """Show a row per range, collective and GPU, the most exposed first."""
        rows = self.communication.rows
        detail = self.detail
        common = 0 if detail.whole else common_length(row.path for row in rows)
        lines = []
        for row in rows[: detail.top]:
            name = label(naming(row.path), common)
            # People see the phase where the path does not begin with it.
            is_unsaid = not detail.whole and row.phase not in row.path and row.phase != OTHER
            name = in_phase(name, f" ({row.phase})" if is_unsaid else "")
            cells = self.cells(row.gpu, row.sums)
            lines.append(Row((name, row.phase, row.collective, row.gpu, *cells, row.root_or_peer)))
        columns = (
            *headed("range"),
            Column("phase", "phase", seen_by="programs"),
            *headed("collective"),
            seen_if(len(self.communication.gpus) > 1, GPU),
            *self.columns(),
            Column("root_or_peer", "root or peer", "count", seen_by="programs"),
        )
        title = f"Communication by range, the most exposed first, {{unit}} {self.scope}"
        waits = (WAITING if self.one_clock else OWN_CLOCKS) if self.waiting_is_known() else ""
        caption = CAPTION + waits + more(rows, detail.top, "row")
        return Table("communication", title, columns, tuple(lines), caption)

    def last(self) -> Table:
        """Show how often each GPU was the last of a collective; its others waited for it."""
        columns = (*headed("collective"), Column("gpu", "last", "name"))
        columns += headed(count="times", share="%", others_waited_ns="others waited")
        rows = [
            Row((row.collective, row.gpu, row.count, row.count / row.exchanges, row.held_ns))
            for row in self.communication.last
        ]
        is_per_step = any(report.per_step for report, _ in self.reports.values())
        over = "over the measured steps" if is_per_step else "total"
        return Table("slowest", f"Which rank the others wait for, {{unit}} {over}", columns, tuple(rows), LAST)

    def notes(self) -> Iterator[str]:
        """Yield notes on unknown values, with the reasons."""
        if not self.sizes_are_known():
            yield NO_SIZES.format(NOT_IN_TRACE if self.of_pytorch else NOT_IN_NSYS)
        if self.communication.of_those_here:
            yield OF_THOSE_HERE
        collectives: dict[str, list[str]] = {}
        for collective, reason in self.communication.undecided:
            collectives.setdefault(reason, []).append(collective)
        for reason, names in collectives.items():
            yield f"The waiting of {', '.join(names)} cannot be separated from transferring: {reason}."
