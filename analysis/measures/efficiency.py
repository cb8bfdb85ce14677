"""How much of what a GPU can do each range gets: FLOPs and bytes of one step, joined to kernel times.

They are counted by annotation, or stated by a run. A range's figures join the report's range of the same phase
and the same path below its step; where the report lacks that, the nearest range around it. A range then has its
own and those of all ranges inside it, times the number of its steps.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ..report import Number, Path, RangeRow, Report
from ..trace import Provenance
from ..vocabulary import BACKWARD, ELEMENTWISE, FORWARD, PATH_SEPARATOR, RECOMPUTE, is_warm_up, step_matcher
from .gpu_peaks import Peak
from .operators import COMPUTE, MEMORY, OperatorRow

#: A range that reaches less of both the arithmetic's and the memory's peak than this is bound by neither.
FAR_BELOW = 0.25
NEITHER = "neither"
_INDEX = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_INDEX_ABOVE = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9]|$)")
Place = tuple[Path, str]
#: A phase and a path below the step, in which a `*` may stand for an index.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Figures:
    """FLOPs by arithmetic (`bf16`, `tf32`, …), bytes, and FLOPs of element-wise operators and reductions."""

    flops: Mapping[str, float]
    bytes: float
    elementwise: float = 0

    @property
    def total(self) -> float:
        """FLOPs of matrix products, convolutions and attention, in all arithmetic."""
        return sum(self.flops.values())

    def __add__(self, other: Figures) -> Figures:
        kinds = {**self.flops, **other.flops}
        flops = {kind: self.flops.get(kind, 0) + other.flops.get(kind, 0) for kind in kinds}
        return Figures(flops, self.bytes + other.bytes, self.elementwise + other.elementwise)

    def times(self, factor: float) -> Figures:
        """Return these figures multiplied by `factor`."""
        flops = {kind: value * factor for kind, value in self.flops.items()}
        return Figures(flops, self.bytes * factor, self.elementwise * factor)


NOTHING = Figures({}, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """What one path, or each of `paths` that differ in indices alone, computes in no range inside it, in a step.

    Where `paths` is None, the figures are those of all such paths together.
    """

    figures: Figures
    paths: int | None

    def of_each(self, paths: int) -> Figures:
        """Return the figures of one of the paths that a report has of these."""
        return self.figures.times(1 / paths) if self.paths is None else self.figures

    @property
    def whole(self) -> Figures:
        """The figures of all its paths."""
        return self.figures.times(self.paths or 1)


@dataclass(frozen=True, slots=True)
class Counts:
    """A step's figures by phase and path; how often models were called in it; operators without a formula.

    `is_stated` says that they follow from the model's sizes and were not counted.
    """

    by_key: Mapping[Key, Entry]
    calls: Mapping[str, float]
    uncounted: Mapping[str, int]
    is_stated: bool = False
    peaks: Mapping[str, Any] = field(default_factory=dict)  # measured of the GPU

    @property
    def whole(self) -> Figures:
        """The figures of the step."""
        return sum((entry.whole for entry in self.by_key.values()), NOTHING)


def counts_of(report: Report) -> Counts | None:
    """Return a report's counts of one step; None without any."""
    return counted_in(report.provenance, report.step)


def counted_in(provenance: Provenance, step: str) -> Counts | None:
    """Return the counts of one step, given the report's provenance and the name of its steps; None without any."""
    processes = [_counted(entries, step_matcher(step)) for entries in provenance.counted]
    processes = [counts for counts in processes if counts.by_key]
    if processes:
        return _mean(processes)
    run = provenance.run
    return _stated(run) if isinstance(run.get("flops"), Mapping) else None


def keys_of(phase: str, path: Path) -> Iterator[Key]:
    """Yield the keys that a path's entry may have."""
    text = PATH_SEPARATOR.join(path)
    yield phase, text
    yield phase, _INDEX_ABOVE.sub("*", text)
    yield phase, _INDEX.sub("*", text)


