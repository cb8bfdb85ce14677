"""The kernels of one process on one GPU as a sequence of symbols, in which steps are looked for.

    launched      embed  norm  gemm  gemm  norm  gemm  gemm  loss  …
    symbols         0     1     2     2     1     2     2     3        equal for equal work

Copies and memsets are not in it: those of a program's set-up outnumber the kernels of short recordings. Work in
the program's own warm-up is left out by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...kernel_names.categories import classify
from ...support.small_numbers import distinct, grouped, grouped_rows, median_of_each
from ...trace import GRAPH, KERNEL, MEMCPY, Bools, Int64s, Trace
from ...vocabulary.calls import SYNCHRONIZATION

Floats: TypeAlias = NDArray[np.float64]

#: A kernel weighs by the usual time of its symbol, and by itself for the rest. (The mean time would let a
#: collective that waits, or a first kernel that loads, weigh most; time alone would leave nothing to small ones.)
WEIGHT_OF_TIME = 0.75
#: Launches tell the order if this share of the work has one; else the starts on the GPU do.
MOST_LAUNCHED = 0.9
#: Copies by which a loop takes its input, or reads its loss.
WITH_HOST = ("[CUDA memcpy Host-to-Device]", "[CUDA memcpy Device-to-Host]")
PRODUCTS, OPTIMIZER = ("gemm", "convolution"), "optimizer"


@dataclass(frozen=True, slots=True)
class Sequence:
    """Kernels and whole CUDA graphs in the order of their launches; all columns but the last are of length n.

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
    waits_ns: Int64s  # when the host copied from or to the GPU, or waited for it, in order
    on_host: bool

    def __len__(self) -> int:
        return len(self.row)


def sequence_of(trace: Trace, rows: Int64s) -> Sequence:
    """Return the kernels and graphs among some rows of the trace's work, of one process, as a sequence."""
    work, launches = trace.work, trace.launches
    rows = rows[(work.kind[rows] == KERNEL) | (work.kind[rows] == GRAPH)]
    has_launch = work.launch[rows] >= 0
    on_host = bool(trace.launch_times_known and len(rows) and has_launch.mean() > MOST_LAUNCHED)
    rows = rows[has_launch] if on_host else rows
    rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
    start_ns, end_ns = work.start_ns[rows], work.end_ns[rows]
    if on_host:
        launch = work.launch[rows]
        order = np.argsort(launches.start_ns[launch], kind="stable")
        rows, launch = rows[order], launch[order]
        start_ns, end_ns = launches.start_ns[launch], launches.end_ns[launch]
    reach_ns = np.maximum.accumulate(end_ns)
    pause_ns = np.maximum(start_ns - np.concatenate([start_ns[:1], reach_ns[:-1]]), 0)
    _, name = grouped_rows(work.name_id[rows], work.kind[rows])
    _, symbol = grouped_rows(name, work.grid[rows])
    is_product, is_update = _kinds_of_kernels(trace, rows)
    weight = _weights(symbol, (work.end_ns - work.start_ns)[rows])
    waits_ns = _waits(trace, rows)
    columns = rows, start_ns, end_ns, pause_ns, symbol, name, weight, is_product, is_update, waits_ns
    return Sequence(*columns, on_host)


def _kinds_of_kernels(trace: Trace, rows: Int64s) -> tuple[Bools, Bools]:
    """Mark which work is a product, and which an optimizer's, by its names."""
    ids, number = grouped(trace.work.name_id[rows])
    categories = [category for category, _ in classify([trace.names[name_id] for name_id in ids.tolist()])]
    is_product = np.array([category in PRODUCTS for category in categories], np.bool_)
    is_update = np.array([category == OPTIMIZER for category in categories], np.bool_)
    return is_product[number], is_update[number]


def _weights(symbol: Int64s, duration_ns: Int64s) -> Floats:
    """Return how much each piece of work weighs, by its symbol and its duration."""
    count = len(symbol)
    usual_ns = median_of_each(symbol, duration_ns, int(symbol.max(initial=-1)) + 1)[symbol]
    of_time = usual_ns / max(1, int(usual_ns.sum()))
    return WEIGHT_OF_TIME * of_time + (1 - WEIGHT_OF_TIME) / max(1, count)


def _waits(trace: Trace, rows: Int64s) -> Int64s:
    """Return when the process of some work copied between host and GPU, or waited for a GPU, in order."""
    work, launches = trace.work, trace.launches
    if not len(rows) or not len(launches):
        return np.empty(0, np.int64)
    process = work.process[rows[0]]
    ids = [name_id for name_id, name in enumerate(trace.names) if name in WITH_HOST]
    is_copy = (work.kind == MEMCPY) & (work.process == process) & (work.launch >= 0)
    copies = np.flatnonzero(is_copy)
    copies = copies[np.isin(work.name_id[copies], ids)]
    moments = [launches.start_ns[distinct(work.launch[copies])]]
    if trace.calls is not None:
        waits = np.flatnonzero(trace.calls.kinds == SYNCHRONIZATION)
        of_process = trace.process_of_thread()[launches.thread[waits]] == process
        moments.append(launches.start_ns[waits[of_process]])
    return np.sort(np.concatenate(moments))
