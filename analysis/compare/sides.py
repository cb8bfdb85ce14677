"""The steps of both sides of a comparison: which are of one kind, and whether those of B differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
        sums = np.zeros(len(self.launches))
        for place in places:
            sums += self.times.get(place, 0)
        return sums

    def of_states(self, states: Iterable[State]) -> Values:
        """Return the time in some states in each step, ns; NaN where states are not known."""
        sums = np.zeros(len(self.launches))
        if not self.states_ns:
            return np.full_like(sums, np.nan)
        for state in states:
            sums += self.states_ns.get(state, 0)
        return sums


Side: TypeAlias = tuple[Recording, ...]
Series: TypeAlias = Sequence[Values]
#: Values by recording of A, and of B.
Sides: TypeAlias = tuple[list[Values], list[Values]]
#: Whether B differs, and the spread of each side's steps, ns.
Judged: TypeAlias = tuple[noise.Verdict, tuple[int | None, int | None]]


class Kind(NamedTuple):
    """Steps of both sides that do the same work: their launches, and which steps of each recording they are."""

    launches: tuple[float, float]
    rows: tuple[tuple[Int64s, ...], tuple[Int64s, ...]]

    def of(self, series_a: Series, series_b: Series) -> Sides:
        """Return the values of these steps, of values of all steps by recording."""
        rows_a, rows_b = self.rows
        return _chosen(series_a, rows_a), _chosen(series_b, rows_b)


def _chosen(series: Series, rows: Sequence[Int64s]) -> list[Values]:
    """Return the values of some steps of each recording that are known."""
    return [noise.known(values[steps]) for values, steps in zip(series, rows, strict=True)]


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
        names = []
        for name, side in (("A", self.a), ("B", self.b)):
            if any(recording.is_limited for recording in side):
                names.append(name)
        return tuple(names)

    @property
    def are_alone(self) -> bool:
        """Whether steps of one kind are compared that all recordings timed, in the same way, without recording.

        A recorded step is never compared with an unrecorded one, nor an exact time with an upper limit. As few are
        timed, they are not compared where they vary too much to tell.
        """
        if not self.are_known or len(self.kinds) != 1:
            return False
        recordings = (*self.a, *self.b)
        if len({recording.alone_limit for recording in recordings}) > 1:
            return False
        are_timed = all(len(recording.alone_ns) for recording in recordings)
        return are_timed and noise.judged(*self._each("alone_ns")) != "not known"

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
        counts = []
        for number, side in enumerate((self.a, self.b)):
            steps = sum(len(recording.launches) for recording in side)
            compared = sum(len(rows) for kind in self.kinds for rows in kind.rows[number])
            counts.append(steps - compared)
        return counts[0], counts[1]

    def judged(self, series_a: Series, series_b: Series) -> noise.Verdict:
        """Return whether B differs in any kind of steps, of values of all steps by recording."""
        of_kinds = [kind.of(series_a, series_b) for kind in self.kinds]
        return noise.worst([noise.judged(a, b, level=self.level) for a, b in of_kinds])

    @property
    def level(self) -> float:
        """The level of a test of one kind of steps, so that those of all kinds together have noise.LEVEL."""
        return noise.LEVEL / max(len(self.kinds), 1)

    def of_places(self, places_a: Iterable[Place], places_b: Iterable[Place]) -> Judged:
        """Return whether the time of some rows differs, and the spread of each side's steps, ns."""
        return self._with_spreads(*self._work(places_a, places_b))

    def of_states(self, states: Sequence[State]) -> Judged:
        """Return whether the time in some states differs, and the spread of each side's steps, ns."""
        series_a = [recording.of_states(states) for recording in self.a]
        series_b = [recording.of_states(states) for recording in self.b]
        return self._with_spreads(series_a, series_b)

    def _with_spreads(self, series_a: Series, series_b: Series) -> Judged:
        verdict = self.judged(series_a, series_b) if self.are_known else "not known"
        return verdict, (_spread_ns(series_a), _spread_ns(series_b))

    def _work(self, places_a: Iterable[Place], places_b: Iterable[Place]) -> Sides:
        """Return the time of some rows of both sides in each step, by recording, ns."""
        series_a = [recording.of_places(places_a) for recording in self.a]
        series_b = [recording.of_places(places_b) for recording in self.b]
        return series_a, series_b

    def _each(self, figure: str) -> Sides:
        """Return a figure of each recording of both sides, such as `step_ns`."""
        series_a = [getattr(recording, figure) for recording in self.a]
        series_b = [getattr(recording, figure) for recording in self.b]
        return series_a, series_b

    def step_times(self) -> list[Sides]:
        """Return the times of whole steps of both sides by recording, ns, for each kind of steps.

        They are without recording where all recordings know these.
        """
        if self.are_alone:
            return [self._each("alone_ns")]
        return [kind.of(*self._each("step_ns")) for kind in self.kinds]

    def measured(self, measure: Measure, places: Sequence[Sequence[Place]] = ((), ())) -> list[Measured]:
        """Return a measure by kind of steps; [] if a side lacks it. `work_ns` is of the rows at these places."""
        if measure == "step_ns":
            of_kinds = self.step_times()
        else:
            series = self._work(*places) if measure == "work_ns" else self._each(measure)
            of_kinds = [kind.of(*series) for kind in self.kinds]
        if not all(any(map(len, a)) and any(map(len, b)) for a, b in of_kinds):
            return []
        compared = []
        for kind, (a, b) in zip(self.kinds, of_kinds, strict=True):
            compared.append(_measured(kind.launches, a, b, self.level))
        return compared

    def placed(self, place_of: Callable[[Place], Place], *, sides: str = "AB") -> Steps:
        """Return the steps with the rows of these sides at other places; rows of one place are added up."""

        def moved(recording: Recording) -> Recording:
            times: dict[Place, Int64s] = {}
            for place, ns in recording.times.items():
                key = place_of(place)
                times[key] = times[key] + ns if key in times else ns
            return replace(recording, times=times)

        a = tuple(map(moved, self.a)) if "A" in sides else self.a
        b = tuple(map(moved, self.b)) if "B" in sides else self.b
        return replace(self, a=a, b=b)

    def spelled(self, report: Report, like_first: Report, *, sides: str = "AB") -> Steps:
        """Return the steps of these sides with the kernels of `report` named as `like_first` names them."""
        kernels = {}
        for row, respelled in zip(report.kernels, like_first.kernels, strict=True):
            kernels[row.kernel] = respelled.kernel

        def respelled_place(place: Place) -> Place:
            path, phase, kind, kernel = place
            return path, phase, kind, kernels.get(kernel, kernel)

        return self.placed(respelled_place, sides=sides)