def _counted(mark: Mapping[str, Any], is_step: Callable[[str], bool]) -> Counts:
    """Read what one process counted."""

    def cut(path: str) -> str:
        """Return the part of a path below its step, or else below its innermost warm-up."""
        names = path.split(PATH_SEPARATOR)
        warm_up = max((index for index, name in enumerate(names) if is_warm_up(name)), default=-1)
        step = next((index for index, name in enumerate(names) if is_step(name)), warm_up)
        return PATH_SEPARATOR.join(names[step + 1 :])

    entries: dict[Key, Entry] = {}
    for phase, paths in mark.get("ranges", {}).items():
        for path, (number, moved, flops) in paths.items():
            products = {kind: count for kind, count in flops.items() if kind != ELEMENTWISE}
            key = phase, cut(path)
            entry = Entry(Figures(products, moved, flops.get(ELEMENTWISE, 0)), number)
            entries[key] = entry if key not in entries else Entry(entries[key].whole + entry.whole, None)
    calls = {cut(path): number for path, number in mark.get("calls", {}).items()}
    uncounted = {name: numbers[0] for name, numbers in mark.get("uncounted", {}).items()}
    return Counts(entries, calls, uncounted, peaks=mark.get("peaks", {}))


def _mean(processes: list[Counts]) -> Counts:
    """Return the mean counts of a step over several processes."""
    if len(processes) == 1:
        return processes[0]
    share = 1 / len(processes)
    entries: dict[Key, Entry] = {}
    for counts in processes:
        for key, entry in counts.by_key.items():
            shared = Entry(entry.figures.times(share), entry.paths)
            before = entries.get(key)
            if before is None:
                entries[key] = shared
            elif before.paths == shared.paths:
                entries[key] = Entry(before.figures + shared.figures, shared.paths)
            else:
                entries[key] = Entry(before.whole + shared.whole, None)
    calls: defaultdict[str, float] = defaultdict(int)
    for counts in processes:
        for path, count in counts.calls.items():
            calls[path] += count
    mean_calls = {path: count * share for path, count in calls.items()}
    first = processes[0]
    return Counts(entries, mean_calls, first.uncounted, peaks=first.peaks)


def _stated(run: Mapping[str, Any]) -> Counts:
    """Read the counts that `profiling.run` states: paths begin with the phase, for all layers together."""
    flops = _numbers(run.get("flops"))
    moved = _numbers(run.get("bytes"))
    kind = str(run.get("dtype", ""))
    entries: dict[Key, Entry] = {}
    for path in {**flops, **moved}:
        phase, *_ = path.split(PATH_SEPARATOR)
        by_kind = {kind: flops[path]} if path in flops else {}
        entries[phase, path] = Entry(Figures(by_kind, moved.get(path, 0)), None)
    return Counts(entries, {}, {}, is_stated=True)


def _numbers(value: Any) -> dict[str, float]:
    """Return the numbers of a mapping by their names; of anything else none."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: number for name, number in items if isinstance(number, int | float) and 0 <= number < 2**80}


@dataclass(frozen=True, slots=True)
class Efficiency:
    """One range, or several of one name: kernel time, ns, and what is computed and moved in that time."""

    path: Path
    phase: str
    kernel_ns: Number
    figures: Figures

    def per_second(self, amount: float) -> float | None:
        """Divide an amount by the kernel time."""
        return amount / (self.kernel_ns / 1e9) if amount and self.kernel_ns else None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        return self.figures.total / self.figures.bytes if self.figures.bytes and self.figures.total else None

    def of_compute(self, peak: Peak) -> float | None:
        """Return which share of its arithmetic's peak it reaches."""
        least = seconds(self.figures.flops, peak)
        return least / (self.kernel_ns / 1e9) if least and self.kernel_ns else None

    def of_memory(self, peak: Peak) -> float | None:
        """Return which share of the memory's bandwidth it reaches."""
        rate = self.per_second(self.figures.bytes)
        return rate / peak.bytes if rate else None

    def bound(self, peak: Peak) -> str | None:
        """Return which of the two limits it is nearer to, or neither; None if that is unknown."""
        if self.figures.total and seconds(self.figures.flops, peak) is None:
            return None
        compute = self.of_compute(peak) or 0.0
        memory = self.of_memory(peak) or 0.0
        if not compute and not memory:
            return None
        if max(compute, memory) < FAR_BELOW:
            return NEITHER
        return COMPUTE if compute >= memory else MEMORY


