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
from ..support.small_numbers import distinct
from ..trace import GRAPH, KERNEL, KINDS, Bools, Int64s, Trace
from ..vocabulary import PHASES
from .intervals import Intervals, union
from .spans import Extents

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
    gpus, transfers = [], []
    for of_gpu in each_gpu(Extents(attribution, include_warm_up=include_warm_up), phases):
        gpus.append(of_gpu.whole())
        transfers += of_gpu.transfers()
    return Overlap(tuple(gpus), tuple(sorted(transfers, key=lambda row: (-row.union_ns, row.gpu, row.name))))


def each_gpu(extents: Extents, phases: Collection[str]) -> Iterator[OneGpu]:
    """Yield the work of these phases of each GPU that has some."""
    attribution, work = extents.attribution, extents.attribution.trace.work
    chosen = [number for number, phase in enumerate(PHASES) if phase in phases]
    rows = extents.kept[np.isin(attribution.phase[extents.kept], chosen)]
    communicates = communication(attribution.of_all_work.trace)
    for number in distinct(extents.gpu[rows]).tolist():
        of_gpu = rows[extents.gpu[rows] == number]
        everything = attribution.of_all_work.trace.work.take(np.flatnonzero(extents.gpu_of_all == number))
        of_kernels = (everything.kind == KERNEL) & ~communicates[everything.name_id]
        computing = of_kernels | (everything.kind == GRAPH)
        windows = extents.windows(number, phases)
        if not len(windows):  # of a phase that no range opens
            windows = union(work.start_ns[of_gpu], work.end_ns[of_gpu])
        yield OneGpu(
            attribution.trace,
            of_gpu,
            communicates[work.name_id[of_gpu]],
            number,
            extents.gpus[number],
            windows,
            busy=union(everything.start_ns, everything.end_ns),
            any_compute=union(everything.start_ns[computing], everything.end_ns[computing]),
        )


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
    """The measured work of one GPU, the windows that it is in, and when any work and any compute ran there."""

    def __init__(
        self,
        trace: Trace,
        rows: Int64s,
        communicates: Bools,
        number: int,
        label: str,
        windows: Intervals,
        *,
        busy: Intervals,
        any_compute: Intervals,
    ) -> None:
        self.trace, self.rows, self.number, self.label = trace, rows, number, label
        self.windows, self.busy, self.any_compute = windows, busy, any_compute
        kind = trace.work.kind[rows]
        self.communicates = communicates & (kind == KERNEL)
        self.computes = ((kind == KERNEL) & ~self.communicates) | (kind == GRAPH)
        self.compute = self.union(self.computes)

    def union(self, chosen: Bools) -> Intervals:
        """Return when any of the chosen work runs."""
        rows = self.rows[chosen]
        return union(self.trace.work.start_ns[rows], self.trace.work.end_ns[rows])

    def whole(self) -> GpuOverlap:
        """Measure everything together."""
        work, communication = self.trace.work, self.union(self.communicates)
        return GpuOverlap(
            gpu=self.label,
            streams=len(distinct(work.stream_id[self.rows])),
            span_ns=self.windows.total_ns,
            busy_ns=self.busy.shared_with(self.windows),
            compute_ns=self.compute.total_ns,
            communication_ns=communication.total_ns,
            hidden_ns=communication.shared_with(self.any_compute),
        )

    def shares(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return the kernels that communicate, by start, and the time that each is given and its hidden part, ns.

        Time in which several run is given to the one that started first, so the times sum to the union.
        """
        work, rows = self.trace.work, self.rows[self.communicates]
        rows = rows[np.lexsort((work.end_ns[rows], work.start_ns[rows]))]
        reach = np.maximum.accumulate(work.end_ns[rows])
        before = np.concatenate([work.start_ns[rows[:1]], reach[:-1]])
        begin = np.maximum(work.start_ns[rows], before)
        end = np.maximum(begin, work.end_ns[rows])
        return rows, end - begin, self.any_compute.covered(begin, end)

    def transfers(self) -> list[TransferOverlap]:
        """Measure communication and copies, by kind and name."""
        work, others = self.trace.work, np.flatnonzero(~self.computes)
        key = np.stack([work.kind[self.rows[others]], work.name_id[self.rows[others]]]).astype(np.int64)
        pairs, group = np.unique(key, axis=1, return_inverse=True)
        return [self._transfer(others[group.reshape(-1) == n], *pair) for n, pair in enumerate(pairs.T.tolist())]

    def _transfer(self, places: Int64s, kind: int, name: int) -> TransferOverlap:
        chosen = np.zeros(len(self.rows), np.bool_)
        chosen[places] = True
        when = self.union(chosen)
        return TransferOverlap(
            gpu=self.label,
            kind=COMMUNICATION if kind == KERNEL else KINDS[kind],
            name=self.trace.names[name],
            count=len(places),
            total_ns=int(self.trace.work.duration_ns[self.rows[places]].sum()),
            union_ns=when.total_ns,
            hidden_ns=when.shared_with(self.any_compute),
        )
