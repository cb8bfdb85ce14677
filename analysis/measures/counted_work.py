"""The work that figures of `fixes` are of where nothing is replayed."""

from __future__ import annotations

import numpy as np

from ..account import Partition
from ..trace import Int64s


def counted_work(partition: Partition) -> Int64s:
    """Return positions in the trace's work: of the steps that count, without steps of all but warm-up."""
    if partition.has_steps:
        return partition.of_counted_steps.rows_of_all
    attribution = partition.attribution
    left_out = attribution.left_out(include_warm_up=partition.include_warm_up)
    return np.flatnonzero(~left_out[attribution.node])
