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
    process = process_of[thread]
    maker, thread_of = _makers(columns, process_of)
    node = forward > 0
    number = np.where(node, len(columns.threads), thread).astype(np.int64)
    keys = _pairs(process, forward)
    at = np.minimum(np.searchsorted(maker, keys), max(len(maker) - 1, 0))
    known = node & (maker[at] == keys) if len(maker) else node & False
    number[known] = thread_of[at[known]]
    counted = (sequence >= 0) & (sequence < 1 << _BITS) & np.isin(process, maker >> _BITS)
    return np.where(counted, (number + 1) << _BITS | sequence, sequence)


def _makers(columns: TraceColumns, process_of: Int32s) -> tuple[Int64s, Int64s]:
    """Return, sorted, the pairs of a process and a forward thread's number, and the thread that each is."""
    table, flows = columns.ranges, columns.flows
    is_end: Bools = flows["is_end"] == 1
    flow = _pairs(process_of[flows["place"]], flows["id"])
    begin, end = np.flatnonzero(~is_end), np.flatnonzero(is_end)
    begin = begin[np.argsort(flow[begin], kind="stable")]
    row = _rows_at(table["place"], table["start"], flows["place"][end], flows["start"][end], table["forward"] > 0)
    at = np.minimum(np.searchsorted(flow[begin], flow[end]), max(len(begin) - 1, 0))
    found = (row >= 0) & (flow[begin][at] == flow[end]) if len(begin) else row < -1
    from_thread = flows["place"][begin[at[found]]]
    pair = _pairs(process_of[from_thread], table["forward"][row[found]])
    maker, first = np.unique(pair, return_index=True)
    return maker, from_thread[first]


def _rows_at(place: Int64s, start: Int64s, at_place: Int64s, at_start: Int64s, chosen: Bools) -> Int64s:
    """Return the chosen row of a thread that starts at a time; -1 for none."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return np.full(len(at_place), -1)
    moments = np.unique(start[rows])
    key = place[rows] << _BITS | np.searchsorted(moments, start[rows])
    moment = np.minimum(np.searchsorted(moments, at_start), len(moments) - 1)
    order = np.argsort(key, kind="stable")
    at = np.minimum(np.searchsorted(key[order], at_place << _BITS | moment), len(rows) - 1)
    row = rows[order[at]]
    return np.where((place[row] == at_place) & (start[row] == at_start), row, -1)


def _pairs(process: Int32s, number: Int64s) -> Int64s:
    return process.astype(np.int64) << _BITS | number & ((1 << _BITS) - 1)
