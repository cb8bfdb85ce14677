"""What a device reaches: TFLOP/s of one large matrix product in each precision, and GB/s of one large copy.

The best of several, after some to warm up: about a second on a GPU. A copy reads and writes each byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

#: Rows of the square matrices, elements of the copied tensor, and how often each is timed.
SIZES = {"cuda": (8192, 1 << 28, 10), "cpu": (256, 1 << 20, 3)}
WARM_UP = 3
#: By arithmetic: the type of the matrices, and how precise PyTorch's products of FP32 then are.
KINDS = {
    "fp32": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "bf16": (torch.bfloat16, "highest"),
    "fp16": (torch.float16, "highest"),
}


def measure(device: str = "cuda") -> dict[str, Any]:
    """Return `tflops` by arithmetic and `gigabytes_per_s` of a device."""
    rows, elements, times = SIZES[device]
    tflops, precision_before = {}, torch.get_float32_matmul_precision()
    try:
        for kind, (dtype, precision) in KINDS.items():
            torch.set_float32_matmul_precision(precision)
            a = torch.randn(rows, rows, device=device, dtype=dtype)
            multiply = partial(torch.mm, a, torch.randn_like(a), out=torch.empty_like(a))
            tflops[kind] = round(2 * rows**3 / _best(multiply, times, device) / 1e12, 4)
    finally:
        torch.set_float32_matmul_precision(precision_before)
    source = torch.ones(elements, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / _best(lambda: target.copy_(source), times, device)
    return {"tflops": tflops, "gigabytes_per_s": round(copied / 1e9, 2)}


def _best(run: Callable[[], object], times: int, device: str) -> float:
    """Return the seconds of the fastest call."""
    for _ in range(WARM_UP):
        run()
    return min(seconds(run, device) for _ in range(times))


def seconds(run: Callable[[], object], device: str) -> float:
    """Return how long a call takes on the CPU, or the work that it launches on a GPU."""
    if device == "cpu":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    event: Any = torch.cuda.Event
    first, last = (event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3
