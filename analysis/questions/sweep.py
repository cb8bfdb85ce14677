"""What the questions ask of one report, and several reports as the rows of every question's table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeAlias

from ..document import SHORT, Column, Detail, Row, Table, headed
from ..measures import attention_parts as attention
from ..measures.agreement import PhaseTimes, phase_times
from ..measures.launch_groups import STEP, LaunchGroups
from ..opened import Opened
from ..report import KernelRow, Report, added, in_one_spelling
from ..summary.selection import naming_of
from ..support.units import TWO_DIGITS, share_text, time_unit
from ..views import headings
from ..views.rows import kernels_of, longest_first, require_measured
from ..vocabulary import BACKWARD, FORWARD, OTHER
from ..vocabulary.settings import WORK

#: A row's cells by the keys of their columns.
Cells: TypeAlias = Mapping[str, Any]
#: A run without a profiler, as `profiling.benchmark` wrote it.
Run: TypeAlias = Mapping[str, Any]
ON_CPU = "The figures are a CPU's, of operators, and not comparable with a GPU's: ask about such reports alone."


@dataclass(frozen=True, slots=True)
class Answered(Report):
    """A report per step, or in total where it has no steps.

    `times` are of each phase's ranges in the measured steps, ns, over all of these even in a report per step;
    `parts` are attention's; `formulas` say by phase how the launches of its longest kernel come about, such as
    `5·12 + 1`; `names_attention` is true if ranges are named as attention's parts, with work or without.
    """

    times: tuple[PhaseTimes, ...] = ()
    parts: tuple[attention.Part, ...] = ()
    formulas: Mapping[str, str] = field(default_factory=dict)
    names_attention: bool = False


def answered(opened: Opened) -> Answered:
    """Ask a report all that the questions need.

    Raises ReportError where all of its work is warm-up.
    """
    report, attribution = opened.whole, opened.counted
    include_warm_up = report.warm_up_included
    require_measured(report)
    groups = LaunchGroups(attribution, include_warm_up=include_warm_up)
    counted, formulas = (report.counted or report) if opened.per_step else report, {}
    for phase in (FORWARD, BACKWARD):
        if longest := longest_kernel(counted, (phase,)):
            found = groups.explain(longest.kernel, phase, report=counted, naming=naming_of(counted))
            if found.unit == STEP:
                formulas[phase] = found.formula or found.sum
            elif found.unit:  # there are only the phase's ranges
                formulas[phase] = f"{found.sum} per {found.unit}"
    return Answered(
        **{column.name: getattr(opened.report, column.name) for column in fields(Report)},
        times=phase_times(attribution, include_warm_up=include_warm_up),
        parts=attention.parts_of(opened.report),
        names_attention=attention.names_attention(attribution),
        formulas=formulas,
    )


def longest_kernel(report: Report, phases: Collection[str]) -> KernelRow | None:
    """Return the kernel with the most time in these phases, all its launches there added; None without kernels."""
    return next(iter(longest_first(added(kernels_of(report, phases), ("kernel",)))), None)


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
    timed: Sequence[Run] = ()

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
        rows = []
        for identity_cells, report in zip(self.cells, self.reports, strict=True):
            by_key = cells(report) if self.counts(report) else {}
            counted = ["per step" if report.per_step else "total"] * self.mixed
            rows.append(Row((*identity_cells, *counted, *(by_key.get(column.key) for column in columns))))
        columns = (*self.columns, *headed(*["counted"] * self.mixed), *columns)
        # Times get a unit for each column where the unit of the longest would hide the shortest.
        places = [place for place, column in enumerate(columns) if column.kind == "ns"]
        times = [time for row in rows for place in places if (time := row.values[place])]
        if times and min(times) < TWO_DIGITS * time_unit(times).ns:
            title = title.replace("{unit} ", "")
            columns = tuple(replace(column, own_unit=column.own_unit or column.kind == "ns") for column in columns)
        return Table(key, title, columns, tuple(rows), caption, phase)


#: Settings of a run's mark, in the order of the columns.
SETTINGS = (
    *(Column(each.name, each.header, "text" if each.least is None else "count") for each in WORK),
    *headed(torch="PyTorch"),
    Column("device_name", "GPU", "name"),
)
#: What rows are sorted by before all other settings: sizes grow with their parameters, not with their names.
BY_NUMBER = ("parameters", "context_length", "batch_size")


def sweep_of(
    names: Sequence[str], reports: Sequence[Answered], detail: Detail = SHORT, *, times: Sequence[Run] = ()
) -> Sweep:
    """Put reports in the order of their settings; of a kernel that is spelled in two ways, one spelling stays.

    Reports are labelled by the settings in which their runs differ, and by their names if that is not enough.
    """

    def settings(report: Report) -> tuple[object, ...]:
        run = report.provenance.run
        numbers = [value if isinstance(value := run.get(key), int | float) else 0 for key in BY_NUMBER]
        return (*numbers, *(str(run.get(column.key)) for column in SETTINGS))

    places, all_marked = list(range(len(reports))), all(report.provenance.run for report in reports)
    if all_marked:
        places.sort(key=lambda place: settings(reports[place]))
    names = tuple(names[place] for place in places)
    in_order = in_one_spelling([reports[place] for place in places])
    spelled = tuple(report for report in in_order if isinstance(report, Answered))
    marked = [report for report in spelled if report.provenance.run]
    columns = tuple(column for column in SETTINGS if len({str(_setting(row, column.key)) for row in marked}) > 1)
    cells = [tuple(_setting(report, column.key) for column in columns) for report in spelled]
    if len(spelled) == 1 and not detail.whole:  # the heading names it
        columns, cells = (), [()]
    elif not columns or not all_marked or len(set(cells)) < len(cells):
        columns = (*headed("report"), *columns)
        cells = [(name, *cell) for name, cell in zip(names, cells, strict=True)]
    unit = "GPU" if any(report.provenance.unit_of_work == "GPU" for report in spelled) else "CPU"
    return Sweep(names, spelled, columns, tuple(cells), unit, detail, times)


def _setting(report: Report, key: str) -> Any:
    """Return a setting as it is shown: None where the mark does not say."""
    value = report.provenance.run.get(key)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if value is None or isinstance(value, int | float) else str(value)


class Answer(NamedTuple):
    """The tables that answer a question, and sentences on what is missing, with the reports' names."""

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
