"""The kernels of one process on one GPU as a sequence of symbols, in which steps are looked for.

    launched      embed  norm  gemm  gemm  norm  gemm  gemm  loss  …
    symbols         0     1     2     2     1     2     2     3        equal for equal work

Copies and memsets are not in it: those of a program's set-up outnumber the kernels of short recordings. Work in
the program's own warm-up is left out by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...kernel_names.categories import classify
from ...support.small_numbers import grouped, grouped_rows, median_of_each, sorted_by
from ...trace import GRAPH, KERNEL, MEMCPY, Bools, Int64s, Spots, Trace, Work
from ...vocabulary.calls import SYNCHRONIZATION
from .arrays import Floats, reach_before

#: A kernel weighs by the usual time of its symbol, and by itself for the rest. (The mean time would let a
#: collective that waits, or a first kernel that loads, weigh most; time alone would leave nothing to small ones.)
WEIGHT_OF_TIME = 0.75
#: Launches tell the order if this share of the work has one; else the starts on the GPU do.
MOST_LAUNCHED = 0.9
#: Copies by which a loop takes its input, or reads its loss.
WITH_HOST = ("[CUDA memcpy Host-to-Device]", "[CUDA memcpy Device-to-Host]")
PRODUCTS = ("gemm", "convolution")
OPTIMIZER = ("optimizer",)


@dataclass(frozen=True, slots=True)
class Sequence:
    """Kernels and whole CUDA graphs in the order of their launches; all columns but `waits_ns` are of length n.

    Where launches are not known (`on_host` is false), times and order are those of the work on the GPU.
    """

    row: Int64s  # position in the trace's Work
    start_ns: Int64s  # of the launch call
    end_ns: Int64s
    pause_ns: Int64s  # from the end of all launch calls before to the start of this
    symbol: Int64s  # a number for each pair of name and grid
    name: Int64s  # a number for each name
    weight: Floats  # adds up to one
    is_product: Bools  # a matrix product or a convolution
    is_update: Bools  # a multi-tensor or fused optimizer
    is_graph: Bools  # a whole CUDA graph, whose kernels are not known
    waits_ns: Int64s  # when the host copied from or to the GPU, or waited for it, in order
    on_host: bool

    def __len__(self) -> int:
        return len(self.row)


def sequence_of(trace: Trace, rows: Int64s) -> Sequence:
    """Return the kernels and graphs among some rows of the trace's work, of one process, as a sequence."""
    work = trace.work
    rows = rows[np.isin(work.kind[rows], [KERNEL, GRAPH])]
    is_launched = work.launch[rows] >= 0
    on_host = bool(trace.launch_times_known and len(rows) and is_launched.mean() > MOST_LAUNCHED)
    if on_host:
        rows = rows[is_launched]
    rows = sorted_by(rows, work.start_ns)
    times: Spots | Work = work.take(rows)
    if on_host:
        launched = trace.launches.take(work.launch[rows])
        order = np.argsort(launched.start_ns, kind="stable")
        rows = rows[order]
        times = launched.take(order)
    pause_ns = times.start_ns - reach_before(times.end_ns, times.start_ns[:1])
    _, name = grouped_rows(work.name_id[rows], work.kind[rows])
    _, symbol = grouped_rows(name, work.grid[rows])
    category = _categories(trace, rows)
    return Sequence(
        rows,
        times.start_ns,
        times.end_ns,
        np.maximum(pause_ns, 0),
        symbol,
        name,
        weight=_weights(symbol, work.take(rows).duration_ns),
        is_product=np.isin(category, PRODUCTS),
        is_update=np.isin(category, OPTIMIZER),
        is_graph=work.kind[rows] == GRAPH,
        waits_ns=_waits(trace, rows),
        on_host=on_host,
    )


def _categories(trace: Trace, rows: Int64s) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    """Return the category of each piece of work by its name."""
    ids, number = grouped(trace.work.name_id[rows])
    names = [trace.names[name_id] for name_id in ids.tolist()]
    categories = np.array([category for category, _ in classify(names)], np.str_)
    return categories[number]


def _weights(symbol: Int64s, duration_ns: Int64s) -> Floats:
    """Return how much each piece of work weighs, by its symbol and its duration."""
    count = len(symbol)
    symbols = int(symbol.max(initial=-1)) + 1
    usual_ns = median_of_each(symbol, duration_ns, symbols)[symbol]
    of_time = usual_ns / max(1, int(usual_ns.sum()))
    of_one = (1 - WEIGHT_OF_TIME) / max(1, count)
    return WEIGHT_OF_TIME * of_time + of_one


def _waits(trace: Trace, rows: Int64s) -> Int64s:
    """Return when the process of some work copied between host and GPU, or waited for a GPU, in order."""
    work = trace.work
    launches = trace.launches
    if not len(rows) or not len(launches):
        return np.empty(0, np.int64)
    process = work.process[rows[0]]
    ids = [name_id for name_id, name in enumerate(trace.names) if name in WITH_HOST]
    is_copy = (work.kind == MEMCPY) & (work.launch >= 0)
    copies = np.flatnonzero(is_copy & (work.process == process))
    copies = copies[np.isin(work.name_id[copies], ids)]
    moments = [launches.start_ns[work.launch[copies]]]
    if trace.calls is not None:
        waits = np.flatnonzero(trace.calls.kinds == SYNCHRONIZATION)
        waiting = trace.process_of_thread()[launches.thread[waits]]
        moments.append(launches.start_ns[waits[waiting == process]])
    return np.sort(np.concatenate(moments))
