"""Several reports as the rows of every question's table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from ..document import SHORT, Column, Detail, Row, Table
from ..report import Report, in_one_spelling
from ..support.units import TWO_DIGITS, share_text, time_unit
from ..views import headings
from ..vocabulary import BACKWARD, FORWARD, OTHER
from . import timed
from .figures import Answered

#: A row's cells by the keys of their columns.
Cells: TypeAlias = Mapping[str, Any]
COUNTED = Column("counted", "counted")
PER_STEP, IN_ALL = "per step", "total"
ON_CPU = "The figures are a CPU's, of operators, and not comparable with a GPU's: ask about such reports alone."


@dataclass(frozen=True, slots=True)
class Sweep:
    """Reports with their names, in the order of the rows; `columns` and `cells` tell them apart.

    `unit` is whose work is counted, `detail` how much is shown. `timed` are runs without a profiler.
    """

    names: tuple[str, ...]
    reports: tuple[Answered, ...]
    columns: tuple[Column, ...]
    cells: tuple[tuple[object, ...], ...]
    unit: str
    detail: Detail = SHORT
    timed: Sequence[timed.Row] = ()

    @property
    def named(self) -> list[tuple[str, Answered]]:
        """The reports that are counted, with their names."""
        return [pair for pair in zip(self.names, self.reports, strict=True) if self.counts(pair[1])]

    @property
    def counted(self) -> list[Answered]:
        """The reports that are counted: of a GPU where there is any."""
        return [report for _, report in self.named]

    @property
    def mixed(self) -> bool:
        """Whether only some of the reports have steps to count per."""
        return len({report.per_step for report in self.counted}) > 1

    @property
    def per_step(self) -> bool:
        """Whether all figures are per step."""
        return all(report.per_step for report in self.counted)

    @property
    def scope(self) -> str:
        """Over what the figures are counted."""
        if self.mixed:
            return "per step or total, as each row says"
        steps = sorted({report.steps for report in self.counted})
        if len(steps) > 1:
            return f"per step, means of {steps[0]} to {steps[-1]}"
        return headings.scope(self.counted[0])

    @property
    def alone(self) -> Answered | None:
        """The one report there is, whose answers people get in sentences too."""
        return self.reports[0] if len(self.reports) == 1 and not self.detail.whole else None

    @property
    def each(self) -> str:
        """What a sentence says behind a figure."""
        return " per step" if self.per_step else ""

    @property
    def span(self) -> str:
        """What the projection of a range onto its work is called."""
        return headings.span(self.counted[0])

    def counts(self, report: Answered) -> bool:
        """Return whether a report's work is of the kind that is counted."""
        return report.provenance.unit_of_work == self.unit

    def table(
        self,
        key: str,
        title: str,
        columns: Sequence[Column],
        cells: Callable[[Answered], Cells],
        caption: str = "",
        phase: str = "",
    ) -> Table:
        """Draw a row per report: what tells it apart, then its cells, dashes where it has none for a column."""
        basis = (COUNTED,) if self.mixed else ()
        rows = []
        for identity_cells, report in zip(self.cells, self.reports, strict=True):
            by_key = cells(report) if self.counts(report) else {}
            counted = [PER_STEP if report.per_step else IN_ALL][: len(basis)]
            rows.append(Row((*identity_cells, *counted, *(by_key.get(column.key) for column in columns))))
        return _to_the_digit(Table(key, title, (*self.columns, *basis, *columns), tuple(rows), caption, phase))


def _to_the_digit(table: Table) -> Table:
    """Give times a unit for each column where the unit of the longest would hide the shortest."""
    places = [place for place, column in enumerate(table.columns) if column.kind == "ns"]
    times = [time for row in table.rows for place in places if (time := row.values[place])]
    if not times or min(times) >= TWO_DIGITS * time_unit(times).ns:
        return table
    columns = [replace(column, own_unit=True) if column.kind == "ns" else column for column in table.columns]
    return replace(table, title=table.title.replace("{unit} ", ""), columns=tuple(columns))


def sweep_of(
    names: Sequence[str], reports: Sequence[Answered], detail: Detail = SHORT, *, times: Sequence[timed.Row] = ()
) -> Sweep:
    """Put reports in the order of their settings; of a kernel that is spelled in two ways, one spelling stays."""
    places = order(reports)
    names, reports = [names[place] for place in places], [reports[place] for place in places]
    spelled = [report for report in in_one_spelling(reports) if isinstance(report, Answered)]
    columns, cells = identity(names, spelled)
    if len(spelled) == 1 and not detail.whole:  # the heading names it
        columns, cells = (), [()]
    units = {report.provenance.unit_of_work for report in spelled}
    unit = "GPU" if "GPU" in units else "CPU"
    return Sweep(tuple(names), tuple(spelled), columns, tuple(cells), unit, detail, times)


