"""Which lines of the program some work or calls are of: what rules find in a place, and how sure that is."""

from __future__ import annotations

import numpy as np

from ..attribution.places import Attribution
from ..report.account import LineTime
from ..support.small_numbers import each_row, grouped_rows, looked_up, summed
from ..trace import Int32s, Int64s, Line

#: Lines are shown if they are known for this share of the time; and how many.
KNOWN_FROM = 0.9
MOST_LINES = 5


def lines_of_work(attribution: Attribution, work: Int64s, *, most: int = MOST_LINES) -> tuple[LineTime, ...]:
    """Return the lines that launch some work, those with the most of its time first; none if too few are known.

    `work` are positions in `Work`.
    """
    table = attribution.trace.work
    nowhere = np.empty(0, np.int64)
    return lines_of_host(attribution, table.launch[work], nowhere, table.duration_ns[work], most=most)


def lines_of_host(
    attribution: Attribution, calls: Int64s | Int32s, pauses: Int64s, ns: Int64s, *, most: int = MOST_LINES
) -> tuple[LineTime, ...]:
    """Return the lines of some calls and pauses, those with the most of `ns` first; none if too few are known.

    Both are positions in `Launches`, -1 for none; a pause is that before a call. `ns` is of the calls, then of the
    pauses.
    """
    lines = attribution.lines
    if lines is None:
        return ()
    of_calls = looked_up(lines.of_launch, calls, -1)
    of_pauses = lines.before_launch[pauses]
    return longest_lines(attribution, np.concatenate([of_calls, of_pauses]), ns, most=most)


def longest_lines(
    attribution: Attribution, source: Int32s, ns: Int64s, *, most: int = MOST_LINES
) -> tuple[LineTime, ...]:
    """Return the lines with the most time, given the sources that have it; none if too few are known.

    `source` are positions in `Attribution.lines.sources`, -1 where unknown.
    """
    lines = attribution.lines
    if lines is None:
        return ()
    (numbers,), group = grouped_rows(source)
    by_line: dict[tuple[Line, Line | None], int] = {}
    for number, total_ns in each_row(numbers, summed(group, ns, len(numbers))):
        if number >= 0:
            of_source = lines.sources[number]
            key = of_source.lines[0], of_source.backward
            by_line[key] = by_line.get(key, 0) + total_ns
    if not by_line or sum(by_line.values()) < KNOWN_FROM * ns.sum():
        return ()
    longest = sorted(by_line.items(), key=lambda item: (-item[1], item[0][0]))[:most]
    return tuple(LineTime(*key, total_ns) for key, total_ns in longest)
