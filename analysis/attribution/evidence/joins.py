"""Segments that are parts of one period, joined: the layers of a step, or its micro-batches.

segments    ├ l ─┼ l ─┼ l ─┼ l h u ┼ l ─┼ l ─┼ l ─┼ l h u ┼      every fourth has extra work, or the host waits
joined      ├──────────────────────┼──────────────────────┤      then four are one period
"""

from __future__ import annotations

import numpy as np

from ...trace import Bools, Int64s
from .arrays import middle, sums_before
from .segments import Segments, segments_at
from .sequence import Sequence

#: Every k-th segment has extra work from this share of a segment on; or from the second share on if that is an
#: optimizer's, or a product that other segments lack. (What is logged or evaluated is neither a head nor an
#: update, and belongs to no period.)
EXTRA = 0.3
EXTRA_OF_PRODUCTS = 0.008
#: The share of the distances between such segments that must be equal.
REGULAR = 0.7
#: In how many segments new products are looked for.
LOOKED_AT = 3
#: From this share of segments with an update on, each is a step, whatever every k-th of them does beside.
UPDATED = 0.8
#: Segments may be joined again: layers to halves, halves to micro-batches, micro-batches to steps.
ROUNDS = 4


def joined(sequence: Sequence, symbol: Int64s, cuts: Int64s) -> Int64s:
    """Return the cuts between periods, given those between segments that may be parts of one."""
    for _ in range(ROUNDS):
        if len(cuts) < 3 or updated_share(sequence, cuts) >= UPDATED:
            break
        fewer = _joined_once(sequence, symbol, cuts)
        if len(fewer) == len(cuts):
            break
        cuts = fewer
    return cuts


def updated_share(sequence: Sequence, cuts: Int64s) -> float:
    """Return the share of segments, but the last, in which an optimizer's kernels run; 0 without any."""
    updates = sums_before(sequence.is_update)
    if updates[-1] < 2:
        return 0.0
    edges = np.append(cuts, len(sequence))
    has_update = np.diff(updates[edges]) > 0
    segments = max(len(cuts) - 1, 1)
    return float(has_update[:segments].mean())


def _joined_once(sequence: Sequence, symbol: Int64s, cuts: Int64s) -> Int64s:
    """Return the cuts behind every k-th segment, if these have something that the others have not."""
    segments = segments_at(symbol, sequence.weight, cuts)
    extra = segments.extra[:-1]
    for least in (EXTRA, EXTRA_OF_PRODUCTS):
        with_extra = np.flatnonzero(extra > least)
        every = _rhythm(with_extra, len(cuts))
        if not every:
            continue
        if least == EXTRA or _have_new_products(sequence, segments, with_extra):
            behind = with_extra + 1
            first = behind[0] - every
            return _cuts_of(cuts, np.append(first, behind))
    waited = np.flatnonzero(_waited(sequence, cuts))
    if len(waited) > 2 and _rhythm(waited, len(cuts)):
        return _cuts_of(cuts, waited)
    return cuts


def _rhythm(chosen: Int64s, count: int) -> int:
    """Return k if every k-th of `count` segments is chosen, 0 if they have no such rhythm."""
    if len(chosen) < 2:
        return 0
    distances = np.diff(chosen)
    every = middle(distances)
    is_regular = (distances == every).mean() >= REGULAR
    is_seen_twice = len(chosen) > 2 or count >= 2 * every
    if every > 1 and is_regular and is_seen_twice:
        return every
    return 0


def _cuts_of(cuts: Int64s, numbers: Int64s) -> Int64s:
    """Return the cuts of these numbers, as far as there are such."""
    exist = (numbers >= 0) & (numbers < len(cuts))
    return cuts[numbers[exist]]


def _have_new_products(sequence: Sequence, segments: Segments, with_extra: Int64s) -> bool:
    """Tell whether segments with extra work have an update, or products, that a usual segment lacks."""
    like = np.flatnonzero(segments.like()[:-1])
    usual = np.setdiff1d(like, with_extra)
    if not len(usual):
        return True
    example = usual[len(usual) // 2]
    common = sequence.symbol[segments.begin[example] : segments.end[example]]
    matters = sequence.is_product | sequence.is_update
    for number in with_extra[:LOOKED_AT].tolist():
        inside = slice(segments.begin[number], segments.end[number])
        is_new = ~np.isin(sequence.symbol[inside], common)
        is_new &= matters[inside]
        if not is_new.any():
            return False
    return True


def _waited(sequence: Sequence, cuts: Int64s) -> Bools:
    """Mark the segments in whose time the host copied or waited."""
    last_ns = sequence.end_ns[-1] + 1
    edges_ns = np.append(sequence.start_ns[cuts], last_ns)
    waits = np.diff(np.searchsorted(sequence.waits_ns, edges_ns))
    has_waited: Bools = waits > 0
    return has_waited
