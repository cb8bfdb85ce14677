"""Whether the GPU or the launching of work bounds each phase, with the evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..report import BusyRow, Path
from ..support.small_numbers import distinct, summed
from ..support.threads import at_once
from ..trace import KERNEL, MEMCPY, MEMSET, Int32s, Int64s, Trace
from ..vocabulary import PHASES
from .idle import Gaps, Idleness, gaps_of, idleness, inside, launch_lags
from .intervals import Intervals, union
from .overlap import communication
from .spans import NAMES, STEP, Extents, Spans

# The verdict's thresholds: busy shares of the GPU span, and the share of idle time that waits for launches.
GPU_BOUND_FROM, LAUNCH_BOUND_BELOW, WAITING_FROM = 0.90, 0.75, 0.50
# The share of the busy time in which nothing but copies, or communication, runs, from which that bounds the phase.
FILLED_FROM = 0.50


@dataclass(frozen=True, slots=True)
class PhaseBalance:
    """One phase, the measured steps, or all work, on one GPU; times are sums over all its spans, ns.

    `waiting_ns` is the part of the idle time in which the next work's launch had not returned. The lag is from
    the start of a launch call to the start of its work; None if no launch is known. `copying_ns` and
    `communicating_ns` are the busy time in which nothing but copies and memsets, or communication, ran.
    """

    name: str
    gpu: str
    span_ns: int
    idle_ns: int
    waiting_ns: int
    gaps: int
    kernels: int
    median_lag_ns: int | None
    p95_lag_ns: int | None
    copying_ns: int = 0
    communicating_ns: int = 0

    @property
    def busy_ns(self) -> int:
        """How long any work ran."""
        return self.span_ns - self.idle_ns

    @property
    def busy_share(self) -> float:
        """The share of the span in which any work ran."""
        return self.busy_ns / self.span_ns if self.span_ns else 1.0

    @property
    def waiting_share(self) -> float:
        """The share of the idle time in which the next work had not been launched."""
        return self.waiting_ns / self.idle_ns if self.idle_ns else 0.0

    @property
    def verdict(self) -> str:
        """What bounds the phase."""
        if self.busy_share >= GPU_BOUND_FROM:
            return self._filling
        waits = self.busy_share < LAUNCH_BOUND_BELOW and self.waiting_share >= WAITING_FROM
        return "launch-bound" if waits else "undecided"

    def without(self, cpu_ns: int) -> PhaseBalance:
        """Return the phase as it would be if so much of the CPU's time were not spent before launches."""
        saved = min(cpu_ns, self.waiting_ns)
        return replace(
            self,
            span_ns=self.span_ns - saved,
            idle_ns=self.idle_ns - saved,
            waiting_ns=self.waiting_ns - saved,
        )

    @property
    def _filling(self) -> str:
        """What fills a busy phase."""
        fill = {"copy-bound": self.copying_ns, "communication-bound": self.communicating_ns}
        word = max(fill, key=lambda word: fill[word])
        return word if self.busy_ns and fill[word] >= FILLED_FROM * self.busy_ns else "GPU-bound"


# Copies and communication: which of the two, the GPU, and when anything else runs there.
Rest = tuple[int, int, Intervals]


def _rest_of(trace: Trace, gpu: Int32s) -> list[Rest]:
    """Return when a GPU that copies runs more than copies, and one that communicates more than that."""
    work = trace.work
    communicates = (work.kind == KERNEL) & communication(trace)[work.name_id]
    rests = []
    for kind, some in enumerate((np.isin(work.kind, (MEMCPY, MEMSET)), communicates)):
        for number in distinct(gpu[some]).tolist():
            rows = np.flatnonzero((gpu == number) & ~some)
            rests.append((kind, number, union(work.start_ns[rows], work.end_ns[rows])))
    return rests


@dataclass(frozen=True, slots=True)
class GapOwner:
    """The range that launched the work at the ends of some gaps; no path: it was launched outside all ranges."""

    path: Path
    gaps: int
    idle_ns: int
    largest_ns: int
    waiting_ns: int


@dataclass(frozen=True, slots=True)
class Balance:
    """A row per phase and GPU, and a row per path that owns gaps inside those phases, the most idle first."""

    phases: tuple[PhaseBalance, ...]
    owners: tuple[GapOwner, ...]


def balance(
    attribution: Attribution, phases: Collection[str] = PHASES, *, include_warm_up: bool = False
) -> Balance:
    """Measure the requested phases, and for a whole report also its steps; without either, all of its work."""
    rows, spans, gaps = _measured(Extents(attribution, include_warm_up=include_warm_up), phases)
    return Balance(rows, _owners(attribution.of_all_work, gaps, inside(spans, gaps)))


