"""What is read of nsys's tables, and what each store of them answers: a database, a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from .columns import Layout, Part
from .nccl_payloads import Field, PayloadEvent

# Stands for the end of a range that was never closed; no event has this time.
NEVER_CLOSED = -(2**63)

# NVTX event types: push/pop and start/end ranges (70 and 71 where they carry an extended payload), marks, and the
# names of domains. Seen in exports of 2020 to 2026.
PUSH_POP_TYPES, START_END_TYPES = (59, 70), (60, 71)
CATEGORY_TYPE, MARK_TYPE, DOMAIN_TYPE = 33, 34, 75
META_TYPES = (CATEGORY_TYPE, MARK_TYPE, DOMAIN_TYPE)
EVENTS_READ = (*PUSH_POP_TYPES, *START_END_TYPES, *META_TYPES)

# What is kept of each table. Sequence numbers and correlation ids are as wide as CUDA's and PyTorch's own.
EVENTS = Layout(
    {"start": "i8", "end": "i8", "event": "u1", "category": "u1", "seq": "i8"},
    ("thread", "domain", "text", "text_id"),
    aside=("event", META_TYPES),
)
CALLS = Layout({"start": "i8", "end": "i8", "correlation": "i8", "foreign_class": "?"}, ("thread", "name"))
WORK = Layout(
    {"start": "i8", "end": "i8", "correlation": "i8", "device": "i8", "stream": "i8", "grid": "i8"},
    ("process", "name"),
)

# Only where the report has the creation of graph nodes is it of use which node made a piece of work.
WORK_OF_NODES = Layout({**WORK.numbers, "graph_node": "i8"}, WORK.codes)

# Allocations, of two tables: the recorder's have a thread and a total, nsys's a process and a correlation id.
ALLOCATIONS = Layout(
    {"start": "i8", "device": "i8", "block": "i8", "bytes": "i8", "total": "i8", "correlation": "i8"},
    ("thread", "process"),
)


class NsysTables(Protocol):
    """What a store of nsys's tables answers; a big table comes in parts, in the file's order."""

    path: Path

    def ranges(self) -> Sequence[Part]:
        """Return NVTX ranges, marks and domain names: the columns of EVENTS."""
        ...

    def launches(self) -> Sequence[Part]:
        """Return CUDA API calls, the runtime's and the driver's: the columns of CALLS."""
        ...

    def work(self, kind: int) -> Sequence[Part]:
        """Return the GPU work of one kind: the columns of WORK, and of WORK_OF_NODES where there are nodes."""
        ...

    def graph_nodes(self) -> Sequence[Part]:
        """Return the creations of CUDA graphs' nodes: the columns of NODES."""
        ...

    def allocations(self) -> Sequence[Part]:
        """Return allocations and frees, the recorder's or nsys's: the columns of ALLOCATIONS."""
        ...

    def payload_fields(self) -> list[Field]:
        """Return the fields of the payloads that NVTX ranges carry; none where the export has no payloads."""
        ...

    def payloads(self) -> Iterable[PayloadEvent]:
        """Yield NCCL's ranges that carry a payload."""
        ...

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the text of these string ids; an id without text is left out."""
        ...

    def thread_names(self) -> list[tuple[int, str]]:
        """Return (global thread id, name) rows; a thread may have several."""
        ...

    def gpus(self) -> list[tuple[int, str]]:
        """Return (id, name) rows of the GPUs in the machine."""
        ...

    def cuda_devices(self) -> list[tuple[int, int, int]]:
        """Return (process id, CUDA's number in that process, GPU's id) rows; none without such a table."""
        ...

    def diagnostics(self) -> list[str]:
        """Return the first of nsys's own messages about CUDA; none where the export has no such table."""
        ...

    def green_contexts(self) -> list[tuple[int, int]]:
        """Return of each kind of green context its multiprocessors, and those of its GPU."""
        ...

    def metadata(self) -> dict[str, str]:
        """Return the export's own description of itself."""
        ...
