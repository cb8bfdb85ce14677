"""How much of what a GPU can do each range gets: FLOPs and bytes of a counted step, joined to kernel times.

A range's figures join the report's range of the same phase and the same path below its step; where the report
lacks that, the nearest range around it. A range then has its own and those of all ranges inside it, times the
number of its steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..report import Number, Path, RangeRow, Report
from ..vocabulary import BACKWARD, FORWARD, PATH_SEPARATOR, RECOMPUTE, step_matcher
from .counts import NOTHING, Counts, Figures, Key, keys_of
from .gpu_peaks import Peak

#: A range that reaches less of both the arithmetic's and the memory's peak than this is bound by neither.
FAR_BELOW = 0.25
COMPUTE, MEMORY, NEITHER = "compute", "memory", "neither"
Place = tuple[Path, str]
#: A range, a phase whose counts it may have, and its path below its step.
Inside = tuple[Place, str, Path]


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
        compute, memory = self.of_compute(peak) or 0.0, self.of_memory(peak) or 0.0
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
    inside = [*_inside(report, counts, steps)]
    places = _places(inside, counts)
    figures: defaultdict[Place, Figures] = defaultdict(lambda: NOTHING)
    unjoined = tuple(key for key in counts.by_key if key not in places)
    around = _around(inside, unjoined)
    for key, of_key in (*places.items(), *around.items()):
        tails = len({_tail(path, steps) for path, _ in of_key})
        entry = counts.by_key[key]
        each = entry.of_each(tails) if key in places else entry.whole.times(1 / tails)
        for place in of_key:
            figures[place] += each.times(steps[_step_of(place[0], steps)])
    rows = {(row.path, row.phase): row for row in report.ranges}
    inclusive = _with_inner(figures, rows)
    count = 1 if report.per_step else report.steps
    model = (
        entry.whole
        for (phase, path), entry in counts.by_key.items()
        if phase in (FORWARD, BACKWARD) and RECOMPUTE not in path.split(PATH_SEPARATOR)
    )
    return Joined(
        rows=tuple(
            Efficiency(row.path, row.phase, row.inclusive_ns, inclusive[place])
            for place, row in rows.items()
            if place in inclusive
        ),
        all_computed=counts.whole.times(count),
        model=sum(model, NOTHING).times(count),
        moved=sum((counts.by_key[key].whole for key in unjoined), NOTHING).times(count),
        unjoined=unjoined,
    )


def other_calls(report: Report, counts: Counts) -> tuple[str, float, float] | None:
    """Return a model that the counted step called more or less often than a measured one: its path and both."""
    steps, models = _steps(report), report.provenance.models
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


def _places(inside: Iterable[Inside], counts: Counts) -> dict[Key, list[Place]]:
    """Return the report's ranges of each counted path: those of its phase, else those of the only other one."""
    by_key: defaultdict[Key, list[Place]] = defaultdict(list)
    paths: defaultdict[Key, set[Path]] = defaultdict(set)
    for place, phase, tail in inside:
        key = next((key for key in keys_of(phase, tail) if key in counts.by_key), None)
        if key is not None:
            by_key[key].append(place)
            paths[key].add(tail)
    # Where the report has more or fewer paths of a name than were counted, they are other ranges.
    return {key: places for key, places in by_key.items() if counts.by_key[key].paths in (None, len(paths[key]))}


def _around(inside: Iterable[Inside], unjoined: Iterable[Key]) -> dict[Key, list[Place]]:
    """Return the nearest ranges around each counted path that the report lacks, or else the steps."""
    by_key: defaultdict[Key, list[Place]] = defaultdict(list)
    for place, phase, tail in inside:
        for key in dict.fromkeys(keys_of(phase, tail)):
            by_key[key].append(place)
    around: dict[Key, list[Place]] = {}
    for phase, path in unjoined:
        names = path.split(PATH_SEPARATOR)
        outer = (PATH_SEPARATOR.join(names[:length]) for length in range(len(names) - 1, -1, -1))
        around[phase, path] = next((by_key[phase, above] for above in outer if (phase, above) in by_key), [])
    return {key: places for key, places in around.items() if places}


def _inside(report: Report, counts: Counts, steps: Mapping[Path, float]) -> Iterator[Inside]:
    """Yield the ranges in steps, with each phase whose counts they may have, and their path below the step."""
    inside = [row for row in report.ranges if _step_of(row.path, steps)]
    phases: defaultdict[Path, set[str]] = defaultdict(set)
    for row in inside:
        phases[row.path].add(row.phase)
    for row in inside:
        for phase in {key[0] for key in counts.by_key}:
            if phase == row.phase or (phase not in phases[row.path] and len(phases[row.path]) == 1):
                yield (row.path, row.phase), phase, _tail(row.path, steps)


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
