"""MFU of this project's models by size and precision, timed with CUDA events and without any profiler.

python benchmarks/mfu.py                               # one GPU: six sizes in fp32, tf32 and bf16, about 100 s
python benchmarks/mfu.py --sizes small --steps 20
python benchmarks/mfu.py --device cpu                  # try it on a CPU: the size `tiny`, without peaks

The FLOPs are counted in one step before the timed ones, and printed next to those of the formula. A time is that
of all timed steps between two events, divided by their number; nothing waits for the GPU in between. A size that
is too large for AdamW on the GPU runs without the optimizer and with one sequence.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from nvtx_kernels.analysis.measures.gpu_peaks import Peak, peak_of
from nvtx_kernels.model.cost import matmul_flops
from nvtx_kernels.profiling.annotate.counting import Counting
from nvtx_kernels.profiling.doctor.gemm_peaks import seconds
from nvtx_kernels.profiling.workload.model_steps import (
    NoMemoryError,
    Workload,
    in_memory,
    run_phases,
    timed_steps,
)
from nvtx_kernels.profiling.workload.settings import Settings, with_defaults

SIZES = ("small", "medium", "large", "xl", "2.7B", "10B")
DTYPES = ("fp32", "tf32", "bf16")
WITHOUT_OPTIMIZER = ("10B",)
WARMUP = 2
HEAD = ("size", "dtype", "mode", "batch", "step, ms", "TFLOP, counted", "by formula", "TFLOP/s", "MFU, %")
LINE = "{:<7} {:<5} {:<17} {:>5} {:>9} {:>14} {:>10} {:>8} {:>7}"


def settings_of(size: str, dtype: str, options: argparse.Namespace) -> Settings:
    """Return the run of one row."""
    asked = {"size": size, "dtype": dtype, "device": options.device, "optimizer": options.optimizer}
    settings = with_defaults(asked | {"attention": options.attention})
    if size in WITHOUT_OPTIMIZER:
        return replace(settings, mode="forward-backward", batch_size=1)
    return settings


def seconds_of_a_step(workload: Workload, steps: int) -> float:
    """Return how long a step takes, the mean of some that follow each other; nothing waits for the device."""

    def run(count: int) -> None:
        for _ in range(count):
            run_phases(workload, nullcontext)

    run(WARMUP)
    workload.synchronize()
    return seconds(lambda: run(steps), workload.settings.device_type) / steps


def counted_flops(workload: Workload) -> dict[str, float]:
    """Run a step, and return the FLOPs of its forward and backward by arithmetic."""
    counting = Counting()
    with counting.step():
        list(timed_steps(workload, 1))
    found: dict[str, float] = {}
    for (phase, _), figures in counting.counts.of.items():
        for kind, count in figures.flops.items() if phase in ("forward", "backward") else ():
            found[kind] = found.get(kind, 0) + count
    return found


def row(size: str, dtype: str, options: argparse.Namespace, peak: Peak | None) -> tuple[str, ...]:
    """Measure one size in one precision."""
    settings = settings_of(size, dtype, options)
    about = (size, dtype, settings.mode, str(settings.batch_size))
    try:
        workload = Workload(settings)
        flops = counted_flops(workload)
        with in_memory("a step"):
            step = seconds_of_a_step(workload, options.steps)
    except NoMemoryError as error:
        return (*about, str(error), *[""] * 4)
    formula = 3 * matmul_flops(settings.config, settings.batch_size, settings.context_length)
    total = sum(flops.values())
    rates = [peak.flops(kind) if peak else None for kind in flops]
    least = sum(count / rate for count, rate in zip(flops.values(), rates, strict=True) if rate)
    mfu = f"{100 * least / step:.1f}" if all(rates) else "no peak"
    figures = (
        f"{step * 1e3:.2f}",
        f"{total / 1e12:.5g}",
        f"{formula / 1e12:.5g}",
        f"{total / step / 1e12:.1f}",
        mfu,
    )
    return (*about, *figures)


def main() -> None:
    """Measure, and print a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", help="of the model (six, or `tiny` on a CPU)")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES, choices=DTYPES)
    parser.add_argument("--steps", type=int, default=5, help="timed steps (default 5)")
    parser.add_argument("--attention", default="reference", choices=("reference", "sdpa"))
    parser.add_argument("--optimizer", default="reference", help="reference (default), foreach or fused")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    began, on_gpu = time.monotonic(), options.device == "cuda"
    peak = peak_of([torch.cuda.get_device_name()]) if on_gpu else None
    print(f"{torch.cuda.get_device_name() if on_gpu else 'CPU'}, PyTorch {torch.__version__}, {options.attention} "
          f"attention, {options.optimizer} AdamW; peaks: {peak.source if peak else 'none'}")  # fmt: skip
    print(LINE.format(*HEAD))
    for size in options.sizes or (SIZES if on_gpu else ("tiny",)):
        for dtype in options.dtypes:
            print(LINE.format(*row(size, dtype, options, peak)).rstrip(), flush=True)
            gc.collect()
            if on_gpu:
                torch.cuda.empty_cache()
    print(f"{time.monotonic() - began:.0f} s in total")


if __name__ == "__main__":
    main()
