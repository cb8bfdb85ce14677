"""The forward operator that made the backward node around a launch: both carry autograd's sequence number.

Under emit_nvtx (and `nsys --pytorch=autograd-nvtx`) a forward operator is named `aten::softmax, seq = 12` and
its backward node `SoftmaxBackward0, seq = 12`. Numbers count per thread, and such a report does not record whose a
node's number is: an operator must fit (`Links.made`). PyTorch's own traces record the thread; their
readers make numbers of it that no two threads share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..support.small_numbers import distinct
from ..trace import PUSH_POP, Bools, Int32s, Int64s, Ranges, Trace
from ..vocabulary import ENGINE_OPERATOR
from .nesting import Nesting
from .node_names import makers
from .thread_facts import ThreadFacts
from .user_ranges import NameFacts, of_names, of_titles, operator_ranges

NEVER, ALWAYS = -(2**62), 2**62


@dataclass(frozen=True, slots=True)
class Nodes:
    """The backward nodes of a trace: engines' ranges and the nodes in them, with their numbers.

    `within` is the position of the numbered node that another is inside of, as in a backward called in backward;
    -1 for none.
    """

    ranges: Ranges
    seq: Int64s
    within: Int64s
    nesting: Nesting

    def __len__(self) -> int:
        return len(self.ranges)

    def around(self, thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
        """Return the position of the innermost node around each interval; -1 for none: int64 (intervals,)."""
        node = self.nesting.containing(thread, start_ns, end_ns)
        ranges = self.nesting.forest.range[node] if len(self) else node
        return np.where(node >= 0, ranges, -1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Nodes whose operator is wanted: their positions, and the thread that waits for each (-1 for none)."""

    node: Int64s
    waiting: Int32s

    def take(self, rows: Int64s) -> Wanted:
        """Return some of them."""
        return Wanted(self.node[rows], self.waiting[rows])


class _Numbered:
    """Operators grouped by sequence number and thread, in the order of starts; `seq` has the number of each group.

    A number may come again on one thread many times, as where a report holds several runs.
    """

    def __init__(self, operators: Ranges) -> None:
        new = (operators.seq[1:] != operators.seq[:-1]) | (operators.thread[1:] != operators.thread[:-1])
        self._bounds = np.concatenate([[0], np.flatnonzero(new) + 1, [len(operators)]])
        self.seq = operators.seq[self._bounds[:-1]] if len(operators) else operators.seq
        self._start_ns = operators.start_ns

    def last_before(self, group: Int64s, time_ns: Int64s) -> Int64s:
        """Return the last operator of each group that starts before a time, -1 for none: int64 (n,)."""
        first = self._bounds[group]
        low, high = first - 1, self._bounds[group + 1]
        while (wide := high - low > 1).any():  # a binary search in each group: most have one or two operators
            middle = (low + high) // 2
            earlier = self._start_ns[middle] < time_ns
            low, high = np.where(wide & earlier, middle, low), np.where(wide & ~earlier, middle, high)
        return np.where(low >= first, low, -1)


