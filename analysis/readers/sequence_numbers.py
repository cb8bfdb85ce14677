"""Autograd's numbers of a PyTorch trace: which operators made which nodes, whatever thread runs the nodes."""

from __future__ import annotations

import numpy as np

from ..trace import Int32s, Int64s
from .chrome_columns import TraceColumns
from .launches import RowsById

#: Autograd's numbers count per thread; the thread is above these bits.
SEQUENCE_BITS = 32


def sequence_numbers(columns: TraceColumns, process_of: Int32s, thread: Int32s) -> Int64s:
    """Return a number for each pair of a range's sequence number and its thread; -1 stays: int64 (ranges,).

    `process_of` is the process of each of the threads, `thread` the thread of each range.

    Autograd's numbers count per thread. A node's `Fwd thread id` is the profiler's own number of the thread
    that ran forward (not the one that the trace shows), and a flow from an operator to its node shows which
    thread that is (`generateForwardBackwardLinks` in torch/csrc/profiler/kineto_shim.cpp). Both are put into
    one number, which only an operator and the nodes that it made share. In a process without
    flows threads cannot be distinguished, and numbers stay as they are. A node whose forward thread was not
    recorded has a number that no operator has.
    """
    table = columns.ranges
    flows = columns.flows
    sequence = table["sequence"]
    forward = table["forward"]
    if not len(thread) or not flows.rows:
        return sequence
    place = flows["place"].astype(np.int32)
    is_node = forward > 0
    begin = np.flatnonzero(flows["is_end"] == 0)
    end = np.flatnonzero(flows["is_end"] == 1)
    flow_process = process_of[place]
    begins = RowsById.of(flow_process[begin], flows["id"][begin])
    origin = begins.find(flow_process[end], flows["id"][end])
    # The node that starts where and when its flow ends.
    nodes = np.flatnonzero(is_node)
    starts = np.concatenate([table["start"][nodes], flows["start"][end]])
    _, moment = np.unique(starts, return_inverse=True)
    moment_of_node = moment[: len(nodes)]
    moment_of_flow = moment[len(nodes) :]
    node = RowsById.of(thread[nodes], moment_of_node).find(place[end], moment_of_flow)
    joined = (origin >= 0) & (node >= 0)
    maker = place[begin[origin[joined]]]
    # Which thread a process and the profiler's number of a thread are.
    makers = RowsById.of(process_of[maker], forward[nodes[node[joined]]])
    row = makers.find(process_of[thread], forward)
    has_maker = is_node & (row >= 0)
    number = np.where(is_node, len(columns.threads), thread).astype(np.int64)
    number[has_maker] = maker[row[has_maker]]
    is_counted = (sequence >= 0) & (sequence < 1 << SEQUENCE_BITS)
    is_counted &= np.isin(process_of[thread], process_of[maker])
    return np.where(is_counted, (number + 1) << SEQUENCE_BITS | sequence, sequence)
