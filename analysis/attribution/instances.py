"""Instances: each place of a range below its outer ranges, once, however many nodes the forest has for it.

Adoption and linking append nodes, so one range below the same ranges can be several nodes. An *instance* is all of
them; GPU spans are measured, and timelines drawn, by instance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..trace import Bools, Columns, Int32s, Int64s
from .attributed import Attribution


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
    below, merged_levels = rows.take(np.zeros(len(rows), np.bool_)), []
    for level in range(int(depth.max(initial=-1)), -1, -1):
        merged_levels.append(_merged(Projections.joined([rows.take(np.flatnonzero(depth == level)), below])))
        parent = places.parent[merged_levels[-1].instance]
        below = replace(merged_levels[-1], instance=parent).take(parent >= 0)
    return Projections.joined(merged_levels[::-1]) if merged_levels else below


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