@dataclass(frozen=True, slots=True)
class Joined:
    """The ranges with what was counted in them, and the counted paths that the report has no range for.

    The figures of those paths, `moved`, are in those of the ranges around them.
    """

    rows: tuple[Efficiency, ...]
    all_computed: Figures
    model: Figures  # of forward and backward, without what is computed again
    moved: Figures
    unjoined: tuple[Key, ...]


def joined(report: Report, counts: Counts) -> Joined:
    """Join counts to the ranges of a whole report."""
    steps = _steps(report)
    places, around = _places(report, counts, steps)
    figures: defaultdict[Place, Figures] = defaultdict(lambda: NOTHING)
    for key, of_key in (places | around).items():
        tails = len({_tail(path, steps) for path, _ in of_key})
        entry = counts.by_key[key]
        each = entry.of_each(tails) if key in places else entry.whole.times(1 / max(tails, 1))
        for path, phase in of_key:
            figures[path, phase] += each.times(steps[_step_of(path, steps)])
    count = 1 if report.per_step else report.steps
    return Joined(
        rows=_in_ranges(report, figures),
        all_computed=counts.whole.times(count),
        model=_of_model(counts).times(count),
        moved=sum((counts.by_key[key].whole for key in around), NOTHING).times(count),
        unjoined=tuple(around),
    )


def joined_by_shapes(report: Report, rows: Iterable[OperatorRow]) -> Joined:
    """Join the costs of operators, as their shapes tell them, to the ranges of a whole report in which they ran.

    `rows` are those of the whole report, with paths as they are recorded.
    """
    figures: defaultdict[Place, Figures] = defaultdict(lambda: NOTHING)
    model = NOTHING
    for row in rows:
        flops = {row.arithmetic: row.flops} if row.flops else {}
        figure = Figures(flops, row.bytes or 0)
        figures[row.path, row.phase] += figure
        if row.phase in (FORWARD, BACKWARD) and not row.recompute:
            model += figure
    everything = sum(figures.values(), NOTHING)
    return Joined(_in_ranges(report, figures), everything, model, moved=NOTHING, unjoined=())


def other_calls(report: Report, counts: Counts) -> tuple[str, float, float] | None:
    """Return a model that the counted step called more or less often than a measured one: its path and both."""
    steps = _steps(report)
    models = report.provenance.models
    calls: dict[str, list[RangeRow]] = {path: [] for path in counts.calls}
    for row in report.ranges:
        tail = _tail(row.path, steps)
        path = PATH_SEPARATOR.join(tail)
        is_in_step = row.phase == FORWARD and row.instances is not None and tail != row.path
        is_model = tail[-1:] and tail[-1] in models and not any(name in models for name in tail[:-1])
        if is_in_step and (path in calls or (is_model and not counts.is_stated)):
            calls.setdefault(path, []).append(row)
    for path, rows in calls.items():
        counted = counts.calls.get(path, 0)
        step_count = sum(steps[_step_of(row.path, steps)] for row in rows)
        measured = sum(row.instances or 0 for row in rows) / step_count if step_count else counted
        if abs(measured - counted) > 0.01 * counted:
            return path, counted, measured
    return None


def by_name(rows: Iterable[Efficiency], named: Mapping[Path, Path]) -> tuple[Efficiency, ...]:
    """Add up the ranges that get one name, as `layer *`."""
    sums: dict[Place, Efficiency] = {}
    for row in rows:
        place = named[row.path], row.phase
        before = sums.get(place, Efficiency(*place, 0, NOTHING))
        sums[place] = Efficiency(*place, before.kernel_ns + row.kernel_ns, before.figures + row.figures)
    return tuple(sums.values())


def seconds(flops: Mapping[str, float], peak: Peak) -> float | None:
    """Return the least time of FLOPs, each arithmetic at its peak; None where a peak is unknown."""
    rates = {kind: peak.flops(kind) for kind, count in flops.items() if count}
    return sum(flops[kind] / rate for kind, rate in rates.items() if rate) if all(rates.values()) else None


