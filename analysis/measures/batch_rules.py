"""Rules on the batches of a step: padding that no sample needs, and micro-batches that are too small.

micro_batches   ├ forward backward │ forward backward │ forward backward │ forward backward │ update ┤
   after        ├ forward of all        backward of all │ update ┤     with one micro-batch's launches
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..account.lines import common_line_of_work
from ..support.small_numbers import rows_of_each
from ..trace import Int64s
from ..vocabulary import BACKWARD, FORWARD, PHASES
from .fix_subject import FixSubject
from .gpu_rules import FULL, shortening, used_of
from .gpu_subject import GpuSubject
from .gpu_time import Floats
from .launch_rules import limited_by_launching
from .symptoms import Found, GpuChange, Time, Unjudged


def padding(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find batches that are longer than all of their samples, as the run writes; attention may save more."""
    used, positions = subject.run_number("used_positions"), subject.run_number("positions")
    if not 0 < used < positions:
        return
    work = subject.of_phase(FORWARD, BACKWARD)
    line = common_line_of_work(subject.attribution, subject.row[subject.of_phase(FORWARD)])
    remedy = "pad to the longest sample of a batch, rounded up to a multiple of 64"
    sentence = f"Batches have {positions} positions, and the longest sample {used} on average: {remedy}"
    short = f"Pad to the longest sample, in multiples of 64: {used} of {positions} positions are used"
    lines = (line,) if line else None
    yield Found(shortening(work, used / positions), sentence, short, work, lines=lines)


def micro_batches(subject: FixSubject, factors: Floats) -> Iterator[Found | Unjudged]:
    """Find steps of several micro-batches that launching limits, while memory has room for larger ones."""
    if not limited_by_launching(subject, factors.min(axis=0)):
        return
    number = _number(subject)
    batches = int(number.max()) + 1
    if batches < 2 or not _accumulate(subject, number):
        return
    used, present = subject.memory_bytes
    times = min(batches, int(FULL * present / used)) if used and present else batches
    if times < 2:
        return
    room = used_of(used, present) if used and present else "if memory has room"
    as_few = math.ceil(batches / times)
    sentence = (
        f"Each step runs {batches} micro-batches one after another, and launching limits them: run them as "
        f"{as_few}, with a larger batch size and fewer accumulation steps; {room}"
    )
    short = f"Run the {batches} micro-batches of a step as {as_few} (larger batch size): {room}"
    yield Found(_in_larger(subject, number, times), sentence, short, number >= 0)


def _number(subject: FixSubject) -> Int64s:
    """Return the micro-batch of its step that each piece of work is in, or follows; -1 beside all of them."""
    number = np.full(len(subject.row), -1, np.int64)
    in_model = subject.of_phase(FORWARD, BACKWARD)
    is_forward = subject.timeline.work_phase == PHASES.index(FORWARD)
    for _step, places in rows_of_each(subject.timeline.step_of_work):
        inside = places[in_model[places]]
        if len(inside):
            begins = np.diff(is_forward[inside].astype(np.int8), prepend=np.int8(1)) > 0
            of_step = np.arange(inside[0], inside[-1] + 1)
            number[of_step] = np.cumsum(begins)[np.searchsorted(inside, of_step, "right") - 1]
    return number


def _accumulate(subject: FixSubject, number: Int64s) -> bool:
    """Return whether micro-batches of all steps compute the same, and those after the first add to its gradients.

    Other passes of a step, as of a GAN's two networks or of a step that perturbs its weights, do not.
    """
    inside = np.flatnonzero(number >= 0)
    products = (subject.products | subject.of_category("convolution"))[inside]
    key = subject.timeline.step_of_work[inside], number[inside]
    rows = [(batch, len(places), int(products[places].sum())) for (_step, batch), places in rows_of_each(*key)]
    batch, kernels, multiplied = np.array(rows).T
    is_first = batch == 0
    adds = kernels[~is_first].min() > kernels[is_first].max()
    return bool(adds and np.ptp(multiplied) == 0 and len(rows) == subject.steps * (batch.max() + 1))


def _in_larger(subject: FixSubject, number: Int64s, times: int) -> GpuChange:
    """Return the change by which so many micro-batches are launched as one, whose work takes the time of all."""
    inside = number >= 0
    dropped = inside & (number % times > 0)
    factor = subject.taking_over(inside, dropped, subject.timeline.step_of_work, number // times)

    def change(time: Time, /) -> Time:
        return time.lasting(time.duration_ns * factor).without_part(dropped)

    return change