def busy_rows(attribution: Attribution, *, include_warm_up: bool) -> tuple[BusyRow, ...]:
    """Add up each phase, and the steps, over the GPUs; empty for a CPU, which waits for no launches."""
    extents = Extents(attribution, include_warm_up=include_warm_up)
    if attribution.trace.provenance.unit_of_work == "CPU" or not len(extents.kept):
        return ()
    by_phase: dict[str, list[PhaseBalance]] = {}
    for row in _measured(extents, PHASES)[0]:
        by_phase.setdefault(row.name, []).append(row)
    added = ((reduce(_both, rows), len(rows)) for rows in by_phase.values())
    return tuple(
        BusyRow(row.name, row.span_ns, row.busy_ns, row.waiting_ns, row.kernels, gpus, row.verdict)
        for row, gpus in added
    )


def _both(a: PhaseBalance, b: PhaseBalance) -> PhaseBalance:
    """Add one phase's figures on two GPUs; lags do not add up."""
    summed = ("span_ns", "idle_ns", "waiting_ns", "gaps", "kernels", "copying_ns", "communicating_ns")
    sums = {name: getattr(a, name) + getattr(b, name) for name in summed}
    return replace(a, gpu="", median_lag_ns=None, p95_lag_ns=None, **sums)


def _measured(extents: Extents, phases: Collection[str]) -> tuple[tuple[PhaseBalance, ...], Spans, Gaps]:
    """Measure each phase on each GPU; return also the phases' spans, and all gaps.

    A GPU is busy with any work, also with what is in no step, so the gaps are those between all work.
    """
    trace, gpu = extents.attribution.of_all_work.trace, extents.gpu_of_all
    calls: list[Callable[[], Any]] = [
        partial(_chosen, extents, phases),
        partial(gaps_of, trace, gpu),
        partial(launch_lags, extents.attribution.trace, extents.kept),
        partial(_rest_of, trace, gpu),
    ]
    spans, gaps, lags, rests = at_once(calls, len(trace.work))
    idle = idleness(spans, gaps)
    # How long only copies, and only communication, ran in each span.
    busy_ns, alone = spans.end_ns - spans.start_ns - idle.idle_ns, np.zeros((2, len(spans)), np.int64)
    for kind, number, others in rests:
        on_gpu = spans.gpu == number
        alone[kind, on_gpu] = busy_ns[on_gpu] - others.covered(spans.start_ns[on_gpu], spans.end_ns[on_gpu])
    return _rows(extents, spans, idle, lags, alone), spans, gaps


def _rows(
    extents: Extents, spans: Spans, idle: Idleness, lags: tuple[Int64s, Int64s], alone: Int64s
) -> tuple[PhaseBalance, ...]:
    """Add up the spans of each phase on each GPU."""
    rows, (first, lag) = [], lags
    for number, gpu in sorted(set(zip(spans.kind.tolist(), spans.gpu.tolist(), strict=True))):
        of_work = extents.inside(number) & (extents.gpu == gpu)
        kernels = int((of_work & (extents.attribution.trace.work.kind == KERNEL)).sum())
        chosen = (spans.kind == number) & (spans.gpu == gpu)
        row = _row(
            NAMES[number], extents.gpus[gpu], spans.take(chosen), idle.take(chosen), kernels, lag[of_work[first]]
        )
        copying, communicating = alone[:, chosen].sum(axis=1).tolist()
        rows.append(replace(row, copying_ns=copying, communicating_ns=communicating))
    return tuple(rows)


def _chosen(extents: Extents, phases: Collection[str]) -> Spans:
    spans = extents.spans()
    chosen = np.isin(spans.kind, [number for number, phase in enumerate(PHASES) if phase in phases])
    if set(phases) == set(PHASES):
        chosen |= spans.kind == STEP
    return spans.take(chosen) if chosen.any() else extents.whole()


def _row(name: str, gpu: str, spans: Spans, idle: Idleness, kernels: int, lag: Int64s) -> PhaseBalance:
    median, p95 = (
        (int(np.percentile(lag, q, method="inverted_cdf")) for q in (50, 95)) if len(lag) else (None, None)
    )
    return PhaseBalance(
        name,
        gpu,
        int((spans.end_ns - spans.start_ns).sum()),
        int(idle.idle_ns.sum()),
        int(idle.waiting_ns.sum()),
        int(idle.gaps.sum()),
        kernels,
        median,
        p95,
    )


def _owners(attribution: Attribution, gaps: Gaps, chosen: Int64s) -> tuple[GapOwner, ...]:
    paths = Paths(attribution)
    path = paths.of_node[attribution.node[gaps.next[chosen]]]
    each, group, count = np.unique(path, return_inverse=True, return_counts=True)
    largest = np.zeros(len(each), np.int64)
    np.maximum.at(largest, group, gaps.duration_ns[chosen])
    idle, waiting = (summed(group, ns[chosen], len(each)) for ns in (gaps.duration_ns, gaps.waiting_ns))
    rows = zip(*(column.tolist() for column in (each, count, idle, largest, waiting)), strict=True)
    owners = [GapOwner(paths.paths[number], *values) for number, *values in rows]
    return tuple(sorted(owners, key=lambda owner: (-owner.idle_ns, owner.path)))
