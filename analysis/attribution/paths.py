"""The paths of ranges: which nodes have the same names above them, and the same phase."""

from __future__ import annotations

import numpy as np

from ..trace import Path
from ..vocabulary import PHASES
from .attributed import Attribution

PHASE_BITS = len(PHASES).bit_length()  # that hold a position in PHASES


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
