"""Which steps of a loop count: one set for every figure of every answer.

    own times of the steps                                     u: the usual one, their low median
    ┌ all within 20% of u ──────────────────────────────────► similar: all count
    ├ three or more apart, equally spaced from first to last ► a rhythm: the last whole periods count
    ├ at most a third apart ─────────────────────────────────► these are outlying: the others count
    └ else ──────────────────────────────────────────────────► they vary: all count

A process warms up in its first step: one that takes 20% longer than usual is apart, but not part of that third.
It is unknown, and not counted, if nothing shows when its time began: no step is before it, and its range leaves
out what lies between two steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..attribution.causes import Attribution
from ..trace import Bools, Int64s
from .step_table import BY_FIRST_WORK, BY_STEP_BEFORE, Steps, StepTable, usual_ns

#: Own times within this share of the usual one are similar.
APART = 0.2
#: At most this share of the steps is outlying; if more are apart, the steps vary.
FEW = 1 / 3
#: So many steps apart at least make a rhythm.
FEWEST_OF_RHYTHM = 3
#: Ranges tile the time if the time between two of them takes at most this share of a step.
TILES = 0.01


@dataclass(frozen=True, slots=True)
class Choice:
    """Which steps of a loop count, as positions in the table of steps.

    `period` is 1 if they are similar, n if every n-th differs from the others, and 0 if they vary. Those `unknown`
    have a time that nothing shows.
    """

    counted: Int64s
    outlying: Int64s
    unknown: Int64s
    period: int


def choices_of(attribution: Attribution, steps: Steps) -> list[Choice]:
    """Return which steps of each loop count; loops with equally many steps choose together, by their means."""
    table = steps.table
    by_length = defaultdict(list)
    for number, loop in enumerate(steps.loops):
        by_length[len(loop.rows)].append(number)
    choices: dict[int, Choice] = {}
    for numbers in by_length.values():
        rows = np.array([steps.loops[number].rows for number in numbers])
        is_known = np.logical_and.reduce([_known(attribution, table, of_loop) for of_loop in rows])
        has_no_step_before = bool((table.begun_by[rows[:, 0]] != BY_STEP_BEFORE).all())
        together = choose(table.own_ns[rows].mean(axis=0), is_known, is_first=has_no_step_before)
        for number, of_loop in zip(numbers, rows, strict=True):
            choices[number] = replace(
                together,
                counted=of_loop[together.counted],
                outlying=of_loop[together.outlying],
                unknown=of_loop[together.unknown],
            )
    return [choices[number] for number in range(len(steps.loops))]


def choose(own_ns: Sequence[float], is_known: Bools, *, is_first: bool = False) -> Choice:
    """Return which of some steps in order count, given their own times, ns, and whether these are known.

    `is_first` says that the first of them is the first of its process.
    """
    rows = np.arange(len(is_known))
    if is_known.any():
        rows = np.flatnonzero(is_known)
    unknown = np.setdiff1d(np.arange(len(is_known)), rows)
    known_ns = np.asarray(own_ns)[rows]
    none = rows[:0]
    usual = usual_ns(known_ns)
    warms_up = is_first and not len(unknown) and known_ns[0] > (1 + APART) * usual
    apart = np.flatnonzero(np.abs(known_ns - usual) > APART * usual)
    period = _period(apart, len(known_ns))
    if period:
        return Choice(rows[len(known_ns) % period :], none, unknown, period)
    if len(apart) - warms_up <= FEW * (len(known_ns) - warms_up):
        return Choice(np.delete(rows, apart), rows[apart], unknown, 1)
    return Choice(rows, none, unknown, 0)


def _period(apart: Int64s, count: int) -> int:
    """Return n if every n-th of the steps is apart, from the first n to the end; 0 if there is no such rhythm."""
    if len(apart) < FEWEST_OF_RHYTHM:
        return 0
    distances = np.diff(apart)
    period = int(apart[1] - apart[0])
    is_even = bool((distances == period).all())
    is_whole = period > 1 and apart[0] < period and apart[-1] + period >= count
    if is_even and is_whole:
        return period
    return 0


def _known(attribution: Attribution, table: StepTable, rows: Int64s) -> Bools:
    """Mark the steps of a loop whose own times are known: all but the first, and perhaps that."""
    is_known = table.own_ns[rows] > 0
    first_by = table.begun_by[rows[0]]
    if first_by == BY_STEP_BEFORE or len(rows) == 1:
        return is_known
    ranges = attribution.ranges
    of_row = table.range[rows]
    between_ns = np.maximum(ranges.start_ns[of_row[1:]] - ranges.end_ns[of_row[:-1]], 0)
    tiles = np.median(between_ns) <= TILES * np.median(table.own_ns[rows[1:]])
    has_evaluation = table.evaluation_ns[rows].any()
    is_known[0] &= bool(first_by != BY_FIRST_WORK and tiles and not has_evaluation)
    return is_known
