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
from .arrays import Floats, middle

#: A segment is like the typical one if they share this much of what both have.
LIKE = 0.75
#: How many buckets contents are hashed into: fewer of many segments, so that memory stays linear.
FEWEST_BUCKETS = 16
MOST_BUCKETS = 256
PER_KERNEL = 4  # buckets of all segments together, for each kernel
#: The typical segment is the median of this many of them, evenly spread.
SAMPLED = 200
#: Of fewer segments than this, the last one counts for the typical one too, although it may be cut off.
FEW = 4
#: A segment that is longer than the usual one by this share holds something else too.
LONGER = 1.05
#: Less weight than that of any kernel.
NOTHING = 1e-12
#: Mixes neighbouring numbers of symbols: 2**32 divided by the golden ratio (Knuth's multiplicative hashing).
MIXES = 2_654_435_761
SHIFT = 7


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
        common = self.common[self.like(likeness)]
        return float(common.sum()) / self.weight


def segments_at(symbol: Int64s, weight: Floats, cuts: Int64s) -> Segments:
    """Return the segments between cuts, two or more sorted positions.

    What follows the last segment for longer than is usual is no part of it.
    """
    usual = middle(np.diff(cuts))
    count = len(symbol)
    last = int(cuts[-1])
    end = np.append(cuts[1:], count)
    if len(cuts) == 2 or count - last > LONGER * usual:
        end[-1] = min(count, last + usual)
    return compared(symbol, weight, cuts, end, usual)


def compared(symbol: Int64s, weight: Floats, begin: Int64s, end: Int64s, usual: int) -> Segments:
    """Compare disjoint segments in order with the typical one among them."""
    contents = _contents(symbol, weight, begin, end)
    typical = _typical(contents)
    total = contents.sum(axis=1)
    of_typical = max(float(typical.sum()), NOTHING)
    common = np.minimum(contents, typical).sum(axis=1)
    of_both = total + of_typical - common
    return Segments(
        begin,
        end,
        common,
        similarity=common / np.maximum(of_both, NOTHING),
        extra=(total - common) / of_typical,
        usual=usual,
        weight=float(weight.sum()),
    )


def _contents(symbol: Int64s, weight: Floats, begin: Int64s, end: Int64s) -> Floats:
    """Return the weight of each segment by bucket of symbols, float64 (segments, buckets)."""
    count = len(symbol)
    segments = len(begin) + 1  # the first is what lies in none
    budget = PER_KERNEL * count / segments
    buckets = int(np.clip(budget, FEWEST_BUCKETS, MOST_BUCKETS))
    symbols = np.arange(int(symbol.max(initial=0)) + 1)
    bucket_of = (symbols * MIXES >> SHIFT) % buckets
    owner = np.zeros(count, np.int64)
    owner[begin] = 1
    owner = np.cumsum(owner)
    has_gaps = (end[:-1] < begin[1:]).any()
    if has_gaps or end[-1] < count:
        owner *= _is_inside(count, begin, end)
    cell = owner * buckets + bucket_of[symbol]
    sums = np.bincount(cell, weight, segments * buckets).astype(np.float64, copy=False)
    return sums.reshape(segments, buckets)[1:]


def _is_inside(count: int, begin: Int64s, end: Int64s) -> Bools:
    """Mark the positions from each begin to its end: bool (count,)."""
    edges = np.zeros(count + 1, np.int64)
    edges[begin] += 1
    edges[end] -= 1
    depth = np.cumsum(edges)
    return depth[:count] > 0


def _typical(contents: Floats) -> Floats:
    """Return the median content of segments; of two, the first."""
    count = len(contents)
    if count == 2:
        contents = contents[:1]
    elif count >= FEW:
        contents = contents[:-1]
    step = max(1, len(contents) // SAMPLED)
    sample = contents[::step]
    typical: Floats = medians(sample.T)
    return typical
