"""Hold how nsys sees a program against how PyTorch's own profiler sees it: both reports must rank alike.

python benchmarks/two_profilers.py --size small

A training step is run twice, in two processes: under nsys with operators as ranges, and under torch.profiler.
The phases and layers are NVTX ranges there and `record_function` blocks here, of the same names; nothing else of
the model is annotated, so that operators' sequence numbers alone place the backward. Both reports are ranked;
kernels are counted by phase, layer and category, which must be the same, and by name.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.analysis.frames.ranking import Ranking
from nvtx_kernels.profiling.sweep.nsight import MEASURED_STEPS, profile_command
from nvtx_kernels.profiling.workload.model_steps import Workload, run_phases
from nvtx_kernels.profiling.workload.settings import Settings

from nvtx_kernels import analysis

WARM_UP = 5
Block = Callable[[str], AbstractContextManager[Any]]


def enclose(call: Callable[..., Any], name: str, block: Block) -> Callable[..., Any]:
    """Return a callable that runs in a block of this name."""

    def enclosed(*inputs: Any) -> Any:
        with block(name):
            return call(*inputs)

    return enclosed


def step(workload: Workload, block: Block) -> None:
    """Run one step in its phases."""
    with block("step"):
        run_phases(workload, block)
    torch.cuda.synchronize()


def run(size: str, trace: str) -> None:
    """Run the program: under torch.profiler where a trace is wanted, else for nsys."""
    workload, block = Workload(Settings(size=size)), record_function if trace else torch.cuda.nvtx.range
    for number, layer in enumerate(workload.model.layers):
        layer.forward = enclose(layer.forward, f"layer {number}", block)
    for _ in range(WARM_UP):
        step(workload, block)
    if trace:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            step(workload, block)
        profiler.export_chrome_trace(trace)
        return
    with torch.autograd.profiler.emit_nvtx():
        torch.cuda.profiler.start()
        step(workload, block)
        torch.cuda.profiler.stop()


def counts(ranking: Ranking, column: str) -> Counter[tuple[str, ...]]:
    """Count kernels by phase, layer, and a column: category or kernel."""
    found: Counter[tuple[str, ...]] = Counter()
    for row in ranking.report.kernels:
        if row.kind == "kernel":
            layer = next((part for part in row.path if part.startswith("layer ")), "")
            found[str(row.phase), layer, getattr(row, column)] += int(row.count)
    return found


def main() -> None:
    """Run the program twice, rank both reports, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small")
    parser.add_argument("--only-run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--trace", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_run:
        run(options.size, options.trace)
        return
    compare(*both(options.size))


def both(size: str) -> tuple[Ranking, Ranking]:
    """Run the program twice; return how its report of nsys and its trace of torch.profiler rank."""
    program = [sys.executable, __file__, "--only-run", "--size", size]
    without_ours = {**os.environ, "NVTX_KERNELS_OFF": "1"}
    with tempfile.TemporaryDirectory() as folder:
        report, trace = Path(folder, "nsys.nsys-rep"), Path(folder, "kineto.pt.trace.json")
        command = profile_command("nsys", program, report, flags=MEASURED_STEPS["cuda"])
        subprocess.run(command, check=True, capture_output=True, env=without_ours)
        subprocess.run([*program, "--trace", str(trace)], check=True, capture_output=True, env=without_ours)
        return analysis.rank(analysis.read(report)), analysis.rank(analysis.read(trace))


def compare(nsys: Ranking, kineto: Ranking) -> None:
    """Print phases and totals side by side, and the kernels that one has and the other lacks."""
    print(
        "| phase | nsys: kernels | ms | torch.profiler: kernels | ms | ratio of times |\n|---|---|---|---|---|---|"
    )
    for one, other in zip(nsys.report.phases, kineto.report.phases, strict=True):
        a, b = one.kernel_ns / 1e6, other.kernel_ns / 1e6
        ratio = f"{b / a:.4f}" if a else "-"
        print(f"| {one.phase} | {one.kernels:,} | {a:.3f} | {other.kernels:,} | {b:.3f} | {ratio} |")
    for name, ranking in (("nsys", nsys), ("torch.profiler", kineto)):
        print(name, {part: int(value) for part, value in ranking.totals.items() if value})
    for column in ("category", "kernel"):
        ours, theirs = counts(nsys, column), counts(kineto, column)
        print(f"{sum((ours & theirs).values()):,} kernels have the same phase, layer and {column} in both")
        for name, rest in (("nsys", ours - theirs), ("torch.profiler", theirs - ours)):
            print(f"only in the report of {name}: {sum(rest.values()):,}")
            for key, count in rest.most_common(8):
                print("  ", count, *key)


if __name__ == "__main__":
    main()
