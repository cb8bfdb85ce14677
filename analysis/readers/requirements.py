"""Why a report has nothing to rank; each cause has its own remedy."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import AGAIN, NoGpuWork, NotAReport
from ..trace import Int64s, Provenance, Trace

WORK = {"GPU": "kernel, copy or memset", "CPU": "operator"}
#: How a note begins that repeats a message of nsys.
NSYS_SAYS = "nsys says: "
RECORD = "nsys profile -t cuda,nvtx python train.py"
RAW_TIMES = "CuptiUseRawGpuTimestamps=false"
RECORD_ROCM = "rocprofv3 --marker-trace --kernel-trace --memory-copy-trace --hip-trace -f rocpd -- python train.py"
REPLAYS = "record from before the graphs are captured on"


class Words(NamedTuple):
    """How ranges are called where a tool recorded them, and what to do with it for what a report lacks."""

    ranges: str
    opened: str
    calls: str
    record: str
    numbered: str  # backward's work, by autograd's numbers
    replayed: str  # modules of replayed graphs
    graph_nodes: str  # with which the kernels inside graphs are recorded
    waits: str  # which streams wait for which; empty where nothing records that


_NSYS = Words(
    "NVTX ranges",
    "with `nvtx_kernels.annotate.range` or `torch.cuda.nvtx`, and record with `-t cuda,nvtx`",
    "CUDA",
    f"record: {RECORD}",
    "record with emit_nvtx or `nsys profile --pytorch=autograd-nvtx`, which records where it belongs",
    f"annotate them and {REPLAYS}, with `nsys profile --cuda-graph-trace=node`",
    "`nsys profile --cuda-graph-trace=node`",
    "record with `nsys profile -t cuda,nvtx`",
)
_RECORDER = _NSYS._replace(
    ranges="ranges",
    opened="with `nvtx_kernels.profile(model)`, `nvtx_kernels.annotate.range` or `record_function`",
    waits="record again, with PyTorch for CUDA 12.8 or older, or with `nsys profile -t cuda,nvtx`",
)
_PYTORCH = Words(
    "record_function blocks",
    "with `torch.profiler.record_function`",
    "CUDA",
    "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    "record with the CPU's activities, whose operators have numbers, which say where it belongs",
    f"annotate them and {REPLAYS}, or let PyTorch 2.15 annotate its graphs (torch.cuda.graph_annotations)",
    "a profiler that runs before the graphs are captured",
    "record with `nsys profile -t cuda,nvtx`, or with PyTorch for CUDA 12.8 or older and "
    "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)",
)
#: What the work of a trace of torch_npu ran on.
ASCEND_NPU = "Ascend NPU"
_NPU = _PYTORCH._replace(
    calls="CANN",
    record="record with torch_npu.profiler and activities=[ProfilerActivity.CPU, ProfilerActivity.NPU]",
    waits="",
)
_ROCPROF = Words(
    "roctx ranges",
    "with `torch.cuda.nvtx`, which is roctx on ROCm, and record with `rocprofv3 --marker-trace`",
    "HIP",
    f"record: {RECORD_ROCM}",
    "record with emit_nvtx, whose ranges have numbers, which say where it belongs",
    "run the program without graphs: rocprofv3 does not record where a graph's kernels were captured",
    "the program run without graphs",
    "",
)


#: How the note begins that tells why a recording lacks something.
ENDED_EARLY = "The recording ended early"
#: How the note begins that names the exception which ended a recorded program.
INTERRUPTED_BY = "Interrupted by"


def words_of(provenance: Provenance) -> Words:
    """Return the words and remedies for what a tool recorded."""
    if provenance.is_of_pytorch:
        return _NPU if ASCEND_NPU in provenance.gpus else _PYTORCH
    if provenance.is_of_rocprof:
        return _ROCPROF
    if provenance.is_recording:
        return _RECORDER
    return _NSYS


def _error_of(trace: Trace) -> str:
    """Return the name of the exception that ended the recorded program, or ""."""
    notes = (note for note in trace.notes if note.startswith(INTERRUPTED_BY))
    return next(notes, "").removeprefix(INTERRUPTED_BY).partition(";")[0].strip()


def require_work(trace: Trace) -> Trace:
    """Return a trace; raises NoGpuWork, with the likely cause, if it has no GPU work."""
    if len(trace.work):
        return trace
    launches = len(trace.launches)
    ranges = len(trace.ranges)
    again = "".join([RECORD, *(f". {note}" for note in trace.notes if note.startswith(NSYS_SAYS))])
    if trace.provenance.is_recording:
        cause = (
            f"is an empty recording: no {WORK[trace.provenance.unit_of_work]} ran on the recording thread, "
            "or on autograd's under it, while it was recorded. Run the training steps inside the block: "
            "with nvtx_kernels.profile(model, optimizer): train()"
        )
        if why := " ".join(note for note in trace.notes if note.startswith(ENDED_EARLY)):
            cause = f"has no work. {why.removesuffix('.')}"
        elif error := _error_of(trace):
            cause = (
                f"has no work: the program ended with {error} before its first step. Record again once it trains"
            )
    elif trace.provenance.is_of_pytorch:
        counts = {"operators and blocks": ranges, "calls of the device": launches}
        some = " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
        seen = f"saw {some}, but no kernel" if some else "saw neither kernels nor operators"
        cause = f"contains no work: the profiler {seen}. {' '.join(trace.notes)}".rstrip()
    elif trace.provenance.is_of_rocprof:
        cause = (
            f"contains no kernel and no copy{f', but {ranges:,} roctx ranges' if ranges else ''}: rocprofv3 was "
            f"not asked for them, or nothing ran on the GPU. Record again: {RECORD_ROCM}"
        )
    elif launches:
        cause = (
            f"has {launches:,} CUDA API calls but no kernel, copy or memset: the GPU's own activity was not "
            "recorded. Check that the user may profile the GPU (ERR_NVGPUCTRPERM), that nsys is as new as the "
            "driver and that the capture range includes the work; in a cloud sandbox or under WSL, put "
            f'{RAW_TIMES} into nsys\'s configuration: echo {RAW_TIMES} >> "$(nsys -z)". Then record again: {again}'
        )
    elif ranges:
        cause = (
            f"has {ranges:,} NVTX ranges but no CUDA activity: it was recorded without `-t cuda`, or nothing ran "
            f"on the GPU. Record again: {again}"
        )
    else:
        cause = (
            "contains neither CUDA activity nor NVTX ranges: the capture range never opened, or nsys was asked to "
            f"trace neither. Record again: {again}"
        )
    raise NoGpuWork(f"{trace.provenance.file} {cause}")


# Differences of times within this stay within 64 bits; it is the year 2116 for times that count from 1970.
LATEST_NS = 2**62
# GPU work of a hundred days. Sums of it are exact in doubles too, and a thousand nested ranges can share it.
MOST_WORK_NS = 2**53


def require_plausible(trace: Trace, path: Path) -> None:
    """Raise NotAReport if times are so large that they must be damaged."""
    work = trace.work
    launches = trace.launches
    ranges = trace.ranges
    for rows_name, start, end, most in (
        ("GPU work", work.start_ns, work.end_ns, MOST_WORK_NS),
        ("CUDA API calls", launches.start_ns, launches.end_ns, LATEST_NS),
        ("ranges", ranges.start_ns, ranges.end_ns, LATEST_NS),
    ):
        if _beyond(start) or _beyond(end) or float(np.sum(end - start, dtype=np.float64)) > most:
            raise NotAReport(f"{path} is damaged: it has times of {rows_name} beyond any capture. {AGAIN}")


def _beyond(times: Int64s) -> bool:
    return bool(len(times)) and (int(times.max()) > LATEST_NS or int(times.min()) < -LATEST_NS)
