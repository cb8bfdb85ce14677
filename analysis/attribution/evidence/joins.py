"""Segments that are parts of one period, joined: the layers of a step, or its micro-batches.

segments    ├ l ─┼ l ─┼ l ─┼ l h u ┼ l ─┼ l ─┼ l ─┼ l h u ┼      every fourth has extra work, or the host waits
joined      ├──────────────────────┼──────────────────────┼      then four are one period
"""

from __future__ import annotations

import numpy as np

from ...trace import Bools, Int64s
from .segments import Segments, middle, segments_at
from .sequence import Sequence

#: Every k-th segment has extra work from this share of a segment on; or from the second share on if that is an
#: optimizer's, or a product that other segments lack. (What is logged or evaluated is neither a head nor an
#: update, and belongs to no period.)
EXTRA, EXTRA_OF_PRODUCTS = 0.3, 0.008
#: The share of the distances between such segments that must be equal, and how many segments are looked at.
REGULAR, LOOKED_AT = 0.7, 3
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
    """Return the share of segments, but the last, in which an optimizer's kernels run; 0 if there are none."""
    updates = np.concatenate([[0], np.cumsum(sequence.is_update)])
    if updates[-1] < 2:
        return 0.0
    has_update = np.diff(updates[np.append(cuts, len(sequence))]) > 0
    return float(has_update[: max(len(cuts) - 1, 1)].mean())


def _joined_once(sequence: Sequence, symbol: Int64s, cuts: Int64s) -> Int64s:
    """Return the cuts behind every k-th segment, if these have something that the others have not."""
    segments = segments_at(symbol, sequence.weight, cuts)
    for least in (EXTRA, EXTRA_OF_PRODUCTS):
        with_extra = np.flatnonzero(segments.extra[:-1] > least)
        every = _rhythm(with_extra, len(cuts))
        if not every:
            continue
        if least == EXTRA or _have_new_products(sequence, segments, with_extra):
            behind = with_extra + 1
            return _cuts_at(cuts, np.append(behind[0] - every, behind))
    waited = np.flatnonzero(_waited(sequence, cuts))
    every = _rhythm(waited, len(cuts))
    return _cuts_at(cuts, waited) if every and len(waited) > 2 else cuts


def _rhythm(chosen: Int64s, count: int) -> int:
    """Return k if every k-th of `count` segments is chosen, 0 if they have no such rhythm."""
    if len(chosen) < 2:
        return 0
    distances = np.diff(chosen)
    every = middle(distances)
    is_regular = (distances == every).mean() >= REGULAR
    is_seen_twice = len(chosen) > 2 or count >= 2 * every
    return every if every > 1 and is_regular and is_seen_twice else 0


def _cuts_at(cuts: Int64s, numbers: Int64s) -> Int64s:
    """Return the cuts of these numbers, as far as there are such."""
    return cuts[numbers[(numbers >= 0) & (numbers < len(cuts))]]


def _have_new_products(sequence: Sequence, segments: Segments, with_extra: Int64s) -> bool:
    """Tell whether segments with extra work have an update, or products, that a usual segment lacks."""
    usual = np.setdiff1d(np.flatnonzero(segments.like()[:-1]), with_extra)
    if not len(usual):
        return True
    example = usual[len(usual) // 2]
    known = sequence.symbol[segments.begin[example] : segments.end[example]]
    matters = sequence.is_product | sequence.is_update
    for number in with_extra[:LOOKED_AT].tolist():
        inside = slice(segments.begin[number], segments.end[number])
        is_new = ~np.isin(sequence.symbol[inside], known)
        if not matters[inside][is_new].any():
            return False
    return True


def _waited(sequence: Sequence, cuts: Int64s) -> Bools:
    """Mark the segments in whose time the host copied or waited; none where few or all do."""
    edges_ns = np.append(sequence.start_ns[cuts], sequence.end_ns[-1] + 1)
    waits: Bools = np.diff(np.searchsorted(sequence.waits_ns, edges_ns)) > 0
    return waits
