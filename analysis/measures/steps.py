"""How much the steps differ: the kernel time and the GPU span of every range in every measured step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..attribution.causes import Attribution
from ..attribution.instances import Instances, instances, projections
from ..attribution.paths import Paths
from ..attribution.steps import measured_steps, step_of_nodes
from ..report import Path
from ..support.small_numbers import bounds, summed
from ..trace import KERNEL, KINDS, Int32s, Int64s
from ..vocabulary import PHASES
from ..vocabulary.served import Held, held
from .spans import Extents


def _steps(places: Instances, steps: Int32s) -> Int64s:
    """Return, per instance, the number of the step that it is, or is inside; -1 for none."""
    number = np.full(int(places.range.max(initial=-1)) + 1, -1, np.int64)
    within = steps[steps < len(number)]
    number[within] = np.flatnonzero(steps < len(number))
    step = number[places.range] if len(places) else np.empty(0, np.int64)
    for of_depth in places.of_depth()[1:]:
        step[of_depth] = np.where(
            step[places.parent[of_depth]] >= 0, step[places.parent[of_depth]], step[of_depth]
        )
    return step


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
    held: Held | None  # of a serving engine's step, what its name says that it held

    @property
    def tokens_per_s(self) -> float | None:
        """How many tokens it computed per second of its GPU span; None where either is not known."""
        tokens = self.held.tokens if self.held else None
        return tokens / (self.span_ns / 1e9) if tokens is not None and self.span_ns else None

    @property
    def kernel_ns(self) -> int:
        """The time of all its kernels."""
        return sum(self.phase_ns)


@dataclass(frozen=True, slots=True)
class RangeSteps:
    """A path in the steps where it has GPU work: the time of the kernels inside and the GPU span, ns, by step.

    Spans are NaN where one of its places holds linked work, which has no span.
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
            held=held(attribution.trace.names[ranges.name_id[extents.steps[number]]]),
        )
        for number in range(count)
    )


def ranges_of(
    attribution: Attribution, naming: Callable[[Path], Path], *, include_warm_up: bool = False
) -> tuple[RangeSteps, ...]:
    """Measure every path in every step; paths that `naming` gives one name are added up."""
    paths = Paths(attribution)
    number: dict[tuple[Path, int], int] = {}
    names = [
        number.setdefault((naming(path), phase), len(number))
        for path, phase in zip(paths.paths, paths.phase, strict=True)
    ]
    name_of_node = np.array(names, np.int64)[paths.of_node[:-1]]
    columns = _by_name_and_step(attribution, name_of_node, include_warm_up=include_warm_up)
    named, of_name = list(number), np.flatnonzero(np.diff(columns[0])) + 1
    return tuple(
        RangeSteps(named[name[0]][0], PHASES[named[name[0]][1]], *(tuple(column.tolist()) for column in figures))
        for name, *figures in zip(*(np.split(column, of_name) for column in columns), strict=True)
        if len(name)
    )


def _by_name_and_step(
    attribution: Attribution, name_of_node: Int64s, *, include_warm_up: bool
) -> tuple[NDArray[Any], ...]:
    """Return columns by name and step with GPU work, in this order: both, the kernels' time and the span, ns."""
    places, steps = instances(attribution), measured_steps(attribution, include_warm_up=include_warm_up)
    work = np.flatnonzero(attribution.node >= 0)
    if not include_warm_up:
        work = work[~attribution.warm_up[attribution.node[work]]]
    one_group = np.zeros(len(attribution.node), np.int32)
    rows = projections(places, work, attribution, one_group, attribution.trace.work.kind == KERNEL)
    step = _steps(places, steps)[rows.instance]
    rows, step = rows.take(step >= 0), step[step >= 0]
    count = max(1, len(steps))
    cells, cell = np.unique(name_of_node[places.node[rows.instance]] * count + step, return_inverse=True)
    # Instances that have linked work, or are below one that has.
    linked = np.zeros(len(places), np.bool_)
    linked[places.of_node[:-1][attribution.linked]] = True
    for of_depth in places.of_depth()[1:]:
        linked[of_depth] |= linked[places.parent[of_depth]]
    span_ns = np.where(linked[rows.instance], np.nan, rows.end_ns - rows.start_ns)
    return (
        *np.divmod(cells, count),
        summed(cell, rows.kernel_ns, len(cells)),
        np.bincount(cell, span_ns, len(cells)),
    )


#: The time of each row of kernels in each measured step, ns, by path, phase, kind and kernel.
StepTimes = Mapping[tuple[Path, str, str, str], Int64s]


def step_times(attribution: Attribution, *, include_warm_up: bool = False) -> StepTimes:
    """Add up the work of each path, phase, kind and kernel by measured step; empty with fewer than two steps."""
    steps = len(measured_steps(attribution, include_warm_up=include_warm_up))
    if steps < 2:
        return {}
    step = step_of_nodes(attribution, include_warm_up=include_warm_up)[attribution.node]
    rows = np.flatnonzero(step >= 0)
    work, paths = attribution.trace.work.take(rows), Paths(attribution)
    path = paths.by_name[paths.of_node[attribution.node[rows]] + 1]
    keys = np.stack([path, attribution.phase[rows], work.kind, work.name_id]).astype(np.int64)
    groups, group = np.unique(keys, axis=1, return_inverse=True)
    times_ns = np.zeros((groups.shape[1], steps), np.int64)
    np.add.at(times_ns, (group.reshape(-1), step[rows]), work.duration_ns)
    return {
        (paths.paths[p - 1] if p else (), PHASES[phase], KINDS[kind], attribution.trace.names[name]): times_ns[
            number
        ]
        for number, (p, phase, kind, name) in enumerate(groups.T.tolist())
    }
