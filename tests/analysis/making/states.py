"""What GPUs do, moment by moment and in plain Python: the slow reference of the views' states and sums."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
from nvtx_kernels.analysis.attribution.steps import step_of_nodes
from nvtx_kernels.analysis.kernel_names.categories import categorize
from nvtx_kernels.analysis.trace import GRAPH, KERNEL


def states(attribution, *, per_step, include_warm_up):
    """Return by (process, device) the times of what is measured there, ns, as a dict, and the steps' kernel time.

    `attribution` is of all work. Per step the windows are from the first start to the last end of each step's
    work; else they are of all work, divided where work of warm-up begins.
    """
    trace, work = attribution.trace, attribution.trace.work
    warm_up = np.append(attribution.warm_up, False)[attribution.node]
    step = step_of_nodes(attribution, include_warm_up=include_warm_up)[attribution.node].tolist()
    counted = [
        number >= 0 if per_step else include_warm_up or not warm
        for number, warm in zip(step, warm_up.tolist(), strict=True)
    ]
    names = sorted({trace.names[name] for name in np.unique(work.name_id).tolist()})
    category = dict(zip(names, categorize(names), strict=True))
    gpus = defaultdict(list)
    columns = (work.start_ns, work.end_ns, work.kind, work.name_id, work.process, work.device_id)
    for row, (start, end, kind, name, process, device) in enumerate(
        zip(*map(np.ndarray.tolist, columns), strict=True)
    ):
        communicates = kind == KERNEL and category[trace.names[name]] == "communication"
        computes = kind == GRAPH or (kind == KERNEL and not communicates)
        gpus[process, device].append((start, end, communicates, computes, counted[row], step[row], kind == KERNEL))
    return {gpu: _of_gpu(sorted(rows), per_step) for gpu, rows in gpus.items() if any(row[4] for row in rows)}


def _of_gpu(rows, per_step):
    changes = defaultdict(lambda: [0] * 5)  # windows, any work, any compute, own compute, own communication
    for start, end in _windows(rows, per_step):
        changes[start][0] += 1
        changes[end][0] -= 1
    for start, end, communicates, computes, own, *_ in rows:
        for moment, sign in ((start, 1), (end, -1)):
            for number, counts in enumerate((True, computes, computes and own, communicates and own), 1):
                changes[moment][number] += sign * counts
    times = dict.fromkeys(("span", "busy", "compute", "communication", "hidden"), 0)
    now = [0] * 5
    for moment, later in pairwise(sorted(changes)):
        now = [before + change for before, change in zip(now, changes[moment], strict=True)]
        windows, any_work, any_compute, compute, communication = now
        lasts = later - moment
        times["span"] += lasts * windows
        times["busy"] += lasts * windows * (any_work > 0)
        times["compute"] += lasts * (compute > 0)
        times["communication"] += lasts * (communication > 0)
        times["hidden"] += lasts * (communication > 0 and any_compute > 0)
    times["kernel"] = sum(end - start for start, end, _, _, own, _, is_kernel in rows if own and is_kernel)
    return times


def _windows(rows, per_step):
    """Return the windows of a GPU's rows; those of steps can overlap, others are joined where they do."""
    windows = {}
    piece = 0
    for start, end, _, _, own, step, _ in rows:
        if not own:
            piece += not per_step
            continue
        key = step if per_step else piece
        first, last = windows.get(key, (start, end))
        windows[key] = min(first, start), max(last, end)
    if per_step:
        return list(windows.values())
    joined = []
    for start, end in sorted(windows.values()):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined
