"""Batches that come late in a few steps: what a mean step loses to them, as steps that count do not show."""

from __future__ import annotations

from dataclasses import replace

from ..account import Partition
from ..account.idle import CAUSES, DATA_LOADING
from ..account.in_turn import has_workers
from ..account.sums import outlying
from ..support.text import capitalized
from ..support.units import time_in_digits
from .fix_list import LIKELY_SHARE, Fix, Fixes
from .pause_rules import remedy_of_loading

#: The rule's name, and how screens call it.
RULE, CALLED = "late_batches", "batches that come late"


def with_late_batches(advice: Fixes, partition: Partition) -> Fixes:
    """Return the changes with one for steps that wait for their batch, if a mean step loses enough to them."""
    fix = _late_batches(advice, partition)
    if fix is None:
        return advice
    place = sum(other.alone_low_ns + other.alone_ns > 2 * fix.alone_ns for other in advice.fixes)
    above, below = advice.fixes[:place], advice.fixes[place:]
    then_ns = above[-1].then_ns if above else advice.step_ns
    return replace(advice, fixes=(*above, replace(fix, then_ns=then_ns), *below))


def _in_short(advice: Fixes, remedy: str, waits: str) -> str:
    """Return the row of the list; the remedy is named once, if another row has it."""
    change = capitalized(remedy)
    is_listed = any(other.short.startswith(change) for other in advice.fixes)
    return f"{'The same for late batches' if is_listed else change}: {waits}"


def _late_batches(advice: Fixes, partition: Partition) -> Fix | None:
    apart = list(outlying(partition))
    late_ns = [row.more.ns for row in apart if row.more.what == CAUSES[DATA_LOADING] and row.more.ns > 0]
    steps = len(apart) + sum(len(choice.counted) for choice in partition.choices)
    lost_ns = sum(late_ns) / max(steps, 1)
    if lost_ns < LIKELY_SHARE * advice.step_ns:
        return None
    trace = partition.attribution.trace
    remedy = remedy_of_loading(has_workers(trace, trace.provenance.run))
    longer = time_in_digits(sum(late_ns) / len(late_ns))
    waits = f"{len(late_ns)} of {steps} steps wait {longer} longer for their batch"
    on_average = f"{time_in_digits(lost_ns)} on average"
    return Fix(
        rule=RULE,
        sentence=f"{waits}, {on_average}: {remedy}",
        short=_in_short(advice, remedy, f"{len(late_ns)} of {steps} steps wait {longer} longer, {on_average}"),
        where=(),
        count=len(late_ns) / steps,
        alone_ns=lost_ns,
        alone_low_ns=lost_ns,
        then_ns=advice.step_ns,
        step_ns=advice.step_ns + lost_ns,
        up_to=True,
    )
