"""Instances: each place of a range below its outer ranges, once, however many nodes the forest has for it.

Adoption and linking append nodes, so one range below the same ranges can be several nodes. An *instance* is all of
them; GPU spans are measured, and timelines drawn, by instance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..trace import KERNEL, Bools, Columns, Int32s, Int64s, Path
from ..vocabulary import PHASES
from .causes import Attribution
from .user_ranges import of_titles

PHASE_BITS = len(PHASES).bit_length()  # that hold a position in PHASES


@dataclass(frozen=True, slots=True)
class Instances:
    """Columns by instance, outer before inner; `of_node` has an entry per node, and -1 for node -1."""

    of_node: Int32s
    parent: Int32s  # -1 at the top
    range: Int32s  # position among the attribution's ranges
    depth: Int32s  # how many instances lie above
    node: Int32s  # one of its nodes

    def __len__(self) -> int:
        return len(self.parent)

    def of_depth(self) -> list[Int64s]:
        """Return the instances of each depth, outermost first."""
        return [np.flatnonzero(self.depth == depth) for depth in range(int(self.depth.max(initial=-1)) + 1)]


@dataclass(frozen=True, slots=True)
class Projections(Columns):
    """Instances on the GPU, one row per instance and group (a stream, say): first start to last end of their work.

    `kernel_ns` is the time of the kernels launched inside, at any depth.
    """

    instance: Int32s
    group: Int32s
    start_ns: Int64s
    end_ns: Int64s
    kernel_ns: Int64s


def instances(attribution: Attribution) -> Instances:
    """Give each place of an attribution's forest a number."""
    forest = attribution.forest
    of_node = np.full(len(forest) + 1, -1, np.int32)
    parents, ranges, depths, nodes_of = ([np.empty(0, np.int32)] for _ in range(4))
    count = 0
    for depth, nodes in enumerate(forest.by_depth() if len(forest) else []):
        key = (of_node[forest.parent[nodes]].astype(np.int64) + 1) << 32 | forest.range[nodes]
        distinct, first, back = np.unique(key, return_index=True, return_inverse=True)
        of_node[nodes] = count + back
        parents.append(((distinct >> 32) - 1).astype(np.int32))
        ranges.append((distinct & 0xFFFFFFFF).astype(np.int32))
        depths.append(np.full(len(distinct), depth, np.int32))
        nodes_of.append(nodes[first].astype(np.int32))
        count += len(distinct)
    return Instances(of_node, *(np.concatenate(column) for column in (parents, ranges, depths, nodes_of)))


def projections(
    places: Instances, work: Int64s, attribution: Attribution, group: Int32s, kernel: Bools
) -> Projections:
    """Project instances onto the chosen pieces of work, separately for each group of theirs.

    `work` are positions in `Work`; `group` and `kernel` have one entry per piece of all work.
    """
    table = attribution.trace.work
    chosen = work[attribution.node[work] >= 0]
    rows = Projections(
        places.of_node[attribution.node[chosen]],
        group[chosen],
        table.start_ns[chosen],
        table.end_ns[chosen],
        np.where(kernel[chosen], table.duration_ns[chosen], 0),
    )
    rows = _merged(rows)
    depth = places.depth[rows.instance]
    below, done = rows.take(np.zeros(len(rows), np.bool_)), []
    for level in range(int(depth.max(initial=-1)), -1, -1):
        done.append(_merged(Projections.joined([rows.take(np.flatnonzero(depth == level)), below])))
        below = _above(done[-1], places)
    return Projections.joined(done[::-1]) if done else below


def _above(rows: Projections, places: Instances) -> Projections:
    """Move rows to the instances above them."""
    parent = places.parent[rows.instance]
    return replace(rows, instance=parent).take(parent >= 0)


def _merged(rows: Projections) -> Projections:
    """Merge all rows of an instance and group."""
    if not len(rows):
        return rows
    order = np.lexsort((rows.group, rows.instance))
    rows = rows.take(order)
    new = (rows.instance[1:] != rows.instance[:-1]) | (rows.group[1:] != rows.group[:-1])
    first = np.concatenate([[0], np.flatnonzero(new) + 1])
    return Projections(
        rows.instance[first],
        rows.group[first],
        np.minimum.reduceat(rows.start_ns, first),
        np.maximum.reduceat(rows.end_ns, first),
        np.add.reduceat(rows.kernel_ns, first),
    )


