"""What each measured step took: as a whole, by phase, and in every range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from analysis.attribution import Attribution
from analysis.paths import Paths
from analysis.phase_spans import Extents
from analysis.report import Path
from analysis.spread import per_path_and_step, per_step
from analysis.trace import KERNEL
from analysis.vocabulary import PHASES


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One measured step: its kernels by phase (those in no phase's range are `other`), GPU span and CPU range, ns.

    The span is None for a step without GPU work.
    """

    step: int
    phase_ns: tuple[int, ...]  # one for each of PHASES
    kernels: int
    span_ns: int | None
    cpu_ns: int

    @property
    def kernel_ns(self) -> int:
        """The time of all its kernels."""
        return sum(self.phase_ns)


@dataclass(frozen=True, slots=True)
class RangeSteps:
    """A path in the steps where it has GPU work: the time of the kernels inside and the GPU span, ns, by step.

    Spans are NaN where one of its places holds work that was linked to it: such a place has none of its own.
    """

    path: Path
    phase: str
    steps: tuple[int, ...]
    kernel_ns: tuple[int, ...]
    span_ns: tuple[float, ...]

    @property
    def median_ns(self) -> float:
        """The median kernel time."""
        return median(self.kernel_ns)

    @property
    def slowest(self) -> int:
        """The step with the most kernel time, the first of several."""
        return self.steps[self.kernel_ns.index(max(self.kernel_ns))]

    @property
    def spread(self) -> float | None:
        """By how much the kernel times differ, longest from shortest, as a share of their median."""
        return (max(self.kernel_ns) - min(self.kernel_ns)) / self.median_ns if self.median_ns else None


def steps_of(attribution: Attribution, *, include_warm_up: bool = False) -> tuple[StepFigures, ...]:
    """Measure every step as a whole."""
    extents = Extents(attribution, include_warm_up=include_warm_up)
    work, ranges = attribution.trace.work, attribution.ranges
    rows = np.flatnonzero(extents.inside(len(PHASES)))
    step, count = extents.step_of[rows], len(extents.steps)
    phase = np.where(extents.phase_of[rows] >= 0, extents.phase_of[rows], len(PHASES) - 1)
    kernel = work.kind[rows] == KERNEL
    phase_ns = np.zeros((count, len(PHASES)), np.int64)
    np.add.at(phase_ns, (step, phase), np.where(kernel, work.duration_ns[rows], 0))
    start, end = np.full(count, 2**63 - 1), np.full(count, -(2**63))
    np.minimum.at(start, step, work.start_ns[rows])
    np.maximum.at(end, step, work.end_ns[rows])
    kernels = np.bincount(step[kernel], minlength=count)
    cpu_ns = (ranges.end_ns - ranges.start_ns)[extents.steps]
    return tuple(
        StepFigures(
            step=number,
            phase_ns=tuple(phase_ns[number].tolist()),
            kernels=int(kernels[number]),
            span_ns=int(end[number]) - int(start[number]) if end[number] >= start[number] else None,
            cpu_ns=int(cpu_ns[number]),
        )
        for number in range(count)
    )


def ranges_of(
    attribution: Attribution, naming: Callable[[Path], Path], *, include_warm_up: bool = False
) -> tuple[RangeSteps, ...]:
    """Measure every path in every step; paths that `naming` gives one name are added up."""
    paths = Paths(attribution)
    frame = per_step(attribution, include_warm_up=include_warm_up)
    number: dict[tuple[Path, int], int] = {}
    keys = [
        number.setdefault((naming(path), phase), len(number))
        for path, phase in zip(paths.paths, paths.phase, strict=True)
    ]
    frame["path"] = np.array(keys, np.int64)[frame["path"].to_numpy()]
    summed = per_path_and_step(frame)
    named = list(number)
    return tuple(
        RangeSteps(
            path=named[rows["path"].iloc[0]][0],
            phase=PHASES[named[rows["path"].iloc[0]][1]],
            steps=tuple(rows["step"].tolist()),
            kernel_ns=tuple(rows["kernel_ns"].tolist()),
            span_ns=tuple(rows["span_ns"].tolist()),
        )
        for _, rows in summed.groupby("path")
    )
