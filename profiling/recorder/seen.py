"""What a session of torch.profiler saw, in columns: what the façade's reader makes of the file that Kineto saved.

Recording imports no reader of traces: `nvtx_kernels.session_reader` hands over the one that there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Calls:
    """CUDA's calls: by thread (its place in `Seen.threads`), of the runtime (class 0) or the driver (1)."""

    start_ns: Column
    end_ns: Column
    thread: Column
    name: Column  # a place in Seen.texts
    correlation: Column
    event_class: Column

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class GpuWork:
    """Kernels, copies and memsets, which `kind` tells apart; what does not apply or is not known is 0."""

    start_ns: Column
    end_ns: Column
    kind: Column  # of analysis.trace
    name: Column
    device: Column
    context: Column
    stream: Column
    correlation: Column
    grid: Column  # (work, 3)
    block: Column  # (work, 3)
    registers: Column
    bytes: Column
    graph_node: Column
    from_memory: Column  # of a copy: a kind of memory as nsys numbers them, -1 where unknown
    to_memory: Column

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Synchronized:
    """Calls that waited or let a stream wait, with CUPTI's type of that, or that recorded an event, of type 0."""

    start_ns: Column
    end_ns: Column
    kind: Column
    correlation: Column
    stream: Column  # -1 for the whole device
    event: Column  # 0 for none
    device: Column
    context: Column

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Operators and record_function blocks, in the order of the file.

    `sequence` is autograd's number and, above `SEQUENCE_BITS`, the system's id + 1 of the thread it counts in;
    -1 without a number. `forward` is PyTorch's number of the thread that made a node of autograd's, else 0.
    """

    start_ns: Column
    end_ns: Column
    thread: Column
    name: Column
    sequence: Column
    is_operator: NDArray[np.bool_]
    forward: Column

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class SelfTimes:
    """The self time of operators in place of kernels, each beginning no sooner than the one before has ended."""

    start_ns: Column
    end_ns: Column
    block: Column  # the operator's place in `Seen.blocks`
    call_start_ns: Column  # of the operator, or of the range inside it in which it did this
    call_end_ns: Column


@dataclass(frozen=True, slots=True)
class Allocated:
    """Bytes handed out, or taken back if negative, and what is allocated on that device afterwards, by time."""

    at_ns: Column
    thread: Column
    device: Column
    address: Column
    bytes: Column
    total_bytes: Column


@dataclass(frozen=True, slots=True)
class Seen:
    """One session; times in ns on the clock of `time.time_ns`.

    `threads` are the system's ids and names. The GPU's work is missing from `lost_gpu_ns` on, if that is not None.
    """

    texts: list[str]
    threads: list[tuple[int, str]]
    calls: Calls
    work: GpuWork
    waits: Synchronized
    records: Synchronized
    blocks: Blocks
    self_times: SelfTimes
    allocated: dict[bool, Allocated]  # on the GPU, and on the CPU
    lost_gpu_ns: int | None


#: Autograd's numbers count per thread; the thread is above these bits.
SEQUENCE_BITS = 32


@dataclass(frozen=True, slots=True)
class Spans:
    """Ranges that the program opened, and the system's ids of their threads."""

    start_ns: Column
    end_ns: Column
    thread: Column


#: Returns the ranges of a session, given its names, its threads and its blocks.
SpansOf = Callable[[list[str], list[tuple[int, str]], Blocks], Spans]
#: Reads a session's file, given what says which ranges were open meanwhile.
Reader = Callable[[Path, SpansOf | None], Seen]
