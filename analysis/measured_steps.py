"""Which ranges are the measured steps: what figures per step divide by, and are compared between."""

from __future__ import annotations

import numpy as np

from analysis.attribution import Attribution
from analysis.trace import KERNEL, Bools, Int32s, Int64s


def measured_steps(attribution: Attribution, *, include_warm_up: bool = False) -> Int32s:
    """Return the measured steps, in the order of their starts: positions among the attribution's ranges.

    A step inside another is a part of it; those in warm-up are left out unless asked for.
    """
    ranges, home = attribution.ranges, attribution.home
    shown = np.flatnonzero(home >= 0)
    is_step = _is_step(attribution)[shown]
    if not is_step.any():
        return np.empty(0, np.int32)
    forest = attribution.forest
    inside = forest.nearest(np.where(_is_step(attribution)[forest.range], 0, -1).astype(np.int32)) >= 0
    above = forest.above(home[shown])
    outermost = is_step & ~np.where(above >= 0, inside[above], False)
    counted = outermost & (include_warm_up | ~attribution.warm_up[home[shown]])
    steps = shown[counted]
    return steps[np.argsort(ranges.start_ns[steps], kind="stable")].astype(np.int32)


def kernels_per_step(attribution: Attribution, *, include_warm_up: bool = False) -> Int64s:
    """Count the kernels inside each of `measured_steps`, in their order; adopted and linked ones too."""
    steps, forest = measured_steps(attribution, include_warm_up=include_warm_up), attribution.forest
    number = np.full(len(attribution.ranges), -1, np.int32)
    number[steps] = np.arange(len(steps))
    of_node = np.append(forest.nearest(number[forest.range]), np.int32(-1))  # the last is for work in no range
    step = of_node[attribution.node[attribution.trace.work.kind == KERNEL]]
    return np.bincount(step[step >= 0], minlength=len(steps)).astype(np.int64)


def _is_step(attribution: Attribution) -> Bools:
    """Tell per range whether it is named as a step to count."""
    flags: Bools = attribution.facts.measured[attribution.ranges.name_id]
    return flags
