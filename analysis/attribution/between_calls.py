"""Name what a program that only infers does between the calls of its model: sampling, and the care of a cache.

Such work is in no phase, and often in no range. Where nothing trains, a range that the analysis adds lasts from
the end of a call to the start of the next on its thread, if both are in the same ranges and the same step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..readers.marks import TrainingMark
from ..support.small_numbers import distinct
from ..trace import MODEL_BACKWARD, NO_CATEGORY, PUSH_POP, Bools, Int64s, Ranges, Trace, sorted_ranges
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES
from .places import Rules
from .user_ranges import OWN_DOMAIN, NameFacts, name_facts, nested_ranges, of_titles, operator_ranges

BETWEEN_CALLS = "between the model's calls"


def with_gaps_named(trace: Trace, rules: Rules) -> Trace:
    """Return the trace with a range in each gap between outermost calls of annotated models.

    Only processes that do not train have these: without backward and updates. A range `forward` around one call
    alone is part of the call. The gap between two calls on one thread gets a range if no other range has only one
    of its ends in it, and no phase, step or warm-up begins and no mark of `nk.profile` lies in it. If none does,
    the trace itself is returned.
    """
    called = _calls(trace)
    if not called.any():
        return trace
    ranges, process = trace.ranges, trace.process_of_thread()
    marks = [
        (int(process[fact.thread]), fact.at_ns, fact.mark.event)
        for fact in trace.facts
        if isinstance(fact.mark, TrainingMark)
    ]
    training = process[ranges.thread[ranges.category == MODEL_BACKWARD]].tolist()
    training += [number for number, _, event in marks if event == "update"]
    called &= ~np.isin(process[ranges.thread], training)
    if not called.any():
        return trace
    facts = name_facts(trace, rules.step, rules.phase_names)
    nested = nested_ranges(trace, rules.domains)
    called &= nested & ~np.isin(process[ranges.thread], process[ranges.thread[_trains(facts, ranges)]])
    users = nested & ~operator_ranges(facts, ranges)
    turns = of_titles(facts.opens_phase | facts.step | facts.measured | facts.warm_up, ranges)
    forwards = nested & of_titles(facts.opens_phase & (facts.phase == PHASES.index(FORWARD)), ranges)
    gaps = [ranges]
    names = trace.names if BETWEEN_CALLS in trace.names else [*trace.names, BETWEEN_CALLS]
    for thread in distinct(ranges.thread[called]).tolist():
        on_thread = ranges.thread == thread
        calls = ranges.take(called & on_thread)
        marks_ns = [at_ns for number, at_ns, _ in marks if number == process[thread]]
        turns_ns = np.append(ranges.start_ns[turns & on_thread], np.array(marks_ns, np.int64))
        times = _gaps(calls, ranges.take(forwards & on_thread))
        low_ns, high_ns = _uncut(*times, ranges.take(users & on_thread), turns_ns)
        gaps.append(_named(low_ns, high_ns, calls, names.index(BETWEEN_CALLS)))
    if not any(map(len, gaps[1:])):
        return trace
    return replace(trace, ranges=sorted_ranges(Ranges.joined(gaps)), names=names)


def _calls(trace: Trace) -> Bools:
    """Mark the ranges that annotation opened around calls of models and of their parts."""
    annotations = np.array([domain.name == OWN_DOMAIN for domain in trace.domains], np.bool_)
    called = trace.ranges.of_forward
    return called & annotations[trace.ranges.domain] if called.any() else called


def _trains(facts: NameFacts, ranges: Ranges) -> Bools:
    """Mark the ranges that show that a process trains: backward, its nodes, and updates."""
    phases = [PHASES.index(BACKWARD), PHASES.index(OPTIMIZER)]
    trains: Bools = of_titles(np.isin(facts.phase, phases), ranges) | facts.backward_operator[ranges.name_id]
    return trains


def _gaps(calls: Ranges, forwards: Ranges) -> tuple[Int64s, Int64s]:
    """Return where the gaps between the outermost of some calls of one thread begin and end, ns, in order.

    A call is as long as the outermost of the ranges `forwards` that contains it, and no other.
    """
    reach_ns = np.maximum.accumulate(calls.end_ns)
    first = np.flatnonzero(np.append(True, calls.start_ns[1:] >= reach_ns[:-1]))
    start_ns, end_ns = calls.start_ns[first], reach_ns[np.append(first[1:], len(calls)) - 1]
    call = np.searchsorted(start_ns, forwards.start_ns, "left")
    around = np.flatnonzero(np.searchsorted(end_ns, forwards.end_ns, "right") - call == 1)
    low_ns, high_ns = start_ns.copy(), end_ns.copy()
    np.minimum.at(low_ns, call[around], forwards.start_ns[around])
    np.maximum.at(high_ns, call[around], forwards.end_ns[around])
    has_time = low_ns[1:] > high_ns[:-1]
    return high_ns[:-1][has_time], low_ns[1:][has_time]


def _uncut(low_ns: Int64s, high_ns: Int64s, users: Ranges, turns_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Return the gaps in which nothing turns, and no range of the user's has only one of its ends."""
    is_cut = np.zeros(len(low_ns), np.bool_)
    starts, ends = _gap_of(low_ns, high_ns, users.start_ns), _gap_of(low_ns, high_ns, users.end_ns)
    differ = starts != ends
    for gap in (starts[differ], ends[differ], _gap_of(low_ns, high_ns, turns_ns)):
        is_cut[gap[gap >= 0]] = True
    return low_ns[~is_cut], high_ns[~is_cut]


def _gap_of(low_ns: Int64s, high_ns: Int64s, moment_ns: Int64s) -> Int64s:
    """Return which gap each moment is in, neither at its begin nor at its end; -1 for none."""
    if not len(low_ns):
        return np.full(len(moment_ns), -1, np.int64)
    gap = np.searchsorted(low_ns, moment_ns, "left") - 1
    return np.where((gap >= 0) & (moment_ns < high_ns[gap]), gap, -1)


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
