"""The thread of a backward node's sequence number: PyTorch's traces record the thread that made the node.

Autograd's numbers count per thread. A node's `Fwd thread id` is the profiler's own number of the thread that ran
forward (not the one that the trace shows), and a flow from an operator to its node shows which thread that is
(`generateForwardBackwardLinks` in torch/csrc/profiler/kineto_shim.cpp). Both are put into one number, which an
operator and the nodes that it made share with nothing else.
"""

from __future__ import annotations

import numpy as np

from ..trace import Bools, Int32s, Int64s
from .chrome_columns import TraceColumns

_BITS = 32


def thread_numbers(columns: TraceColumns, process_of: Int32s) -> Int64s:
    """Return a number for each pair of a range's sequence number and its thread; -1 stays.

    In a process without flows threads cannot be distinguished, and numbers stay as they are. A node whose forward
    thread was not recorded has a number that no operator has.
    """
    table, flows = columns.ranges, columns.flows
    sequence, thread, forward = table["sequence"], table["place"].astype(np.int32), table["forward"]
    if not len(thread) or not flows.rows:
        return sequence
    process, is_node = process_of[thread], forward > 0
    maker, thread_of_maker = _makers(columns, process_of)
    number = np.where(is_node, len(columns.threads), thread).astype(np.int64)
    row, has_maker = _looked_up(maker, _pairs(process, forward))
    has_maker &= is_node
    number[has_maker] = thread_of_maker[row[has_maker]]
    is_counted = (sequence >= 0) & (sequence < 1 << _BITS) & np.isin(process, maker >> _BITS)
    return np.where(is_counted, (number + 1) << _BITS | sequence, sequence)


def _makers(columns: TraceColumns, process_of: Int32s) -> tuple[Int64s, Int64s]:
    """Return, sorted, the pairs of a process and a forward thread's number, and the thread that each is."""
    table, flows = columns.ranges, columns.flows
    flow = _pairs(process_of[flows["place"]], flows["id"])
    is_end = flows["is_end"] == 1
    begin, end = np.flatnonzero(~is_end), np.flatnonzero(is_end)
    begin = begin[np.argsort(flow[begin], kind="stable")]

    # The node that starts where and when its flow ends.
    nodes = np.flatnonzero(table["forward"] > 0)
    moments = np.unique(table["start"][nodes])
    moment_of_node = np.searchsorted(moments, table["start"][nodes])
    nodes = nodes[np.argsort(table["place"][nodes] << _BITS | moment_of_node, kind="stable")]
    moment, is_moment = _looked_up(moments, flows["start"][end])
    key_of_node = table["place"][nodes] << _BITS | np.searchsorted(moments, table["start"][nodes])
    node, is_node = _looked_up(key_of_node, flows["place"][end] << _BITS | moment)

    origin, has_origin = _looked_up(flow[begin], flow[end])
    joined = is_moment & is_node & has_origin
    from_thread = flows["place"][begin[origin[joined]]]
    pairs = _pairs(process_of[from_thread], table["forward"][nodes[node[joined]]])
    maker, first = np.unique(pairs, return_index=True)
    return maker, from_thread[first]


def _looked_up(sorted_keys: Int64s, keys: Int64s) -> tuple[Int64s, Bools]:
    """Return the first position of each key among sorted ones, and whether it is there."""
    if not len(sorted_keys):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    position = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return position, sorted_keys[position] == keys


def _pairs(process: Int32s, number: Int64s) -> Int64s:
    return process.astype(np.int64) << _BITS | number & ((1 << _BITS) - 1)
