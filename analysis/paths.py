"""The paths of names in a forest of ranges: what rows of a report are about."""

from __future__ import annotations

import numpy as np

from analysis.attribution import Attribution
from analysis.report import Path


class Paths:
    """The distinct name paths of a forest: nodes of equal names (and phase) from the top share one."""

    def __init__(self, attribution: Attribution) -> None:
        forest, names = attribution.forest, attribution.trace.names
        name_id = attribution.ranges.name_id[forest.range] if len(forest) else np.empty(0, np.int32)
        self.of_node = np.full(len(forest) + 1, -1, np.int32)  # the last entry is that of node -1
        self.paths: list[Path] = []
        self.phase: list[int] = []
        for nodes in forest.by_depth() if len(forest) else []:
            above = self.of_node[forest.parent[nodes]].astype(np.int64)
            key = (above + 1) << 32 | name_id[nodes].astype(np.int64) << 2 | attribution.node_phase[nodes]
            distinct, back = np.unique(key, return_inverse=True)
            self.of_node[nodes] = len(self.paths) + back
            for value in distinct.tolist():
                outer = self.paths[(value >> 32) - 1] if value >> 32 else ()
                self.paths.append((*outer, names[(value & 0xFFFFFFFF) >> 2]))
                self.phase.append(value & 3)
        first: dict[Path, int] = {(): 0}
        self.by_name = np.array(
            [0, *(first.setdefault(path, n + 1) for n, path in enumerate(self.paths))], np.int64
        )

    def __len__(self) -> int:
        return len(self.paths)
