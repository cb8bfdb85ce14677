"""How much the steps differ: the kernel time and the GPU span of every range in every measured step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import pandas as pd

from ..attribution.causes import Attribution
from ..attribution.places import Instances, Paths, instances, measured_steps, projections
from ..report import Path
from ..support.small_numbers import bounds
from ..trace import KERNEL, Bools, Int32s, Int64s
from ..vocabulary import PHASES
from .spans import Extents


def per_step(attribution: Attribution, *, include_warm_up: bool = False) -> pd.DataFrame:
    """Return one row per path and step in which it has GPU work.

    Columns: path (position in `paths.Paths`), step (0 is the first), kernel_ns (kernels inside, at any depth),
    span_ns (per instance first start to last end of its work, added up; NaN if an instance is a place of linked
    work, which has none).
    """
    places, steps = instances(attribution), measured_steps(attribution, include_warm_up=include_warm_up)
    work = np.flatnonzero(attribution.node >= 0)
    if not include_warm_up:
        work = work[~attribution.warm_up[attribution.node[work]]]
    one_group = np.zeros(len(attribution.node), np.int32)
    rows = projections(places, work, attribution, one_group, attribution.trace.work.kind == KERNEL)
    frame = pd.DataFrame(
        {
            "path": _paths(attribution, places)[rows.instance],
            "step": _steps(places, steps)[rows.instance],
            "kernel_ns": rows.kernel_ns,
            "span_ns": np.where(_linked(attribution, places)[rows.instance], np.nan, rows.end_ns - rows.start_ns),
        }
    )
    return per_path_and_step(frame[frame["step"] >= 0])


def per_path_and_step(rows: pd.DataFrame) -> pd.DataFrame:
    """Add up rows of one path and step; NaN if any part is NaN."""
    groups = rows.groupby(["path", "step"], sort=True)
    whole = groups["span_ns"].count() == groups.size()
    summed = groups.sum()
    return summed.assign(span_ns=summed["span_ns"].where(whole)).reset_index()


def _steps(places: Instances, steps: Int32s) -> Int64s:
    """Return, per instance, the number of the step that it is, or is inside; -1 for none."""
    number = np.full(int(places.range.max(initial=-1)) + 1, -1, np.int64)
    within = steps[steps < len(number)]
    number[within] = np.flatnonzero(steps < len(number))
    step = number[places.range] if len(places) else np.empty(0, np.int64)
    for at in places.of_depth()[1:]:
        step[at] = np.where(step[places.parent[at]] >= 0, step[places.parent[at]], step[at])
    return step


def _paths(attribution: Attribution, places: Instances) -> Int32s:
    paths: Int32s = Paths(attribution).of_node[places.node]
    return paths


def _linked(attribution: Attribution, places: Instances) -> Bools:
    """Return, per instance, whether it or a place above it has linked work."""
    linked = np.zeros(len(places), np.bool_)
    linked[places.of_node[:-1][attribution.linked]] = True
    for at in places.of_depth()[1:]:
        linked[at] |= linked[places.parent[at]]
    return linked


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One measured step: its kernels by phase (those of no phase are `other`), GPU span and CPU range, ns.

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
    phase = attribution.phase[rows]
    kernel = work.kind[rows] == KERNEL
    phase_ns = np.zeros((count, len(PHASES)), np.int64)
    np.add.at(phase_ns, (step, phase), np.where(kernel, work.duration_ns[rows], 0))
    start, end = bounds(step, work.start_ns[rows], work.end_ns[rows], count)
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
