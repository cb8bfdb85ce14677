"""The steps of both sides of a comparison: which are of one kind, and whether those of B differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path as FilePath
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import NotAReport, ReportError
from ..measures.steps import steps_of
from ..opened import Opened
from ..report import TO_HAVE_STEPS, KernelRow, Report, in_one_spelling, merged
from ..report.account import State, StepRow
from ..report.limits import LAUNCH_BOUND, STEP
from ..summary.file import read_step_times, read_steps
from ..support import noise
from ..trace import Int64s, Path

Values: TypeAlias = NDArray[np.float64]
#: Where a row of kernels is: its path, phase, kind and kernel.
Place: TypeAlias = tuple[Path, str, str, str]
Measure = Literal["step_ns", "span_ns", "work_ns"]
#: A kind with too few steps for a verdict is left out if it has less than this share of the steps.
SELDOM = 0.25


@dataclass(frozen=True, slots=True)
class Recording:
    """The counted steps of one recording: how many kernels each launches, and its times, ns (NaN: not known).

    `times` are those of each row of kernels, and `states_ns` those of each state of a GPU, a mean over GPUs;
    `step_ns` is a step's own time, and `span_ns` its GPU span. `is_limited` where the GPU waits for the CPU, which
    decides how long a step takes. `alone_ns` are times of other steps, which were not recorded; they are upper
    limits if they were timed where `alone_limit` says.
    """

    times: Mapping[Place, Int64s]
    launches: Int64s
    step_ns: Values
    span_ns: Values
    states_ns: Mapping[State, Values] = field(default_factory=dict)
    is_limited: bool = False
    alone_ns: Values = field(default_factory=lambda: np.zeros(0))
    alone_limit: str = ""

    def of_places(self, places: Iterable[Place]) -> Values:
        """Return the time of some rows in each step, ns."""
        found = [self.times[place] for place in places if place in self.times]
        return np.sum(found, axis=0, dtype=np.float64) if found else np.zeros(len(self.launches))

    def of_states(self, states: Iterable[State]) -> Values:
        """Return the time in some states in each step, ns; NaN where states are not known."""
        if not self.states_ns:
            return np.full(len(self.launches), np.nan)
        known = [self.states_ns[state] for state in states if state in self.states_ns]
        return np.sum(known, axis=0) if known else np.zeros(len(self.launches))


Side: TypeAlias = tuple[Recording, ...]
Series: TypeAlias = Sequence[Values]


class Kind(NamedTuple):
    """Steps of both sides that do the same work: their launches, and which steps of each recording they are."""

    launches: tuple[float, float]
    rows: tuple[tuple[Int64s, ...], tuple[Int64s, ...]]

    def of(self, series_a: Series, series_b: Series) -> tuple[list[Values], list[Values]]:
        """Return the values of these steps, of values of all steps by recording."""
        a, b = (
            [noise.known(values[rows]) for values, rows in zip(series, of_side, strict=True)]
            for series, of_side in zip((series_a, series_b), self.rows, strict=True)
        )
        return a, b


class Measured(NamedTuple):
    """One measure of one kind of steps: medians of both sides, ns, the steps that have it, and the verdict."""

    launches: tuple[float, float]
    a_ns: float
    b_ns: float
    a_steps: int
    b_steps: int
    spread: float  # of the side that varies more: longest less shortest step, as a share of the median
    verdict: noise.Verdict

    @property
    def change(self) -> float | None:
        """The difference as a share of A; None where A is 0."""
        return (self.b_ns - self.a_ns) / self.a_ns if self.a_ns else None


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of both sides, by recording, and the kinds of steps that are compared."""

    a: Side = ()
    b: Side = ()
    kinds: tuple[Kind, ...] = ()

    @property
    def are_known(self) -> bool:
        """Whether both sides have steps."""
        return bool(self.a and self.b)

    @property
    def limited(self) -> tuple[str, ...]:
        """Which sides the CPU decides, in any of their recordings: "A", "B"."""
        sides = zip("AB", (self.a, self.b), strict=True)
        return tuple(name for name, side in sides if any(recording.is_limited for recording in side))

    @property
    def are_alone(self) -> bool:
        """Whether steps of one kind are compared that all recordings timed, in the same way, without recording.

        A recorded step is never compared with an unrecorded one, nor an exact time with an upper limit. As few are
        timed, they are not compared where they vary too much to tell.
        """
        recordings = (*self.a, *self.b)
        is_one_kind = self.are_known and len(self.kinds) == 1 and len({one.alone_limit for one in recordings}) == 1
        return is_one_kind and all(len(one.alone_ns) for one in recordings) and self._alone_tells()

    def _alone_tells(self) -> bool:
        alone_a, alone_b = ([one.alone_ns for one in side] for side in (self.a, self.b))
        return noise.judged(alone_a, alone_b) != "not known"

    @property
    def are_limits(self) -> bool:
        """Whether steps without recording are compared, and all of their times are upper limits."""
        return self.are_alone and bool(self.a[0].alone_limit)

    @property
    def are_repeated(self) -> bool:
        """Whether both sides have several recordings."""
        return min(len(self.a), len(self.b)) > 1

    @property
    def left_out(self) -> tuple[int, int]:
        """How many steps of each side are of no kind that is compared."""
        if not self.are_known:
            return 0, 0
        a, b = (
            sum(len(one.launches) for one in side) - sum(len(rows) for kind in self.kinds for rows in kind.rows[n])
            for n, side in enumerate((self.a, self.b))
        )
        return a, b

    def judged(self, series_a: Series, series_b: Series) -> noise.Verdict:
        """Return whether B differs in any kind of steps, of values of all steps by recording."""
        level = noise.LEVEL / max(len(self.kinds), 1)
        return noise.worst([noise.judged(*kind.of(series_a, series_b), level=level) for kind in self.kinds])

    def of_places(
        self, places_a: Iterable[Place], places_b: Iterable[Place]
    ) -> tuple[noise.Verdict, tuple[int | None, int | None]]:
        """Return whether the time of some rows differs, and the spread of each side's steps, ns."""
        return self._of([one.of_places(places_a) for one in self.a], [one.of_places(places_b) for one in self.b])

    def of_states(self, states: Sequence[State]) -> tuple[noise.Verdict, tuple[int | None, int | None]]:
        """Return whether the time in some states differs, and the spread of each side's steps, ns."""
        return self._of([one.of_states(states) for one in self.a], [one.of_states(states) for one in self.b])

    def _of(self, series_a: Series, series_b: Series) -> tuple[noise.Verdict, tuple[int | None, int | None]]:
        verdict = self.judged(series_a, series_b) if self.are_known else "not known"
        return verdict, (_spread_ns(series_a), _spread_ns(series_b))

    def step_times(self) -> list[tuple[list[Values], list[Values]]]:
        """Return the times of whole steps of both sides by recording, ns, for each kind of steps.

        They are without recording where all recordings know these.
        """
        if self.are_alone:
            return [([one.alone_ns for one in self.a], [one.alone_ns for one in self.b])]
        series = [[one.step_ns for one in side] for side in (self.a, self.b)]
        return [kind.of(*series) for kind in self.kinds]

    def measured(self, measure: Measure, places: Sequence[Iterable[Place]] = ((), ())) -> list[Measured]:
        """Return a measure by kind of steps; [] if a side lacks it. `work_ns` is of the rows at these places."""
        series_a, series_b = (
            [one.of_places(of) if measure == "work_ns" else getattr(one, measure) for one in side]
            for side, of in zip((self.a, self.b), places, strict=True)
        )
        of_kinds = [kind.of(series_a, series_b) for kind in self.kinds]
        if measure == "step_ns":
            of_kinds = self.step_times()
        if not all(any(map(len, a)) and any(map(len, b)) for a, b in of_kinds):
            return []
        level = noise.LEVEL / max(len(self.kinds), 1)
        return [_measured(kind.launches, a, b, level) for kind, (a, b) in zip(self.kinds, of_kinds, strict=True)]

    def placed(self, place_of: Callable[[Place], Place], *, sides: str = "AB") -> Steps:
        """Return the steps with the rows of these sides at other places; rows of one place are added up."""

        def moved(recording: Recording) -> Recording:
            times: dict[Place, Int64s] = {}
            for place, ns in recording.times.items():
                key = place_of(place)
                times[key] = times[key] + ns if key in times else ns
            return replace(recording, times=times)

        a = tuple(map(moved, self.a)) if "A" in sides else self.a
        return replace(self, a=a, b=tuple(map(moved, self.b)) if "B" in sides else self.b)


