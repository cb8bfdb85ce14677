"""The steps of both sides of a comparison: which are of one kind, and whether those of B differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress
from operator import attrgetter
from pathlib import Path as FilePath
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import NotAReport, ReportError
from ..measures.steps import steps_of
from ..opened import Opened
from ..report import TO_HAVE_STEPS, KernelRow, Report, in_one_spelling, merged
from ..report.account import State, StepRow
from ..report.limits import LAUNCH_BOUND, STEP
from ..summary.file import read_step_times, read_steps, read_summary
from ..support import noise
from ..trace import Int64s, Path
from .change import Change

Values: TypeAlias = NDArray[np.float64]
#: Where a row of kernels is: its path, phase, kind and kernel.
Place: TypeAlias = tuple[Path, str, str, str]
Measure = Literal["step_ns", "span_ns", "work_ns", "launches"]
#: A kind with too few steps for a verdict is left out if it has less than this share of the steps.
SELDOM = 0.25


@dataclass(frozen=True, slots=True)
class Recording:
    """The counted steps of one recording: how many kernels each launches, and its times, ns (NaN: not known).

    `times` are those of each row of kernels, and of each state of a GPU, a mean over GPUs; `step_ns` is a step's
    own time, and `span_ns` its GPU span. `is_limited` where the GPU waits for the CPU, which decides how long a
    step takes. `alone_ns` are times of other steps, which were not recorded; they are upper limits if they were
    timed where `alone_limit` says.
    """

    times: Mapping[Any, Int64s | Values]
    launches: Int64s
    step_ns: Values
    span_ns: Values
    is_limited: bool = False
    alone_ns: Values = field(default_factory=lambda: np.zeros(0))
    alone_limit: str = ""

    def time_of(self, parts: Iterable[Place | State]) -> Values:
        """Return the time of some rows, or in some states, in each step, ns."""
        sums = np.zeros(len(self.launches))
        for part in parts:
            sums += self.times.get(part, 0)
        return sums

    def time_in(self, states: Iterable[State]) -> Values:
        """Return the time in some states in each step, ns; NaN where the step's own time is not known."""
        return self.time_of(states) + 0 * self.step_ns


Side: TypeAlias = tuple[Recording, ...]
#: A figure of each step of a recording.
Figure: TypeAlias = Callable[[Recording], Values]
#: Values of the steps of both sides, by recording.
Series: TypeAlias = list[list[Values]]
#: Steps of both sides that do the same work: which steps of each recording they are.
Kind: TypeAlias = list[list[NDArray[np.bool_]]]


@dataclass(frozen=True)
class Steps:
    """The steps of A and of B, by recording, and the kinds of steps that are compared."""

    sides: tuple[Side, Side] = ((), ())
    kinds: tuple[Kind, ...] = ()

    @property
    def are_known(self) -> bool:
        """Whether both sides have steps."""
        return all(self.sides)

    @property
    def limited(self) -> tuple[str, ...]:
        """Which sides the CPU decides, in any of their recordings: "A", "B"."""
        are_limited = [any(recording.is_limited for recording in side) for side in self.sides]
        return tuple(compress("AB", are_limited))

    @cached_property
    def are_alone(self) -> bool:
        """Whether steps of one kind are compared that all recordings timed, in the same way, without recording.

        A recorded step is never compared with an unrecorded one, nor an exact time with an upper limit. As few are
        timed, they are not compared where they vary too much to tell.
        """
        if not self.are_known or len(self.kinds) != 1:
            return False
        recordings = list(chain(*self.sides))
        if len({recording.alone_limit for recording in recordings}) > 1:
            return False
        are_timed = all(len(recording.alone_ns) for recording in recordings)
        return are_timed and noise.judged(*self._each(attrgetter("alone_ns"))) != "not known"

    @property
    def are_limits(self) -> bool:
        """Whether steps without recording are compared, and all of their times are upper limits."""
        return self.are_alone and bool(self.sides[0][0].alone_limit)

    @property
    def are_repeated(self) -> bool:
        """Whether both sides have several recordings."""
        return min(map(len, self.sides)) > 1

    @property
    def level(self) -> float:
        """The level of a test of one kind of steps, so that those of all kinds together have noise.LEVEL."""
        return noise.LEVEL / max(len(self.kinds), 1)

    def judged(self, change: Change, figure: Figure) -> Change:
        """Return a change with the spreads of a figure of its steps, and whether B differs in any kind of them."""
        verdicts = [noise.judged(*series, level=self.level) for series in self.by_kind(figure)]
        a_spread_ns, b_spread_ns = map(_spread_ns, self._each(figure))
        return replace(change, a_spread_ns=a_spread_ns, b_spread_ns=b_spread_ns, judged=noise.worst(verdicts))

    def by_kind(self, figure: Figure) -> list[Series]:
        """Return the known values of a figure for each kind of steps."""
        sides = self._each(figure)
        return [[_chosen(*of_side) for of_side in zip(sides, kind, strict=True)] for kind in self.kinds]

    def _each(self, figure: Figure) -> Series:
        return [list(map(figure, side)) for side in self.sides]

    @cached_property
    def step_times(self) -> list[Series]:
        """The times of whole steps of each kind, ns, without recording where all recordings know these."""
        if self.are_alone:
            return [self._each(attrgetter("alone_ns"))]
        return self.by_kind(attrgetter("step_ns"))

    def measured(self, of_kinds: Sequence[Series]) -> list[Change]:
        """Return the change of the medians for each kind of steps, its counts those of the steps that have values.

        [] if a side has none.
        """
        if not all(any(map(len, side)) for series in of_kinds for side in series):
            return []
        changes = []
        for series in of_kinds:
            a, b = map(np.concatenate, series)
            medians_ns = float(np.median(a)), float(np.median(b))
            spreads_ns = _spread_ns(series[0]), _spread_ns(series[1])
            verdict = noise.judged(*series, level=self.level)
            changes.append(Change((), *medians_ns, len(a), len(b), *spreads_ns, verdict))
        return changes


