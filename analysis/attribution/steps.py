"""What work lies in which step of a report: of the steps that attribution found (`step_making`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..trace import KERNEL, Bools, Int32s, Int64s
from .places import Attribution


def measured_steps(attribution: Attribution, *, include_warm_up: bool = False) -> Int32s:
    """Return the measured steps, int32 (steps,), in order of start: positions in the attribution's ranges."""
    steps = attribution.steps
    counts = include_warm_up | ~steps.warm_up
    return steps.range[counts]


def step_numbers(attribution: Attribution, *, include_warm_up: bool = False) -> Int64s:
    """Return the number of each of `measured_steps`: its place among all measured steps, int64 (steps,)."""
    number = attribution.steps.number
    if number is not None:
        return number
    steps = measured_steps(attribution, include_warm_up=include_warm_up)
    return np.arange(len(steps))


def step_of_nodes(attribution: Attribution, *, include_warm_up: bool) -> Int32s:
    """Return the measured step of each node, -1 for none: int32 (nodes + 1,); the last entry is for node -1."""
    steps = measured_steps(attribution, include_warm_up=include_warm_up)
    return range_of_nodes(attribution, steps)


def nodes_in(attribution: Attribution, ranges: NDArray[np.integer]) -> Bools:
    """Mark the nodes that are in some ranges, or are these: bool (nodes,)."""
    return range_of_nodes(attribution, ranges)[:-1] >= 0


def range_of_nodes(attribution: Attribution, ranges: NDArray[np.integer]) -> Int32s:
    """Return which of some ranges each node is in, as its place among them, -1 for none: int32 (nodes + 1,).

    The last entry is for node -1.
    """
    forest = attribution.forest
    if not len(ranges):
        return np.full(len(forest) + 1, -1, np.int32)
    number = np.full(len(attribution.ranges), -1, np.int32)
    number[ranges] = np.arange(len(ranges))
    number_of_node = number[forest.range]
    return forest.nearest(number_of_node)


def in_steps(
    attribution: Attribution, numbers: NDArray[np.integer], *, include_warm_up: bool = False
) -> Attribution:
    """Return the attribution with only the work inside some of the measured steps, for figures per step.

    `numbers` are their places among the measured steps, in order. The ranges that are shown are those in such a
    step, or around one.
    """
    trace = attribution.trace
    all_steps = attribution.steps
    home = attribution.home
    steps = measured_steps(attribution, include_warm_up=include_warm_up)[numbers]
    step_of_node = range_of_nodes(attribution, steps)
    is_in_step = step_of_node >= 0
    inside = is_in_step[attribution.node]
    rows = np.flatnonzero(inside)
    visible = attribution.forest.around(is_in_step[:-1])
    is_warm_up = np.isin(steps, all_steps.range[all_steps.warm_up])
    return replace(
        attribution,
        trace=replace(trace, work=trace.work.take(inside)),
        home=np.where(visible[home], home, -1).astype(np.int32),
        part_of=(attribution.of_all_work, attribution.rows_of_all[rows]),
        steps=replace(all_steps, range=steps, warm_up=is_warm_up, number=np.asarray(numbers)),
        node=attribution.node[rows],
        how=attribution.how[rows],
        phase=attribution.phase[rows],
        unfit=attribution.unfit[rows],
    )


def outermost_calls(attribution: Attribution) -> Bools:
    """Mark the ranges around calls of models, and around their backward, that are in no other such range."""
    ranges = attribution.ranges
    home = attribution.home
    forest = attribution.forest
    of_model = ranges.of_model & (home >= 0)
    is_below = forest.below(of_model[forest.range])
    outermost: Bools = of_model & ~is_below[forest.above(home)]
    return outermost


def kernels_per_step(attribution: Attribution) -> Int64s:
    """Count the kernels inside each of `measured_steps`, including adopted and linked ones: int64 (steps,)."""
    step_of_node = step_of_nodes(attribution, include_warm_up=False)
    is_kernel = attribution.trace.work.kind == KERNEL
    step = step_of_node[attribution.node[is_kernel]]
    count = len(measured_steps(attribution))
    return np.bincount(step[step >= 0], minlength=count).astype(np.int64)


def evaluation_ns(attribution: Attribution) -> int:
    """Add up the work of evaluation, which is in no step, ns."""
    is_evaluation = np.append(attribution.steps.evaluation, False)
    inside = is_evaluation[attribution.node]
    return int(attribution.trace.work.duration_ns[inside].sum())
