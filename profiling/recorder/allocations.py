"""What PyTorch's allocator handed out and took back in a session of its own (`profile_memory=True`).

On a GPU these are the blocks of the caching allocator (c10/cuda/CUDACachingAllocator.cpp reports each with its
rounded size and `allocated_bytes`, which `torch.cuda.memory_allocated` returns); on a CPU those of the default
allocator (`ProfiledCPUMemoryReporter` in c10/core/CPUAllocator.cpp, which knows no block from before it was
enabled).
"""

import tempfile
from pathlib import Path

import numpy as np

import nvtx_kernels

from .seen import Allocated
from .session import Session


def allocations_of(session: Session, *, on_gpu: bool) -> Allocated:
    """End a session and return the allocations and frees of GPU memory, or else of the CPU's, in order of time.

    Threads are the operating system's ids. Raises OSError if there is no room for a temporary file.
    """
    with tempfile.TemporaryDirectory() as folder:
        session.stop(path := Path(folder) / "session.pt.trace.json")
        seen = nvtx_kernels.session_reader()(path, None)
    allocated = seen.allocated[on_gpu]
    threads = np.array([number for number, _ in seen.threads] or [0], np.int64)
    return Allocated(
        allocated.at_ns,
        threads[allocated.thread],
        allocated.device,
        allocated.address,
        allocated.bytes,
        allocated.total_bytes,
    )
