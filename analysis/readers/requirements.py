"""Why a report has nothing to rank; each cause has its own remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import NoGpuWork, NotAReport
from ..trace import Int64s, Trace

WORK = {"GPU": "kernel, copy or memset", "CPU": "operator"}
#: How a note begins that repeats a message of nsys.
NSYS_SAYS = "nsys says: "
RECORD = "nsys profile -t cuda,nvtx python train.py"


def require_work(trace: Trace) -> None:
    """Raise NoGpuWork, with the likely cause, if a trace has no GPU work."""
    if len(trace.work):
        return
    name = trace.provenance.file
    if trace.provenance.is_recording:
        raise NoGpuWork(
            f"{name} is an empty recording: no {WORK[trace.provenance.unit_of_work]} ran on the recording thread, "
            "or on autograd's under it, while it was recorded. Run the training steps inside the block: "
            "with nvtx_kernels.profile(model, optimizer): train()"
        )
    if trace.provenance.is_of_pytorch:
        raise NoGpuWork(f"{name} contains no work: {_seen(trace)}. {' '.join(trace.notes)}".rstrip())
    nsys_says = "".join(f". {note}" for note in trace.notes if note.startswith(NSYS_SAYS))
    if len(trace.launches):
        raise NoGpuWork(
            f"{name} has {len(trace.launches):,} CUDA API calls but no kernel, copy or memset: the GPU's own "
            "activity was not recorded. Check that the user may profile the GPU (ERR_NVGPUCTRPERM), that nsys is "
            "as new as the driver and that the capture range includes the work; then record again: "
            f"{RECORD}{nsys_says}"
        )
    if len(trace.ranges):
        raise NoGpuWork(
            f"{name} has {len(trace.ranges):,} NVTX ranges but no CUDA activity: it was recorded without "
            f"`-t cuda`, or nothing ran on the GPU. Record again: {RECORD}{nsys_says}"
        )
    raise NoGpuWork(
        f"{name} contains neither CUDA activity nor NVTX ranges: the capture range never opened, or nsys was "
        f"asked to trace neither. Record again: {RECORD}{nsys_says}"
    )


def _seen(trace: Trace) -> str:
    """Describe what PyTorch's profiler saw if it saw no work."""
    counts = {"operators and blocks": len(trace.ranges), "calls of the device": len(trace.launches)}
    some = " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    return f"the profiler saw {some}, but no kernel" if some else "the profiler saw neither kernels nor operators"


# Differences of times within this stay within 64 bits; it is the year 2116 for times that count from 1970.
LATEST_NS = 2**62
# GPU work of a hundred days. Sums of it are exact in doubles too, and a thousand nested ranges can share it.
MOST_WORK_NS = 2**53


def require_plausible(trace: Trace, path: Path) -> None:
    """Raise NotAReport if times are so large that they must be damaged."""
    work, launches, ranges = trace.work, trace.launches, trace.ranges
    for rows_name, start, end, most in (
        ("GPU work", work.start_ns, work.end_ns, MOST_WORK_NS),
        ("CUDA API calls", launches.start_ns, launches.end_ns, LATEST_NS),
        ("ranges", ranges.start_ns, ranges.end_ns, LATEST_NS),
    ):
        if _beyond(start) or _beyond(end) or float(np.sum(end - start, dtype=np.float64)) > most:
            raise NotAReport(
                f"{path} is damaged: it has times of {rows_name} beyond any capture. Export it again."
            )


def _beyond(times: Int64s) -> bool:
    return bool(len(times)) and (int(times.max()) > LATEST_NS or int(times.min()) < -LATEST_NS)
