"""The modules of a CUDA graph's kernels: the ranges that were open where the graph's nodes were created.

A replay is one launch, in a range of its own time; what its kernels are for was known when the graph was
captured. The path of such a kernel is the launch's, then the capture's ranges below phases and steps: phases
by launch, modules by capture. docs/attribution.md has the definition.
"""

from __future__ import annotations

import numpy as np

from ..trace import Bools, Captures, Int32s, Ranges
from .nesting import Nesting, distinct_pairs
from .user_ranges import NameFacts, of_titles

#: The ids of the names of a path, outermost first.
Names = tuple[int, ...]


class Captured:
    """Assigns the work of graph nodes to the ranges of their creation; `made` are the nodes added for that."""

    def __init__(self, captures: Captures, ranges: Ranges, nesting: Nesting, facts: NameFacts) -> None:
        self._of_work, self._ranges, self._forest = captures.of_work, ranges, nesting.forest
        self.created = nesting.containing(captures.thread, captures.at_ns, captures.at_ns)
        self._ends = of_titles(facts.warm_up | facts.step | facts.measured | facts.opens_phase, ranges)
        self.made = np.empty(0, np.int32)

    def lead(self, node: Int32s, led: Bools) -> Int32s:
        """Return the node of each piece of work, int32 (work,): those `led` are below their capture's ranges."""
        rows = np.flatnonzero((self._of_work >= 0) & led)
        led[:] = False
        created = self.created[self._of_work[rows]]
        rows, created = rows[created >= 0], created[created >= 0]
        if not len(rows):
            return node
        before = len(self._forest)
        below = self._kept(node[rows], created)
        rows, below = rows[below >= 0], below[below >= 0]
        placed = node.copy()
        placed[rows] = self._forest.graft(node[rows], below)
        led[rows] = True
        # The nodes of these paths that were added now.
        levels = [np.unique(placed[rows])]
        while len(levels[-1]):
            above = np.unique(self._forest.above(levels[-1]))
            levels.append(above[above >= before])
        self.made = np.unique(np.concatenate(levels))
        return placed

    def created_of_work(self, eligible: Bools) -> Int32s:
        """Return the node around the creation of what made each piece of work, -1 for none: int32 (work,)."""
        created = np.append(self.created, np.int32(-1))[self._of_work]
        return np.where(eligible, created, np.int32(-1))

    def _kept(self, launch: Int32s, created: Int32s) -> Int32s:
        """Return a copy of the part of each capture's path that goes below its launch's; -1 for none."""
        launches, of_row = np.unique(launch, return_inverse=True)
        paths: dict[Names, int] = {}
        path = np.array([paths.setdefault(self._names(node), len(paths)) for node in launches.tolist()], np.int32)
        (path, capture), back = distinct_pairs(path[of_row], created)
        launch_paths = list(paths)
        cut = [
            self._cut(launch_paths[number], node)
            for number, node in zip(path.tolist(), capture.tolist(), strict=True)
        ]
        return self._copied(created, np.array(cut, np.int32)[back])

    def _cut(self, launch: Names, capture: int) -> int:
        """Count the outermost ranges of a capture's path that do not go below a launch of this path of names."""
        chain = self._chain(capture)
        first = max(
            (depth + 1 for depth, node in enumerate(chain) if self._ends[self._forest.range[node]]), default=0
        )
        names = self._names(capture)[first:]
        longest = min(len(names), len(launch))
        return first + next((n for n in range(longest, 0, -1) if launch[-n:] == names[:n]), 0)

    def _chain(self, node: int) -> list[int]:
        """Return a node and those above it, outermost first."""
        chain: list[int] = []
        while node >= 0:
            chain.append(node)
            node = int(self._forest.parent[node])
        return chain[::-1]

    def _names(self, node: int) -> Names:
        return tuple(int(self._ranges.name_id[self._forest.range[ancestor]]) for ancestor in self._chain(node))

    def _copied(self, node: Int32s, cut: Int32s) -> Int32s:
        """Return copies of nodes at the top level, without the outermost `cut` ranges of their paths."""
        (distinct, first), back = distinct_pairs(node, cut)
        depth, levels = self._forest.depth(), [distinct]
        while (levels[-1] >= 0).any():
            levels.append(self._forest.above(levels[-1]))
        copy = np.full(len(distinct), -1, np.int32)
        for level in reversed(levels):
            copied = (level >= 0) & (depth[level] >= first)
            copy[copied] = self._forest.add(copy[copied], self._forest.range[level[copied]])
        return copy[back]
