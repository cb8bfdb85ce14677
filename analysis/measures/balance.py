"""Whether the GPU or the launching of work bounds each phase, and which work the GPU waits for when it is idle.

A GPU is busy while any kernel, copy, memset or CUDA graph runs on it. A gap ends when the next piece of work
starts; the range that launched that work owns the gap. Of a gap, the part before the launch call returned is time
in which the GPU had nothing to start: it *waits for a launch*. The rest passes inside the GPU or its driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.places import Paths
from ..report import BusyRow, Path, added
from ..report.recording import GPU_BOUND_FROM, Recording
from ..support.small_numbers import bounds, distinct, grouped, rows_of_each, summed
from ..support.threads import at_once
from ..trace import KERNEL, MEMCPY, MEMSET, Int32s, Int64s, Trace
from ..vocabulary import PHASES
from .gaps import gaps_of
from .idle import CAUSES, LAUNCHING, UNKNOWN, IdleTime, gaps_in, idle_in, typical_idle_time
from .idle_sums import main_cause
from .idle_windows import windows_around
from .overlap import communication
from .spans import NAMES, Extents, Intervals, Spans, kinds_of, union

# The verdict's other thresholds: a busy share of the GPU span, and launching's share of idle time.
LAUNCH_BOUND_BELOW, WAITING_FROM = 0.75, 0.50
# The share of the busy time in which nothing but copies, or communication, runs, from which that bounds the phase.
FILLED_FROM = 0.50


@dataclass(frozen=True, slots=True)
class PhaseBalance:
    """One phase, the measured steps, or all work, on one GPU; times are sums over all its spans, ns.

    `waiting_ns` is the part of the idle time in which the next work's launch had not returned. The lag is from
    the start of a launch call to the start of its work; None if no launch is known or none was asked for.
    `copying_ns` and `communicating_ns` are the busy time in which nothing but copies and memsets, or
    communication, ran.
    """

    name: str
    gpu: str
    span_ns: int
    idle_ns: int
    waiting_ns: int
    gaps: int
    kernels: int
    median_lag_ns: int | None = None
    p95_lag_ns: int | None = None
    copying_ns: int = 0
    communicating_ns: int = 0
    cause: str = ""  # of most idle time in typical steps: one of idle.CAUSES; empty for none
    cause_share: float = 0.0  # and of how much
    alone: tuple[float, float] | tuple[()] = ()  # between which shares it is busy without recording, if known

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
        """What bounds the phase: without recording where that is known, if the bounds of that agree."""
        lowest, highest = map(self._verdict, self.alone or (self.busy_share, self.busy_share))
        return lowest if lowest == highest else "undecided"

    def _verdict(self, busy_share: float) -> str:
        if busy_share < GPU_BOUND_FROM:
            is_caused = self.cause_share >= WAITING_FROM and self.cause != CAUSES[UNKNOWN]
            if busy_share >= LAUNCH_BOUND_BELOW or not is_caused:
                return "undecided"
            return "launch-bound" if self.cause == CAUSES[LAUNCHING] else self.cause
        fill_ns, word = max((self.copying_ns, "copy-bound"), (self.communicating_ns, "communication-bound"))
        return word if self.busy_ns and fill_ns >= FILLED_FROM * self.busy_ns else "GPU-bound"

    def without(self, cpu_ns: int) -> PhaseBalance:
        """Return the phase as it would be if so much of the CPU's time were not spent before launches."""
        saved = min(cpu_ns, self.waiting_ns)
        span_ns, idle_ns, waiting_ns = (ns - saved for ns in (self.span_ns, self.idle_ns, self.waiting_ns))
        return replace(self, span_ns=span_ns, idle_ns=idle_ns, waiting_ns=waiting_ns)


@dataclass(frozen=True, slots=True)
class GapOwner:
    """The range that launched the work at the ends of some gaps; no path: it was launched outside all ranges."""

    path: Path
    gaps: int
    idle_ns: int
    largest_ns: int
    waiting_ns: int
    cause: str = ""  # that most of it has: one of idle.CAUSES


@dataclass(frozen=True, slots=True)
class Balance:
    """A row per phase and GPU, and a row per path that owns gaps inside those phases, the most idle first."""

    phases: tuple[PhaseBalance, ...]
    owners: tuple[GapOwner, ...]