class Answer(NamedTuple):
    """The tables that answer a question, and of which reports (by name) what is missing, in sentences."""

    tables: tuple[Table, ...]
    lacks: tuple[tuple[str, str], ...] = ()


def led(sentence: str, tables: Sequence[Table]) -> tuple[Table, ...]:
    """Put a sentence before the first of some tables."""
    return tuple(replace(table, lead="" if index else sentence) for index, table in enumerate(tables))


def by_phase(
    sweep: Sweep,
    missing: Callable[[Answered, str], str],
    draw: Callable[[str], Table],
    phases: Sequence[str] = (FORWARD, BACKWARD),
) -> Answer:
    """Draw a table for each phase that any report can answer, and list what the others lack.

    `missing` gives the reason why a report has no answer for a phase, nothing where it has one.
    """
    answered = [phase for phase in phases if any(not missing(report, phase) for report in sweep.counted)]
    return Answer(tuple(map(draw, answered)), lacking(sweep, missing, answered or phases[:1]))


def lacking(
    sweep: Sweep, missing: Callable[[Answered, str], str], phases: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """Return by name what reports lack to answer for these phases."""
    return tuple(
        (name, reason) for phase in phases for name, report in sweep.named if (reason := missing(report, phase))
    )


def no_kernels(report: Answered, phase: str) -> str:
    """Return that no kernel of a phase is known, nothing where one is. The report's notes give the reason."""
    with_kernels = {row.phase for row in report.phases if row.kernel_ns}
    if phase in with_kernels:
        return ""
    if OTHER in with_kernels:
        return f"No kernel is known to be of {phase}: other kernels are in no phase, and can be."
    return f"There are no {phase} kernels."


def percent(fraction: float) -> str:
    """Return a share as sentences have it."""
    return share_text(fraction, 0)


#: Settings of a run's mark, in the order of the columns.
SETTINGS = (
    Column("size", "size"),
    *(Column(name, name, "count") for name in ("d_model", "d_ff", "layers", "heads")),
    Column("vocab_size", "vocabulary", "count"),
    Column("context_length", "context", "count"),
    Column("batch_size", "batch", "count"),
    *(Column(name, name) for name in ("dtype", "mode", "attention", "compile", "optimizer")),
    Column("torch", "PyTorch"),
    Column("device_name", "GPU", "name"),
)
NAME = Column("report", "report", "name")
#: What rows are sorted by before all other settings: sizes grow with their parameters, not with their names.
BY_NUMBER = ("parameters", "context_length", "batch_size")


def identity(
    names: Sequence[str], reports: Sequence[Report]
) -> tuple[tuple[Column, ...], list[tuple[object, ...]]]:
    """Return the first columns of every table, and each report's cells of them."""
    marked = [report for report in reports if report.provenance.run]
    columns = tuple(column for column in SETTINGS if len({str(_value(row, column.key)) for row in marked}) > 1)
    cells = [tuple(_value(report, column.key) for column in columns) for report in reports]
    if columns and len(set(cells)) == len(cells) and all(report.provenance.run for report in reports):
        return columns, cells
    return (NAME, *columns), [(name, *cell) for name, cell in zip(names, cells, strict=True)]


def order(reports: Sequence[Report]) -> list[int]:
    """Return the places of the reports by their settings; as they are where one of them has no mark."""
    places = list(range(len(reports)))
    if not all(report.provenance.run for report in reports):
        return places
    return sorted(places, key=lambda place: _rank(reports[place]))


def heading(reports: Sequence[Report], given: int) -> str:
    """Report how many reports of how many given there are, and what they have in common."""
    common = headings.common([headings.facts(report)[1:] for report in reports])
    return " · ".join([f"{len(reports)} of {given} reports", *common])


def _value(report: Report, key: str) -> Any:
    """Return a setting as it is shown: None where the mark does not say."""
    value = report.provenance.run.get(key)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if value is None or isinstance(value, int | float) else str(value)


def _rank(report: Report) -> tuple[object, ...]:
    run = report.provenance.run
    numbers = [value if isinstance(value := run.get(key), int | float) else 0 for key in BY_NUMBER]
    return (*numbers, *(str(run.get(column.key)) for column in SETTINGS))
