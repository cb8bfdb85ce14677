"""Times that no capture can have: refused, for their sums would leave what 64 bits hold and come out wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analysis.errors import NotAReport
from analysis.trace import Int64s, Trace

# Differences of times within this stay within 64 bits; it is the year 2116 for times that count from 1970.
LATEST_NS = 2**62
# GPU work of a hundred days. Sums of it are exact in doubles too, and a thousand nested ranges can share it.
MOST_WORK_NS = 2**53


def require_plausible(trace: Trace, path: Path) -> None:
    """Raise NotAReport where times are so large that they must be damaged."""
    work, launches, ranges = trace.work, trace.launches, trace.ranges
    for what, start, end, most in (
        ("GPU work", work.start_ns, work.end_ns, MOST_WORK_NS),
        ("CUDA API calls", launches.start_ns, launches.end_ns, LATEST_NS),
        ("ranges", ranges.start_ns, ranges.end_ns, LATEST_NS),
    ):
        if _beyond(start) or _beyond(end) or float(np.sum(end - start, dtype=np.float64)) > most:
            raise NotAReport(f"{path} is damaged: it has times of {what} beyond any capture. Export it again.")


def _beyond(times: Int64s) -> bool:
    return bool(len(times)) and (int(times.max()) > LATEST_NS or int(times.min()) < -LATEST_NS)
