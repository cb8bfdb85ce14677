"""Name what a program that only infers does between the calls of its model: sampling, and the care of a cache.

Such work is in no phase, and often in no range. Where nothing trains, a range that the analysis adds lasts from
the end of a call to the start of the next on its thread, or to the end of the step. It is cut in pieces where a
range of the program, or a step, begins or ends alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from ..errors import AGAIN, TooTangled
from ..readers.marks import TrainingMark
from ..support.small_numbers import distinct
from ..trace import NO_CATEGORY, PUSH_POP, Bools, Int64s, Ranges, Trace, sorted_ranges
from ..vocabulary import FORWARD, PHASES
from .places import Rules
from .step_decisions import training_processes
from .user_ranges import (
    OWN_DOMAIN,
    NameFacts,
    name_facts,
    nested_ranges,
    of_titles,
    operator_ranges,
    with_names,
)

BETWEEN_CALLS = "between the model's calls"
#: More pieces than this, and one for each range, come only of marks in the gaps of very many threads.
MOST_PIECES = 1_000_000


def with_gaps_named(trace: Trace, rules: Rules) -> tuple[Trace, NameFacts]:
    """Return the trace with a range in each gap between outermost calls of annotated models, and its names' facts.

    Only processes that do not train have these. A range `forward` around one call alone is part of the call. What
    follows the last call of a thread is a gap until the next mark of `nk.profile`, or until the program's range of
    the step around the call ends. Gaps are cut at such marks, and where a range of the program has only one of its
    ends in one. A piece in which a phase, step or warm-up begins gets no range. With rules that do not adopt, none
    is added.
    """
    facts = name_facts(trace, rules.step, rules.phase_names)
    called = _calls(trace)
    if not (rules.adopt and called.any()):
        return trace, facts
    ranges = trace.ranges
    process = trace.process_of_thread()
    nested = nested_ranges(trace, rules.domains)
    trains = np.isin(process[ranges.thread], training_processes(trace, facts))
    called &= nested & ~trains
    if not called.any():
        return trace, facts
    trace, facts = with_names(trace, facts, [BETWEEN_CALLS])
    users = nested & ~operator_ranges(facts, ranges)
    turns = of_titles(facts.turns, ranges)
    opens_forward = facts.opens_phase & (facts.phase == PHASES.index(FORWARD))
    forwards = nested & of_titles(opens_forward, ranges)
    steps = users & of_titles(facts.measured, ranges)
    marks_ns: dict[int, list[int]] = defaultdict(list)
    for fact in trace.facts:
        if isinstance(fact.mark, TrainingMark):
            marks_ns[process[fact.thread]].append(fact.at_ns)
    pieces = [ranges]
    name_id = trace.names.index(BETWEEN_CALLS)
    count = 0
    most = MOST_PIECES + len(ranges)
    for thread in distinct(ranges.thread[called]).tolist():
        rows = slice(*np.searchsorted(ranges.thread, [thread, thread + 1]))
        of_thread = ranges.take(np.arange(rows.start, rows.stop))
        calls = of_thread.take(called[rows])
        around = of_thread.take(steps[rows])
        of_process_ns = np.array(marks_ns[process[thread]], np.int64)
        call_start_ns, call_end_ns = _extents(calls, of_thread.take(forwards[rows]))
        last_ns = _end_of_step(call_start_ns[-1], call_end_ns[-1], around, of_process_ns)
        low_ns = call_end_ns
        high_ns = np.append(call_start_ns[1:], last_ns)
        has_time = low_ns < high_ns
        of_users = of_thread.take(users[rows])
        low_ns, high_ns = _pieces(low_ns[has_time], high_ns[has_time], of_users, of_process_ns)
        low_ns, high_ns = _without(low_ns, high_ns, of_thread.start_ns[turns[rows]])
        pieces.append(_named(low_ns, high_ns, calls, name_id))
        count += len(low_ns)
        if count > most:
            raise TooTangled(f"Marks cut the time between calls of models into more than {most:,} pieces. {AGAIN}")
    return replace(trace, ranges=sorted_ranges(Ranges.joined(pieces))), facts


def _calls(trace: Trace) -> Bools:
    """Mark the ranges that annotation opened around calls of models and of their parts."""
    annotations = np.array([domain.name == OWN_DOMAIN for domain in trace.domains], np.bool_)
    called = trace.ranges.of_forward
    if called.any():
        return called & annotations[trace.ranges.domain]
    return called


def _extents(calls: Ranges, forwards: Ranges) -> tuple[Int64s, Int64s]:
    """Return where the outermost of some calls of one thread begin and end, ns, in order.

    A call is as long as the outermost of the ranges `forwards` that contains it, and no other.
    """
    reach_ns = np.maximum.accumulate(calls.end_ns)
    is_outermost = np.append(True, calls.start_ns[1:] >= reach_ns[:-1])
    first = np.flatnonzero(is_outermost)
    last = np.append(first[1:], len(calls)) - 1
    start_ns = calls.start_ns[first]
    end_ns = reach_ns[last]
    call = np.searchsorted(start_ns, forwards.start_ns, "left")
    behind = np.searchsorted(end_ns, forwards.end_ns, "right")
    around = np.flatnonzero(behind - call == 1)
    low_ns = start_ns.copy()
    high_ns = end_ns.copy()
    np.minimum.at(low_ns, call[around], forwards.start_ns[around])
    np.maximum.at(high_ns, call[around], forwards.end_ns[around])
    return low_ns, high_ns


def _end_of_step(start_ns: int, end_ns: int, steps: Ranges, marks_ns: Int64s) -> int:
    """Return when the step of a thread's last call ends, given when the call begins and ends; unknown: with it."""
    around = (steps.start_ns <= start_ns) & (steps.end_ns >= end_ns)
    ends_ns = np.concatenate([steps.end_ns[around][:1], marks_ns[marks_ns > end_ns]])
    if len(ends_ns):
        return int(ends_ns.min())
    return end_ns


