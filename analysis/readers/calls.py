"""The names of calls, and the profiler's own time, as a trace has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trace import CallNames, Overhead
from ..vocabulary.calls import kinds_of_calls

#: More names than any API has: a report with more is damaged, and the rest are left without a name.
MOST_NAMES = 2**16 - 1


def named_calls(codes: NDArray[Any], names: Sequence[str]) -> CallNames:
    """Return the names of calls, given each call's position in `names`, which can repeat."""
    distinct = tuple(dict.fromkeys(names))[:MOST_NAMES]
    number = {name: position for position, name in enumerate(distinct)}
    positions = np.array([number.get(name, len(distinct)) for name in names] or [0], np.uint16)
    names = (*distinct, "")
    return CallNames(names, kinds_of_calls(names), positions[codes])


def overhead_of(rows: Sequence[tuple[int, int, int]], loads: Sequence[bool] | None = None) -> Overhead:
    """Return the profiler's own time from (start, end, thread) rows, and which of them loads code."""
    start, end, thread = np.array(rows, np.int64).T
    flags = np.array(loads if loads is not None else [False] * len(rows), np.bool_)
    return Overhead(start, end, thread.astype(np.int32), flags)
