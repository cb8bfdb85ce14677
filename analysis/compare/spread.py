"""How far the steps of one report differ among themselves, which a difference of two reports must exceed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..measures.steps import StepTimes
from ..report import KernelRow


def spread_ns(times: StepTimes, rows: Iterable[KernelRow]) -> int | None:
    """Return by how much the slowest step exceeds the fastest in these rows, ns; None where that is not known."""
    if not times:
        return None
    of_rows = [
        of_row for row in rows if (of_row := times.get((row.path, row.phase, row.kind, row.kernel))) is not None
    ]
    return int(np.ptp(np.sum(of_rows, axis=0))) if of_rows else 0
