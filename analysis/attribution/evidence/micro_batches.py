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
from .arrays import middle
from .finding import Subject
from .periods import Periods
from .segments import compared
from .sequence import Sequence

IN_BACKWARD = PHASES.index(BACKWARD)
IN_OPTIMIZER = PHASES.index(OPTIMIZER)
#: So many steps are looked at; more than this share of them must have equally many micro-batches.
LOOKED_AT = 16
MOST = 0.5


def micro_batches(subject: Subject, periods: Periods) -> int:
    """Return how many micro-batches most steps have; 1 if none are seen."""
    sequence = subject.sequence
    phase = subject.phases_of(0, len(sequence))
    is_backward = phase == IN_BACKWARD
    is_update = sequence.is_update | (phase == IN_OPTIMIZER)
    step = max(1, len(periods) // LOOKED_AT)
    numbers = []
    for row in range(0, len(periods), step):
        begin = periods.begin[row]
        end = periods.end[row]
        products = begin + np.flatnonzero(sequence.is_product[begin:end])
        numbers.append(_in_one(sequence, products, is_backward, is_update))
    values, times = counted(np.array(numbers, np.int64))
    most = int(times.argmax())
    if times[most] <= MOST * len(numbers):
        return 1
    return int(values[most])


def _in_one(sequence: Sequence, products: Int64s, is_backward: Bools, is_update: Bools) -> int:
    """Return how many micro-batches the products of one step are: each begins with a forward behind a backward."""
    of_products = is_backward[products]
    begins_forward = ~of_products
    begins_forward[1:] &= of_products[:-1]
    begins = np.flatnonzero(begins_forward)
    if len(begins) < 2 or begins[0] or not of_products[-1]:
        return 1
    if is_update[products[0] : products[-1]].any():
        return 1
    ends = np.append(begins[1:], len(products))
    segments = compared(
        sequence.name[products],
        sequence.weight[products],
        begins,
        ends,
        middle(ends - begins),
    )
    if segments.like().all():
        return len(begins)
    return 1
