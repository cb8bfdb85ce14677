"""The forward range that a backward operator belongs to: both carry autograd's sequence number.

Under emit_nvtx (and `nsys --pytorch=autograd-nvtx`) a forward operator is named `aten::softmax, seq = 12` and
its backward node `SoftmaxBackward0, seq = 12`. Of several forward operators with one number, the one that starts
last before the node runs is the operator that made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analysis.nesting import Forest, Nesting
from analysis.trace import PUSH_POP, Bools, Int32s, Int64s, Ranges, Trace
from analysis.user_ranges import NameFacts, of_names, operator_ranges
from analysis.vocabulary import ENGINE_OPERATOR


class Links:
    """Finds the forward operator of work launched inside a backward node."""

    def __init__(self, trace: Trace, facts: NameFacts) -> None:
        ranges = trace.ranges
        nested = ranges.style == PUSH_POP
        backward = operator_ranges(facts, ranges) & of_names(facts.backward_operator, ranges) & nested
        self._nodes = ranges.take(backward)
        self._seq = _with_childs_number(self._nodes, trace.names)
        self._inside = Nesting(self._nodes)
        self._ranges = ranges
        self._forward = np.flatnonzero((ranges.seq >= 0) & ~backward & nested & backward.any())
        keys = _pairs(ranges.thread[self._forward], ranges.seq[self._forward])
        order = np.argsort(keys, kind="stable")  # operators of one thread are in the order of their starts
        self._keys, self._forward = keys[order], self._forward[order]

    @property
    def forward_threads(self) -> list[int]:
        """The threads that ran forward operators."""
        return [int(thread) for thread in np.unique(self._ranges.thread[self._forward])]

    def __bool__(self) -> bool:
        return len(self._nodes) > 0 and len(self._forward) > 0

    def forward_operators(
        self, thread: Int32s, start_ns: Int64s, end_ns: Int64s, forward_thread: Int32s
    ) -> tuple[Bools, Ranges]:
        """Find the forward operators of calls, looked for on the thread that ran their forward.

        Return which calls have one, and for each of those the operator's range.
        """
        node = self._inside.containing(thread, start_ns, end_ns)
        row = np.where(node >= 0, self._inside.forest.range[node], -1) if len(self._nodes) else node
        seq = np.where(row >= 0, self._seq[row], -1)
        begun = np.where(row >= 0, self._nodes.start_ns[row], 0)
        found = self._last_before(forward_thread, seq, begun)
        linked: Bools = found >= 0
        return linked, self._ranges.take(self._forward[found[linked]])

    def _last_before(self, thread: Int32s, seq: Int64s, limit_ns: Int64s) -> Int64s:
        """Return where in `_forward` the last operator of (thread, seq) starts before the limit; -1 for none."""
        wanted = _pairs(thread, seq)
        low, high = np.searchsorted(self._keys, wanted, "left"), np.searchsorted(self._keys, wanted, "right")
        first, start = low.copy(), self._ranges.start_ns[self._forward]
        while (open_ := low < high).any():  # bisect the group of equal keys
            middle = (low + high) // 2
            earlier = open_ & (start[np.minimum(middle, len(start) - 1)] < limit_ns)
            low, high = np.where(earlier, middle + 1, low), np.where(open_ & ~earlier, middle, high)
        return np.where((low > first) & (seq >= 0), low - 1, -1)


@dataclass(frozen=True, slots=True)
class LinkRule:
    """How a forward path is put under a backward one: which ranges are dropped on the way.

    `made` collects the nodes that it made: places in a forward path that backward work was led to.
    """

    forest: Forest
    dropped: Bools  # by range: phases and operators
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


def _with_childs_number(nodes: Ranges, names: list[str]) -> Int64s:
    """Give the engine's range around a node the node's own number; gradient accumulation has none."""
    engine = np.array([name.startswith(ENGINE_OPERATOR) for name in names], np.bool_)
    outer = np.flatnonzero(of_names(engine, nodes))
    around = {name: number for number, name in enumerate(names)}
    wanted = np.array([around.get(name.removeprefix(ENGINE_OPERATOR), -1) for name in names], np.int32)
    seq = nodes.seq.copy()
    inner = np.minimum(outer + 1, len(nodes) - 1)
    child = _is_child(nodes, wanted, outer, inner) & (nodes.seq[inner] >= 0)
    seq[outer[child]] = nodes.seq[inner[child]]
    # The node is all but always what its engine's range begins with; the others are few, and looked for singly.
    numbered = np.unique(nodes.name_id[nodes.seq >= 0])
    for one in outer[~child & np.isin(wanted[nodes.name_id[outer]], numbered)].tolist():
        inside = _begun_inside(nodes, one)
        found = inside[_is_child(nodes, wanted, np.full(len(inside), one), inside) & (nodes.seq[inside] >= 0)]
        if len(found):
            seq[one] = nodes.seq[found[0]]
    return seq


def _begun_inside(nodes: Ranges, one: int) -> Int64s:
    """Return the positions of the ranges after this one on its thread that start before it ends."""
    of_thread = int(np.searchsorted(nodes.thread, nodes.thread[one], "right"))
    begun = int(np.searchsorted(nodes.start_ns[one + 1 : of_thread], nodes.end_ns[one], "right"))
    return np.arange(one + 1, one + 1 + begun)


def _is_child(nodes: Ranges, wanted: Int32s, outer: Int64s, inner: Int64s) -> Bools:
    """Tell which inner ranges are the nodes that the engine's ranges, as they are called, are around."""
    inside = (nodes.thread[inner] == nodes.thread[outer]) & (nodes.end_ns[inner] <= nodes.end_ns[outer])
    named: Bools = inside & (nodes.name_id[inner] == wanted[nodes.name_id[outer]])
    return named


def _pairs(thread: Int32s, seq: Int64s) -> Int64s:
    return thread.astype(np.int64) << 44 | np.minimum(seq, (1 << 44) - 1) & (1 << 44) - 1
