"""The rules on numbers that the program reads from the GPU, and waits for: of a loss, or to decide by them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..support.units import count_text
from ..trace import Bools, Int64s, marked
from ..vocabulary import BACKWARD, FORWARD
from .copy_rules import READ_BYTES
from .fix_subject import FixSubject
from .gpu_time import Floats
from .symptoms import Found, HostTime, Unjudged
from .timeline import Timeline
from .waste_rules import autograd_checks

#: More reads than of a loss and a norm are of code that decides by them.
FEW_READS = 2
#: A number that is read outside of forward is computed for that by so many kernels at most: a norm, a maximum.
MOST_FOR_READ = 4


class _Deciding(NamedTuple):
    """By which calls a program reads what it decides by, and what to write instead; each also in short."""

    calls: str
    short_calls: str
    remedy: str
    short_remedy: str


DECIDING, MASKS = ".item(), `if tensor`, nonzero()", "use torch.where, masks and fixed shapes"
BY_VALUES = _Deciding(DECIDING, DECIDING, MASKS, "use masks or torch.where(c, a, b)")
#: The kernel of `.all()`, and what is read by it.
ALL_TRUE = r"\band_kernel"
BY_CHECKS = _Deciding(
    "`if tensor.all()`, as in checks of torch.distributions",
    ".all()",
    f"Distribution.set_default_validate_args(False), or {MASKS}",
    "validate_args=False in torch.distributions",
)


def scalar_read(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find small copies to the CPU that the program waits for, outside of forward."""
    yield from _reads(subject, in_forward=False)


def forward_read(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find the same in forward, where the model's code decides by what is read."""
    yield from _reads(subject, in_forward=True)


def _reads(subject: FixSubject, *, in_forward: bool) -> Iterator[Found | Unjudged]:
    copied = subject.timeline.copied
    call = subject.work.call
    small = copied.to_cpu & (subject.of_phase(FORWARD) == in_forward)
    if not small.any():
        return
    if subject.trace.copies is None:
        yield Unjudged("the report does not say how many bytes are copied to the CPU")
        return
    small &= (copied.bytes <= READ_BYTES) & ~autograd_checks(subject)
    after = np.minimum(call + 1, len(subject.host.row) - 1)
    waits = np.where(subject.waiting[call], call, np.where(subject.waiting[after], after, -1))
    rows = subject.rows_in_most_steps(small & (waits >= 0))
    if not len(rows):
        return
    waits = waits[rows]

    def returning(timeline: Timeline) -> Timeline:
        return timeline.returning(waits)

    work = marked(rows, len(call))
    count = round(subject.per_step(work))
    times = f" {count_text(count)} times" if count > 1 else ""
    size = f"{int(np.median(copied.bytes[rows]))} bytes"
    waits_for = f"{count_text(max(count, 1))} {'wait' if count <= 1 else 'waits'} a step for"
    by = _deciding(subject, rows)
    reads = by.calls
    change, least = returning, None
    if in_forward:
        remedy = f"{by.remedy}, which needs other code"
        short = f"{waits_for} {by.short_calls}: {by.short_remedy}"
    elif count > FEW_READS:
        remedy = f"read them every N steps, or {by.remedy}"
        short = f"{waits_for} {by.short_calls}: read every N steps, or use masks"
    if count > FEW_READS:
        measured = work | _computed_for(subject, rows)

        def change(timeline: Timeline) -> Timeline:
            return timeline.returning(waits).without(measured)

        least = returning
    elif not in_forward:
        remedy = "read the loss every N steps"
        reads = ".item(), float(), print"
        short = f"Read the loss every N steps: {waits_for} .item() or float()"
    inside = "forward" if in_forward else "step"
    sentence = f"Each {inside} waits{times} for {size} from the GPU ({reads}): {remedy}"
    yield Found(change, sentence, short, work, least=least, host=HostTime(waits))


def _deciding(subject: FixSubject, reads: Int64s) -> _Deciding:
    """Return how the program decides by what it reads, which are pieces of work."""
    are_of_all = subject.matching(ALL_TRUE)[np.maximum(reads - 1, 0)]
    return BY_CHECKS if are_of_all.mean() >= 0.5 else BY_VALUES


def _computed_for(subject: FixSubject, reads: Int64s) -> Bools:
    """Mark the kernels that compute what is read: some right before each read, of its step and phase."""
    timeline = subject.timeline
    is_read = marked(reads, len(subject.row))
    computed = np.zeros_like(is_read)
    rows = reads
    for _ in range(MOST_FOR_READ):
        rows, earlier = rows[rows > 0], rows[rows > 0] - 1
        goes_on = ~is_read[earlier] & subject.kernel[earlier]
        goes_on &= timeline.work_phase[earlier] == timeline.work_phase[rows]
        goes_on &= timeline.step_of_work[earlier] == timeline.step_of_work[rows]
        rows = earlier[goes_on]
        computed[rows] = True
    return computed


def reads_inside(subject: FixSubject) -> Bools | None:
    """Mark the work that reads numbers inside of forward and backward, if CUDA graphs cannot contain it."""
    copied = subject.timeline.copied
    reads: Bools = copied.to_cpu & (copied.bytes <= READ_BYTES) & subject.of_phase(FORWARD, BACKWARD)
    return reads if round(subject.per_step(reads)) > FEW_READS else None


def without_reads(subject: FixSubject, reads: Bools) -> tuple[str, str]:
    """Return how CUDA graphs become possible where a program reads inside of forward; and the same in short."""
    count = count_text(round(subject.per_step(reads)))
    by = _deciding(subject, np.flatnonzero(reads))
    remedy = f"{count} reads inside stop CUDA graphs ({by.calls}): first {by.remedy}"
    return remedy, f"{count} waits a step for {by.short_calls}: {by.short_remedy}, then CUDA graphs"