def _measured(launches: tuple[float, float], a: Series, b: Series, level: float) -> Measured:
    """Compare the values of steps of one kind, by recording; each side has some."""
    all_a, all_b = np.concatenate(a), np.concatenate(b)
    return Measured(
        launches,
        float(np.median(all_a)),
        float(np.median(all_b)),
        len(all_a),
        len(all_b),
        max(_share(all_a), _share(all_b)),
        noise.judged(a, b, level=level),
    )


NO_STEPS = Steps()


def place(row: KernelRow) -> Place:
    """Return where a row is."""
    return row.path, row.phase, row.kind, row.kernel


def paired(a: Side, b: Side) -> Steps:
    """Return the steps of two sides with the kinds that both have; a kind seldom seen decides nothing."""
    if not (a and b):
        return Steps(a, b)
    launches = [np.concatenate([recording.launches for recording in side]) for side in (a, b)]
    matched = noise.matched_kinds(*launches)
    kinds = [_kind(rows, launches, (a, b)) for rows in matched if _is_frequent(rows, launches)]
    return Steps(a, b, tuple(kinds or [_kind(rows, launches, (a, b)) for rows in matched]))


def _is_frequent(rows: tuple[Int64s, Int64s], launches: Sequence[Int64s]) -> bool:
    """Return whether a kind has steps enough for a verdict, or a good share of a side's."""
    if min(map(len, rows)) >= noise.SOME_STEPS:
        return True
    return any(len(of_kind) >= SELDOM * len(steps) for of_kind, steps in zip(rows, launches, strict=True))


