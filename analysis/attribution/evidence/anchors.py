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
from .sequence import Floats

Hashes: TypeAlias = NDArray[np.uint64]

#: How many symbols in a row make an anchor; in long sequences, where each costs a second, only some.
LENGTHS, LENGTHS_OF_LONG, LONG = (1, 2, 4, 8), (1, 4), 300_000
#: A distance is even if it is within this share of the anchor's median one, and an anchor's even distances must
#: cover this share of all weight. Of two occurrences there is one distance.
EVEN, COVERS, COVERS_OF_TWO = 0.25, 0.4, 0.25
#: So many anchors are tried for each half octave of their number.
TRIED, TRIED_OF_LONG = 6, 2
#: Anchors are the same for this purpose if they are equally many and their distances equal to a twelfth of a
#: factor e; of those, one is tried.
PER_FACTOR, MOST_FACTORS = 12, 1_024
#: Distances are counted in parts of a kernel of average weight.
PARTS = 16
#: Multiplies hashes of runs (2**64 divided by the golden ratio).
MIXES = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class _Anchors(Columns):
    """Symbols, or runs of them, that come back, with one row each."""

    covers: Floats  # share of all weight that even distances cover
    count: Int64s  # how often it occurs
    distance: Int64s  # the median one
    order: Int64s  # which of the lengths it has
    first: Int64s  # its occurrences are a slice of all positions of that length, sorted by run


def anchors(symbol: Int64s, weight: Floats) -> list[Int64s]:
    """Return the sorted positions of each anchor to try, those of the most even ones first."""
    is_long = len(symbol) >= LONG
    place = (np.cumsum(weight) * (len(symbol) / weight.sum()) * PARTS).astype(np.int64)
    tables, positions = [], []
    for number, runs in enumerate(_runs(symbol, LENGTHS_OF_LONG if is_long else LENGTHS)):
        run, position = _by_run(runs)
        positions.append(position)
        tables.append(_even(run, position, place, number))
    rows = _chosen(_Anchors.joined(tables), TRIED_OF_LONG if is_long else TRIED)
    chosen = []
    for order, first, count in zip(rows.order.tolist(), rows.first.tolist(), rows.count.tolist(), strict=True):
        chosen.append(positions[order][first : first + count])
    return chosen


def runs_of(symbol: Int64s, length: int) -> Int64s:
    """Return a number for the run of symbols of this length, a power of two, that begins at each position."""
    (runs,) = _runs(symbol, (length,))
    return runs.view(np.int64)


def _runs(symbol: Int64s, lengths: tuple[int, ...]) -> Iterator[Hashes]:
    """Yield the hashes of the runs at each position, for each length; those that reach over the end are unique."""
    count = len(symbol)
    beyond = np.arange(count, dtype=np.uint64) * MIXES + MIXES  # numbers that no symbol has
    hashes, length = symbol.astype(np.uint64), 1
    while True:
        if length in lengths:
            yield hashes
        if length >= lengths[-1]:
            return
        following = np.concatenate([hashes[length:], beyond[: min(length, count)]])
        hashes = (hashes * MIXES) ^ (following + (hashes >> np.uint64(29)))
        length *= 2


def _by_run(runs: Hashes) -> tuple[Int64s, Int64s]:
    """Return the number of each run, in ascending order, and its position: positions of one run ascend too."""
    bits = np.uint64(max(1, len(runs)).bit_length())
    mixed = (runs * MIXES) >> (bits + np.uint64(1))  # the upper bits are the best mixed ones
    keys = np.sort(mixed << bits | np.arange(len(runs), dtype=np.uint64))
    position = (keys & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    upper = keys >> bits
    is_first = np.concatenate([[True], upper[1:] != upper[:-1]])[: len(runs)]
    return np.cumsum(is_first) - 1, position


def _even(run: Int64s, position: Int64s, place: Int64s, order: int) -> _Anchors:
    """Return the runs of one length whose distances are even."""
    count = np.bincount(run)
    is_same = run[1:] == run[:-1]
    group, distance = run[1:][is_same], np.diff(place[position])[is_same]
    median = median_of_each(group, distance, len(count))
    is_even = np.abs(distance - median[group]) <= EVEN * median[group]
    covered = np.bincount(group, np.where(is_even, distance, 0), len(count))
    covers: Floats = covered / max(1, int(place[-1]) if len(place) else 1)
    least = np.where(count == 2, COVERS_OF_TWO, COVERS)
    rows = np.flatnonzero((count >= 2) & (median > 0) & (covers >= least))
    first = np.cumsum(count) - count
    orders = np.full(len(rows), order, np.int64)
    return _Anchors(covers[rows], count[rows], median[rows], orders, first[rows])


def _chosen(table: _Anchors, tried: int) -> _Anchors:
    """Return the anchors to try: the best of each kind, and so many for each half octave of their number."""
    table = table.take(np.argsort(-table.covers, kind="stable"))
    factor = np.round(np.log(table.distance) * PER_FACTOR).astype(np.int64)
    _, best = np.unique(table.count * MOST_FACTORS + factor, return_index=True)
    table = table.take(np.sort(best))
    octave = (np.log2(table.count) * 2).astype(np.int64)
    order = np.argsort(octave, kind="stable")
    begins = np.searchsorted(octave[order], octave[order])
    within = np.empty(len(order), np.int64)
    within[order] = np.arange(len(order)) - begins
    return table.take(within < tried)
