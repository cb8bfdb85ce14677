"""What operators do themselves, without those that they call, and in which ranges: it is a CPU's work.

A compiled graph is one operator, in which our ranges open: the time in each of them belongs to it.
"""

from __future__ import annotations

from array import array

import numpy as np

from ..moments import Clock
from ..trace import Bools, Int64s, Ranges, Spots

# As lists of Python's integers, all of a trace's columns would take more memory than the trace.
ROWS_AT_ONCE = 1 << 16


def spots_of(ranges: Ranges, rows: Int64s) -> Spots:
    """Return some ranges as intervals of their threads."""
    return Spots(ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows])


def with_inner(ranges: Ranges, is_operator: Bools, added: Spots | None) -> tuple[Spots, Int64s]:
    """Return operators, and the ranges that open inside one on its thread, and their rows: -1 for these ranges."""
    operators = np.flatnonzero(is_operator)
    of_operators = spots_of(ranges, operators)
    others = [spots_of(ranges, np.flatnonzero(~is_operator))]
    if added is not None:
        others.append(added)
    parts = [of_operators]
    for spots in others:
        opens_inside = _opens_inside(spots, of_operators)
        parts.append(spots.take(np.flatnonzero(opens_inside)))
    joined = Spots.joined(parts)
    no_rows = np.full(len(joined) - len(operators), -1)
    return joined, np.append(operators, no_rows)


def _opens_inside(spots: Spots, operators: Spots) -> Bools:
    """Return which intervals begin inside an operator of their thread, later than it."""
    clock = Clock(operators)
    starts = clock.at(operators.thread, operators.start_ns)
    order = np.argsort(starts, kind="stable")
    latest = np.maximum.accumulate(clock.at(operators.thread, operators.end_ns)[order])
    opens_at = clock.at(spots.thread, spots.start_ns)
    before = np.searchsorted(starts[order], opens_at, "left")
    opens: Bools = np.append(-1, latest)[before] > opens_at
    return opens


def self_times(spots: Spots, is_operator: Bools) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Return the order of operators and inner ranges by thread and start, and what each does itself.

    That is its duration without those inside it, the operator whose time that is, a row of `spots` (-1: none), and
    its end, for a range at the latest that of the operator around it. All sums to the time of the outermost
    operators.
    """
    start_ns = spots.start_ns
    end_ns = spots.end_ns
    thread = spots.thread
    order = np.lexsort((is_operator, -end_ns, start_ns, thread))
    # By position in this order; those of the operators that are open are not final.
    self_ns, until_ns = (array("q", values[order].tobytes()) for values in (end_ns - start_ns, end_ns))
    operates = is_operator[order].tobytes()
    operator_of = array("q", np.where(is_operator[order], order, -1).astype(np.int64).tobytes())
    # Of one thread, outer before inner, with their ends and those of the operators that they are in.
    open_rows: list[tuple[int, int, int]] = []
    open_thread = -1
    for first in range(0, len(order), ROWS_AT_ONCE):
        rows = order[first : first + ROWS_AT_ONCE]
        columns = (thread[rows].tolist(), start_ns[rows].tolist(), end_ns[rows].tolist())
        for position, (on_thread, start, end) in enumerate(zip(*columns, strict=True), first):
            if on_thread != open_thread:
                open_thread = on_thread
                open_rows.clear()
            while open_rows and open_rows[-1][1] <= start:
                open_rows.pop()
            if open_rows:
                if operator_of[position] < 0:  # a range, whose time is that of the operator around it
                    operator_of[position] = operator_of[open_rows[-1][0]]
                    end = min(end, open_rows[-1][2])
                    self_ns[position] = end - start
                    until_ns[position] = end
                outer, until, _ = open_rows[-1]
                if start <= end <= until:  # as nearly all are
                    self_ns[outer] -= end - start
                else:  # ranges can end within, and operators go on
                    since = start
                    for outer, until, _ in reversed(open_rows):
                        self_ns[outer] -= max(0, min(end, until) - since)
                        since = max(since, min(end, until))
                        if operates[outer] or since >= end:
                            break
            open_rows.append((position, end, end if operates[position] else open_rows[-1][2]))
    itself, operator, until_ends = (np.array(column, np.int64) for column in (self_ns, operator_of, until_ns))
    return order.astype(np.int64), np.maximum(itself, 0), operator, until_ends
