"""Where in the repeated sequence a period begins: any kernel would do, and one is the first of the loop.

a b b c u u | a b b c u u | a b b c u u      behind the optimizer's burst, if there is one in each period
a b b c ··· | a b b c ··· | a b b c          else at the kernel that comes once a period after the longest pause
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...support.small_numbers import grouped_rows, medians
from ...trace import Int64s
from .anchors import LONG, runs_of
from .segments import Segments, middle, segments_at
from .sequence import Sequence

#: A burst of updates ends where none follows within this share of a period; so many kernels at least.
PART_OF_PERIOD, LEAST_APART = 7, 2
#: Bursts are one in each period if this share of the periods has just one.
ONE_IN_EACH = 0.7
#: How much of a period's share a begin may lose of what is explained.
MOST_LOST = 0.6
#: Kernels, or runs of them, that come once in this share of the periods; those with the longest pauses are tried,
#: and some evenly spread over the period, one of which loses nothing.
ONCE, LONGEST_TRIED, SPREAD_TRIED = 0.9, 12, 8
LENGTHS, LENGTHS_OF_LONG = (1, 2, 4), (1,)
#: How far before and behind the periods begins are looked for, in periods.
BEFORE, BEHIND = 1.3, 0.3


@dataclass(frozen=True, slots=True)
class _Begin:
    """A kernel at which periods may begin: the host's median pause before it, ns, and its positions."""

    pause_ns: float
    positions: Int64s


def begins_of(sequence: Sequence, symbol: Int64s, cuts: Int64s) -> Int64s:
    """Return the positions at which the periods between these cuts begin; the cuts where none is better."""
    segments = segments_at(symbol, sequence.weight, cuts)
    explained, like = segments.explained(), segments.like()
    if not like.any():
        return cuts
    begin, end = segments.begin[like], segments.end[like]
    most_lost = MOST_LOST / len(begin)
    low, high = begin[0] - BEFORE * segments.usual, end[-1] + BEHIND * segments.usual
    behind = behind_updates(sequence, segments.usual)
    behind = behind[(behind >= low) & (behind <= high)]
    if len(behind) > 1 and _is_one_in_each(behind, begin, end):
        if behind[0] > segments.usual / 2:
            behind = np.append(max(behind[0] - segments.usual, 0), behind)
        if segments_at(symbol, sequence.weight, behind).explained() >= explained * (1 - most_lost):
            return behind
    return _after_longest_pause(sequence, symbol, segments, (low, high), most_lost, cuts)


def behind_updates(sequence: Sequence, usual: int) -> Int64s:
    """Return the position behind each burst of an optimizer's kernels; `usual` is how many a period has."""
    updates = np.flatnonzero(sequence.is_update)
    if not len(updates):
        return updates
    is_last = np.append(np.diff(updates) > max(usual // PART_OF_PERIOD, LEAST_APART), True)
    behind = updates[is_last] + 1
    followed: Int64s = behind[behind < len(sequence)]
    return followed


def _is_one_in_each(positions: Int64s, begin: Int64s, end: Int64s) -> bool:
    """Tell whether just one of the positions is in most of the periods."""
    count = np.searchsorted(positions, end) - np.searchsorted(positions, begin)
    return middle(count) == 1 and bool((count == 1).mean() > ONE_IN_EACH)


def _after_longest_pause(
    sequence: Sequence,
    symbol: Int64s,
    segments: Segments,
    bounds: tuple[float, float],
    most_lost: float,
    otherwise: Int64s,
) -> Int64s:
    """Return the begins after the longest pause that lose no period, of those between some bounds."""
    tried: list[tuple[float, _Begin]] = []
    for length in LENGTHS_OF_LONG if len(symbol) >= LONG else LENGTHS:
        for candidate in _once_a_period(sequence, runs_of(symbol, length), segments, bounds):
            if len(candidate.positions) > 1:
                explained = segments_at(symbol, sequence.weight, candidate.positions).explained()
                tried.append((explained, candidate))
    if not tried:
        return otherwise
    least = max(explained for explained, _ in tried) * (1 - most_lost)
    return max((pair for pair in tried if pair[0] >= least), key=lambda pair: pair[1].pause_ns)[1].positions


def _once_a_period(
    sequence: Sequence, runs: Int64s, segments: Segments, bounds: tuple[float, float]
) -> Iterator[_Begin]:
    """Yield the runs that come once in most periods: those after long pauses, and some spread over a period."""
    like = np.flatnonzero(segments.like())
    begin, end = segments.begin[like], segments.end[like]
    length = end - begin
    period = np.repeat(np.arange(len(begin)), length)
    position = np.arange(len(period)) + np.repeat(begin - (np.cumsum(length) - length), length)
    (run, _), cell = grouped_rows(runs[position], period)
    count = np.bincount(cell)
    is_single = count[cell] == 1
    (candidates,), number = grouped_rows(run[cell[is_single]])
    places, times = position[is_single], np.bincount(number)
    by_run = np.argsort(number, kind="stable")
    pauses_ns = np.split(sequence.pause_ns[places[by_run]], np.cumsum(times)[:-1])
    first = places[by_run][np.cumsum(times) - times] - begin[0]
    often = np.flatnonzero(times >= ONCE * max(len(begin) - 1, 1))  # the last may be cut off
    usual_ns = np.array([float(medians(pauses_ns[candidate])) for candidate in often.tolist()])
    by_place = np.argsort(first[often], kind="stable")
    spread = by_place[:: max(len(often) // SPREAD_TRIED, 1)]
    longest = np.argsort(-usual_ns, kind="stable")[:LONGEST_TRIED]
    low, high = bounds
    for chosen in dict.fromkeys([*longest.tolist(), *spread.tolist()]):
        everywhere = np.flatnonzero(runs == candidates[often[chosen]])
        inside = everywhere[(everywhere >= low) & (everywhere <= high)]
        yield _Begin(float(usual_ns[chosen]), inside)