def _pieces(low_ns: Int64s, high_ns: Int64s, users: Ranges, marks_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Return the gaps, cut at the marks, and where a range of the user's has only one of its ends in a gap."""
    starts = _gap_of(low_ns, high_ns, users.start_ns)
    ends = _gap_of(low_ns, high_ns, users.end_ns)
    differ = starts != ends
    moments_ns = np.concatenate([users.start_ns[differ], users.end_ns[differ], marks_ns])
    is_in_gap = _gap_of(low_ns, high_ns, moments_ns) >= 0
    cuts_ns = np.unique(moments_ns[is_in_gap])
    begins_ns = np.sort(np.append(low_ns, cuts_ns))
    ends_ns = np.sort(np.append(high_ns, cuts_ns))
    return begins_ns, ends_ns


def _without(low_ns: Int64s, high_ns: Int64s, moments_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Return the pieces in which none of these moments is."""
    piece = _gap_of(low_ns, high_ns, moments_ns)
    stays = np.ones(len(low_ns), np.bool_)
    stays[piece[piece >= 0]] = False
    return low_ns[stays], high_ns[stays]


def _gap_of(low_ns: Int64s, high_ns: Int64s, moment_ns: Int64s) -> Int64s:
    """Return which gap each moment is in, neither at its begin nor at its end; -1 for none."""
    if not len(low_ns):
        return np.full(len(moment_ns), -1, np.int64)
    gap = np.searchsorted(low_ns, moment_ns, "left") - 1
    is_inside = (gap >= 0) & (moment_ns < high_ns[gap])
    return np.where(is_inside, gap, -1)


def _named(low_ns: Int64s, high_ns: Int64s, calls: Ranges, name_id: int) -> Ranges:
    """Return the ranges of these gaps, on the thread and in the domain of the calls."""
    count = len(low_ns)
    return Ranges(
        start_ns=low_ns,
        end_ns=high_ns,
        thread=np.full(count, calls.thread[0], np.int32),
        name_id=np.full(count, name_id, np.int32),
        domain=np.full(count, calls.domain[0], np.int32),
        seq=np.full(count, -1, np.int64),
        style=np.full(count, PUSH_POP, np.uint8),
        open_ended=np.zeros(count, np.bool_),
        category=np.full(count, NO_CATEGORY, np.int8),
    )
