"""From the recorder's table of allocations, or nsys's, to `Allocations`; one home for both tables' meaning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..trace import Allocations, Launches
from .columns import Columns
from .launches import LaunchKeys

#: What our recorder saw of PyTorch's allocator, and what nsys saw of CUDA's own, with --cuda-memory-usage=true.
ALLOCATIONS_TABLE, USAGE_TABLE = "NVTX_KERNELS_ALLOCATIONS", "CUDA_GPU_MEMORY_USAGE_EVENTS"
#: nsys's memoryOperationType of a deallocation (ENUM_CUDA_DEV_MEM_EVENT_OPER).
FREED = 1

#: No device has so much memory (2**50 B = 1 PiB): what says so is damaged, and its sums might not fit in 64 bits.
TOO_MUCH = 1 << 50
DAMAGED = "The report's allocations are left out: some are of more than 1 PiB, so it is damaged."


def plausible(allocated: Allocations) -> bool:
    """Return whether all sizes and totals are less than TOO_MUCH."""
    sizes = (allocated.bytes, allocated.total_bytes)
    return all(int(size.min(initial=0)) > -TOO_MUCH and int(size.max(initial=0)) < TOO_MUCH for size in sizes)


def allocations(
    table: Columns,
    thread_number: Callable[[int], int],
    process_number: Callable[[int], int],
    calls: tuple[Launches, LaunchKeys],
) -> Allocations:
    """Return allocations in the order of time; of those without a thread, that of the call with their id."""
    process = table.codes["process"].numbered(lambda global_id: process_number(global_id >> 24))
    thread = table.codes["thread"].numbered(lambda tid: thread_number(tid) if tid else -1)
    column = table.numbers
    launches, keys = calls
    caller = np.append(launches.thread, np.int32(-1))[keys.find(process, column["correlation"])]
    order = np.argsort(column["start"], kind="stable")
    return Allocations(
        at_ns=column["start"],
        thread=np.where(thread < 0, caller, thread).astype(np.int32),
        device_id=column["device"].astype(np.int32),
        process=process,
        block=column["block"],
        bytes=column["bytes"],
        total_bytes=column["total"],
    ).take(order)
