"""How much communication and copying is hidden behind the compute kernels of the same GPU.

Communication is the kernel category of that name: collectives and transfers between GPUs. Compute is every other
kernel and every CUDA graph. Copies and memsets are neither. *Hidden* is the time in which compute ran too; what is
not hidden is *exposed*. All figures but the counts are unions, so work that overlaps its own kind counts once.
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
from .idle import Intervals, union
from .spans import Extents

COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class GpuOverlap:
    """One GPU from the first start to the last end of its work, ns; `busy_ns` is when any work ran."""

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
    for one in each_gpu(Extents(attribution, include_warm_up=include_warm_up), phases):
        gpus.append(one.whole())
        transfers += one.transfers()
    return Overlap(tuple(gpus), tuple(sorted(transfers, key=lambda row: (-row.union_ns, row.gpu, row.name))))


def each_gpu(extents: Extents, phases: Collection[str] = PHASES) -> Iterator[OneGpu]:
    """Yield the work of these phases of each GPU that has some."""
    attribution, trace = extents.attribution, extents.attribution.trace
    asked = [number for number, phase in enumerate(PHASES) if phase in phases]
    rows = extents.kept[np.isin(attribution.phase[extents.kept], asked)]
    communicates = communication(trace)
    for number in distinct(extents.gpu[rows]).tolist():
        mine = rows[extents.gpu[rows] == number]
        yield OneGpu(trace, mine, communicates[trace.work.name_id[mine]], number, extents.gpus[number])


def communication(trace: Trace) -> Bools:
    """Return, per name, whether its kernels communicate."""
    kernels = distinct(trace.work.name_id[trace.work.kind == KERNEL])
    found = np.zeros(len(trace.names), np.bool_)
    categories = categorize([trace.names[name] for name in kernels])
    found[kernels] = np.array([category == COMMUNICATION for category in categories], np.bool_)
    return found


class OneGpu:
    """The work of one GPU."""

    def __init__(self, trace: Trace, rows: Int64s, communicates: Bools, number: int, label: str) -> None:
        self.trace, self.rows, self.number, self.label = trace, rows, number, label
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
            span_ns=int(work.end_ns[self.rows].max() - work.start_ns[self.rows].min()),
            busy_ns=self.union(np.ones(len(self.rows), np.bool_)).total_ns,
            compute_ns=self.compute.total_ns,
            communication_ns=communication.total_ns,
            hidden_ns=communication.shared_with(self.compute),
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
        return rows, end - begin, self.compute.covered(begin, end)

    def transfers(self) -> list[TransferOverlap]:
        """Measure communication and copies, by kind and name."""
        work, rest = self.trace.work, np.flatnonzero(~self.computes)
        key = np.stack([work.kind[self.rows[rest]], work.name_id[self.rows[rest]]]).astype(np.int64)
        pairs, at = np.unique(key, axis=1, return_inverse=True)
        return [self._transfer(rest[at.reshape(-1) == n], *pair) for n, pair in enumerate(pairs.T.tolist())]

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
            hidden_ns=when.shared_with(self.compute),
        )
