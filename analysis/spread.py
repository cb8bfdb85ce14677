"""How much the steps differ: the kernel time and the GPU span of every range in every measured step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.attribution import Attribution
from analysis.instances import Instances, instances, projections
from analysis.measured_steps import measured_steps
from analysis.paths import Paths
from analysis.trace import KERNEL, Bools, Int32s, Int64s


def per_step(attribution: Attribution, *, include_warm_up: bool = False) -> pd.DataFrame:
    """Return one row per path and step in which it has GPU work.

    Columns: path (position in `paths.Paths`), step (0 is the first), kernel_ns (kernels inside, at any depth),
    span_ns (per instance first start to last end of its work, added up; NaN where an instance is a place of linked
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
    """Add up rows of one path and step; a sum with a part that does not exist (NaN) does not exist either."""
    groups = rows.groupby(["path", "step"], sort=True)
    whole = groups["span_ns"].count() == groups.size()
    summed = groups.sum()
    return summed.assign(span_ns=summed["span_ns"].where(whole)).reset_index()


def _steps(places: Instances, steps: Int32s) -> Int64s:
    """Return per instance the number of the step that it is, or is inside of; -1 for none."""
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
    """Tell per instance whether it, or a place above it, is one that linked work was led to."""
    linked = np.zeros(len(places), np.bool_)
    linked[places.of_node[:-1][attribution.linked]] = True
    for at in places.of_depth()[1:]:
        linked[at] |= linked[places.parent[at]]
    return linked