def _measured(launches: tuple[float, float], a: Series, b: Series, level: float) -> Measured:
    """Compare the values of steps of one kind, by recording; each side has some."""
    all_a, all_b = np.concatenate(a), np.concatenate(b)
    spread = max(_share(all_a), _share(all_b))
    medians = float(np.median(all_a)), float(np.median(all_b))
    counts = len(all_a), len(all_b)
    return Measured(launches, *medians, *counts, spread, noise.judged(a, b, level=level))


NO_STEPS = Steps()


def place(row: KernelRow) -> Place:
    """Return where a row is."""
    return row.path, row.phase, row.kind, row.kernel


def paired(a: Side, b: Side) -> Steps:
    """Return the steps of two sides with the kinds that both have; a kind seldom seen decides nothing."""
    if not (a and b):
        return Steps(a, b)
    launches = [np.concatenate([recording.launches for recording in side]) for side in (a, b)]
    kinds = noise.matched_kinds(launches[0], launches[1])
    often = [
        rows
        for rows in kinds
        if min(map(len, rows)) >= noise.SOME_STEPS
        or any(len(of) >= SELDOM * len(whole) for of, whole in zip(rows, launches, strict=True))
    ]
    return Steps(a, b, tuple(_kind(rows, launches, (a, b)) for rows in often or kinds))


