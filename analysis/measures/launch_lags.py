"""How long after its launch call work starts: long where launches queue before a busy GPU."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..trace import Int64s, Trace
from ..vocabulary import PHASES


@dataclass(frozen=True, slots=True)
class Lags:
    """The launches of a phase, and their lags, ns: from the start of the call to the start of its first work."""

    phase: str
    launches: int
    median_ns: int
    p95_ns: int


def launch_lags(attribution: Attribution, phases: Collection[str] = PHASES) -> list[Lags]:
    """Return the lags of the launches by phase; phases without a known launch are left out."""
    first, lag = _first_work(attribution.trace)
    rows = []
    for number, phase in enumerate(PHASES):
        lags = lag[attribution.phase[first] == number]
        if len(lags) and phase in phases:
            median, p95 = np.percentile(lags, (50, 95), method="inverted_cdf").tolist()
            rows.append(Lags(phase, len(lags), median, p95))
    return rows


def _first_work(trace: Trace) -> tuple[Int64s, Int64s]:
    """Return the first work of each launch, positions in Work, and how long after its call it starts, ns."""
    work = trace.work
    launched = np.flatnonzero(work.launch >= 0)
    latest_first = launched[np.argsort(work.start_ns[launched], kind="stable")[::-1]]
    first = np.full(len(trace.launches), -1)
    first[work.launch[latest_first]] = latest_first  # what starts first is written last
    first = first[first >= 0]
    return first, work.start_ns[first] - trace.launches.start_ns[work.launch[first]]
