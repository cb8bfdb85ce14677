"""Micro-batches: how often a step computes the same forward and backward before it updates.

    a step    ├ forward backward │ forward backward │ forward backward │ forward backward │ update ┤    4 of them

Only products are compared: a first backward writes gradients, and the others add to them. An update between two of
them, as of a GAN's discriminator, makes them no micro-batches.
"""

from __future__ import annotations

import numpy as np

from ...support.small_numbers import counted
from ...trace import Bools, Int64s
from ...vocabulary import BACKWARD, OPTIMIZER, PHASES
from .finding import Subject
from .periods import Periods
from .segments import compared, middle
from .sequence import Sequence

#: So many steps are looked at; most of them must have equally many micro-batches.
LOOKED_AT, MOST = 16, 0.5


def micro_batches(subject: Subject, periods: Periods) -> int:
    """Return how many micro-batches most steps have; 1 if none are seen."""
    sequence = subject.sequence
    phase = subject.phases_of(0, len(sequence))
    is_backward = phase == PHASES.index(BACKWARD)
    updates = np.flatnonzero(sequence.is_update | (phase == PHASES.index(OPTIMIZER)))
    step = max(1, len(periods) // LOOKED_AT)
    numbers = []
    for begin, end in zip(periods.begin[::step].tolist(), periods.end[::step].tolist(), strict=True):
        products = np.flatnonzero(sequence.is_product[begin:end]) + begin
        updated = np.searchsorted(updates, products[-1:]) > np.searchsorted(updates, begin)
        numbers.append(1 if updated.any() else _in_one(sequence, products, is_backward[products]))
    values, times = counted(np.array(numbers, np.int64))
    most = int(times.argmax())
    return int(values[most]) if times[most] > MOST * len(numbers) else 1


def _in_one(sequence: Sequence, products: Int64s, is_backward: Bools) -> int:
    """Return how many micro-batches the products of one step are: each begins with a forward behind a backward."""
    if not is_backward.any() or is_backward.all():
        return 1
    begins = np.flatnonzero(~is_backward & np.append(True, is_backward[:-1]))
    if is_backward[0] or len(begins) < 2:
        return 1
    ends = np.append(begins[1:], len(products))
    symbol, weight = sequence.name[products], sequence.weight[products]
    segments = compared(symbol, weight, begins, ends, middle(ends - begins))
    return len(begins) if segments.like().all() else 1