def _kind(rows: tuple[Int64s, Int64s], launches: Sequence[Int64s], sides: tuple[Side, Side]) -> Kind:
    """Divide the steps of a kind by recording."""
    of_sides = []
    for of_side, side in zip(rows, sides, strict=True):
        ends = np.cumsum([len(recording.launches) for recording in side])
        parts = np.split(of_side, np.searchsorted(of_side, ends[:-1]))
        of_sides.append(tuple(part - begin for part, begin in zip(parts, [0, *ends[:-1]], strict=True)))
    medians = [float(np.median(of[row])) for of, row in zip(launches, rows, strict=True)]
    return Kind((medians[0], medians[1]), (of_sides[0], of_sides[1]))


def recorded(opened: Opened) -> Side:
    """Return the steps of a report that count; () if it has none."""
    if not opened.partition.has_steps:
        return ()
    figures = steps_of(opened.partition.of_counted_steps, include_warm_up=opened.whole.warm_up_included)
    launches = np.array([step.kernels for step in figures], np.int64)
    span_ns = np.array([np.nan if step.span_ns is None else step.span_ns for step in figures], np.float64)
    return _side(opened.whole, opened.step_times, launches, span_ns)


def of_summary(path: FilePath, report: Report) -> Side:
    """Return the steps of a summary that count; () if it has none."""
    steps, times = read_steps(path), read_step_times(path)
    counted = np.array([row.step for row in report.account.counted] if report.account else [], np.int64)
    is_damaged = any(len(of_row) != len(steps) for of_row in times.values()) or (counted >= len(steps)).any()
    if is_damaged:
        raise NotAReport(f"{path} is not a whole summary (its steps); write it again with `summarize`.")
    counted = np.sort(counted)
    launches = np.array([step["kernels"] for step in steps], np.int64)[counted]
    span_ns = np.array([step["span_ns"] for step in steps], np.float64)[counted]
    return _side(report, {place: of_row[counted] for place, of_row in times.items()}, launches, span_ns)


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
    spelled = in_one_spelling(read)
    side: list[Recording] = []
    for report, like_first, (_, steps) in zip(read, spelled, recordings, strict=True):
        kernels = {old.kernel: new.kernel for old, new in zip(report.kernels, like_first.kernels, strict=True)}
        side += Steps(steps).placed(partial(_respelled, kernels=kernels)).a
    whole = merged(spelled, _listed(paths))
    return replace(whole, ranks=read[0].ranks), tuple(side)


def _respelled(of: Place, kernels: Mapping[str, str]) -> Place:
    return (*of[:3], kernels.get(of[3], of[3]))


def _listed(paths: Sequence[FilePath]) -> str:
    """Name several files, the first of many."""
    names = [path.name for path in paths]
    return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"


def _side(report: Report, times: Mapping[Place, Int64s], launches: Int64s, span_ns: Values) -> Side:
    """Put one recording together; the rows of a single step are the report's own."""
    if not len(launches):
        return ()
    if len(launches) == 1:
        times = single_step(report)
    counted = sorted(report.account.counted, key=lambda row: row.step) if report.account else []
    step_ns, states_ns = np.full(len(launches), np.nan), {}
    if len(counted) == len(launches):
        step_ns = np.array([row.own_ns for row in counted], np.float64)
        states_ns = _states(counted)
    is_limited = any(row.phase == STEP and row.verdict == LAUNCH_BOUND for row in report.busy)
    cost = report.recording
    alone_ns = np.array(cost.timed_ns if cost and cost.alone_ns else (), np.float64)
    limit = cost.where if cost and cost.is_upper_limit else ""
    return (Recording(times, launches, step_ns, span_ns, states_ns, is_limited, alone_ns, limit),)


def _states(rows: Sequence[StepRow]) -> dict[State, Values]:
    """Return the time of each state in some steps, ns, a mean over GPUs; {} where it is not known."""
    states: dict[State, Values] = {}
    for number, row in enumerate(rows):
        for state, ns in row.states_ns:
            states.setdefault(state, np.zeros(len(rows)))[number] += ns / max(row.gpus, 1)
    return states


def single_step(report: Report) -> dict[Place, Int64s]:
    """Return the times of the only step of a report."""
    return {place(row): np.array([row.total_ns], np.int64) for row in (report.counted or report).kernels}


def notes(steps: Steps) -> Iterator[str]:
    """Return notes on which steps are compared."""
    if steps.are_alone:
        a, b = (sum(len(one.alone_ns) for one in side) for side in (steps.a, steps.b))
        yield (
            f"The first line is of steps without recording, {a} of A and {b} of B, timed next to it"
            f"{'; where launches limit a step, it may take less' if steps.are_limits else ''}. The rest: recorded."
        )
    for name, count in zip("AB", steps.left_out, strict=True):
        if count:
            some = f"{count} steps of {name} do" if count > 1 else f"1 step of {name} does"
            yield f"{some} other work than the rest (another number of kernels): the verdicts leave it out."


def _spread_ns(series: Series) -> int | None:
    values = np.concatenate(series) if series else np.zeros(0)
    return int(np.ptp(values)) if len(values) > 1 else None


def _share(values: Values) -> float:
    """Return the longest less the shortest, as a share of the median; 0 where the median is."""
    median = float(np.median(values))
    return float(np.ptp(values)) / median if median else 0.0