class Links:
    """Finds the forward operators of backward nodes: of all, or only of those around some moments of threads."""

    def __init__(
        self, trace: Trace, facts: NameFacts, threads: ThreadFacts, moments: tuple[Int32s, Int64s] | None = None
    ) -> None:
        ranges = trace.ranges
        nested = ranges.style == PUSH_POP
        backward = operator_ranges(facts, ranges) & of_names(facts.backward_operator, ranges) & nested
        nodes = np.flatnonzero(backward)
        if moments is not None:
            nodes = _around(ranges, nodes, *moments)
        node_ranges = ranges.take(nodes)
        seq, nesting = _with_childs_number(node_ranges, trace.names), Nesting(node_ranges)
        self.nodes = Nodes(node_ranges, seq, _within(seq, nesting), nesting)
        forward = np.flatnonzero((ranges.seq >= 0) & ~backward & nested & (len(self.nodes) > 0))
        forward = forward[np.isin(ranges.seq[forward], self.nodes.seq)]
        # Ranges are in the order of threads and starts, and so stay those of a number: the last is the inner one.
        self.operators = ranges.take(forward[np.argsort(ranges.seq[forward], kind="stable")])
        self._numbered = _Numbered(self.operators)
        used = np.zeros(len(trace.names), np.bool_)
        used[node_ranges.name_id] = used[self.operators.name_id] = True
        self._makers = makers(trace.names, used)
        self._step_ranges = threads.ranges.take(of_titles(facts.step | facts.measured, threads.ranges))
        self._steps = Nesting(self._step_ranges)
        self._process = trace.process_of_thread()
        self._threads = threads

    def __bool__(self) -> bool:
        return len(self.nodes) > 0

    def made(self, to_link: Wanted) -> Int64s:
        """Return the position of the operator that made each node; -1 if none fits, or those of two threads do.

        An operator fits if it has the node's number, can make such a node, is the last of its thread to start
        before the node, in the same step, and is on a thread that does not run its own program, unless that
        thread waits. A node inside another was made there.
        """
        row, operator = self._candidates(to_link)
        fits = np.flatnonzero(self._fits(to_link.take(row), operator))
        row, operator = row[fits], operator[fits]
        # Per pair, whether the operator's thread gave work to a GPU that the node's thread also used.
        devices = self._threads.devices
        node_thread, operator_thread = self.nodes.ranges.thread[to_link.node[row]], self.operators.thread[operator]
        near = (devices[node_thread] & devices[operator_thread]) != 0
        has_near = np.zeros(len(to_link.node), np.bool_)
        has_near[row[near]] = True
        chosen = near | ~has_near[row]
        row, operator = row[chosen], operator[chosen]
        operator_of_node = np.full(len(to_link.node), -1, np.int64)
        operator_of_node[row] = operator
        operator_of_node[np.bincount(row, minlength=len(operator_of_node)) > 1] = -1
        return operator_of_node

    def _candidates(self, to_link: Wanted) -> tuple[Int64s, Int64s]:
        """Return pairs of a node to link and an operator: per thread, the last with its number before the node."""
        seq, numbered = self.nodes.seq[to_link.node], self._numbered
        low, high = np.searchsorted(numbered.seq, seq, "left"), np.searchsorted(numbered.seq, seq, "right")
        count = np.where(seq >= 0, high - low, 0)
        row = np.repeat(np.arange(len(seq)), count)
        group = np.arange(len(row)) + np.repeat(low - np.cumsum(count) + count, count)
        operator = numbered.last_before(group, self.nodes.ranges.start_ns[to_link.node[row]])
        return row[operator >= 0], operator[operator >= 0]

    def _fits(self, to_link: Wanted, operator: Int64s) -> Bools:
        """Return, per pair, whether the operator can have created the node."""
        node, maker = self.nodes.ranges.take(to_link.node), self.operators.take(operator)
        independent = np.isin(maker.thread, sorted(self._threads.independent))
        stranger = independent & (maker.thread != to_link.waiting) & (to_link.waiting >= 0)
        # Both are in the same step, or both in none.
        step_thread = np.where(to_link.waiting >= 0, to_link.waiting, node.thread).astype(np.int32)
        began, _ = self._step_around(step_thread, node.start_ns, node.end_ns)
        _, ended = self._step_around(maker.thread, maker.start_ns, maker.end_ns)
        # What made a node inside another is inside it too.
        outer = self.nodes.within[to_link.node]
        around = self.nodes.ranges.take(np.maximum(outer, 0))
        inside = (around.thread == maker.thread) & (around.start_ns <= maker.start_ns)
        fits: Bools = (
            self._makers.fit(node.name_id, maker.name_id)
            & (self._process[node.thread] == self._process[maker.thread])
            & ~stranger
            & (maker.start_ns >= began)
            & (node.start_ns <= ended)
            & ((outer < 0) | inside)
        )
        return fits

    def _step_around(self, thread: Int32s, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
        """Return the bounds of the outermost step around intervals; without one, all time."""
        node, forest = self._steps.containing(thread, start_ns, end_ns), self._steps.forest
        while (above := forest.above(node)).max(initial=-1) >= 0:
            node = np.where(above >= 0, above, node)
        if not len(forest):
            return np.full(len(node), NEVER), np.full(len(node), ALWAYS)
        step = forest.range[node]
        began = np.where(node >= 0, self._step_ranges.start_ns[step], NEVER)
        return began, np.where(node >= 0, self._step_ranges.end_ns[step], ALWAYS)


def _around(ranges: Ranges, rows: Int64s, thread: Int32s, at_ns: Int64s) -> Int64s:
    """Return those of some ranges that are around moments of their threads, and all that begin inside those."""
    chosen = [np.empty(0, np.int64)]
    for thread_number in distinct(thread):
        range_rows, moments = rows[ranges.thread[rows] == thread_number], np.sort(at_ns[thread == thread_number])
        start, end = ranges.start_ns[range_rows], ranges.end_ns[range_rows]
        around = np.searchsorted(moments, end, "right") > np.searchsorted(moments, start, "left")
        chosen.append(range_rows[start <= np.maximum.accumulate(np.where(around, end, NEVER))])
    return np.concatenate(chosen)


def _within(seq: Int64s, nesting: Nesting) -> Int64s:
    """Return the innermost node around each node with another number; -1 for none: int64 (nodes,)."""
    forest, node = nesting.forest, np.arange(len(seq))
    outer = forest.above(nesting.home)
    while True:
        range_ = np.where(outer >= 0, forest.range[outer], -1) if len(forest) else outer
        number = np.where(range_ >= 0, seq[range_], -1) if len(seq) else range_
        same = (outer >= 0) & ((number < 0) | (number == seq[node]))
        if not same.any():
            return np.where(outer >= 0, range_, -1).astype(np.int64)
        outer = np.where(same, forest.above(outer), outer)


def _with_childs_number(nodes: Ranges, names: list[str]) -> Int64s:
    """Give the engine's range around a node the node's own number; gradient accumulation has none."""
    engine = np.array([name.startswith(ENGINE_OPERATOR) for name in names], np.bool_)
    outer = np.flatnonzero(of_names(engine, nodes))
    around = {name: number for number, name in enumerate(names)}
    child_name = np.array([around.get(name.removeprefix(ENGINE_OPERATOR), -1) for name in names], np.int32)
    seq = nodes.seq.copy()
    inner = np.minimum(outer + 1, len(nodes) - 1)
    child = _is_child(nodes, child_name, outer, inner) & (nodes.seq[inner] >= 0)
    seq[outer[child]] = nodes.seq[inner[child]]
    # The node is all but always what its engine's range begins with; the others are few, and looked for singly.
    numbered = distinct(nodes.name_id[nodes.seq >= 0])
    for outer_row in outer[~child & np.isin(child_name[nodes.name_id[outer]], numbered)].tolist():
        # The ranges after it on its thread that start before it ends.
        of_thread = int(np.searchsorted(nodes.thread, nodes.thread[outer_row], "right"))
        begun = int(np.searchsorted(nodes.start_ns[outer_row + 1 : of_thread], nodes.end_ns[outer_row], "right"))
        inside = np.arange(outer_row + 1, outer_row + 1 + begun)
        children = inside[
            _is_child(nodes, child_name, np.full(len(inside), outer_row), inside) & (nodes.seq[inside] >= 0)
        ]
        if len(children):
            seq[outer_row] = nodes.seq[children[0]]
    return seq


def _is_child(nodes: Ranges, child_name: Int32s, outer: Int64s, inner: Int64s) -> Bools:
    """Return which inner ranges are the nodes that the engine's ranges (by name) surround."""
    inside = (nodes.thread[inner] == nodes.thread[outer]) & (nodes.end_ns[inner] <= nodes.end_ns[outer])
    named: Bools = inside & (nodes.name_id[inner] == child_name[nodes.name_id[outer]])
    return named
