"""Programs on a simulated host and GPU, as the rows that nsys would record of them, and their true step time.

The simulation goes call by call, and shares nothing with the replay. Times are ns; a program is a function that
gets a `Simulated` and makes its calls in it: `recorded(tmp_path, program)` and `step_ns(program)`.
"""

import json
from contextlib import contextmanager

from tests.analysis.making.building import (
    MAIN,
    MARK,
    MODEL_FORWARD,
    Launch,
    Range,
    Rows,
    Wait,
    Work,
    annotation,
    module,
    write,
)
from tests.analysis.making.lined import mark

US, MS = 1_000, 1_000_000
CALL, LAG, GAP, WAKES = 4 * US, 6 * US, 500, 3 * US
MAIN_STREAM = 7
FP32_GEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(T1::Params)"
TF32_GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4>(T1::Params)"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*)"


class Simulated:
    """A host that makes calls, and a GPU with streams."""

    def __init__(self, gpu="NVIDIA H200", slower=1.0, run=None, script="train.py"):
        self.rows, self.now, self.ends, self.events, self.slower = Rows(gpus=[gpu]), 0, {}, {}, slower
        self.step_ends, self.last_end, self.correlation = [], 0, 0
        self.begun, self.log, self.script, self.is_annotated = [], [], script, False
        if run:
            self.rows.ranges.append(Range(f"nvtx-kernels.run {json.dumps(run)}", 0, None, event=MARK))

    def host(self, ns):
        """Let the host compute; recording slows what is short."""
        self.now += ns if ns > MS else round(ns * self.slower)

    def at(self, line):
        """Let the program reach a line of `train.py`."""
        self.log.append((MAIN, self.now, line, -1))

    def call(self, name="cudaLaunchKernel_v7000", own=CALL, until=None):
        """Make a call that takes its own time, or returns later if it waits; return its id."""
        self.host(3 * US)
        self.correlation += 1
        begin = self.now
        self.now = begin + (own if own > MS or until is not None else round(own * self.slower))
        if until is not None and until > begin:
            self.now = max(self.now, until + WAKES)
        self.rows.launches.append(Launch(self.correlation, begin, self.now, MAIN, name=name))
        return self.correlation

    def work(self, lasts, name=ELEMENTWISE, *, stream=MAIN_STREAM, kind="kernel", own=CALL, after=0, **copy):
        """Launch work on a stream; `after` is when what the stream was told to wait for has ended."""
        names = {"kernel": "cudaLaunchKernel_v7000", "memcpy": "cudaMemcpyAsync_v3020"}
        correlation = self.call(names[kind], own)
        called = self.rows.launches[-1].start
        ready = max(self.ends.get(stream, 0), after)
        start = max(called + round(LAG * self.slower), ready + GAP)
        self.ends[stream] = self.last_end = start + lasts
        self.rows.work.append(Work(correlation, start, start + lasts, name, kind, stream=stream, **copy))

    def gemms(self, count, lasts=200 * US, name=FP32_GEMM):
        """Launch products."""
        for _ in range(count):
            self.work(lasts, name)

    def read(self, size=4, *, pinned=True):
        """Copy bytes back and wait for them."""
        self.work(max(1500, size // 10), 2, kind="memcpy", bytes=size, source=2, target=int(pinned))
        self.wait()

    def wait(self, stream=MAIN_STREAM):
        """Wait for a stream."""
        correlation = self.call("cudaStreamSynchronize_v3020", until=self.ends.get(stream, 0))
        self.rows.waits.append(Wait(correlation, stream))

    def upload(self, size, *, pinned=False, waits=True):
        """Copy a batch to the GPU; from pageable memory the call copies, after the stream's earlier work."""
        lasts = round(size / (50 if pinned else 10))
        if pinned:
            self.work(lasts, 1, kind="memcpy", bytes=size, source=1, target=2)
        else:
            behind = max(self.ends.get(MAIN_STREAM, 0) - self.now - 3 * US, 0) if size > 65536 else 0
            correlation = self.call("cudaMemcpyAsync_v3020", own=lasts + behind + 5 * US, until=0)
            start = max(self.rows.launches[-1].start + behind + 4 * US, self.ends.get(MAIN_STREAM, 0))
            self.ends[MAIN_STREAM] = start + lasts
            copy = Work(correlation, start, start + lasts, 1, "memcpy", stream=MAIN_STREAM, bytes=size, source=0)
            self.rows.work.append(copy)
        if waits and not pinned:
            self.wait()

    @contextmanager
    def range(self, name):
        """Open a range."""
        begin = self.now
        yield
        self.rows.ranges.append(Range(name, begin, self.now))

    @contextmanager
    def model(self, name, category=MODEL_FORWARD):
        """Open the range that annotation opens around a model."""
        if not self.is_annotated:
            self.rows.ranges.extend(annotation())
            self.is_annotated = True
        begin = self.now
        yield
        self.rows.ranges.append(module(name, begin, self.now, category=category))

    @contextmanager
    def step(self):
        """Open the range of a step."""
        self.begun.append(self.now)
        with self.range("step"):
            yield
        self.step_ends.append(max(self.ends.values()))
        self.host(20 * US)


def simulated(program, *, steps=6, **options):
    """Run a program's steps; return the host and the GPU that ran it."""
    machine = Simulated(**options)
    for _ in range(steps):
        with machine.step():
            program(machine)
    if machine.log:
        machine.rows.ranges.append(traced(machine))
    return machine


def traced(machine):
    """Return the mark of the lines of the second step."""
    last = 1 + max(line for _, _, line, _ in machine.log)
    span = begin, end = machine.begun[1:3]
    return mark(
        [row for row in machine.log if begin <= row[1] < end],
        machine.now,
        machine.begun,
        span,
        lines=[*(("train.py", line, "train") for line in range(last)), (machine.script, 99, "<module>")],
        stacks=[[line, last] for line in range(last)],
        unit=1,
    )


def step_ns(program, **options):
    """Return how long a step takes, from the end of one's work to the end of the next's."""
    ends = simulated(program, **options).step_ends
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def recorded(folder, program, **options):
    """Write what nsys would record of a program, and return the report's path."""
    return write(folder / "report.sqlite", simulated(program, **options).rows)
