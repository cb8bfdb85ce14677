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

from ..attribution.causes import Attribution
from ..kernel_names.categories import categorize
from ..support.small_numbers import distinct, rows_of_each
from ..trace import GRAPH, KERNEL, KINDS, Bools, Int64s, Trace, Work
from ..vocabulary import PHASES
from .spans import Extents, Intervals, kinds_of, union

COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class GpuOverlap:
    """One GPU in the windows of what is measured, ns: `busy_ns` is when any work ran in them.

    Compute and communication are those of the work that is measured.
    """

    gpu: str
    streams: int
    span_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    hidden_ns: int


@dataclass(frozen=True, slots=True)
class TransferOverlap:
    """One kind of copy, memset or communication kernel on one GPU; its union, and the hidden part of that, ns."""

    gpu: str
    kind: str
    name: str
    count: int
    total_ns: int
    union_ns: int
    hidden_ns: int

    @property
    def hidden_share(self) -> float:
        """The share of its time in which compute ran too."""
        return self.hidden_ns / self.union_ns if self.union_ns else 0.0


@dataclass(frozen=True, slots=True)
class Overlap:
    """A row per GPU, and a row per GPU and name of transfers (communication and copies), longest first."""

    gpus: tuple[GpuOverlap, ...]
    transfers: tuple[TransferOverlap, ...]


def overlap(
    attribution: Attribution, phases: Collection[str] = PHASES, *, include_warm_up: bool = False
) -> Overlap:
    """Measure the overlap of the work of these phases on each GPU."""
    gpus: list[GpuOverlap] = []
    transfers: list[TransferOverlap] = []
    for of_gpu in each_gpu(Extents(attribution, include_warm_up=include_warm_up), phases):
        gpus.append(of_gpu.whole())
        transfers += of_gpu.transfers()
    return Overlap(tuple(gpus), tuple(sorted(transfers, key=lambda row: (-row.union_ns, row.gpu, row.name))))


def each_gpu(extents: Extents, phases: Collection[str]) -> Iterator[OneGpu]:
    """Yield the work of these phases of each GPU that has some."""
    rows = extents.kept[np.isin(extents.attribution.phase[extents.kept], kinds_of(phases))]
    communicates = communication(extents.attribution.of_all_work.trace)
    for (number,), on_gpu in rows_of_each(extents.gpu[rows]):
        yield OneGpu(extents, phases, rows[on_gpu], communicates, number)


def communication(trace: Trace) -> Bools:
    """Return, per name, whether its kernels communicate."""
    kernels = distinct(trace.work.name_id[trace.work.kind == KERNEL])
    communicates = np.zeros(len(trace.names), np.bool_)
    categories = categorize([trace.names[name] for name in kernels])
    communicates[kernels] = np.array([category == COMMUNICATION for category in categories], np.bool_)
    return communicates


def communicated_ns(attribution: Attribution) -> int:
    """Add up the kernels that communicate, ns, also those that the attribution leaves out."""
    trace = attribution.of_all_work.trace
    chosen = (trace.work.kind == KERNEL) & communication(trace)[trace.work.name_id]
    return int(trace.work.duration_ns[chosen].sum())


class OneGpu:
    """The measured work of one GPU, positions in `Work`; `communicates` says it per name."""

    def __init__(
        self, extents: Extents, phases: Collection[str], rows: Int64s, communicates: Bools, number: int
    ) -> None:
        attribution = extents.attribution
        self.rows, self.number, self.label = rows, number, extents.gpus[number]
        self.names, self.work = attribution.trace.names, attribution.trace.work.take(rows)
        everything = attribution.of_all_work.trace.work.take(extents.gpu_of_all == number)
        _, computes = _kinds(everything, communicates)
        self.any_compute, self.busy = _when(everything, computes), union(everything.start_ns, everything.end_ns)
        self.communicates, self.computes = _kinds(self.work, communicates)
        self.windows = extents.windows(number, phases)
        if not len(self.windows):  # of a phase that no range opens
            self.windows = union(self.work.start_ns, self.work.end_ns)

    def whole(self) -> GpuOverlap:
        """Measure everything together."""
        communication = _when(self.work, self.communicates)
        return GpuOverlap(
            gpu=self.label,
            streams=len(distinct(self.work.stream_id)),
            span_ns=self.windows.total_ns,
            busy_ns=self.busy.shared_with(self.windows),
            compute_ns=_when(self.work, self.computes).total_ns,
            communication_ns=communication.total_ns,
            hidden_ns=communication.shared_with(self.any_compute),
        )

    def shares(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return the kernels that communicate, by start, and the time that each is given and its hidden part, ns.

        Time in which several run is given to the one that started first, so the times sum to the union.
        """
        work, rows = self.work, np.flatnonzero(self.communicates)
        rows = rows[np.lexsort((work.end_ns[rows], work.start_ns[rows]))]
        reach = np.maximum.accumulate(work.end_ns[rows])
        before = np.concatenate([work.start_ns[rows[:1]], reach[:-1]])
        begin = np.maximum(work.start_ns[rows], before)
        end = np.maximum(begin, work.end_ns[rows])
        return self.rows[rows], end - begin, self.any_compute.covered(begin, end)

    def transfers(self) -> Iterator[TransferOverlap]:
        """Measure communication and copies, by kind and name."""
        others = self.work.take(~self.computes)
        for (kind, name), rows in rows_of_each(others.kind, others.name_id):
            when = _when(others, rows)
            yield TransferOverlap(
                gpu=self.label,
                kind=COMMUNICATION if kind == KERNEL else KINDS[kind],
                name=self.names[name],
                count=len(rows),
                total_ns=int(others.duration_ns[rows].sum()),
                union_ns=when.total_ns,
                hidden_ns=when.shared_with(self.any_compute),
            )


def _kinds(work: Work, communicates: Bools) -> tuple[Bools, Bools]:
    """Return which work communicates, and which computes."""
    kernel, communicating = work.kind == KERNEL, communicates[work.name_id]
    return kernel & communicating, (kernel & ~communicating) | (work.kind == GRAPH)


def _when(work: Work, chosen: Bools | Int64s) -> Intervals:
    """Return when any of the chosen work runs."""
    return union(work.start_ns[chosen], work.end_ns[chosen])
