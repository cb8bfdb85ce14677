"""How a forward path is put below a backward one, without repeating a step or a phase."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..trace import Bools, Int32s
from .nesting import Forest


@dataclass(frozen=True, slots=True)
class LinkRule:
    """Makes the places that backward work is linked to; `made` collects them.

    `dropped` marks the ranges that are left out on the way: steps, warm-up, phases and operators.
    """

    forest: Forest
    dropped: Bools
    made: list[Int32s] = field(default_factory=list)

    def link(self, base: Int32s, forward: Int32s) -> Int32s:
        """Return the base's path, then the forward one below the deepest range common to both."""
        before = len(self.forest)
        linked = self.forest.combine(base, forward, self._step)
        self.made.append(np.arange(before, len(self.forest), dtype=np.int32))
        return linked

    def alone(self, forward: Int32s) -> Int32s:
        """Return the forward path without the dropped ranges, under no base."""
        distinct, back = np.unique(forward, return_inverse=True)
        levels = [distinct.astype(np.int32)]
        while (levels[-1] >= 0).any():
            levels.append(self.forest.above(levels[-1]))
        node = np.full(len(distinct), -1, np.int32)
        for level in reversed(levels):
            kept = (level >= 0) & ~self.dropped[self.forest.range[level]]
            node[kept] = self.forest.add(node[kept], self.forest.range[level[kept]])
            self.made.append(node[kept])
        return node[back]

    def _step(self, base: Int32s, forward: Int32s) -> tuple[Int32s, Int32s, Int32s]:
        range_ = self.forest.range[forward]
        common, node = np.zeros(len(base), np.bool_), base
        while (node >= 0).any():
            common |= (node >= 0) & (self.forest.range[node] == range_)
            node = self.forest.above(node)
        above = np.where(common, -1, self.forest.parent[forward]).astype(np.int32)
        return base, above, np.where(common | self.dropped[range_], -1, range_).astype(np.int32)
