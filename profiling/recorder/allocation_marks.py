"""Allocations under nsys, which sees none of PyTorch's: its profiler does, and marks bring them into the report.

The marks are NVTX marks in our domain, `MARK` followed by a JSON object:

    nvtx-kernels memory: {"version": 1, "part": 0, "parts": 8, "now_ns": 1763800000000000000, "data": "eJx…"}

`data`, joined over the parts, is base64 of zlib of little-endian int64: the columns of `COLUMNS`, one after the
other, the times as differences. Addresses are numbered, threads are the operating system's ids, and times are
those of `time.time_ns`. `now_ns` is that time when the mark was sent, and so ties them to the report's own clock;
marks without parts say that alone, when the measured steps begin.
"""

from __future__ import annotations

import base64
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from nvtx_kernels.analysis.trace import Allocations

import nvtx_kernels

from ..annotate import mark
from ..harmless import json_text
from .session import Session

MARK = "nvtx-kernels memory: "
VERSION = 1
COLUMNS = ("at_ns", "thread", "device", "block", "bytes", "total_bytes")
# nsys keeps long messages, but how long is not documented; marks of FLOPs are about as long.
LETTERS_PER_MARK = 8_000
# The clock is read with each: the shortest of several delays is near none.
LEAST_MARKS = 8


class AllocationMarks:
    """Sees the allocations from `begin` to `send`, on the calling thread and the autograd threads under it.

    `trouble` says why it sees none, empty if it does.
    """

    def __init__(self) -> None:
        self.trouble = ""
        self._session: Session | None = None

    def begin(self) -> None:
        """Begin, unless another profiler of PyTorch runs."""
        try:
            self._session = Session(on_gpu=torch.cuda.is_available(), kernels=False, memory=True)
        except RuntimeError as error:
            self.trouble = str(error)

    def tell_clock(self) -> None:
        """Tie the clocks, inside the capture range."""
        if self._session is not None:
            for _ in range(LEAST_MARKS):
                mark(_text("", part=0, parts=0))

    def send(self) -> None:
        """End, and put what was seen into the report; once."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            allocated = allocations_of(session, on_gpu=torch.cuda.is_available())
        except Exception as error:  # a full disk, for one, must not end the training
            self.trouble = str(error)
            return
        for data, part, count in parts(allocated):
            mark(_text(data, part=part, parts=count))


def allocations_of(session: Session, *, on_gpu: bool) -> Allocations:
    """End a session and return the allocations and frees of GPU memory, or else of the CPU's, in order of time.

    On a GPU these are the blocks of the caching allocator (c10/cuda/CUDACachingAllocator.cpp reports each with its
    rounded size and `allocated_bytes`, which `torch.cuda.memory_allocated` returns); on a CPU those of the default
    allocator (`ProfiledCPUMemoryReporter` in c10/core/CPUAllocator.cpp, which knows no block from before it was
    enabled). Threads are the operating system's ids, and times those of `time.time_ns`. Raises OSError if there is
    no room for a temporary file.
    """
    with tempfile.TemporaryDirectory() as folder:
        session.stop(path := Path(folder) / "session.pt.trace.json")
        seen = nvtx_kernels.session_reader()(path, on_gpu=on_gpu)
    memory = seen.trace.memory
    if memory is None:
        return Allocations.empty()
    thread_ids = np.array([thread.thread_id for thread in seen.trace.threads], np.int32)
    return replace(memory, at_ns=memory.at_ns + seen.base_ns, thread=thread_ids[memory.thread])


def parts(allocated: Allocations) -> Iterator[tuple[str, int, int]]:
    """Yield data, number and how many of the marks that hold these; at least LEAST_MARKS."""
    numbers: dict[tuple[int, int], int] = {}
    places = zip(allocated.device_id.tolist(), allocated.block.tolist(), strict=True)
    block = np.array([numbers.setdefault(place, len(numbers)) for place in places], np.int64)
    columns = (
        np.diff(allocated.at_ns, prepend=0),
        allocated.thread,
        allocated.device_id,
        block,
        allocated.bytes,
        allocated.total_bytes,
    )
    table = np.stack(columns).astype("<i8")
    data = base64.b64encode(zlib.compress(table.tobytes(), 6)).decode()
    length = min(LETTERS_PER_MARK, -(-len(data) // LEAST_MARKS))
    pieces = [data[start : start + length] for start in range(0, len(data), length)]
    for number, piece in enumerate(pieces):
        yield piece, number, len(pieces)


def _text(data: str, *, part: int, parts: int) -> str:
    content = json_text({"version": VERSION, "part": part, "parts": parts, "data": data})
    return f'{MARK}{{"now_ns": {time.time_ns()}, {content[1:]}'