def _kind(rows: tuple[Int64s, Int64s], launches: Sequence[Int64s], sides: tuple[Side, Side]) -> Kind:
    """Divide the steps of a kind by recording."""
    median_a, median_b = (float(np.median(launches[side][rows[side]])) for side in (0, 1))
    by_recording = _by_recording(rows[0], sides[0]), _by_recording(rows[1], sides[1])
    return Kind((median_a, median_b), by_recording)


def _by_recording(rows: Int64s, side: Side) -> tuple[Int64s, ...]:
    """Return which steps of each recording these are, of positions in all steps of a side."""
    parts = []
    begin = 0
    for recording in side:
        places = rows - begin
        steps = len(recording.launches)
        parts.append(places[(places >= 0) & (places < steps)])
        begin += steps
    return tuple(parts)


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
    lengths = {len(steps), *map(len, times.values())}
    if len(lengths) > 1 or (counted >= len(steps)).any():
        raise NotAReport(f"{path} is not a whole summary (its steps); write it again with `summarize`.")
    counted = np.sort(counted)
    counted_ns = {place: of_steps[counted] for place, of_steps in times.items()}
    launches = np.array([step["kernels"] for step in steps], np.int64)[counted]
    span_ns = np.array([step["span_ns"] for step in steps], np.float64)[counted]
    return _side(report, counted_ns, launches, span_ns)


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
    for (report, steps), like_first in zip(recordings, spelled, strict=True):
        side += Steps(steps).spelled(report, like_first).a
    together = merged(spelled, _listed(paths))
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
        times = single_step(report)
    counted = sorted(report.account.counted, key=lambda row: row.step) if report.account else []
    step_ns, states_ns = np.full(len(launches), np.nan), {}
    if len(counted) == len(launches):
        step_ns = np.array([row.own_ns for row in counted], np.float64)
        states_ns = _states(counted)
    is_limited = any(row.phase == STEP and row.verdict == LAUNCH_BOUND for row in report.busy)
    recording = Recording(times, launches, step_ns, span_ns, states_ns, is_limited)
    cost = report.recording
    if cost and cost.alone_ns:
        recording = replace(recording, alone_ns=np.array(cost.timed_ns, np.float64))
    if cost and cost.is_upper_limit:
        recording = replace(recording, alone_limit=cost.where)
    return (recording,)


def _states(rows: Sequence[StepRow]) -> dict[State, Values]:
    """Return the time of each state in some steps, ns, a mean over GPUs; {} where it is not known."""
    states: dict[State, Values] = {}
    for number, row in enumerate(rows):
        for state, ns in row.states_ns:
            states.setdefault(state, np.zeros(len(rows)))[number] += ns / max(row.gpus, 1)
    return states


def single_step(report: Report) -> dict[Place, Int64s]:
    """Return the times of the only step of a report."""
    counted = report.counted or report
    return {place(row): np.array([row.total_ns], np.int64) for row in counted.kernels}


def notes(steps: Steps) -> Iterator[str]:
    """Return notes on which steps are compared."""
    if steps.are_alone:
        a, b = (sum(len(recording.alone_ns) for recording in side) for side in (steps.a, steps.b))
        limits = "; where launches limit a step, it may take less" if steps.are_limits else ""
        yield (
            f"The first line is of steps without recording, {a} of A and {b} of B, timed next to it{limits}. "
            "The rest: recorded."
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
