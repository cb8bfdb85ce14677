"""What a PyTorch trace lacks, and what had to be decided: the sentences of its notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..support.units import counted
from ..vocabulary.calls import COPY, GPU_OPERATOR, KERNEL_LAUNCH, OTHER_LAUNCH, kinds_of_calls
from .chrome_columns import TraceColumns

NO_GPU = (
    "The trace contains no GPU work: self CPU time of operators is counted instead. If the model ran on a GPU, "
    "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
)
IDLE_GPU = (
    "The trace contains no GPU work and no launch of any, though the machine has a GPU ({}): self CPU time "
    "of operators is counted. If the model ran on the GPU, record with "
    "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
)
UNRECORDED_GPU = (
    "The program ran on a GPU ({}), but the trace lacks the GPU's work: self CPU time of operators is counted, "
    "mostly the time to launch that work. Record with "
    "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
)
LOST_RECORDS = (
    "The GPU's own records are missing: {} launched work, and the profiler got none of it. Let nothing "
    "else profile the GPU, let the user profile it (ERR_NVGPUCTRPERM), call torch.cuda.synchronize() before the "
    "profiler stops, and record again with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
)
LOST_OF_ROCM = (
    "The GPU's own records are missing: {} launched work, and the profiler got none of it. Let nothing "
    "else profile the GPU, wait for it before the profiler stops (torch.accelerator.synchronize()), and record "
    "again; if only graphs were launched, without them."
)
_UNREAD = (
    "It is of {}, whose events are not read. Record with activities=[ProfilerActivity.CPU] alone to rank the CPU "
    "time of operators."
)
#: The sentence on a trace that has calls of a device without its work, by Kineto's names of devices.
WITHOUT_WORK = {
    "xpu": "It is of an XPU, whose work was not recorded: record with activities including ProfilerActivity.XPU.",
    "mtia": _UNREAD.format("an MTIA device"),
    "privateuse1": _UNREAD.format("a device of PrivateUse1"),
}
#: The calls that launch work of a GPU's.
LAUNCHING = (KERNEL_LAUNCH, OTHER_LAUNCH, COPY)
WHOLE_MICROSECONDS = (
    "All times are whole microseconds, as older PyTorch wrote them: each {}'s is up to 1 µs too short."
)
# Fewer times than this can all be whole microseconds by chance, or because they were made up.
ENOUGH_TIMES = 20


def launched(columns: TraceColumns) -> int:
    """Return how many calls launched work of a GPU's; of other devices, all calls."""
    if columns.called_devices - {"cuda"} or not columns.launches.rows:
        return columns.launches.rows
    kinds = kinds_of_calls(list(columns.calls))
    return int(np.isin(kinds[columns.launches["call"]], LAUNCHING).sum())


def gpu_operator(columns: TraceColumns) -> str:
    """Return an operator that only GPUs run, empty if the trace has none."""
    return next(filter(GPU_OPERATOR.match, columns.names), "")


def notes_on(columns: TraceColumns, gpus: Sequence[str], *, on_cpu: bool) -> Iterator[str]:
    """Yield notes on what had to be decided."""
    if on_cpu:
        operator = gpu_operator(columns)
        machine = " + ".join(gpus)
        of_machine = IDLE_GPU.format(machine) if machine else NO_GPU
        yield UNRECORDED_GPU.format(operator) if operator else of_machine
    elif not columns.work.rows:
        called = next(iter(sorted(columns.called_devices - {"cuda"})), "")
        lost = LOST_OF_ROCM if any(name.startswith("hip") for name in columns.calls) else LOST_RECORDS
        yield WITHOUT_WORK.get(called, lost.format(counted(launched(columns), "call")))
    if columns.without_duration:
        lacking = "event without a duration is", "events without a duration are"
        yield f"{counted(columns.without_duration, *lacking)} left out."
    pieces = []
    for table in (columns.work, columns.launches, columns.ranges):
        pieces += table.pieces["start"] + table.pieces["end"]
    has_enough = sum(map(len, pieces)) >= ENOUGH_TIMES
    if has_enough and not any((times % 1000).any() for times in pieces):
        yield WHOLE_MICROSECONDS.format("operator" if on_cpu else "kernel")
