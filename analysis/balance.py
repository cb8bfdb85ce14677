"""Whether the GPU or the launching of work bounds each phase, with the evidence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from analysis.attribution import Attribution
from analysis.idle import Gaps, Idleness, gaps_of, idleness, inside, launch_lags
from analysis.paths import Paths
from analysis.phase_spans import NAMES, STEP, Extents, Spans
from analysis.report import Path
from analysis.trace import KERNEL, Int64s
from analysis.vocabulary import PHASES

# The verdict's thresholds: busy shares of the GPU span, and the share of idle time that waits for launches.
GPU_BOUND_FROM, LAUNCH_BOUND_BELOW, WAITING_FROM = 0.90, 0.75, 0.50


@dataclass(frozen=True, slots=True)
class PhaseBalance:
    """One phase, the measured steps, or all work, on one GPU; times are sums over all its spans, ns.

    `waiting_ns` is the part of the idle time in which the next work's launch had not returned. The lag is from
    the start of a launch call to the start of its work; None where no launch is known.
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
            return "GPU-bound"
        waits = self.busy_share < LAUNCH_BOUND_BELOW and self.waiting_share >= WAITING_FROM
        return "launch-bound" if waits else "undecided"


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
    """Measure the phases asked for, and of a whole report also its steps; without either, all of its work."""
    extents = Extents(attribution, include_warm_up=include_warm_up)
    spans = _chosen(extents, phases)
    gaps = gaps_of(attribution.trace, extents.gpu)
    idle, (first, lag) = idleness(spans, gaps), launch_lags(attribution.trace, extents.kept)
    rows = []
    for of, gpu in sorted(set(zip(spans.of.tolist(), spans.gpu.tolist(), strict=True))):
        of_work = extents.inside(of) & (extents.gpu == gpu)
        kernels = int((of_work & (attribution.trace.work.kind == KERNEL)).sum())
        mine = (spans.of == of) & (spans.gpu == gpu)
        rows.append(
            _row(NAMES[of], extents.gpus[gpu], spans.take(mine), idle.take(mine), kernels, lag[of_work[first]])
        )
    return Balance(tuple(rows), _owners(attribution, gaps, inside(spans, gaps)))


def _chosen(extents: Extents, phases: Collection[str]) -> Spans:
    spans = extents.spans()
    asked = np.isin(spans.of, [number for number, phase in enumerate(PHASES) if phase in phases])
    if set(phases) == set(PHASES):
        asked |= spans.of == STEP
    return spans.take(asked) if asked.any() else extents.whole()


def _row(name: str, gpu: str, spans: Spans, idle: Idleness, kernels: int, lag: Int64s) -> PhaseBalance:
    median, p95 = (
        (int(np.percentile(lag, q, method="inverted_cdf")) for q in (50, 95)) if len(lag) else (None, None)
    )
    return PhaseBalance(
        name, gpu, int((spans.end_ns - spans.start_ns).sum()), int(idle.idle_ns.sum()), int(idle.waiting_ns.sum()),
        int(idle.gaps.sum()), kernels, median, p95,
    )  # fmt: skip


def _owners(attribution: Attribution, gaps: Gaps, chosen: Int64s) -> tuple[GapOwner, ...]:
    paths = Paths(attribution)
    path = paths.of_node[attribution.node[gaps.next[chosen]]]
    distinct, at, count = np.unique(path, return_inverse=True, return_counts=True)
    idle, waiting, largest = (np.zeros(len(distinct), np.int64) for _ in range(3))
    np.add.at(idle, at, gaps.duration_ns[chosen])
    np.add.at(waiting, at, gaps.waiting_ns[chosen])
    np.maximum.at(largest, at, gaps.duration_ns[chosen])
    rows = zip(*(column.tolist() for column in (distinct, count, idle, largest, waiting)), strict=True)
    owners = [GapOwner(paths.paths[number] if number >= 0 else (), *values) for number, *values in rows]
    return tuple(sorted(owners, key=lambda owner: (-owner.idle_ns, owner.path)))
