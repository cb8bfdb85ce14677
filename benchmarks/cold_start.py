"""What the first steps of a process spend their time in, and why one step of warm-up is not enough.

python benchmarks/cold_start.py                             # one GPU: small, forward and backward, eager
python benchmarks/cold_start.py --compile reduce-overhead
python benchmarks/cold_start.py --device cpu                # the same on a CPU: times and compilation alone

The profiler watches from the first step on. A line a step: wall time, CPU time in CUDA calls by what they do, the
launches of kernels that no step before launched, and the time of the GPU's kernels. Compilation is what Dynamo and
Inductor count. What is left of a first step is the library's own work: choosing algorithms, making handles.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from nvtx_kernels.profiling.study.environment import environment
from nvtx_kernels.profiling.study.processes import empty_caches
from nvtx_kernels.profiling.study.settings import Settings, default_device, with_defaults
from nvtx_kernels.profiling.study.workload import Workload, timed_steps
from report_cold_start import table_of
from torch.profiler import ProfilerActivity, profile

STEPS = 7
# What CUDA calls do, by their names, the first match counts.
CAUSES = {
    "loading code": re.compile(r"Module|Library|FuncGetAttributes|FuncSetAttribute|GetFunction|GetKernel"),
    "allocating": re.compile(r"Malloc|HostAlloc|MemCreate|MemMap|MemAddress|HostRegister|cudaFree"),
    "making graphs": re.compile(r"Graph(?!Launch)|Capture"),
    "launching": re.compile(r"Launch"),
    "copying": re.compile(r"Memcpy|Memset"),
}
COMPILING = ("_compile.compile_inner", "backward._backward_impl")
WAITING = re.compile(r"Synchronize|StreamWait|EventQuery")


def cold_steps(settings: Settings) -> list[dict[str, Any]]:
    """Return a line for each of the first steps of this process: its time, and that of every cause, in ms."""
    activities = [ProfilerActivity.CPU]
    if settings.device_type == "cuda":
        torch.cuda.init()
        activities.append(ProfilerActivity.CUDA)
    spans: list[tuple[int, int]] = []
    lines: list[dict[str, Any]] = []
    workload = Workload(settings)
    with profile(activities=activities) as profiler:
        for step in range(STEPS):
            compiled_s, began_ns = compile_seconds(), time.time_ns()
            [times] = timed_steps(workload, 1)
            spans.append((began_ns, time.time_ns()))
            lines.append({"number": step + 1, **times, "compiling": 1e3 * (compile_seconds() - compiled_s)})
    if settings.device_type == "cuda":
        events = profiler.profiler.kineto_results.events()
        for line, causes in zip(lines, causes_of_steps(events, spans), strict=True):
            line |= causes
    return lines


def compile_seconds() -> float:
    """Return the time that this process spent compiling so far, forward graphs and backward graphs."""
    seconds = torch._dynamo.utils.compilation_time_metrics
    return sum(sum(seconds.get(name, ())) for name in COMPILING)


def causes_of_steps(events: Sequence[Any], spans: Sequence[tuple[int, int]]) -> list[dict[str, float]]:
    """Return the ms of every cause in each span, with first launches of kernels and the time of kernels."""
    is_kernel = torch.autograd.DeviceType.CUDA
    kernel_of_launch = {event.correlation_id(): event for event in events if event.device_type() == is_kernel}
    launched: set[str] = set()
    totals: list[dict[str, float]] = [defaultdict(float) for _ in spans]
    for event in sorted(events, key=lambda event: event.start_ns()):
        name = event.name()
        if event.device_type() == is_kernel or not re.match(r"cu(da)?[A-Z]", name) or WAITING.search(name):
            continue
        index = next((i for i, (begin, end) in enumerate(spans) if begin <= event.start_ns() <= end), None)
        if index is None:
            continue
        milliseconds = event.duration_ns() / 1e6
        cause = next((cause for cause, pattern in CAUSES.items() if pattern.search(name)), "other CUDA calls")
        kernel = kernel_of_launch.get(event.correlation_id()) if cause == "launching" else None
        if kernel is not None:
            totals[index]["kernels"] += kernel.duration_ns() / 1e6
            totals[index]["launches"] += 1
            if kernel.name() not in launched:
                # CUDA loads a kernel when it is launched for the first time.
                launched.add(kernel.name())
                totals[index]["new kernels"] += 1
                cause = "launching new kernels"
        totals[index][cause] += milliseconds
    return [dict(total) for total in totals]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the first steps, and print their table; `--json` adds what was measured to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small")
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--mode", default="forward-backward")
    parser.add_argument("--compile", nargs="?", const=True, default=False, choices=[True, "reduce-overhead"])
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the steps and the state as a line")
    options = parser.parse_args(arguments)
    settings = with_defaults(vars(options))
    with tempfile.TemporaryDirectory() as caches:
        os.environ |= empty_caches(caches)
        lines = cold_steps(settings)
    print(f"{settings.by_name()}\n\n{table_of(lines)}\n", flush=True)
    if options.json is not None:
        with options.json.open("a") as file:
            row = {"cell": settings.by_name(), "state": environment(settings), "steps": lines}
            file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
