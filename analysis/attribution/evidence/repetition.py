"""Steps as what the sequence of kernels repeats, where neither names nor updates nor ranges tell them.

The layers of one pass repeat too. Periods are steps only with signs of a loop: the host copies or waits in them,
an optimizer runs in them, the host pauses before them, or they hold layers and products outside of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...trace import Bools, Int64s
from .anchors import anchors
from .begins import begins_of
from .finding import Finding, Refused, Subject, outermost, ranges_of, wholes
from .joins import UPDATED, joined, updated_share
from .periods import Periods, periods_at
from .segments import segments_at
from .sequence import Sequence

#: Of cuts that explain nearly as much as the best, those with the most periods are right: two steps are no step.
NEARLY = 0.03
#: The names alone must explain so much more than names and grids.
MORE = 0.05
#: The least that periods must explain; and how similar two of them must be.
EXPLAINED = 0.75
EXPLAINED_BY_TWO = 0.85
SAME_OF_TWO = 0.95
#: Three periods and more with an update in each and nothing unlike between them may be less than half of all work.
SURE_INSIDE = 0.95
SURE_EXPLAINED = 0.4
FEWEST_PERIODS = 3
FEWEST_SYMBOLS = 3
FEWEST_KERNELS = 6
#: From this share of periods with a sign on, it is one of all; and from this multiple on, a pause is one.
SIGNED = 0.8
PAUSES = 20.0
#: A period that was joined of this many segments holds layers.
LAYERS = 4
#: More than this share of the periods are parts of a call if such.
MOST = 0.5
#: Updates come again and again if the largest distance between two kernels of them is this share of all kernels.
SPREAD = 0.02

NOTHING = "nothing in the sequence of kernels repeats"
LAYERS_ALONE = "what repeats has no copy, wait or update each time, so it may be layers of a model"
LITTLE = "only {:.0%} of all work repeats, too little for steps"
TWO_UNLIKE = "only two stretches of the work are alike, and they differ too much"
IN_ONE_CALL = "what repeats are parts of single calls of a model, or of a phase"
SHORT = "what repeats is only {} kernel{} long"


@dataclass(frozen=True, slots=True)
class _Cuts:
    """Cuts between periods that were tried."""

    explained: float
    periods: int  # that are like the typical one
    cuts: Int64s
    holds_layers: bool


def by_repetition(subject: Subject) -> Finding | Refused:
    """Return the periods of a process's sequence as steps, or the reason why not."""
    periods = repeated_periods(subject.sequence)
    reason = refusal(periods)
    if periods is None or reason:
        return Refused(reason)
    if _are_parts(subject, periods):
        return Refused(IN_ONE_CALL)
    return Finding(periods)


def _are_parts(subject: Subject, periods: Periods) -> bool:
    """Tell whether most periods share a phase, or a call of a model, with another: a step is no part of these."""
    attribution = subject.attribution
    sequence = subject.sequence
    rows = ranges_of(attribution, subject.process, wholes(attribution))
    rows = rows[outermost(attribution, rows)]
    if not (len(rows) and sequence.on_host):
        return False
    ranges = attribution.ranges
    first_ns = sequence.start_ns[periods.begin]
    last_ns = sequence.start_ns[periods.end - 1]
    around = np.searchsorted(ranges.start_ns[rows], first_ns, "right") - 1
    is_inside = (around >= 0) & (ranges.end_ns[rows[around]] > last_ns)
    times = np.bincount(around[is_inside], minlength=len(rows))
    shared = times[around] > 1
    return bool((is_inside & shared).mean() > MOST)


def repeated_periods(sequence: Sequence) -> Periods | None:
    """Return the periods in which a sequence repeats, whether they are steps or not; None without any."""
    by_grid = _periods(sequence, sequence.symbol)
    if by_grid is not None and by_grid.explained + MORE >= 1:
        return by_grid
    symbols, names = (int(column.max(initial=0)) for column in (sequence.symbol, sequence.name))
    if symbols == names:  # each name has one grid
        return by_grid
    by_name = _periods(sequence, sequence.name)
    if by_grid is None or (by_name is not None and by_name.explained > by_grid.explained + MORE):
        return by_name
    return by_grid


def refusal(periods: Periods | None) -> str:
    """Return the reason that periods are not steps; empty if they are."""
    if periods is None:
        return NOTHING
    signs = periods.signs
    count = len(periods)
    least = EXPLAINED if count >= FEWEST_PERIODS else EXPLAINED_BY_TWO
    is_updated = signs.updates >= SIGNED
    is_sure = is_updated and periods.inside >= SURE_INSIDE and count >= FEWEST_PERIODS
    if periods.inside < least or periods.explained < (SURE_EXPLAINED if is_sure else least):
        return LITTLE.format(periods.explained)
    if count < FEWEST_PERIODS and periods.same < SAME_OF_TWO:
        return TWO_UNLIKE
    is_turn = signs.waits >= SIGNED or signs.pause >= PAUSES
    if not is_updated and not signs.holds_layers and (signs.other_products or not is_turn):
        return LAYERS_ALONE
    if periods.symbols < FEWEST_SYMBOLS or (periods.kernels < FEWEST_KERNELS and not is_updated):
        return SHORT.format(periods.kernels, "s" * (periods.kernels > 1))
    return ""


def _periods(sequence: Sequence, symbol: Int64s) -> Periods | None:
    """Return the periods in one alphabet."""
    tried = [_tried(sequence, symbol, cuts) for cuts in anchors(symbol, sequence.weight)]
    candidates = [cuts for cuts in tried if cuts is not None]
    if not candidates:
        return None
    most = max(cuts.explained for cuts in candidates)
    nearly = [cuts for cuts in candidates if cuts.explained >= most - NEARLY]
    best = max(nearly, key=lambda cuts: (cuts.periods, cuts.explained))
    holds_layers = any(cuts.holds_layers and abs(cuts.periods - best.periods) <= 1 for cuts in candidates)
    begins = begins_of(sequence, symbol, best.cuts)
    return periods_at(sequence, symbol, begins, holds_layers=holds_layers)


def _tried(sequence: Sequence, symbol: Int64s, anchor: Int64s) -> _Cuts | None:
    """Return the cuts between the periods that an anchor leads to; None if they cannot be steps."""
    cuts = joined(sequence, symbol, anchor)
    if len(cuts) < 2:
        return None
    if len(cuts) == 2:  # begin earlier, so that the second is whole
        beyond = int(2 * cuts[1] - cuts[0]) - len(symbol)
        cuts = cuts - min(max(0, beyond), int(cuts[0]))
    segments = segments_at(symbol, sequence.weight, cuts)
    explained = segments.explained()
    similarity = segments.similarity[segments.like()]
    if len(similarity) < 2:
        return None
    if len(similarity) == 2 and (explained < EXPLAINED_BY_TWO or similarity.min() < SAME_OF_TWO):
        return None
    if _recur(sequence.is_update) and updated_share(sequence, cuts) < UPDATED:
        return None
    holds_layers = len(anchor) >= LAYERS * len(cuts)
    return _Cuts(explained, len(similarity), cuts, holds_layers)


def _recur(is_update: Bools) -> bool:
    """Tell whether updates come again and again, not in a row or once while CUDA graphs are captured."""
    updates = np.flatnonzero(is_update)
    distances = np.diff(updates)
    return int(distances.max(initial=0)) > SPREAD * len(is_update)