def measured_steps(attribution: Attribution, *, include_warm_up: bool = False) -> Int32s:
    """Return the measured steps, int32 (steps,), in order of start: positions in the attribution's ranges.

    A step inside another is part of it; those in warm-up are left out unless asked for.
    """
    found = attribution.found_steps
    if include_warm_up not in found:
        found[include_warm_up] = _outermost_steps(attribution, include_warm_up)
    return found[include_warm_up]


def _outermost_steps(attribution: Attribution, include_warm_up: bool) -> Int32s:
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


def in_measured_steps(attribution: Attribution, *, include_warm_up: bool = False) -> Attribution:
    """Return the attribution with only the work inside measured steps, from which figures per step are computed.

    The ranges that are shown are those in a step, or around one.
    """
    of_node = step_of_nodes(attribution, include_warm_up=include_warm_up)
    rows, home = np.flatnonzero(of_node[attribution.node] >= 0), attribution.home
    shown = of_node >= 0
    for nodes in attribution.forest.by_depth()[:0:-1]:
        shown[attribution.forest.parent[nodes[shown[nodes]]]] = True
    return replace(
        attribution,
        trace=replace(attribution.trace, work=attribution.trace.work.take(rows)),
        home=np.where(shown[home], home, -1).astype(np.int32),
        **{name: getattr(attribution, name)[rows] for name in ("node", "how", "phase", "unfit")},
    )


def kernels_per_step(attribution: Attribution, *, include_warm_up: bool = False) -> Int64s:
    """Count the kernels inside each of `measured_steps`, including adopted and linked ones: int64 (steps,)."""
    of_node = step_of_nodes(attribution, include_warm_up=include_warm_up)
    step = of_node[attribution.node[attribution.trace.work.kind == KERNEL]]
    steps = len(measured_steps(attribution, include_warm_up=include_warm_up))
    return np.bincount(step[step >= 0], minlength=steps).astype(np.int64)


def step_of_nodes(attribution: Attribution, *, include_warm_up: bool) -> Int32s:
    """Return the measured step of each node, -1 for none: int32 (nodes + 1,); the last entry is for node -1."""
    steps, forest = measured_steps(attribution, include_warm_up=include_warm_up), attribution.forest
    number = np.full(len(attribution.ranges), -1, np.int32)
    number[steps] = np.arange(len(steps))
    return np.append(forest.nearest(number[forest.range]), np.int32(-1))


def _is_step(attribution: Attribution) -> Bools:
    """Return, per range, whether its name is that of a step to count."""
    return of_titles(attribution.facts.measured, attribution.ranges)


class Paths:
    """The distinct pairs of a name path and a phase in a forest: nodes that agree in both share one.

    `of_node`, int32 (nodes + 1,), gives each node's pair, and -1 for node -1, which is the last entry. `by_name`,
    int64 (pairs + 1,), gives for pair + 1 the first pair of the same names + 1, and 0 for 0.
    """

    def __init__(self, attribution: Attribution) -> None:
        forest, names = attribution.forest, attribution.trace.names
        name_id = attribution.ranges.name_id[forest.range] if len(forest) else np.empty(0, np.int32)
        self.of_node = np.full(len(forest) + 1, -1, np.int32)
        self.paths: list[Path] = []
        self.phase: list[int] = []
        by_name = np.zeros(1, np.int64)
        for nodes in forest.by_depth() if len(forest) else []:
            above = by_name[self.of_node[forest.parent[nodes]] + 1]
            key = above << 32 | name_id[nodes].astype(np.int64) << PHASE_BITS | attribution.node_phase[nodes]
            distinct, back = np.unique(key, return_inverse=True)
            _, first, same = np.unique(distinct >> PHASE_BITS, return_index=True, return_inverse=True)
            by_name = np.append(by_name, len(self.paths) + 1 + first[same])
            self.of_node[nodes] = len(self.paths) + back
            for value in distinct.tolist():
                outer = self.paths[(value >> 32) - 1] if value >> 32 else ()
                self.paths.append((*outer, names[(value & 0xFFFFFFFF) >> PHASE_BITS]))
                self.phase.append(value & (1 << PHASE_BITS) - 1)
        self.by_name = by_name

    def __len__(self) -> int:
        return len(self.paths)
