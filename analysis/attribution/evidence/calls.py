"""Calls of a model as steps, where `nk.profile` recorded a program that only infers, and in which no step ended.

    block of nk.profile   ├ set-up  call  sampling  call  sampling  call  sampling ┤
    steps                         ├───────────────┼──────────────┼─────────────────┤     if the calls are alike

A program that generates keeps its whole block as one step: its calls are of a token each, which prefill and decode
tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...readers.marks import CallMark
from ...report.evidence import NOT_ASKED, RANGES, StepEvidence
from ...trace import FORWARD_CATEGORIES
from ...vocabulary.step_ends import warm_up_steps
from ..places import Attribution
from ..step_decisions import FOREVER_NS, FROM_FIRST_CALL, TrainingFacts, Windows
from .deciding import evidence_of
from .finding import outermost


def calls_as_steps(
    attribution: Attribution, training: Mapping[int, TrainingFacts], decided: dict[int, Windows]
) -> tuple[StepEvidence, dict[int, Windows]]:
    """Return the calls of models as steps, by process; without such calls, the given windows and no evidence."""
    unchanged = NOT_ASKED, decided
    ends = {times.ended_by for times in decided.values()}
    if RANGES not in attribution.rules.evidence or ends != {FROM_FIRST_CALL} or _generates(attribution):
        return unchanged
    evidence, windows = evidence_of(attribution, [RANGES])
    if not evidence.is_call or windows.keys() != decided.keys():
        return unchanged
    windows = {
        number: _in_block(_from_calls(attribution, times), training[number]) for number, times in windows.items()
    }
    counts = [int((~times.warm_up).sum()) for times in windows.values()]
    if not all(counts):
        return unchanged
    return replace(evidence, count=counts[0]), windows


def _generates(attribution: Attribution) -> bool:
    """Tell whether a call of a model has one position: a program that generates, token by token."""
    marks = (fact.mark for fact in attribution.trace.facts)
    return any(isinstance(mark, CallMark) and mark.positions == 1 for mark in marks)


def _from_calls(attribution: Attribution, times: Windows) -> Windows:
    """Return the windows, each from the begin of the call in which its first work is launched."""
    ranges = attribution.ranges
    is_call = np.isin(ranges.category, FORWARD_CATEGORIES)
    calls = np.flatnonzero(is_call & (ranges.thread == times.thread))
    calls = calls[outermost(attribution, calls)]
    if not len(calls):
        return times
    around = np.searchsorted(ranges.start_ns[calls], times.start_ns, "right") - 1
    call = calls[np.maximum(around, 0)]
    is_inside = (around >= 0) & (ranges.end_ns[call] > times.start_ns)
    start_ns = np.where(is_inside, ranges.start_ns[call], times.start_ns)
    next_ns = np.append(start_ns[1:], times.end_ns[-1])
    return replace(times, start_ns=start_ns, end_ns=np.minimum(times.end_ns, next_ns))


def _in_block(times: Windows, facts: TrainingFacts) -> Windows:
    """Return the windows in the block of `nk.profile`, the first of them as its warm-up."""
    until_ns = facts.end_ns or FOREVER_NS
    inside = times.start_ns < until_ns
    inside &= times.end_ns > (facts.begin_ns or facts.measure_ns or 0)
    ends_ns = times.end_ns[inside]
    warm_up = 0
    if facts.begin_ns is not None:
        warm_up = warm_up_steps(facts.warm_up, {}, ends_ns.tolist(), facts.fewest)
    return replace(
        times,
        start_ns=times.start_ns[inside],
        end_ns=ends_ns,
        is_step=times.is_step[inside],
        warm_up=np.arange(len(ends_ns)) < warm_up,
    )
