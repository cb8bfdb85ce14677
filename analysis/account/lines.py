"""Which lines of the program some work or calls are of: what rules find in a place, and how sure that is."""

from __future__ import annotations

import numpy as np

from ..attribution.places import Attribution
from ..report.account import LineTime
from ..support.small_numbers import each_row, grouped_rows, looked_up, summed
from ..trace import Int32s, Int64s, Line, Source
from ..vocabulary.libraries import is_of_library

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


def line_of_pauses(attribution: Attribution, calls: Int64s) -> Int64s:
    """Return a number of the line at which the program was before each of some calls, int64; -1 where unknown.

    `calls` are positions in `Launches`. Equal lines have equal numbers.
    """
    lines = attribution.lines
    if lines is None:
        return np.full(len(calls), -1, np.int64)
    number_of: dict[Line, int] = {}
    number = [number_of.setdefault(source.lines[0], len(number_of)) for source in lines.sources]
    return looked_up(np.array(number, np.int64), lines.before_launch[calls], -1)


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
    callers: dict[Line, Line | None] = {}
    for number, total_ns in each_row(numbers, summed(group, ns, len(numbers))):
        if number >= 0:
            of_source = lines.sources[number]
            line = of_source.lines[0]
            key = line, of_source.backward
            callers[line] = callers.get(line) or _caller(of_source)
            by_line[key] = by_line.get(key, 0) + total_ns
    if not by_line or sum(by_line.values()) < KNOWN_FROM * ns.sum():
        return ()
    longest = sorted(by_line.items(), key=lambda item: (-item[1], item[0][0]))[:most]
    return tuple(LineTime(*key, total_ns, callers[key[0]]) for key, total_ns in longest)


def _caller(source: Source) -> Line | None:
    """Return the program's own line that calls a library's line; None of other lines, or if it is not known."""
    own = next((line for line in source.lines if not is_of_library(line.file)), None)
    return own if own != source.lines[0] else None


def common_line_of_work(attribution: Attribution, work: Int64s) -> LineTime | None:
    """Return the innermost line that all of some work is called from: the call of a module, for the module's work.

    `work` are positions in `Work`. None if too few lines are known, or there is no such line.
    """
    lines = attribution.lines
    if lines is None:
        return None
    table = attribution.trace.work
    source = looked_up(lines.of_launch, table.launch[work], -1)
    duration_ns = table.duration_ns[work]
    total_ns = int(duration_ns.sum())
    known_ns = int(duration_ns[source >= 0].sum())
    stacks = [lines.sources[number].lines for number in set(source[source >= 0].tolist())]
    if not stacks or known_ns < KNOWN_FROM * total_ns:
        return None
    # Deep stacks lack their outer end.
    in_all = frozenset.intersection(*map(frozenset, stacks))
    innermost = next((line for line in stacks[0] if line in in_all), None)
    return LineTime(innermost, None, known_ns) if innermost else None
