"""Where in the repeated sequence a period begins: any kernel would do, and one is the first of the loop.

a b b c u u | a b b c u u | a b b c u u      behind the optimizer's burst, if there is one in each period
a b b c ··· | a b b c ··· | a b b c          else at the kernel that comes once a period after the longest pause
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...support.small_numbers import grouped_rows, median_of_each, positions_between, sorted_by
from ...trace import Columns, Int64s
from .anchors import LONG, runs_of
from .arrays import first_of_each, middle, within
from .segments import Segments, segments_at
from .sequence import Sequence

#: A burst of updates ends where none follows within this share of a period; its least number of kernels.
PART_OF_PERIOD = 7
LEAST_APART = 2
#: Bursts are one in each period if this share of the periods has just one.
ONE_IN_EACH = 0.7
#: How much of a period's share a begin may lose of what is explained.
MOST_LOST = 0.6
#: Kernels, or runs of them, that come once in this share of the periods are tried.
ONCE = 0.9
#: That is, this many with the longest pauses, and some evenly spread over the period, one of which loses nothing.
LONGEST_TRIED = 12
SPREAD_TRIED = 8
#: The lengths of runs; in long sequences, where each costs a second, only some.
LENGTHS = (1, 2, 4)
LENGTHS_OF_LONG = (1,)
#: How far before and behind the periods begins are looked for, in periods.
BEFORE = 1.3
BEHIND = 0.3


@dataclass(frozen=True, slots=True)
class _Begin:
    """A kernel at which periods may begin: the host's median pause before it, ns, and its positions."""

    pause_ns: int
    positions: Int64s
    explained: float  # share of all work that the periods between these explain


@dataclass(frozen=True, slots=True)
class _Single(Columns):
    """Runs of symbols that come once in some periods, in the order of the runs."""

    run: Int64s
    position: Int64s


class _Begins:
    """The begins of the periods between cuts."""

    def __init__(self, sequence: Sequence, symbol: Int64s, segments: Segments) -> None:
        like = segments.like()
        self.sequence = sequence
        self.symbol = symbol
        self.usual = segments.usual
        self.begin = segments.begin[like]
        self.end = segments.end[like]
        self.low = self.begin[0] - BEFORE * self.usual
        self.high = self.end[-1] + BEHIND * self.usual
        self.most_lost = MOST_LOST / len(self.begin)

    def explained(self, positions: Int64s) -> float:
        """Return which share of all work periods explain that begin at these positions."""
        if len(positions) < 2:
            return 0.0
        return segments_at(self.symbol, self.sequence.weight, positions).explained()

    def behind_updates(self) -> Int64s:
        """Return the positions behind the bursts of updates; none if there is not one in each period."""
        behind = within(behind_updates(self.sequence, self.usual), self.low, self.high)
        count = np.searchsorted(behind, self.end) - np.searchsorted(behind, self.begin)
        is_one = count == 1
        if middle(count) != 1 or is_one.mean() <= ONE_IN_EACH:
            return behind[:0]
        first = behind[0]
        if first > self.usual / 2:
            behind = np.append(max(first - self.usual, 0), behind)
        return behind

    def after_longest_pause(self) -> Int64s | None:
        """Return the positions after the longest pause that lose no period; None if nothing comes once in each."""
        lengths = LENGTHS_OF_LONG if len(self.symbol) >= LONG else LENGTHS
        tried: list[_Begin] = []
        for length in lengths:
            tried += self.once_a_period(runs_of(self.symbol, length))
        most = max((begin.explained for begin in tried), default=0)
        if not most:
            return None
        least = most * (1 - self.most_lost)
        good = [begin for begin in tried if begin.explained >= least]
        best = max(good, key=lambda begin: begin.pause_ns)
        return best.positions

    def once_a_period(self, runs: Int64s) -> Iterator[_Begin]:
        """Yield the runs that come once in most periods: after long pauses, and some spread over a period."""
        single = self.single(runs)
        (names,), number = grouped_rows(single.run)
        times = np.bincount(number)
        pause_ns = median_of_each(number, self.sequence.pause_ns[single.position], len(times))
        periods = max(len(self.begin) - 1, 1)  # the last may be cut off
        often = np.flatnonzero(times >= ONCE * periods)
        longest = sorted_by(often, -pause_ns)
        first = single.position[first_of_each(times)]
        by_place = sorted_by(often, first)
        step = max(len(often) // SPREAD_TRIED, 1)
        chosen = [*longest[:LONGEST_TRIED].tolist(), *by_place[::step].tolist()]
        for place in dict.fromkeys(chosen):
            everywhere = np.flatnonzero(runs == names[place])
            positions = within(everywhere, self.low, self.high)
            yield _Begin(int(pause_ns[place]), positions, self.explained(positions))

    def single(self, runs: Int64s) -> _Single:
        """Return the runs that come once in a period, for each of these periods."""
        period, position = positions_between(self.begin, self.end)
        _, pair = grouped_rows(runs[position], period)
        is_single = np.bincount(pair)[pair] == 1
        position = position[is_single]
        run = runs[position]
        order = np.argsort(run, kind="stable")
        return _Single(run[order], position[order])


def begins_of(sequence: Sequence, symbol: Int64s, cuts: Int64s) -> Int64s:
    """Return the positions at which the periods between these cuts begin; the cuts if none is better."""
    segments = segments_at(symbol, sequence.weight, cuts)
    if not segments.like().any():
        return cuts
    begins = _Begins(sequence, symbol, segments)
    behind = begins.behind_updates()
    least = segments.explained() * (1 - begins.most_lost)
    if len(behind) > 1 and begins.explained(behind) >= least:
        return behind
    after_pause = begins.after_longest_pause()
    if after_pause is None:
        return cuts
    return after_pause


def behind_updates(sequence: Sequence, usual: int) -> Int64s:
    """Return the position behind each burst of an optimizer's kernels; `usual` is how many a period has."""
    updates = np.flatnonzero(sequence.is_update)
    apart = max(usual // PART_OF_PERIOD, LEAST_APART)
    is_last = np.ones(len(updates), np.bool_)
    is_last[:-1] = np.diff(updates) > apart
    behind = updates[is_last] + 1
    followed: Int64s = behind[behind < len(sequence)]
    return followed
