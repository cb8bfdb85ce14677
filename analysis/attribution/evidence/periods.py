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
from .segments import LIKE, LONGER, Segments, compared, middle, segments_at
from .sequence import Sequence

#: A host that launches whole CUDA graphs pauses before none of their kernels: from this share of such launches on,
#: pauses tell nothing.
GRAPHED = 0.3
#: So many periods are looked at for the pauses within.
LOOKED_AT = 64
#: The longest usual pause within a period is longer than this share of them, and at least so long, ns: shorter
#: ones are noise.
UP_TO, LEAST_PAUSE_NS = 0.9, 10_000


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
    same: float  # how alike they are: their median similarity
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
    begin, end = segments.begin[like], segments.end[like]
    explained = segments.explained(likeness)
    around = float(sequence.weight[begin[0] : end[-1]].sum())
    example = len(begin) // 2
    return Periods(
        begin,
        end,
        explained=min(1.0, explained),
        inside=min(1.0, explained * segments.weight / around),
        same=float(medians(segments.similarity[like])),
        kernels=segments.usual,
        symbols=len(distinct(symbol[begin[example] : end[example]])),
        signs=replace(_signs(sequence, symbol, begin, end), holds_layers=holds_layers),
    )


def _cut_to_periods(sequence: Sequence, symbol: Int64s, segments: Segments, likeness: float) -> Segments:
    """Return the segments; of longer ones that are unlike the typical one, the begin or the end that is like."""
    length = segments.end - segments.begin
    longer = ~segments.like(likeness) & (length > LONGER * segments.usual)
    if not longer.any():
        return segments
    for begin, end in (
        (segments.begin, np.where(longer, segments.begin + segments.usual, segments.end)),
        (np.where(longer, segments.end - segments.usual, segments.begin), segments.end),
    ):
        shorter = compared(symbol, sequence.weight, begin, end, segments.usual)
        better = longer & shorter.like(likeness)
        if better.any():
            begin = np.where(better, begin, segments.begin)
            end = np.where(better, end, segments.end)
            segments = compared(symbol, sequence.weight, begin, end, segments.usual)
            longer &= ~segments.like(likeness)
    return segments


def _signs(sequence: Sequence, symbol: Int64s, begin: Int64s, end: Int64s) -> Signs:
    """Return what tells that periods are turns of a loop."""
    from_ns, until = sequence.start_ns[begin], np.append(begin[1:], end[-1])
    until_ns = np.append(from_ns[1:], sequence.end_ns[end[-1] - 1] + 1)
    waits = np.searchsorted(sequence.waits_ns, until_ns) > np.searchsorted(sequence.waits_ns, from_ns)
    updates = np.concatenate([[0], np.cumsum(sequence.is_update)])
    has_update: Bools = updates[until] > updates[begin]
    example = len(begin) // 2
    known = distinct(symbol[begin[example] : end[example]])
    around = np.concatenate([np.arange(begin[0]), np.arange(end[-1], len(symbol))])
    products = around[sequence.is_product[around]]
    return Signs(
        waits=float(waits[: max(len(begin) - 1, 1)].mean()),
        updates=float(has_update.mean()),
        pause=_pause(sequence, begin, end),
        other_products=not np.isin(symbol[products], known).all(),
    )


def _pause(sequence: Sequence, begin: Int64s, end: Int64s) -> float:
    """Return the host's median pause before a period over the longest usual pauses within; 0 if not known."""
    length = end - begin
    usual = middle(length)
    rows = np.flatnonzero(length == usual)[:LOOKED_AT]
    if usual < 2 or not len(rows):
        return 0.0
    within_ns = medians(sequence.pause_ns[begin[rows] + np.arange(1, usual)[:, None]])
    if (within_ns == 0).mean() > GRAPHED:
        return 0.0
    longest_ns = max(float(np.sort(within_ns)[int(UP_TO * (len(within_ns) - 1))]), LEAST_PAUSE_NS)
    return float(medians(sequence.pause_ns[begin[1:]])) / longest_ns
