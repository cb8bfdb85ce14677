"""Anchors: symbols, or a few in a row, that come back at even distances, and so may mark where periods begin.

    a b b c a b b c a b b c        `a` and `c` come every 4 kernels, `b` every 1 or 3: only the first two are even

Distances are measured in weight, so that a long kernel is no nearer than many short ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...support.small_numbers import median_of_each
from ...trace import Columns, Int64s
from .arrays import Floats, first_of_each

Hashes: TypeAlias = NDArray[np.uint64]

#: How many symbols in a row make an anchor; in long sequences, where each costs a second, only some.
LENGTHS = (1, 2, 4, 8)
LENGTHS_OF_LONG = (1, 4)
LONG = 300_000
#: A distance is even if it is within this share of the anchor's median one.
EVEN = 0.25
#: An anchor's even distances cover this share of all weight. (Of two occurrences there is one distance.)
COVERS = 0.4
COVERS_OF_TWO = 0.25
#: So many anchors are tried for each half octave of their number.
TRIED = 6
TRIED_OF_LONG = 2
#: Anchors are the same for this purpose if they are equally many and their distances equal to a twelfth of a
#: factor e; of those, one is tried.
PER_FACTOR = 12
MOST_FACTORS = 1_024
#: Distances are counted in parts of a kernel of average weight.
PARTS = 16
#: Multiplies hashes of runs (2**64 divided by the golden ratio); then their upper half is mixed into the lower.
MIXES = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(29)
ONE = np.uint64(1)


@dataclass(frozen=True, slots=True)
class _Anchors(Columns):
    """Runs of symbols that come back, one row each."""

    covers: Floats  # share of all weight that even distances cover
    count: Int64s  # how often it occurs
    distance: Int64s  # the median one
    length: Int64s  # of the run: a position among the lengths
    first: Int64s  # its occurrences are a slice of all positions of that length, sorted by run


def anchors(symbol: Int64s, weight: Floats) -> list[Int64s]:
    """Return the sorted positions of each anchor to try, those of the most even ones first."""
    is_long = len(symbol) >= LONG
    lengths = LENGTHS_OF_LONG if is_long else LENGTHS
    parts = PARTS * len(symbol) / weight.sum()
    place = (np.cumsum(weight) * parts).astype(np.int64)
    tables = []
    positions = []
    for number, runs in enumerate(_runs(symbol, lengths)):
        run, position = _sorted_by_run(runs)
        tables.append(_even(run, place[position], number))
        positions.append(position)
    table = _Anchors.joined(tables)
    table = _best_of_each_kind(table)
    table = _some_of_each_size(table, TRIED_OF_LONG if is_long else TRIED)
    chosen = []
    for row in range(len(table)):
        first = int(table.first[row])
        last = first + int(table.count[row])
        chosen.append(positions[table.length[row]][first:last])
    return chosen


def runs_of(symbol: Int64s, length: int) -> Int64s:
    """Return a number for the run of symbols of this length, a power of two, that begins at each position."""
    (runs,) = _runs(symbol, (length,))
    return runs.view(np.int64)


def _runs(symbol: Int64s, lengths: tuple[int, ...]) -> Iterator[Hashes]:
    """Yield the hashes of the runs at each position, for each length; those that reach over the end are unique."""
    count = len(symbol)
    beyond = np.arange(1, count + 1, dtype=np.uint64) * MIXES  # numbers that no symbol has
    hashes = symbol.astype(np.uint64)
    length = 1
    while length <= lengths[-1]:
        if length in lengths:
            yield hashes
        over_the_end = beyond[: min(length, count)]
        following = np.concatenate([hashes[length:], over_the_end])
        mixed = following + (hashes >> HALF)
        hashes = hashes * MIXES ^ mixed
        length *= 2


def _sorted_by_run(runs: Hashes) -> tuple[Int64s, Int64s]:
    """Return the number of each run, in ascending order, and its position: those of one run ascend too."""
    count = len(runs)
    bits = np.uint64(max(1, count).bit_length())
    mixed = runs * MIXES >> bits + ONE  # the upper bits are the best mixed ones
    keys = mixed << bits | np.arange(count, dtype=np.uint64)
    keys = np.sort(keys)  # three times as fast as sorting positions
    position = keys & (ONE << bits) - ONE
    run = keys >> bits
    is_first = np.ones(count, np.bool_)
    is_first[1:] = run[1:] != run[:-1]
    number = np.cumsum(is_first) - 1
    return number, position.astype(np.int64)


def _even(run: Int64s, place: Int64s, length: int) -> _Anchors:
    """Return the runs of one length whose distances are even; `place` is how much weight is before each."""
    count = np.bincount(run)
    is_same = run[1:] == run[:-1]
    group = run[1:][is_same]
    distance = np.diff(place)[is_same]
    median = median_of_each(group, distance, len(count))
    usual = median[group]
    is_even = np.abs(distance - usual) <= EVEN * usual
    covered = np.bincount(group, distance * is_even, len(count))
    covers: Floats = covered / max(1, int(place.max(initial=0)))
    least = np.where(count == 2, COVERS_OF_TWO, COVERS)
    is_anchor = (count > 1) & (median > 0)
    is_anchor &= covers >= least
    rows = np.flatnonzero(is_anchor)
    return _Anchors(
        covers[rows],
        count[rows],
        median[rows],
        np.full(len(rows), length, np.int64),
        first_of_each(count)[rows],
    )


def _best_of_each_kind(table: _Anchors) -> _Anchors:
    """Return the anchor of each number and distance that covers the most; those that cover the most come first."""
    order = np.argsort(-table.covers, kind="stable")
    table = table.take(order)
    factor = np.round(np.log(table.distance) * PER_FACTOR)
    kind = table.count * MOST_FACTORS + factor.astype(np.int64)
    _, best = np.unique(kind, return_index=True)
    return table.take(np.sort(best))


def _some_of_each_size(table: _Anchors, most: int) -> _Anchors:
    """Return the first anchors of each half octave of their number."""
    octave = np.log2(table.count) * 2
    size = octave.astype(np.int64)
    order = np.argsort(size, kind="stable")
    ordered = size[order]
    place = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    chosen = order[place < most]
    return table.take(np.sort(chosen))
