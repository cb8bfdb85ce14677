"""What a session of torch.profiler saw: what the façade's reader makes of the file that Kineto saved.

Recording imports no reader of traces: `nvtx_kernels.session_reader` hands over the one that there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nvtx_kernels.analysis.trace import Bools, Int32s, Int64s, Spots, Thread, Trace

#: Autograd's numbers count per thread; the thread is above these bits.
SEQUENCE_BITS = 32


@dataclass(frozen=True, slots=True)
class Blocks(Spots):
    """Operators and record_function blocks, in the order of the file; times in ns on the clock of `time.time_ns`.

    `sequence` is autograd's number and, above `SEQUENCE_BITS`, the system's id + 1 of the thread it counts in;
    -1 without a number. `forward` is PyTorch's number of the thread that made a node of autograd's, else 0.
    """

    name_id: Int32s  # position in the names of the session's trace
    sequence: Int64s
    is_operator: Bools
    forward: Int64s


@dataclass(frozen=True, slots=True)
class Seen:
    """One session: its trace, whose times count from `base_ns`, without the blocks.

    The GPU's work is missing from `lost_gpu_ns` on, if that is not None.
    """

    trace: Trace
    base_ns: int
    blocks: Blocks
    lost_gpu_ns: int | None


#: Returns the ranges of a session, by the system's ids of threads, given its names, its threads and its blocks.
SpansOf = Callable[[list[str], list[Thread], Blocks], Spots]


class Reader(Protocol):
    """Reads a session's file, given what says which ranges were open meanwhile."""

    def __call__(self, path: Path, *, on_gpu: bool, spans_of: SpansOf | None = None) -> Seen:
        """Return what the session saw."""
