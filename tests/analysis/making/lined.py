"""A report of a GPU whose second step was traced by line: four steps of 1 ms, with a wait and a pause in each."""

import base64
import json
import zlib

import numpy as np

from tests.analysis.making.building import AUTOGRAD, MAIN, MARK, Launch, Range, Work, build

US = 1_000
LINES = [
    ("train.py", 12, "train"),
    ("train.py", 13, "train"),
    ("train.py", 14, "train"),
    ("train.py", 15, "train"),
]
STACKS = [[0], [1], [2], [3]]
AT_12, AT_13, AT_14, AT_15 = range(4)
TRACED = 1
#: From when on, µs into the step, which thread is at which stack, in the backward of which other one.
LOG = [
    *((MAIN, at, stack, -1) for at, stack in ((0, AT_12), (100, AT_13), (200, AT_14), (450, AT_15), (790, AT_12))),
    *((AUTOGRAD, at, AT_12, forward) for at, forward in ((880, AT_12), (890, AT_13), (899, -1))),
]
SYNC = "cudaStreamSynchronize_v3020"


def mark(log, at, begun, span, *, lines=LINES, stacks=STACKS, reason="", unit=US):
    """Return the mark of a log, sent at a moment; times are units of the report, µs or what `unit` has of ns."""
    rows = [(thread & 0xFFFFFF, time * unit, stack, forward) for thread, time, stack, forward in log]
    table = np.array(rows, np.int64).reshape(-1, 4).T.copy()
    table[1] = np.diff(table[1], prepend=at * unit)
    content = {
        "version": 1, "frames": lines, "stacks": stacks, "begun": [(time - at) * unit for time in begun],
        "span": [(time - at) * unit for time in span],
        "data": base64.b64encode(zlib.compress(table.astype("<i8").tobytes())).decode(),
    }  # fmt: skip
    return Range(f"nvtx-kernels lines: {json.dumps(content | ({'reason': reason} if reason else {}))}", at * unit,
                 None, event=MARK)  # fmt: skip


def calls_of_a_step(*, more=False):
    """Return (start, end, thread, name of the call, name of its kernel) of a step, µs."""
    launch = "cudaLaunchKernel_v7000"
    return [
        (50, 60, MAIN, launch, "mm"),
        (150, 160, MAIN, launch, "add"),
        *([(170, 175, MAIN, launch, "add")] if more else []),
        (300, 400, MAIN, SYNC, ""),
        (800, 810, MAIN, launch, "mm"),
        (885, 888, AUTOGRAD, launch, "mm_backward"),
        (895, 898, AUTOGRAD, launch, "add_backward"),
    ]


def steps(count=4, longer=3):
    """Return the ranges, calls and work of the steps; one makes a call more."""
    ranges, launches, work = [], [], []
    for step in range(count):
        begin = 1000 * step
        of_step = [("step", 10, 950), ("forward", 20, 860), ("backward", 870, 940)]
        ranges += [Range(name, (begin + first) * US, (begin + last) * US) for name, first, last in of_step]
        for start, end, thread, name, kernel in calls_of_a_step(more=step == longer):
            number = len(launches) + 1
            launches.append(Launch(number, (begin + start) * US, (begin + end) * US, thread, name=name))
            if kernel:
                lasts = 130 if kernel == "add" else 5  # until the wait ends
                work.append(Work(number, (begin + end + 2) * US, (begin + end + 2 + lasts) * US, kernel))
    return {"ranges": ranges, "launches": launches, "work": work}


def traced_report(folder, count=4, longer=3, **marked):
    """Write the report, whose second step was traced; the mark has other `lines` and `stacks` if given."""
    rows = steps(count, longer)
    log = [(thread, 1000 * TRACED + us, stack, forward) for thread, us, stack, forward in LOG]
    begun = [1000 * step for step in range(count + 1)]
    rows["ranges"].append(mark(log, begun[-1] + 500, begun, (1000 * TRACED, 1000 * (TRACED + 1)), **marked))
    return build(folder, **rows, thread_names={AUTOGRAD: "pt_autograd_0"})
