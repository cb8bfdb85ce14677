"""The forward operator that made the backward node around a launch: both carry autograd's sequence number.

Under emit_nvtx (and `nsys --pytorch=autograd-nvtx`) a forward operator is named `aten::softmax, seq = 12` and
its backward node `SoftmaxBackward0, seq = 12`. Numbers count per thread, and such a report does not record whose a
node's number is: an operator must fit (`Links.made`). PyTorch's own traces record the thread; their
readers make numbers of it that no two threads share.

Names fit, too: PyTorch's generator names a node after the native function whose derivative it is
(`_create_op_prefix` in torchgen's load_derivatives.py): `aten::_softmax` makes SoftmaxBackward0, and
`aten::nll_loss_forward` makes NllLossBackward0. A Python Function called `Swish` makes SwishBackward
(torch/csrc/autograd/python_function.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ..moments import Clock, Moments
from ..support.small_numbers import grouped_rows, looked_up, positions_between
from ..trace import PUSH_POP, Bools, Int32s, Int64s, Ranges, Spots, marked
from ..vocabulary import ENGINE_OPERATOR
from .nesting import Nesting
from .thread_facts import ThreadFacts
from .user_ranges import of_titles, operator_ranges

NEVER = -(2**62)
ALWAYS = 2**62
#: DataParallel's replicas give the same numbers on a thread for each GPU.
MOST_THREADS = 64

_NODE = re.compile(r"(?P<operator>.+?)Backwards?\d*$")
# torch.library's register_autograd: GeneratedBackwardFor_mylib_swish_default, of mylib::swish.
_OF_LIBRARY = re.compile(r"GeneratedBackwardFor_(?P<operator>.+)_[A-Za-z0-9]+$")
# torch::autograd::CppNode<vision::ops::ROIAlignFunction>: a C++ Function's, whose operator has any name.
_OF_CPP = re.compile(r"(?:torch::autograd::)?CppNode<")
NOTHING = -1
ANY_BUT_ATEN = -2


class Links:
    """Finds the forward operators of backward nodes: of all, or only of those around some moments of threads.

    `nodes` are the engine's ranges and the nodes in them, `seq` their numbers, and `operators` the operators that
    have one of these, in the order of numbers, threads and starts.
    """

    def __init__(self, threads: ThreadFacts, moments: Spots | None = None) -> None:
        names = threads.trace.names
        facts = threads.names
        ranges = threads.trace.ranges
        nested = ranges.style == PUSH_POP
        backward = operator_ranges(facts, ranges) & facts.backward_operator[ranges.name_id] & nested
        rows = np.flatnonzero(backward)
        if moments is not None:
            rows = _around(ranges, rows, moments)
        self.nodes = ranges.take(rows)
        self._nesting = Nesting(self.nodes)
        self.seq = _with_childs_number(self.nodes, names, self._nesting)
        self._within = _within(self.seq, self._nesting)
        is_forward = (ranges.seq >= 0) & ~backward & nested
        forward = np.flatnonzero(is_forward & (len(self.nodes) > 0))
        forward = forward[np.isin(ranges.seq[forward], self.nodes.seq)]
        self._process = threads.trace.process_of_thread()
        # Ranges are in the order of threads and starts, and so stay those of a number: the last is the inner one.
        process = self._process[ranges.thread[forward]]
        order = np.lexsort((process, ranges.seq[forward]))
        operators = ranges.take(forward[order])
        self.operators = operators
        # A number may come again on one thread many times, as where a report holds several runs.
        is_other_number = operators.seq[1:] != operators.seq[:-1]
        is_other_thread = operators.thread[1:] != operators.thread[:-1]
        begins = np.append(True, is_other_number | is_other_thread)
        first = np.flatnonzero(begins[: len(operators)])
        self._bounds = np.append(first, len(operators))
        groups = operators.take(first)
        # Each number of a process, of the groups of operators and of the nodes.
        numbers = np.append(groups.seq, self.seq)
        threads_of_both = np.append(groups.thread, self.nodes.thread)
        _, number = grouped_rows(numbers, self._process[threads_of_both])
        self._number_of_group = number[: len(groups)]
        self._number_of_node = number[len(groups) :]
        used = marked(self.nodes.name_id, len(names))
        used[operators.name_id] = True
        self._makers = Makers(names, used)
        is_step = of_titles(facts.step | facts.measured, threads.ranges)
        self._step_ranges = threads.ranges.take(is_step)
        self._steps = Nesting(self._step_ranges)
        self._threads = threads

    def __bool__(self) -> bool:
        return len(self.nodes) > 0

    def around(self, spots: Spots) -> Int64s:
        """Return the position of the innermost node around each interval; -1 for none: int64 (n,)."""
        node = self._nesting.containing(spots)
        position = self._nesting.forest.range[node]
        return np.where(node >= 0, position, -1).astype(np.int64)

    def made(self, node: Int64s, waiting: Int32s) -> Int64s:
        """Return the position of the operator that made each node; -1 if none fits, or those of two threads do.

        `waiting` are the threads that wait for the nodes, -1 for none. An operator fits if it has the node's
        number, can make such a node, is the last of its thread to start before the node, in the same step, and is
        on a thread that does not run its own program, unless that thread waits. A node inside another was made
        there.
        """
        row, operator = self._candidates(node)
        fits = np.flatnonzero(self._fits(node[row], waiting[row], operator))
        row = row[fits]
        operator = operator[fits]
        # Per pair, whether the operator's thread gave work to a GPU that the node's thread also used.
        devices = self._threads.devices
        node_devices = devices[self.nodes.thread[node[row]]]
        operator_devices = devices[self.operators.thread[operator]]
        near = (node_devices & operator_devices) != 0
        has_near = marked(row[near], len(node))
        chosen = near | ~has_near[row]
        row = row[chosen]
        operator = operator[chosen]
        operator_of_node = np.full(len(node), -1, np.int64)
        operator_of_node[row] = operator
        candidates = np.bincount(row, minlength=len(node))
        operator_of_node[candidates > 1] = -1
        return operator_of_node

    def _candidates(self, node: Int64s) -> tuple[Int64s, Int64s]:
        """Return pairs of a row of nodes and an operator: per thread, the last with its number before the node.

        A number that more threads of the process gave than MOST_THREADS has no operator.
        """
        number = self._number_of_node[node]
        first = np.searchsorted(self._number_of_group, number, "left")
        last = np.searchsorted(self._number_of_group, number, "right")
        groups = last - first
        has_operator = (self.seq[node] >= 0) & (groups <= MOST_THREADS)
        count = np.where(has_operator, groups, 0)
        row, group = positions_between(first, first + count)
        begin = self._bounds[group]
        time_ns = self.nodes.start_ns[node[row]]
        low = begin - 1
        high = self._bounds[group + 1]
        while (wide := high - low > 1).any():  # a binary search in each group: most have one or two operators
            middle = (low + high) // 2
            earlier = self.operators.start_ns[middle] < time_ns
            low = np.where(wide & earlier, middle, low)
            high = np.where(wide & ~earlier, middle, high)
        has_earlier = low >= begin
        return row[has_earlier], low[has_earlier]

    def _fits(self, row: Int64s, waiting: Int32s, operator: Int64s) -> Bools:
        """Return, per pair, whether the operator can have created the node."""
        node = self.nodes.take(row)
        maker = self.operators.take(operator)
        independent = np.isin(maker.thread, sorted(self._threads.independent))
        is_other_thread = (maker.thread != waiting) & (waiting >= 0)
        stranger = independent & is_other_thread
        # Both are in the same step, or both in none.
        step_thread = np.where(waiting >= 0, waiting, node.thread)
        began, _ = self._step_around(node.on(step_thread))
        _, ended = self._step_around(maker)
        # What made a node inside another is inside it too.
        outer = self._within[row]
        around = self.nodes.take(np.maximum(outer, 0))
        inside = (around.thread == maker.thread) & (around.start_ns <= maker.start_ns)
        is_same_process = self._process[node.thread] == self._process[maker.thread]
        is_same_step = (maker.start_ns >= began) & (node.start_ns <= ended)
        fits = self._makers.fit(node.name_id, maker.name_id)
        fits &= is_same_process & is_same_step & ~stranger
        fits &= (outer < 0) | inside
        return fits

    def _step_around(self, spots: Spots) -> tuple[Int64s, Int64s]:
        """Return the bounds of the outermost step around intervals; without one, all time."""
        node = self._steps.containing(spots)
        forest = self._steps.forest
        while (above := forest.above(node)).max(initial=-1) >= 0:
            node = np.where(above >= 0, above, node)
        if not len(forest):
            return np.full(len(node), NEVER), np.full(len(node), ALWAYS)
        step = forest.range[node]
        in_step = node >= 0
        began = np.where(in_step, self._step_ranges.start_ns[step], NEVER)
        ended = np.where(in_step, self._step_ranges.end_ns[step], ALWAYS)
        return began, ended


def _around(ranges: Ranges, rows: Int64s, spots: Spots) -> Int64s:
    """Return those of some ranges that are around starts on their threads, and all that begin inside those."""
    around = ranges.take(rows)
    moments = Moments(spots.start_ns, spots.thread)
    has_moment = moments.some_within(Spots(around.start_ns, around.end_ns, around.thread))
    clock = Clock(around)
    start = clock.at(around.thread, around.start_ns)
    end = clock.at(around.thread, around.end_ns)
    last_end = np.maximum.accumulate(np.where(has_moment, end, NEVER))
    return rows[start <= last_end]


def _within(seq: Int64s, nesting: Nesting) -> Int64s:
    """Return the innermost node around each node with another number; -1 for none: int64 (nodes,)."""
    forest = nesting.forest
    outer = forest.above(nesting.home)
    while True:
        outer_seq = seq[forest.range[outer]]
        is_same = (outer >= 0) & ((outer_seq < 0) | (outer_seq == seq))
        if not is_same.any():
            break
        outer = np.where(is_same, forest.above(outer), outer)
    return np.where(outer >= 0, forest.range[outer], -1).astype(np.int64)


def _with_childs_number(nodes: Ranges, names: list[str], nesting: Nesting) -> Int64s:
    """Give the engine's range around a node the first such node's number; gradient accumulation has none."""
    engine = np.array([name.startswith(ENGINE_OPERATOR) for name in names], np.bool_)
    number_of = {name: number for number, name in enumerate(names)}
    child_names = [name.removeprefix(ENGINE_OPERATOR) for name in names]
    child_name = np.array([number_of.get(name, -1) for name in child_names], np.int32)
    child = np.flatnonzero(nodes.seq >= 0)
    first_child = np.full(len(nodes), len(nodes))
    outer = nesting.forest.above(nesting.home)[child]
    while (inside := outer >= 0).any():
        child = child[inside]
        outer = outer[inside]
        row = nesting.forest.range[outer]
        name_id = nodes.name_id[row]
        is_child = engine[name_id] & (child_name[name_id] == nodes.name_id[child])
        np.minimum.at(first_child, row[is_child], child[is_child])
        outer = nesting.forest.above(outer)
    return np.where(first_child < len(nodes), looked_up(nodes.seq, first_child, -1), nodes.seq)


class Makers:
    """By name id: the operator that makes a node, and what an operator makes, without and with its namespace."""

    def __init__(self, names: Sequence[str], used: Bools) -> None:
        number: dict[str, int] = {}
        self._of_node, self._as_operator, self._in_full = np.full((3, len(names)), NOTHING, np.int32)
        self._aten = np.zeros(len(names), np.bool_)
        for name_id in np.flatnonzero(used).tolist():
            name = names[name_id].removeprefix(ENGINE_OPERATOR)
            maker = made_by(name)
            if maker:
                self._of_node[name_id] = number.setdefault(maker, len(number))
            if _OF_CPP.match(name):
                self._of_node[name_id] = ANY_BUT_ATEN
            operator = _plain(name.rsplit("::", 1)[-1])
            full_name = _plain(name)
            self._as_operator[name_id] = number.setdefault(operator, len(number))
            self._in_full[name_id] = number.setdefault(full_name, len(number))
            self._aten[name_id] = name.startswith("aten::")

    def fit(self, node: Int32s, operator: Int32s) -> Bools:
        """Return, per pair of names, whether the operator can create the node."""
        maker = self._of_node[node]
        named = (maker == self._as_operator[operator]) | (maker == self._in_full[operator])
        by_name = (maker >= 0) & named
        by_namespace = (maker == ANY_BUT_ATEN) & ~self._aten[operator]
        fits: Bools = by_name | by_namespace
        return fits


def made_by(node: str) -> str:
    """Return the plain name of the operator that makes nodes of this name; empty if none does.

    >>> made_by("NllLossBackward0"), made_by("CopySlices")
    ('nllloss', '')
    """
    match = _NODE.match(node)
    operator = match["operator"] if match else ""
    of_library = _OF_LIBRARY.match(operator)
    return _plain(of_library["operator"] if of_library else operator.rsplit("::", 1)[-1])


def _plain(name: str) -> str:
    """Normalize a name so that both sides can be compared: `nll_loss_forward` and `NllLoss` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("forward")
