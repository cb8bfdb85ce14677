"""Joins the names of a report that has more than 100,000, so that an answer takes bounded time and memory.

Programs that name each batch or request, with a number or a text, have this many. Names of steps, phases and
warm-up are kept first, then those with the most time; sums do not change.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ..support.small_numbers import distinct, summed
from ..trace import Bools, Int64s, Trace, marked

#: So many distinct names of kernels, and of ranges, are kept, together; and what the others are called.
MOST_NAMES = 100_000
OTHER_NAMES = "(other names)"
#: What names of phases, steps and warm-up have, and a few others: looked for in each of a million names.
MAY_MEAN = re.compile(
    r"step|iter|batch|epoch|forward|fwd|backward|bwd|optim|loss|update|grad|warm|prefill|decode|execute|PP:|\([A-Z]\)$",
    re.IGNORECASE,
)
NOTE = (
    "The report has {:,} distinct names. The {:,} of steps and phases, and with the most time, are kept; the "
    f"other {{:,}} are joined as {OTHER_NAMES}."
)


def with_joined_names(trace: Trace) -> Trace:
    """Return a trace of at most MOST_NAMES names of kernels and ranges, the others joined as OTHER_NAMES."""
    if len(trace.names) <= MOST_NAMES:
        return trace
    work = trace.work
    ranges = trace.ranges
    count = len(trace.names)
    of_kernels = distinct(work.name_id)
    of_ranges = distinct(ranges.name_id)
    joined_count = len(of_kernels) + len(of_ranges) - MOST_NAMES
    if joined_count <= 0:
        return trace

    kernels_kept = min(len(of_kernels), max(MOST_NAMES // 2, MOST_NAMES - len(of_ranges)))
    kernel_ns = summed(work.name_id, work.duration_ns, count)
    range_ns = summed(ranges.name_id, ranges.end_ns - ranges.start_ns, count)
    means = np.zeros(count, np.bool_)
    means[of_ranges] = [bool(MAY_MEAN.search(trace.names[name])) for name in of_ranges.tolist()]
    keeps_kernels = _most(of_kernels, kernel_ns, np.zeros(count, np.bool_), kernels_kept)
    keeps_ranges = _most(of_ranges, range_ns, means, MOST_NAMES - kernels_kept)

    used = keeps_kernels | keeps_ranges
    if trace.messages:
        used |= marked(trace.messages.collective, count) | marked(trace.messages.group, count)
    number = np.cumsum(used, dtype=np.int32) - 1
    other = np.int32(used.sum())
    messages = trace.messages and replace(
        trace.messages, collective=number[trace.messages.collective], group=number[trace.messages.group]
    )
    return replace(
        trace,
        names=[*(trace.names[name] for name in np.flatnonzero(used).tolist()), OTHER_NAMES],
        work=replace(work, name_id=np.where(keeps_kernels, number, other)[work.name_id]),
        ranges=replace(ranges, name_id=np.where(keeps_ranges, number, other)[ranges.name_id]),
        messages=messages,
        provenance=replace(trace.provenance, names_joined=joined_count),
        notes=(*trace.notes, NOTE.format(joined_count + MOST_NAMES, MOST_NAMES, joined_count)),
    )


def _most(names: Int64s, time_ns: Int64s, first: Bools, count: int) -> Bools:
    """Mark `count` of some names (k,): the first ones, then those with the most time; bool (all names,)."""
    order = np.lexsort((-time_ns[names], ~first[names]))
    keeps = np.zeros(len(time_ns), np.bool_)
    keeps[names[order[:count]]] = True
    return keeps
