"""Paths of ranges, as the nodes of a forest.

A *node* is a range and the node above it, -1 at the top; the ranges from the top down to a node are its *path*.

```
node 0  step
     1  ├ forward
     2  │ └ softmax              step > forward > softmax: the home of this range
     3  └ backward
     4    └ softmax              step > backward > softmax: the same range, where work of its backward is
```

The first nodes are the ranges where their threads opened them (`Nesting`). Adoption, links and captures combine
two paths into one, which is a further node: `graft` puts one below the other, `merge` orders both by start. All
columns are int32, and all methods take and return many nodes at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import AGAIN, TooTangled
from ..support.small_numbers import grouped_rows
from ..trace import Bools, Int32s

# All nodes' depths together, for any report and more for each range: 30 reports had at most 17 for each range.
MAX_DEPTHS = 2_000_000
MAX_DEPTHS_PER_RANGE = 60

#: From pairs of nodes (k,) to the innermost ranges of their combined paths (k,), -1 to leave it out, and to the
#: pairs whose combined paths are above these.
Peel = Callable[[Int32s, Int32s], tuple[Int32s, Int32s, Int32s]]


class Forest:
    """Nodes as two growing columns: the range of each node, and the node above it."""

    def __init__(self, parent: Int32s) -> None:
        self.parent = parent
        self.range = np.arange(len(parent), dtype=np.int32)
        self._levels: list[Int32s] = []

    def __len__(self) -> int:
        return len(self.parent)

    def add(self, parent: Int32s, range_: Int32s) -> Int32s:
        """Append nodes, given their ranges and parents (n,), and return their ids (n,)."""
        first = len(self.parent)
        self.parent = np.concatenate([self.parent, parent])
        self.range = np.concatenate([self.range, range_])
        return np.arange(first, len(self.parent), dtype=np.int32)

    def above(self, node: Int32s) -> Int32s:
        """Return the node above each node; -1 stays -1: int32 (n,)."""
        if len(self):
            return np.where(node >= 0, self.parent[node], np.int32(-1))
        return node

    def depth(self) -> Int32s:
        """Return how many nodes are above each node: int32 (nodes,)."""
        depth = np.empty(len(self), np.int32)
        for number, nodes in enumerate(self.by_depth()):
            depth[nodes] = number
        return depth

    def by_depth(self) -> list[Int32s]:
        """Return the nodes of each depth, outermost first; worked out again only after nodes were added."""
        if sum(map(len, self._levels)) < len(self) or not self._levels:
            depth = (self.parent >= 0).astype(np.int32)
            jump = self.parent.copy()
            while (jump >= 0).any():  # twice as far each time
                depth += np.where(jump >= 0, depth[jump], 0).astype(np.int32)
                jump = np.where(jump >= 0, jump[jump], -1)
            few = depth.astype(np.min_scalar_type(depth.max(initial=0)))  # sorted by radix
            order = np.argsort(few, kind="stable").astype(np.int32)
            self._levels = np.split(order, np.cumsum(np.bincount(depth))[:-1])
        return self._levels

    def require_drawable(self, ranges: int) -> None:
        """Raise TooTangled if the paths of this many crossing or nested ranges would fill the memory."""
        depths = sum(depth * len(nodes) for depth, nodes in enumerate(self.by_depth()))
        if depths > MAX_DEPTHS + MAX_DEPTHS_PER_RANGE * ranges:
            raise TooTangled(
                f"Its {ranges:,} ranges cross, or nest without end: {len(self):,} paths lead through them, and no "
                f"program's ranges do that. {AGAIN}"
            )

    def nearest(self, values: Int32s) -> Int32s:
        """Return each node's value, or if that is -1, the nearest above it, or -1: int32 (nodes + 1,).

        As in `below` and `around`, the last entry is for node -1.
        """
        nearest = np.append(values, np.int32(-1))
        for nodes in self.by_depth()[1:]:
            without = nodes[nearest[nodes] < 0]
            nearest[without] = nearest[self.parent[without]]
        return nearest

    def below(self, nodes: Bools) -> Bools:
        """Mark some nodes and all below them: bool (nodes + 1,)."""
        marked = np.append(nodes, False)
        for level in self.by_depth()[1:]:
            marked[level] |= marked[self.parent[level]]
        return marked

    def around(self, nodes: Bools) -> Bools:
        """Mark some nodes and all above them: bool (nodes + 1,)."""
        marked = np.append(nodes, False)
        for level in self.by_depth()[:0:-1]:
            marked[self.parent[level[marked[level]]]] = True
        return marked

    def folded(self, key: Int32s) -> tuple[Forest, Int32s, Int32s]:
        """Make nodes one whose paths have the same keys, (nodes,), non-negative.

        Return their forest, in the order of depth, parent and key, whose `range` are the keys; the new node of
        each node, and of -1 last: int32 (nodes + 1,); and one of the nodes of each new one.
        """
        of_node = np.full(len(self) + 1, -1, np.int32)
        levels = [np.empty((3, 0), np.int32)]
        count = 0
        for nodes in self.by_depth():
            pair = (of_node[self.parent[nodes]].astype(np.int64) + 1) << 32 | key[nodes]
            distinct, first, back = np.unique(pair, return_index=True, return_inverse=True)
            of_node[nodes] = count + back
            levels.append(np.stack([(distinct >> 32) - 1, distinct & 0xFFFFFFFF, nodes[first]]).astype(np.int32))
            count += len(distinct)
        parent, keys, example = np.concatenate(levels, axis=1)
        folded = Forest(parent)
        folded.range = keys
        sizes = [level.shape[1] for level in levels[1:]]
        folded._levels = np.split(np.arange(count, dtype=np.int32), np.cumsum(sizes)[:-1])
        return folded, of_node, example

    def copied(self, node: Int32s, keeps: Callable[[Int32s], Bools]) -> Int32s:
        """Return copies (n,) at the top level of the paths of nodes (n,), with those of their nodes that are kept.

        `keeps` marks them, given a node of each path, or -1: bool (n,).
        """
        levels = [node]
        while (levels[-1] >= 0).any():
            levels.append(self.above(levels[-1]))
        copy = np.full(len(node), -1, np.int32)
        for level in reversed(levels):
            added = (level >= 0) & keeps(level)
            copy[added] = self.add(copy[added], self.range[level[added]])
        return copy

    def merge(self, a: Int32s, b: Int32s) -> Int32s:
        """Return nodes (n,) whose paths contain the ranges of both paths, ordered by start.

        Ranges are numbered in the order of their starts, so the later of two ranges is the inner one.
        """

        def later(a: Int32s, b: Int32s) -> tuple[Int32s, Int32s, Int32s]:
            range_a = self.range[a]
            range_b = self.range[b]
            rest_a = np.where(range_a >= range_b, self.parent[a], a)
            rest_b = np.where(range_b >= range_a, self.parent[b], b)
            return np.maximum(range_a, range_b), rest_a, rest_b

        return self.combine(a, b, later)

    def graft(self, upper: Int32s, lower: Int32s) -> Int32s:
        """Return nodes (n,) whose paths are the whole upper path, followed by the whole lower one."""
        return self.combine(upper, lower, lambda upper, lower: (self.range[lower], upper, self.parent[lower]))

    def combine(self, a: Int32s, b: Int32s, peel: Peel) -> Int32s:
        """Return one node for each pair of nodes, whose path has ranges of both paths: int32 (n,).

        `peel` takes the innermost range off many distinct pairs, until one side is -1 or both are the same node.
        """
        peeled = []
        while (is_pair := (a >= 0) & (b >= 0) & (a != b)).any():
            (pair_a, pair_b), pair_of_row = grouped_rows(a[is_pair], b[is_pair])
            innermost, rest_a, rest_b = peel(pair_a, pair_b)
            peeled.append((np.where(a < 0, b, a), is_pair, pair_of_row, innermost))
            a = rest_a
            b = rest_b
        node = np.where(a < 0, b, a)
        for outer, is_pair, pair_of_row, innermost in reversed(peeled):  # put them back, outermost first
            is_kept = innermost >= 0
            node[is_kept] = self.add(node[is_kept], innermost[is_kept])
            outer[is_pair] = node[pair_of_row]
            node = outer
        return node