def balance(
    attribution: Attribution,
    phases: Collection[str] = PHASES,
    *,
    include_warm_up: bool = False,
    recording: Recording | None = None,
) -> Balance:
    """Measure the requested phases, and for a whole report also its steps; without either, all of its work.

    `recording` is what recording cost: verdicts are those without it where that is known.
    """
    extents = Extents(attribution, include_warm_up=include_warm_up)
    gaps = gaps_of(attribution.of_all_work.trace, extents.gpu_of_all)
    rows, spans = _measured(extents, phases, typical_idle_time(extents, gaps))
    idle = idle_in(extents, gaps, windows_around(spans))
    gaps, causes, paths = idle.gaps, _causes_of_gaps(idle), Paths(attribution)
    path, group = grouped(paths.of_node[attribution.of_all_work.node[gaps.next]] + 1)
    count, idle_ns, waiting_ns = (
        summed(group, values, len(path)) for values in (np.ones_like(group), gaps.duration_ns, gaps.waiting_ns)
    )
    _, largest_ns = bounds(group, gaps.duration_ns, gaps.duration_ns, len(path))
    cause_ns = np.zeros((len(path), len(CAUSES)), np.int64)
    np.add.at(cause_ns, group, causes)
    columns = zip(*(column.tolist() for column in (path, count, idle_ns, largest_ns, waiting_ns)), strict=True)
    owners = [
        GapOwner(paths.paths[number - 1], count, idle, largest, waiting, CAUSES[most])
        for (number, count, idle, largest, waiting), most in zip(
            columns, cause_ns.argmax(axis=1).tolist(), strict=True
        )
    ]
    rows = tuple(_without_recording(row, recording) for row in _with_lags(rows, extents))
    return Balance(rows, tuple(sorted(owners, key=lambda owner: (-owner.idle_ns, owner.path))))


def busy_rows(
    extents: Extents, *, idle: IdleTime | None = None, recording: Recording | None = None
) -> tuple[BusyRow, ...]:
    """Add up each phase, and the steps, over the GPUs; empty for a CPU, which waits for no launches.

    `idle` is the idle time of typical steps, where it is known already; `recording` as in `balance`.
    """
    if extents.attribution.trace.provenance.unit_of_work == "CPU" or not len(extents.kept):
        return ()
    measured, _ = _measured(extents, PHASES, idle)
    rows = [replace(row, median_lag_ns=0, p95_lag_ns=0) for row in measured]  # not added up
    gpus = Counter(row.name for row in rows)
    return tuple(
        BusyRow(row.name, row.span_ns, row.busy_ns, row.waiting_ns, row.kernels, gpus[row.name], row.verdict)
        for row in (_without_recording(row, recording) for row in added(rows, ("name",)))
    )


def _without_recording(row: PhaseBalance, recording: Recording | None) -> PhaseBalance:
    """Return the phase with how busy the GPU is in it without recording, if that is known."""
    known = recording.busy_between(row.name, row.busy_share) if recording else None
    return replace(row, alone=known or ())


def idle_of_typical_steps(extents: Extents) -> IdleTime:
    """Find why the GPUs are idle in typical steps, else in all of the work; `all_gaps` has all gaps."""
    return typical_idle_time(extents, gaps_of(extents.attribution.of_all_work.trace, extents.gpu_of_all))


