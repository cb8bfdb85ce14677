"""Why a report has nothing to rank: absent is not zero, and each way of being absent has its own remedy."""

from __future__ import annotations

from analysis.errors import NoGpuWork
from analysis.trace import Trace

RECORD = "nsys profile -t cuda,nvtx python train.py"


def require_work(trace: Trace) -> None:
    """Raise NoGpuWork, saying why, where a trace has no GPU work."""
    if len(trace.work):
        return
    name = trace.provenance.file
    if trace.provenance.is_of_pytorch:
        raise NoGpuWork(
            f"{name} holds no work: the profiler saw neither kernels nor operators. Record with "
            f"activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]. {' '.join(trace.notes)}".rstrip()
        )
    if len(trace.launches):
        raise NoGpuWork(
            f"{name} has {len(trace.launches):,} CUDA API calls but no kernel, copy or memset: the GPU's own "
            "activity was not recorded. Check that the user may profile the GPU (ERR_NVGPUCTRPERM), that nsys is "
            f"as new as the driver and that the capture range holds the work; then record again: {RECORD}"
        )
    if len(trace.ranges):
        raise NoGpuWork(
            f"{name} has {len(trace.ranges):,} NVTX ranges but no CUDA activity: it was recorded without "
            f"`-t cuda`, or nothing ran on the GPU. Record again: {RECORD}"
        )
    raise NoGpuWork(
        f"{name} holds neither CUDA activity nor NVTX ranges: the capture range never opened, or nsys was told to "
        f"trace neither. Record again: {RECORD}"
    )
