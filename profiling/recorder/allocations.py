"""What PyTorch's allocator handed out and took back, as torch.profiler saw it (`profile_memory=True`).

On a GPU these are the blocks of the caching allocator (c10/cuda/CUDACachingAllocator.cpp reports each with its
rounded size and `allocated_bytes`, which `torch.cuda.memory_allocated` returns); on a CPU those of the default
allocator (`ProfiledCPUMemoryReporter` in c10/core/CPUAllocator.cpp, which knows no block from before it was
enabled).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch._C._autograd import DeviceType
from torch._C._profiler import _EventType

# torch.profiler's name for an allocation or a free among its flat events, which lack the address.
MEMORY_EVENT = "[memory]"


class Allocation(NamedTuple):
    """Bytes allocated, or freed if negative, and what is allocated on that device afterwards.

    `thread` is the operating system's id, -1 where unknown; times are ns on the events' clock.
    """

    at_ns: int
    thread: int
    device: int
    address: int
    bytes: int
    total_bytes: int


def allocations_of(roots: Iterable[Any], events: Iterable[Any], *, on_gpu: bool) -> list[Allocation]:
    """Return the allocations and frees of GPU memory, or else of the CPU's, in the order of their times.

    `roots` are the trees of a session's events, and `events` the same events flat.
    """
    device_type = "cuda" if on_gpu else "cpu"
    on_cpu = (event for event in events if event.device_type() == DeviceType.CPU)
    threads = {event.start_thread_id(): event.device_resource_id() for event in on_cpu}
    allocations, remaining = [], list(roots)
    while remaining:
        event = remaining.pop()
        remaining += event.children
        fields = event.extra_fields
        if event.tag == _EventType.Allocation and fields.device.type == device_type:
            thread, device = threads.get(event.start_tid, -1), fields.device.index or 0
            place = event.start_time_ns, thread, device, fields.ptr or 0
            allocations.append(Allocation(*place, fields.alloc_size, fields.total_allocated))
    return sorted(allocations, key=lambda allocation: allocation.at_ns)
