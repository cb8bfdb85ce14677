"""What the views are cross-checked on: real reports, and made ones with what these lack.

The made ones have several ranks, other threads' work inside a step, warm-up between steps, graphs that ran whole,
parts of attention, memory and counted FLOPs.
"""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.marks import FLOPS_MARK
from nvtx_kernels.analysis.summary.totals import accounted

from tests.analysis.making.building import MARK, Allocation, Launch, Range, Rows, Work, process_of, thread, write
from tests.analysis.making.bundled import DATA, SHARED, readable

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
#: What each GPU held before the first allocation, bytes.
BEFORE = 1000
#: What a step of `STEPS` was counted to compute, by phase and path: number of paths, bytes and FLOPs of each.
COUNTED = {
    "forward": {
        "warm-up > step 0 > forward > layer * > computing attention scores": [1, 100, {"bf16": 1000}],
        "warm-up > step 0 > forward > layer * > computing softmax": [1, 50, {"elementwise": 7}],
        "warm-up > step 0 > forward > head": [1, 5, {"bf16": 10}],
    },
    "backward": {"warm-up > step 0 > backward": [1, 10, {"bf16": 2000, "fp16": 3}]},
}


def made(*pieces, ranks=1, ranges=(), apart=0):
    """Return the rows of a report: pieces are (launched at, start, end, name, stream[, thread]) of each rank.

    One launched at None has lost its launch. Ranks are `apart` from one another in time.
    """
    rows = Rows(gpus=["NVIDIA H200"] * ranks)
    counted = json.dumps({"version": 1, "part": 0, "parts": 1, "calls": {}, "uncounted": {}, "ranges": COUNTED})
    for rank in range(ranks):
        main, later = thread(100 + rank), rank * apart
        rows.ranges.append(Range(FLOPS_MARK + counted, 1, None, main, event=MARK))
        for name, start, end in ranges:
            rows.ranges.append(Range(name, start + later, end + later, main))
        launched = []
        for at, start, end, name, stream, *other in pieces:
            number, on = len(rows.launches), thread(100 + rank, 500) if other else main
            kind = "graph" if name == "graph" else "memcpy" if name == 1 else "kernel"
            if at is not None:
                rows.launches.append(Launch(number, at + later, at + later + 1, on))
                launched.append((at + later, on))
            begin, end_ns = start + rank + later, end + 2 * rank + later
            launch = None if at is None else number
            rows.work.append(Work(launch, begin, end_ns, name, kind, process_of(main), device=rank, stream=stream))
        rows.allocations.extend(_allocations(sorted(launched), device=rank))
    return rows


def _allocations(launched, device):
    """Yield a block at each launch; every second launch first frees the block before."""
    held = BEFORE
    for number, (at, on) in enumerate(launched):
        freed = 8 + 2 ** (number - 1) if number and number % 2 == 0 else 0
        if freed:
            held -= freed
            yield Allocation(at, -freed, number - 1, held, on, device)
        held += 8 + 2**number
        yield Allocation(at + bool(freed), 8 + 2**number, number, held, on, device)


STEP = (
    ("forward", 1, 50),
    ("layer 0", 5, 15),
    ("computing attention scores", 6, 14),
    ("layer 1", 16, 25),
    ("computing softmax", 17, 24),
    ("backward", 55, 75),
)
STEPS = [
    ("warm-up", 0, 90),
    *((name, 100 + start, 100 + end) for name, start, end in (("step 1", 0, 90), *STEP)),
    *((name, 200 + start, 200 + end) for name, start, end in (("step 2", 0, 90), *STEP)),
]
MADE = {
    "another thread keeps the GPU busy": made(
        (110, 120, 140, "sgemm", 7), (160, 200, 210, "sgemm", 7), (210, 220, 230, "sgemm", 7),
        (5, 100, 290, "sgemm", 9, "other"), ranges=STEPS,
    ),
    "compute of warm-up and of no step hides": made(
        (10, 20, 125, "sgemm", 7), (110, 120, 140, ALL_REDUCE, 8), (120, 150, 160, "sgemm", 7),
        (193, 155, 240, "sgemm", 9), (210, 230, 260, ALL_REDUCE, 8), (220, 270, 280, 1, 9), ranges=STEPS,
    ),
    "warm-up between what is measured": made(
        (2, 3, 8, "sgemm", 7), (20, 30, 50, "sgemm", 7), (21, 60, 80, "sgemm", 7), (110, 120, 140, "sgemm", 7),
        (111, 130, 160, ALL_REDUCE, 8), ranges=[("warm-up", 10, 90), ("forward", 100, 190)],
    ),
    "two ranks": made(
        (110, 120, 140, ALL_REDUCE, 8), (120, 130, 160, "sgemm", 7), (210, 230, 260, ALL_REDUCE, 8),
        (220, 235, 240, "sgemm", 9), ranks=2, ranges=STEPS,
    ),
    "graphs that ran whole": made(
        (110, 120, 140, "graph", 7), (120, 125, 150, ALL_REDUCE, 8), (210, 230, 260, "graph", 7), ranges=STEPS,
    ),
    "steps overlap on the GPU": made(
        (110, 120, 230, "sgemm", 7), (210, 200, 260, "sgemm", 8), (220, 250, 280, ALL_REDUCE, 8), ranges=STEPS,
    ),
    "ranks half a step apart": made(
        (110, 120, 140, ALL_REDUCE, 8), (120, 130, 160, "sgemm", 7), (210, 230, 260, ALL_REDUCE, 8),
        (220, 235, 240, "sgemm", 9), ranks=2, ranges=STEPS, apart=50,
    ),
    "a lost launch": made(
        (110, 120, 140, "sgemm", 7), (None, 130, 190, "sgemm", 8), (210, 230, 260, ALL_REDUCE, 8), ranges=STEPS,
    ),
    "no steps and no ranges": made((10, 20, 30, "sgemm", 7), (15, 25, 60, ALL_REDUCE, 8), (70, 90, 95, 1, 7)),
}  # fmt: skip
REAL = sorted(path for folder in (DATA, SHARED / "h200", SHARED / "corpus") for path in folder.glob("*.sqlite*"))


@cache
def summed_up(name, *, include_warm_up):
    """Attribute all work of a made or a real report, and add it up; None where it has none."""
    folder = Path(mkdtemp())
    path = write(folder / "report.sqlite", MADE[name]) if name in MADE else readable(Path(name), folder)
    attribution = attribute(read(path))
    return accounted(attribution, include_warm_up=include_warm_up) if len(attribution.trace.work) else None


def cases():
    """Yield each report per step and in total, with and without warm-up; most real ones together are slow."""
    for name in [*MADE, *map(str, REAL)]:
        marks = () if name in MADE or name.endswith("h200_train_fp32.sqlite") else pytest.mark.slow
        for per_step in (False, True):
            for include_warm_up in (False, True):
                case = f"{Path(name).name[:24]}-{per_step:d}{include_warm_up:d}"
                yield pytest.param(name, per_step, include_warm_up, id=case, marks=marks)
