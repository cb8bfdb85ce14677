"""FLOPs and least bytes of one step, as reports hold them: counted by annotation, or stated by a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..report import Path, Report
from ..vocabulary import ELEMENTWISE, PATH_SEPARATOR, is_warm_up, step_matcher

_INDEX = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_INDEX_ABOVE = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9]|$)")
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
        """Return so many times these."""
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
    """Return what a report says of one step; None where it says nothing."""
    inside = below_step(report)
    counted = [_counted(entries, inside) for entries in report.provenance.counted]
    counted = [entries for entries in counted if entries.by_key]
    if counted:
        return _mean(counted)
    run = report.provenance.run
    return _stated(run) if isinstance(run.get("flops"), Mapping) else None


def below_step(report: Report) -> Callable[[Path], Path]:
    """Return what cuts off a path all that is around the inside of its step, or of its warm-up."""
    is_step = step_matcher(report.step)

    def inside(path: Path) -> Path:
        step = next((index for index, name in enumerate(path) if is_step(name)), None)
        if step is None:
            step = max((index for index, name in enumerate(path) if is_warm_up(name)), default=-1)
        return path[step + 1 :]

    return inside


def keys_of(phase: str, path: Path) -> Iterator[Key]:
    """Yield the keys that a path's entry may have."""
    text = PATH_SEPARATOR.join(path)
    yield phase, text
    yield phase, _INDEX_ABOVE.sub("*", text)
    yield phase, _INDEX.sub("*", text)


def _counted(mark: Mapping[str, Any], inside: Callable[[Path], Path]) -> Counts:
    """Read what one process counted."""

    def cut(path: str) -> str:
        return PATH_SEPARATOR.join(inside(tuple(path.split(PATH_SEPARATOR)) if path else ()))

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
    """Return what a step of any of several processes computes, on average."""
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
    calls = {
        path: sum(process.calls.get(path, 0) for process in processes) * share
        for process in processes
        for path in process.calls
    }
    return Counts(entries, calls, processes[0].uncounted, peaks=processes[0].peaks)


def _stated(run: Mapping[str, Any]) -> Counts:
    """Read what `profiling.run` says of its model: paths begin with the phase, of all layers together."""
    flops, moved = _numbers(run.get("flops")), _numbers(run.get("bytes"))
    kind = str(run.get("dtype", ""))
    figures = {
        path: Figures({kind: flops[path]} if path in flops else {}, moved.get(path, 0))
        for path in {**flops, **moved}
    }
    entries = {(path.split(PATH_SEPARATOR)[0], path): Entry(figure, None) for path, figure in figures.items()}
    return Counts(entries, {}, {}, is_stated=True)


def _numbers(value: Any) -> dict[str, float]:
    """Return the numbers of a mapping by their names; of anything else none."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: number for name, number in items if isinstance(number, int | float) and 0 <= number < 2**80}
