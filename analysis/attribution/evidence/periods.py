"""Periods of a sequence: segments that are like the typical one, and the signs that they are turns of a loop.

    begin   |               |               |                        |
            ├ a b b c a b ──┼ a b b c a b ──┤ evaluation             ├ a b b c a b ──┤

A segment that holds a whole period and more, as one with an evaluation does, is cut to the period.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...support.small_numbers import distinct, medians
from ...trace import Bools, Int64s
from .arrays import middle, sums_before
from .segments import LIKE, LONGER, Segments, compared, segments_at
from .sequence import Sequence

#: A host that launches whole CUDA graphs pauses before none of their kernels: from this share of such launches on,
#: pauses tell nothing.
GRAPHED = 0.3
#: So many periods are looked at for the pauses within.
LOOKED_AT = 64
#: The longest usual pause within a period is longer than this share of them, and at least so long, ns: shorter
#: ones are noise.
UP_TO = 0.9
LEAST_PAUSE_NS = 10_000


@dataclass(frozen=True, slots=True)
class Signs:
    """What tells a loop's turn from a layer of a model."""

    waits: float  # share of the periods in which the host copied, or waited for the GPU
    updates: float  # share of the periods in which an optimizer ran
    pause: float  # the host's usual time before a period, as a multiple of its longest usual ones within
    other_products: bool  # whether products run before or after the periods that no period has
    holds_layers: bool = False  # whether a period joins layers, with products outside of them


@dataclass(frozen=True, slots=True)
class Periods:
    """Periods in order, as positions in a sequence, `end` exclusive; each is like the typical one."""

    begin: Int64s
    end: Int64s
    explained: float  # share of all work that they have in common with the typical one
    inside: float  # the same, of the work from the first begin to the last end
    same: float  # their median similarity
    kernels: int  # in the usual one
    symbols: int  # how many different ones
    signs: Signs

    def __len__(self) -> int:
        return len(self.begin)

    def take(self, rows: Int64s) -> Periods:
        """Return some of the periods, with the figures of all."""
        return replace(self, begin=self.begin[rows], end=self.end[rows])


def periods_at(
    sequence: Sequence, symbol: Int64s, begins: Int64s, *, likeness: float = LIKE, holds_layers: bool = False
) -> Periods | None:
    """Return the periods that begin at some positions, without those unlike the typical one; None of under two."""
    if len(begins) < 2:
        return None
    segments = segments_at(symbol, sequence.weight, begins)
    segments = _cut_to_periods(sequence, symbol, segments, likeness)
    like = segments.like(likeness)
    if like.sum() < 2:
        return None
    begin = segments.begin[like]
    end = segments.end[like]
    explained = segments.explained(likeness)
    weight = sequence.weight[begin[0] : end[-1]].sum()
    inside = explained * segments.weight / float(weight)
    signs = _signs(sequence, symbol, begin, end)
    return Periods(
        begin,
        end,
        explained=min(1.0, explained),
        inside=min(1.0, inside),
        same=float(medians(segments.similarity[like])),
        kernels=segments.usual,
        symbols=len(_example(symbol, begin, end)),
        signs=replace(signs, holds_layers=holds_layers),
    )


def _cut_to_periods(sequence: Sequence, symbol: Int64s, segments: Segments, likeness: float) -> Segments:
    """Return the segments; of longer ones that are unlike the typical one, the begin or the end that is like."""
    length = segments.end - segments.begin
    longer = length > LONGER * segments.usual
    longer &= ~segments.like(likeness)
    if not longer.any():
        return segments
    after_begin = np.where(longer, segments.begin + segments.usual, segments.end)
    before_end = np.where(longer, segments.end - segments.usual, segments.begin)
    for begin, end in ((segments.begin, after_begin), (before_end, segments.end)):
        parts = compared(symbol, sequence.weight, begin, end, segments.usual)
        better = longer & parts.like(likeness)
        if not better.any():
            continue
        begin = np.where(better, begin, segments.begin)
        end = np.where(better, end, segments.end)
        segments = compared(symbol, sequence.weight, begin, end, segments.usual)
        longer &= ~better
    return segments


def _example(symbol: Int64s, begin: Int64s, end: Int64s) -> Int64s:
    """Return the different symbols of the middle period."""
    number = len(begin) // 2
    return distinct(symbol[begin[number] : end[number]])


def _signs(sequence: Sequence, symbol: Int64s, begin: Int64s, end: Int64s) -> Signs:
    """Return the signs that periods are turns of a loop."""
    last = int(end[-1])
    from_ns = sequence.start_ns[begin]
    until_ns = np.append(from_ns[1:], sequence.end_ns[last - 1] + 1)
    edges = (np.searchsorted(sequence.waits_ns, edge_ns) for edge_ns in (from_ns, until_ns))
    has_waited = np.less(*edges)
    followed = max(len(begin) - 1, 1)
    updates = sums_before(sequence.is_update)
    until = np.append(begin[1:], last)
    has_update: Bools = updates[until] > updates[begin]
    around = np.concatenate([np.arange(begin[0]), np.arange(last, len(symbol))])
    products = around[sequence.is_product[around]]
    is_usual = np.isin(symbol[products], _example(symbol, begin, end))
    return Signs(
        waits=float(has_waited[:followed].mean()),
        updates=float(has_update.mean()),
        pause=_pause(sequence, begin, end),
        other_products=not is_usual.all(),
    )


def _pause(sequence: Sequence, begin: Int64s, end: Int64s) -> float:
    """Return the host's median pause before a period over the longest usual pauses within; 0 if not known."""
    length = end - begin
    usual = middle(length)
    rows = np.flatnonzero(length == usual)[:LOOKED_AT]
    if usual < 2 or not len(rows):
        return 0.0
    inner = np.arange(1, usual)
    places = begin[rows] + inner[:, None]
    within_ns = medians(sequence.pause_ns[places])
    is_graphed = within_ns == 0
    if is_graphed.mean() > GRAPHED:
        return 0.0
    longest = int(UP_TO * (len(within_ns) - 1))
    longest_ns = np.sort(within_ns)[longest]
    before_ns = medians(sequence.pause_ns[begin[1:]])
    return float(before_ns) / max(float(longest_ns), LEAST_PAUSE_NS)
