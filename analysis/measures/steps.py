"""How much the steps differ: the kernel time and the GPU span of every range in every measured step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Instances, Paths, projections
from ..attribution.steps import measured_steps, step_numbers, step_of_nodes
from ..readers.columns import Interner
from ..report import Path
from ..support.small_numbers import bounds, each_row, grouped_rows, rows_of_each, summed
from ..trace import KERNEL, KINDS, Int64s, marked
from ..vocabulary import PHASES
from ..vocabulary.served import Held, held
from .spans import STEP, Extents


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
    work = attribution.trace.work
    ranges = attribution.ranges
    rows = np.flatnonzero(extents.inside(STEP))
    step = extents.step_of[rows]
    count = len(extents.steps)
    phase = attribution.phase[rows]
    kernel = work.kind[rows] == KERNEL
    phase_ns = np.zeros((count, len(PHASES)), np.int64)
    np.add.at(phase_ns, (step, phase), np.where(kernel, work.duration_ns[rows], 0))
    start, end = bounds(step, work.start_ns[rows], work.end_ns[rows], count)
    kernels = np.bincount(step[kernel], minlength=count)
    cpu_ns = (ranges.end_ns - ranges.start_ns)[extents.steps]
    step_number = step_numbers(attribution, include_warm_up=include_warm_up).tolist()
    return tuple(
        StepFigures(
            step=step_number[number],
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
    places = Instances(attribution)
    number = Interner[tuple[Path, int]]()
    names = [number((naming(path), phase)) for path, phase in zip(paths.paths, paths.phase, strict=False)]
    step_of_node = step_of_nodes(attribution, include_warm_up=include_warm_up)
    counted = (step_of_node >= 0) & ~attribution.left_out(include_warm_up=include_warm_up)
    work = np.flatnonzero(counted[attribution.node])
    one_group = np.zeros(len(attribution.node), np.int32)
    rows = projections(places, work, attribution, one_group, attribution.trace.work.kind == KERNEL)
    node = places.node[rows.instance]
    rows = rows.take(step_of_node[node] >= 0)
    node = node[step_of_node[node] >= 0]
    # Instances that have linked work, or are below one that has.
    linked = marked(places.of_node[:-1][attribution.linked], len(places.node))
    span_ns = np.where(places.forest.below(linked)[rows.instance], np.nan, rows.end_ns - rows.start_ns)
    (name, step), cell = grouped_rows(np.array(names, np.int64)[paths.of_node[node]], step_of_node[node])
    step_number = step_numbers(attribution, include_warm_up=include_warm_up)[step]
    kernel_ns = summed(cell, rows.kernel_ns, len(step))
    span_ns = np.bincount(cell, span_ns, len(step))
    named = list(number)
    ranges = []
    for (of_name,), cells in rows_of_each(name):
        path, phase = named[of_name]
        columns = (tuple(column[cells].tolist()) for column in (step_number, kernel_ns, span_ns))
        ranges.append(RangeSteps(path, PHASES[phase], *columns))
    return tuple(ranges)


#: The time of each row of kernels in each measured step, ns, by path, phase, kind and kernel.
StepTimes = Mapping[tuple[Path, str, str, str], Int64s]


def step_times(attribution: Attribution, *, include_warm_up: bool = False) -> StepTimes:
    """Add up the work of each path, phase, kind and kernel by measured step; empty with fewer than two steps."""
    steps = len(measured_steps(attribution, include_warm_up=include_warm_up))
    if steps < 2:
        return {}
    step = step_of_nodes(attribution, include_warm_up=include_warm_up)[attribution.node]
    rows = np.flatnonzero(step >= 0)
    work = attribution.trace.work.take(rows)
    paths = Paths(attribution)
    path_of_work = paths.names_of_node[attribution.node[rows]]
    keys, group = grouped_rows(path_of_work, attribution.phase[rows], work.kind, work.name_id)
    times_ns = np.zeros((len(keys[0]), steps), np.int64)
    np.add.at(times_ns, (group, step[rows]), work.duration_ns)
    by_row = {}
    for (path, phase, kind, name), of_steps_ns in zip(each_row(*keys), times_ns, strict=True):
        by_row[paths.names[path], PHASES[phase], KINDS[kind], attribution.trace.names[name]] = of_steps_ns
    return by_row