def place(row: KernelRow) -> Place:
    """Return where a row is."""
    return row.path, row.phase, row.kind, row.kernel


def spelled(side: Side, report: Report, like_first: Report) -> Side:
    """Return the side of `report` with kernels named as `like_first` names them."""
    kernels = {}
    for row, respelled in zip(report.kernels, like_first.kernels, strict=True):
        kernels[row.kernel] = respelled.kernel
    recordings = []
    for recording in side:
        times = {(*where, kernels.get(name, name)): ns for (*where, name), ns in recording.times.items()}
        recordings.append(replace(recording, times=times))
    return tuple(recordings)


def paired(sides: tuple[Side, Side]) -> Steps:
    """Return the steps of A and B with the kinds that both have; a kind seldom seen decides nothing."""
    if not all(sides):
        return Steps(sides)
    launches = [np.concatenate([recording.launches for recording in side]) for side in sides]
    matched = noise.matched_kinds(*launches)
    frequent = [places for places in matched if _is_frequent(places, launches)]
    return Steps(sides, tuple(_kind(places, sides) for places in frequent or matched))


def _is_frequent(places: tuple[Int64s, Int64s], launches: Sequence[Int64s]) -> bool:
    """Return whether a kind has steps enough for a verdict, or a good share of a side's."""
    if min(map(len, places)) >= noise.SOME_STEPS:
        return True
    return any(len(of_kind) >= SELDOM * len(steps) for of_kind, steps in zip(places, launches, strict=True))


def _kind(places: tuple[Int64s, Int64s], sides: tuple[Side, Side]) -> Kind:
    """Return which steps of each recording are at these places among all steps of a side."""
    kind = []
    for of_side, side in zip(places, sides, strict=True):
        ends = np.cumsum([len(recording.launches) for recording in side])
        kind.append(np.split(np.isin(np.arange(ends[-1]), of_side), ends[:-1]))
    return kind


def recorded(opened: Opened) -> Side:
    """Return the steps of a report that count; () if it has none."""
    if not opened.partition.has_steps:
        return ()
    figures = steps_of(opened.partition.of_counted_steps, include_warm_up=opened.whole.warm_up_included)
    launches = np.array([step.kernels for step in figures], np.int64)
    span_ns = np.array([np.nan if step.span_ns is None else step.span_ns for step in figures], np.float64)
    return _side(opened.whole, opened.step_times, launches, span_ns)


def of_summary(path: FilePath) -> tuple[Report, Side]:
    """Return the report of a summary, with its steps that count; () if it has none."""
    report = read_summary(path)
    steps, times = read_steps(path), read_step_times(path)
    counted = np.array([row.step for row in report.account.counted] if report.account else [], np.int64)
    lengths = {len(steps), *map(len, times.values())}
    if len(lengths) > 1 or (counted >= len(steps)).any():
        raise NotAReport(f"{path} is not a whole summary (its steps); write it again with `summarize`.")
    counted = np.sort(counted)
    counted_ns = {place: of_steps[counted] for place, of_steps in times.items()}
    launches = np.array([step["kernels"] for step in steps], np.int64)[counted]
    span_ns = np.array([step["span_ns"] for step in steps], np.float64)[counted]
    return report, _side(report, counted_ns, launches, span_ns)


