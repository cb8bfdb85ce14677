"""Segments of a sequence, each compared with the typical one by what they share.

    cuts        |            |            |            |                 |
    segments    ├ a b b c a ─┼ a b b c a ─┼ a b b c a ─┼ a b b c a x x x ┤
    common          all          all          all         all of typical      extra: x x x

Contents are sums of weight in hashed buckets of symbols, so a segment takes linear time whatever is in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...support.small_numbers import medians
from ...trace import Bools, Int64s
from .sequence import Floats

#: A segment is like the typical one if they share this much of what both have.
LIKE = 0.75
#: How many buckets contents are hashed into: fewer of many segments, so that memory stays linear.
FEWEST_BUCKETS, MOST_BUCKETS = 16, 256
PER_KERNEL = 4  # buckets of all segments together, for each kernel
#: The typical segment is the median of so many of them, evenly spread.
SAMPLED = 200
#: A segment that is longer than the usual one by this share holds something else too.
LONGER = 1.05
#: Mixes neighbouring numbers of symbols: 2**32 divided by the golden ratio (Knuth's multiplicative hashing).
MIXES, SHIFT = 2_654_435_761, 7


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments in order, `end` exclusive; the columns of shares are of length m."""

    begin: Int64s
    end: Int64s
    common: Floats  # weight that it shares with the typical one
    similarity: Floats  # the same as a share of what both have
    extra: Floats  # weight that it has more than the typical one, as a share of that one
    usual: int  # the median number of kernels
    weight: float  # of all work

    def like(self, likeness: float = LIKE) -> Bools:
        """Mark the segments that are like the typical one."""
        return self.similarity >= likeness

    def explained(self, likeness: float = LIKE) -> float:
        """Return which share of all work the segments like the typical one share with it."""
        return float(self.common[self.like(likeness)].sum()) / self.weight


def segments_at(symbol: Int64s, weight: Floats, cuts: Int64s) -> Segments:
    """Return the segments between cuts, sorted positions of which there are two or more.

    What follows the last segment for longer than is usual is no part of it.
    """
    usual = middle(np.diff(cuts))
    end = np.append(cuts[1:], len(symbol))
    last = int(cuts[-1])
    if len(cuts) == 2 or end[-1] - last > LONGER * usual:
        end[-1] = min(len(symbol), last + usual)
    return compared(symbol, weight, cuts, end, usual)


def compared(symbol: Int64s, weight: Floats, begin: Int64s, end: Int64s, usual: int) -> Segments:
    """Compare disjoint segments in order with the typical one among them."""
    contents = _contents(symbol, weight, begin, end)
    typical = _typical(contents)
    total, of_typical = contents.sum(axis=1), max(float(typical.sum()), 1e-12)
    common = np.minimum(contents, typical).sum(axis=1)
    similarity = common / np.maximum(total + of_typical - common, 1e-12)
    extra = (total - common) / of_typical
    return Segments(begin, end, common, similarity, extra, usual, float(weight.sum()))


def _contents(symbol: Int64s, weight: Floats, begin: Int64s, end: Int64s) -> Floats:
    """Return the weight of each segment by bucket of symbols, float64 (segments, buckets)."""
    count = len(begin)
    buckets = int(np.clip(PER_KERNEL * len(symbol) / (count + 1), FEWEST_BUCKETS, MOST_BUCKETS))
    of_symbol = (np.arange(int(symbol.max(initial=0)) + 1) * MIXES >> SHIFT) % buckets
    owner = np.zeros(len(symbol), np.int64)  # 0 is no segment
    owner[begin] = 1
    owner = np.cumsum(owner)
    if end[-1] < len(symbol) or (end[:-1] < begin[1:]).any():
        edges = np.zeros(len(symbol) + 1, np.int64)
        edges[begin] += 1
        edges[end] -= 1
        owner *= np.cumsum(edges)[:-1]
    cell = owner * buckets + of_symbol[symbol]
    sums = np.bincount(cell, weight, (count + 1) * buckets).astype(np.float64, copy=False)
    return sums.reshape(-1, buckets)[1:]


def _typical(contents: Floats) -> Floats:
    """Return the median content of segments; of two, the first. The last of many may be cut off."""
    count = len(contents)
    if count == 2:
        first: Floats = contents[0]
        return first
    whole = contents if count < 4 else contents[:-1]
    step = max(1, len(whole) // SAMPLED)
    typical: Floats = medians(whole[::step].T)
    return typical


def middle(values: Int64s) -> int:
    """Return the median of some integers, rounded down; 0 of none."""
    return int(medians(values)) if len(values) else 0