def _measured(
    extents: Extents, phases: Collection[str], idle: IdleTime | None
) -> tuple[tuple[PhaseBalance, ...], Spans]:
    """Measure each phase on each GPU; return also the phases' spans.

    A GPU is busy with any work, also with what is in no step, so the gaps are those between all work.
    """
    trace, gpu = extents.attribution.of_all_work.trace, extents.gpu_of_all
    calls: list[Callable[[], Any]] = [
        partial(_chosen, extents, phases),
        partial(gaps_of, trace, gpu) if idle is None else partial(getattr, idle, "all_gaps"),
        partial(_others, trace, gpu),
    ]
    spans, gaps, others_of_gpus = at_once(calls, len(trace.work))
    idle = typical_idle_time(extents, gaps) if idle is None else idle
    # By span: its gaps, as none crosses the bounds of a span, and the time in which only one kind of work ran.
    idle_ns, waiting_ns, gap_counts, *alone_ns = by_span = np.zeros((5, len(spans)), np.int64)
    first, behind = gaps_in(gaps, spans)
    gap_counts[:] = behind - first
    for total, values in ((idle_ns, gaps.duration_ns), (waiting_ns, gaps.waiting_ns)):
        until = np.concatenate([[0], np.cumsum(values)])
        total[:] = until[behind] - until[first]
    for kind, number, others in others_of_gpus:
        on_gpu = np.flatnonzero(spans.gpu == number)
        busy_ns = (spans.end_ns - spans.start_ns - idle_ns)[on_gpu]
        alone_ns[kind][on_gpu] = busy_ns - others.covered(spans.start_ns[on_gpu], spans.end_ns[on_gpu])

    figures, kernel = [], extents.attribution.trace.work.kind == KERNEL
    for (kind, number), chosen in rows_of_each(spans.kind, spans.gpu):
        idle_sum, waiting, gap_count, copying, communicating = by_span[:, chosen].sum(axis=1).tolist()
        cause, cause_share = main_cause(idle, spans.take(chosen))
        if not cause and idle_ns[chosen].any():  # they lie in no step that was looked at
            cause, cause_share = main_cause(
                idle_in(extents, gaps, windows_around(spans.take(chosen))), spans.take(chosen)
            )
        figures.append(
            PhaseBalance(
                name=NAMES[kind],
                gpu=extents.gpus[number],
                span_ns=int((spans.end_ns - spans.start_ns)[chosen].sum()),
                idle_ns=idle_sum,
                waiting_ns=waiting,
                gaps=gap_count,
                kernels=int((extents.inside(kind) & (extents.gpu == number) & kernel).sum()),
                copying_ns=copying,
                communicating_ns=communicating,
                cause=cause,
                cause_share=cause_share,
            )
        )
    return tuple(figures), spans


def _causes_of_gaps(idle: IdleTime) -> Int64s:
    """Return how much of each gap has which cause, ns: int64 (gaps, causes)."""
    cell = idle.pieces.gap.astype(np.int64) * len(CAUSES) + idle.pieces.cause
    return summed(cell, idle.pieces.duration_ns, len(idle.gaps) * len(CAUSES)).reshape(-1, len(CAUSES))


def _chosen(extents: Extents, phases: Collection[str]) -> Spans:
    spans = extents.spans()
    chosen = spans.take(np.isin(spans.kind, kinds_of(phases)))
    return chosen if len(chosen) else extents.whole()


def _with_lags(rows: Iterable[PhaseBalance], extents: Extents) -> Iterator[PhaseBalance]:
    """Yield the phases with the lags of their launches' first work."""
    first, lag = _launch_lags(extents.attribution.trace, extents.kept)
    for row in rows:
        of_row = extents.inside(NAMES.index(row.name)) & (extents.gpu == extents.gpus.index(row.gpu))
        lags = lag[of_row[first]]
        median, p95 = np.percentile(lags, (50, 95), method="inverted_cdf").tolist() if len(lags) else (None, None)
        yield replace(row, median_lag_ns=median, p95_lag_ns=p95)


def _launch_lags(trace: Trace, work: Int64s) -> tuple[Int64s, Int64s]:
    """Return which of these pieces of work are the first of their launch, and how long after its call they start.

    The lag is from the start of the launch call to the start of the work on the GPU, ns.
    """
    launched = work[trace.work.launch[work] >= 0]
    latest_first = launched[np.argsort(trace.work.start_ns[launched], kind="stable")[::-1]]
    first = np.full(len(trace.launches), -1)
    first[trace.work.launch[latest_first]] = latest_first  # what starts first is written last
    first = first[first >= 0]
    return first, trace.work.start_ns[first] - trace.launches.start_ns[trace.work.launch[first]]


def _others(trace: Trace, gpu: Int32s) -> list[tuple[int, int, Intervals]]:
    """Return when a GPU that copies runs more than copies (0), and one that communicates more than that (1)."""
    work, others = trace.work, []
    communicates = (work.kind == KERNEL) & communication(trace)[work.name_id]
    for kind, some in enumerate((np.isin(work.kind, (MEMCPY, MEMSET)), communicates)):
        for number in distinct(gpu[some]).tolist():
            rows = np.flatnonzero((gpu == number) & ~some)
            others.append((kind, number, union(work.start_ns[rows], work.end_ns[rows])))
    return others