def joined(recordings: Sequence[tuple[Report, Side]], paths: Sequence[FilePath]) -> tuple[Report, Side]:
    """Return the recordings of one side as one report, in the spelling of the first, with the steps of each.

    Raises ReportError if some count a GPU's work and others a CPU's, or if only some have steps.
    """
    read = [report for report, _ in recordings]
    if len(read) == 1:
        return recordings[0]
    if len({report.provenance.unit_of_work for report in read}) > 1:
        raise ReportError(f"Some of {_listed(paths)} count GPU work and some CPU work: they are no repetitions.")
    if without := [path for path, report in zip(paths, read, strict=True) if not report.steps]:
        raise ReportError(f"{without[0]} lacks measured steps, which several recordings need. {TO_HAVE_STEPS}.")
    in_spelling = in_one_spelling(read)
    side: list[Recording] = []
    for (report, steps), like_first in zip(recordings, in_spelling, strict=True):
        side += spelled(steps, report, like_first)
    together = merged(in_spelling, _listed(paths))
    return replace(together, ranks=read[0].ranks), tuple(side)


def _listed(paths: Sequence[FilePath]) -> str:
    """Name several files, the first of many."""
    names = [path.name for path in paths]
    return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"


def _side(report: Report, times: Mapping[Place, Int64s], launches: Int64s, span_ns: Values) -> Side:
    """Put one recording together; the rows of a single step are the report's own."""
    if not len(launches):
        return ()
    if len(launches) == 1:
        rows = (report.counted or report).kernels
        times = {place(row): np.array([row.total_ns], np.int64) for row in rows}
    counted = sorted(report.account.counted, key=lambda row: row.step) if report.account else []
    step_ns, states_ns = np.full(len(launches), np.nan), {}
    if len(counted) == len(launches):
        step_ns = np.array([row.own_ns for row in counted], np.float64)
        states_ns = _states(counted)
    is_limited = any(row.phase == STEP and row.verdict == LAUNCH_BOUND for row in report.busy)
    cost = report.recording
    alone_ns = np.array(cost.timed_ns if cost and cost.alone_ns else (), np.float64)
    alone_limit = cost.where if cost and cost.is_upper_limit else ""
    return (Recording({**times, **states_ns}, launches, step_ns, span_ns, is_limited, alone_ns, alone_limit),)


def _states(rows: Sequence[StepRow]) -> dict[State, Values]:
    """Return the time of each state in some steps, ns, a mean over GPUs."""
    states: dict[State, Values] = {}
    for number, row in enumerate(rows):
        for state, ns in row.states_ns:
            states.setdefault(state, np.zeros(len(rows)))[number] += ns / max(row.gpus, 1)
    return states


def only_step(report: Report) -> Side:
    """Return the step of a report that has one; () for any other, whose steps are not known."""
    if report.counted_steps != 1:
        return ()
    launches = sum(row.count for row in report.kernels if row.kind == "kernel")
    return _side(report, {}, np.array([launches], np.int64), np.full(1, np.nan))


def notes(steps: Steps) -> Iterator[str]:
    """Return notes on which steps are compared."""
    if not steps.are_known:
        return
    if steps.are_alone:
        a, b = (sum(len(recording.alone_ns) for recording in side) for side in steps.sides)
        limits = "; where launches limit a step, it may take less" if steps.are_limits else ""
        yield (
            f"The first line is of steps without recording, {a} of A and {b} of B, timed next to it{limits}. "
            "The rest: recorded."
        )
    for number, name in enumerate("AB"):
        compared = sum(np.concatenate(kind[number]).sum() for kind in steps.kinds)
        count = sum(len(recording.launches) for recording in steps.sides[number]) - compared
        if count:
            some = f"{count} steps of {name} do" if count > 1 else f"1 step of {name} does"
            yield f"{some} other work than the rest (another number of kernels): the verdicts leave it out."


def _chosen(series: Sequence[Values], steps: Sequence[NDArray[np.bool_]]) -> list[Values]:
    return [noise.known(values[chosen]) for values, chosen in zip(series, steps, strict=True)]


def _spread_ns(series: Sequence[Values]) -> int | None:
    """Return by how much the slowest step exceeds the fastest; None of fewer than two."""
    values = noise.known(np.concatenate([np.zeros(0), *series]))
    return int(np.ptp(values)) if len(values) > 1 else None
