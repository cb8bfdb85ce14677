"""How much communication and copying is hidden behind the compute kernels of the same GPU.

Communication is the kernel category of that name: collectives and transfers between GPUs. Compute is every other
kernel and every CUDA graph. Copies and memsets are neither. *Hidden* is the time in which any compute ran on that
GPU, also what is in warm-up or in no step; what is not hidden is *exposed*. All figures but the counts are unions,
so work that overlaps its own kind counts once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from ..account.intervals import union
from ..attribution.causes import Attribution
from ..kernel_names.categories import categorize
from ..support.small_numbers import distinct, rows_of_each
from ..trace import GRAPH, KERNEL, KINDS, MEMCPY, MEMSET, Bools, Int64s, Trace, Work
from ..vocabulary import PHASES
from .spans import Extents, kinds_of

COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class Copying:
    """One kind of copy or memset on one GPU; its union, and the hidden part of that, ns."""

    gpu: str
    kind: str
    name: str
    count: int
    total_ns: int
    union_ns: int
    hidden_ns: int

    @property
    def exposed_ns(self) -> int:
        """The time in which no compute ran."""
        return self.union_ns - self.hidden_ns


def copies(
    attribution: Attribution, phases: Collection[str] = PHASES, *, include_warm_up: bool = False
) -> list[Copying]:
    """Return the copies and memsets of these phases on each GPU, the most exposed first."""
    extents = Extents(attribution, include_warm_up=include_warm_up)
    rows = [row for of_gpu in each_gpu(extents, phases) for row in of_gpu.copies()]
    return sorted(rows, key=lambda row: (-row.exposed_ns, row.gpu, row.name))


def each_gpu(extents: Extents, phases: Collection[str]) -> Iterator[OneGpu]:
    """Yield the work of these phases of each GPU that has some."""
    rows = extents.kept[np.isin(extents.attribution.phase[extents.kept], kinds_of(phases))]
    communicates = communication(extents.attribution.of_all_work.trace)
    for (number,), on_gpu in rows_of_each(extents.gpu[rows]):
        yield OneGpu(extents, rows[on_gpu], communicates, number)


def communication(trace: Trace) -> Bools:
    """Return, per name, whether its kernels communicate."""
    kernels = distinct(trace.work.name_id[trace.work.kind == KERNEL])
    communicates = np.zeros(len(trace.names), np.bool_)
    categories = categorize([trace.names[name] for name in kernels], trace.categories)
    communicates[kernels] = np.array([category == COMMUNICATION for category in categories], np.bool_)
    return communicates


def communicated_ns(attribution: Attribution) -> int:
    """Add up the kernels that communicate, ns, also those that the attribution leaves out."""
    trace = attribution.of_all_work.trace
    chosen = (trace.work.kind == KERNEL) & communication(trace)[trace.work.name_id]
    return int(trace.work.duration_ns[chosen].sum())


class OneGpu:
    """The measured work of one GPU, positions in `Work`; `communicates` says it per name."""

    def __init__(self, extents: Extents, rows: Int64s, communicates: Bools, number: int) -> None:
        trace = extents.attribution.trace
        everything = extents.attribution.of_all_work.trace.work
        self.rows = rows
        self.number = number
        self.label = extents.gpus[number]
        self.names = trace.names
        self.work = trace.work.take(rows)
        everything = everything.take(extents.gpu_of_all == number)
        computing = everything.take(_computes(everything, communicates))
        self.any_compute = union(computing.start_ns, computing.end_ns)
        self.communicates = (self.work.kind == KERNEL) & communicates[self.work.name_id]

    def shares(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return the kernels that communicate, by start, and the time that each is given and its hidden part, ns.

        Time in which several run is given to the one that started first, so the times sum to the union.
        """
        work = self.work
        rows = np.flatnonzero(self.communicates)
        rows = rows[np.lexsort((work.end_ns[rows], work.start_ns[rows]))]
        reach = np.maximum.accumulate(work.end_ns[rows])
        before = np.concatenate([work.start_ns[rows[:1]], reach[:-1]])
        begin = np.maximum(work.start_ns[rows], before)
        end = np.maximum(begin, work.end_ns[rows])
        return self.rows[rows], end - begin, self.any_compute.covered(begin, end)

    def copies(self) -> Iterator[Copying]:
        """Measure copies and memsets by kind and name."""
        copied = self.work.take((self.work.kind == MEMCPY) | (self.work.kind == MEMSET))
        for (kind, name), rows in rows_of_each(copied.kind, copied.name_id):
            when = union(copied.start_ns[rows], copied.end_ns[rows])
            yield Copying(
                gpu=self.label,
                kind=KINDS[kind],
                name=self.names[name],
                count=len(rows),
                total_ns=int(copied.duration_ns[rows].sum()),
                union_ns=when.total_ns,
                hidden_ns=when.shared_with(self.any_compute),
            )


def _computes(work: Work, communicates: Bools) -> Bools:
    """Mark the work that computes."""
    marked: Bools = ((work.kind == KERNEL) & ~communicates[work.name_id]) | (work.kind == GRAPH)
    return marked