def _steps(report: Report) -> dict[Path, float]:
    """Count the steps of the report's figures by path."""
    is_step = step_matcher(report.step)
    counts: defaultdict[Path, float] = defaultdict(float)
    for row in report.ranges:
        if row.instances and is_step(row.path[-1]) and not any(map(is_step, row.path[:-1])):
            counts[row.path] += row.instances
    return dict(counts)


def _step_of(path: Path, steps: Mapping[Path, float]) -> Path:
    return next((path[:length] for length in range(1, len(path) + 1) if path[:length] in steps), ())


def _tail(path: Path, steps: Mapping[Path, float]) -> Path:
    return path[len(_step_of(path, steps)) :]


def _places(
    report: Report, counts: Counts, steps: Mapping[Path, float]
) -> tuple[dict[Key, list[Place]], dict[Key, list[Place]]]:
    """Return the report's ranges of each counted path, and of those that it lacks the nearest ranges around.

    The ranges of a path are those of its phase, else those of the only other one.
    """
    in_steps = [row for row in report.ranges if _step_of(row.path, steps)]
    phases: defaultdict[Path, set[str]] = defaultdict(set)
    for row in in_steps:
        phases[row.path].add(row.phase)
    by_key: defaultdict[Key, list[Place]] = defaultdict(list)
    joining: defaultdict[Key, list[Place]] = defaultdict(list)
    paths: defaultdict[Key, set[Path]] = defaultdict(set)
    for row, phase in product(in_steps, dict.fromkeys(phase for phase, _ in counts.by_key)):
        if phase == row.phase or len(phases[row.path]) == 1:
            place = (row.path, row.phase)
            tail = _tail(row.path, steps)
            keys = [*dict.fromkeys(keys_of(phase, tail))]
            for key in keys:
                by_key[key].append(place)
            if counted := [key for key in keys if key in counts.by_key]:
                joining[counted[0]].append(place)
                paths[counted[0]].add(tail)
    # Where the report has more or fewer paths of a name than were counted, they are other ranges.
    places = {
        key: of_key for key, of_key in joining.items() if counts.by_key[key].paths in (None, len(paths[key]))
    }
    around: dict[Key, list[Place]] = {}
    for phase, path in (key for key in counts.by_key if key not in places):
        names = path.split(PATH_SEPARATOR)
        outer = ((phase, PATH_SEPARATOR.join(names[:length])) for length in range(len(names) - 1, -1, -1))
        around[phase, path] = next((by_key[key] for key in outer if key in by_key), [])
    return places, around


def _of_model(counts: Counts) -> Figures:
    """Return the figures of forward and backward, without what is computed again."""
    figures = NOTHING
    for (phase, path), entry in counts.by_key.items():
        if phase in (FORWARD, BACKWARD) and RECOMPUTE not in path.split(PATH_SEPARATOR):
            figures += entry.whole
    return figures


def _in_ranges(report: Report, figures: Mapping[Place, Figures]) -> tuple[Efficiency, ...]:
    """Return the ranges in which something is computed, with what is computed inside them."""
    rows = {(row.path, row.phase): row for row in report.ranges}
    inclusive = _with_inner(figures, rows)
    return tuple(
        Efficiency(row.path, row.phase, row.inclusive_ns, inclusive[place])
        for place, row in rows.items()
        if place in inclusive
    )


def _with_inner(of_places: Mapping[Place, Figures], rows: Mapping[Place, RangeRow]) -> dict[Place, Figures]:
    """Add to every range what is computed in those inside it, whatever their phase."""
    phases: defaultdict[Path, list[str]] = defaultdict(list)
    for path, phase in rows:
        phases[path].append(phase)
    inclusive: defaultdict[Place, Figures] = defaultdict(lambda: NOTHING)
    for (path, phase), figures in of_places.items():
        for length in range(1, len(path) + 1):
            around = phases.get(path[:length], [])
            if around:
                inclusive[path[:length], phase if phase in around else around[0]] += figures
    return dict(inclusive)
