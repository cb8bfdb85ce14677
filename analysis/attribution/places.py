"""Places: nodes of an attribution's forest that are one to a reader, by their ranges or by their names.

Adoption and linking append nodes, so one range below the same ranges can be several nodes. An *instance* is all of
them; GPU spans are measured, and timelines drawn, by instance. A *path* is the names of ranges, outermost first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..support.small_numbers import bounds, grouped, summed
from ..trace import Bools, Columns, Int32s, Int64s, Path
from ..vocabulary import PHASES
from .attributed import Attribution
from .nesting import Forest


class Paths:
    """The distinct pairs of a path and a phase: nodes that agree in both share one.

    `of_node`, int32 (nodes + 1,), gives each node's pair, and -1 for node -1, which is the last entry;
    `names_of_node` likewise its path, of whatever phase, a position in `names`. `paths` and `names` end with the
    empty path of -1.
    """

    def __init__(self, attribution: Attribution) -> None:
        forest, names = attribution.forest, attribution.trace.names
        tree, self.names_of_node, _ = forest.folded(attribution.ranges.name_id[forest.range])
        self.names: list[Path] = []
        for parent, name in zip(tree.parent.tolist(), tree.range.tolist(), strict=True):
            self.names.append((*(self.names[parent] if parent >= 0 else ()), names[name]))
        self.names.append(())
        pairs, of_node = grouped(self.names_of_node[:-1].astype(np.int64) * len(PHASES) + attribution.node_phase)
        self.of_node = np.append(of_node, -1).astype(np.int32)
        self.paths: list[Path] = [*(self.names[pair // len(PHASES)] for pair in pairs.tolist()), ()]
        self.phase: list[int] = (pairs % len(PHASES)).tolist()

    def __len__(self) -> int:
        return len(self.phase)


@dataclass(frozen=True, slots=True)
class Instances:
    """The forest of instances; `of_node` has an entry per node of the attribution, and -1 for node -1."""

    forest: Forest
    of_node: Int32s
    node: Int32s  # one of the nodes of each


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
    return Instances(*attribution.forest.folded(attribution.forest.range))


def projections(
    places: Instances, work: Int64s, attribution: Attribution, group: Int32s, kernel: Bools
) -> Projections:
    """Project instances onto the chosen pieces of work, separately for each group of theirs.

    `work` are positions in `Work`; `group` and `kernel` have one entry per piece of all work.
    """
    table = attribution.trace.work
    chosen = work[attribution.node[work] >= 0]
    rows = _merged(
        Projections(
            places.of_node[attribution.node[chosen]],
            group[chosen],
            table.start_ns[chosen],
            table.end_ns[chosen],
            np.where(kernel[chosen], table.duration_ns[chosen], 0),
        )
    )
    depth = places.forest.depth()[rows.instance]
    below, merged_levels = rows.take(np.zeros(len(rows), np.bool_)), []
    for level in range(int(depth.max(initial=-1)), -1, -1):
        merged_levels.append(_merged(Projections.joined([rows.take(depth == level), below])))
        parent = places.forest.parent[merged_levels[-1].instance]
        below = replace(merged_levels[-1], instance=parent).take(parent >= 0)
    return Projections.joined(merged_levels[::-1]) if merged_levels else below


def _merged(rows: Projections) -> Projections:
    """Merge all rows of an instance and group."""
    groups = int(rows.group.max(initial=0)) + 1
    keys, row = grouped(rows.instance.astype(np.int64) * groups + rows.group)
    start, end = bounds(row, rows.start_ns, rows.end_ns, len(keys))
    instance, group = (column.astype(np.int32) for column in np.divmod(keys, groups))
    return Projections(instance, group, start, end, summed(row, rows.kernel_ns, len(keys)))
