"""Prefill and decode in the steps of a program that generates, by the positions of each call of its model.

    draft   target (16)      draft       target (5)      draft        target (5)
    ├───┤   ├───────────┤    ├─┤├─┤├─┤   ├──────┤        ├─┤├─┤├─┤    ├──────┤
    ├────────── prefill ─────┼──────────── decode ───────┼───────── decode ───┤

docs/attribution.md has the definition, under "Steps".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..attribution.causes import Attribution
from ..attribution.step_decisions import training_processes
from ..attribution.steps import measured_steps, outermost_calls, step_of_nodes
from ..readers.marks import CallMark
from ..support.small_numbers import bounds, rows_of_each
from ..trace import Bools, Int64s
from .intervals import union
from .step_table import Steps

#: How many times as many positions prefill has at least as decode.
MANY = 2


@dataclass(frozen=True, slots=True)
class Generation:
    """The parts of a step that generates, one for each call of its model, the one of its last call, in order.

    `start_ns` is when each part after the first begins on the thread that calls. `tokens` are the positions of all
    decoding calls; None if one has several: some may have been refused.
    """

    start_ns: Int64s
    is_prefill: Bools
    tokens: int | None


def generations(attribution: Attribution, *, include_warm_up: bool = False) -> dict[int, Generation]:
    """Return the parts of the measured steps that generate, by the step's place among the measured ones."""
    trace = attribution.trace
    ranges = attribution.ranges
    steps = measured_steps(attribution, include_warm_up=include_warm_up)
    if not len(steps) or not any(isinstance(fact.mark, CallMark) for fact in trace.facts):
        return {}
    step_of_node = step_of_nodes(attribution, include_warm_up=include_warm_up)
    called = outermost_calls(attribution) & ranges.of_forward
    process = trace.process_of_thread()[ranges.thread]
    called &= ~np.isin(process, training_processes(trace, attribution.facts))
    rows = np.flatnonzero(called)
    step = step_of_node[attribution.home[rows]]
    in_step = (step >= 0) & (ranges.thread[steps[step]] == ranges.thread[rows])
    rows = rows[in_step]
    step = step[in_step]
    positions = _positions(attribution, rows)
    if not (positions == 1).any():
        return {}
    name_id = ranges.name_id[rows]
    parts_of_step: dict[int, Generation] = {}
    for (number,), calls in rows_of_each(step):
        count = positions[calls]
        if not (count == 1).any():
            continue
        has_count = count > 0
        names = name_id[calls]
        last_name = names[has_count][-1]
        of_model = np.flatnonzero(has_count & (names == last_name))
        # A part begins with the first call, of any model, after the call of the part before.
        part = np.searchsorted(of_model, np.arange(len(calls)))
        part = np.minimum(part, len(of_model) - 1)
        _, most_positions = bounds(part, count, count, len(of_model))
        is_prefill = _prefill(most_positions)
        if is_prefill[0]:
            first_call = rows[calls[of_model[:-1] + 1]]
            decoded = count[of_model][~is_prefill]
            tokens = len(decoded) if (decoded == 1).all() else None
            parts_of_step[number] = Generation(ranges.start_ns[first_call], is_prefill, tokens)
    return parts_of_step


def _prefill(positions: Int64s) -> Bools:
    """Mark the parts with many positions; none where there is no clear difference.

    The largest quotient of one number of positions and the next smaller one divides them.
    """
    numbers = np.unique(positions)
    quotients = numbers[1:] / numbers[:-1]
    if not len(quotients) or quotients.max() < MANY:
        return np.zeros(len(positions), np.bool_)
    least = numbers[1:][quotients == quotients.max()][-1]
    is_prefill: Bools = positions >= least
    return is_prefill


def _positions(attribution: Attribution, calls: Int64s) -> Int64s:
    """Return how many positions each of some outermost calls has, sorted by thread and start; 0 if unknown."""
    ranges = attribution.ranges
    positions = np.zeros(len(calls), np.int64)
    facts = [
        (fact.at_ns, fact.thread, fact.mark.positions)
        for fact in attribution.trace.facts
        if isinstance(fact.mark, CallMark)
    ]
    at_ns, thread, counts = np.array(facts, np.int64).reshape(-1, 3).T
    for (number,), some in rows_of_each(thread):
        on_thread = np.flatnonzero(ranges.thread[calls] == number)
        call = np.searchsorted(ranges.start_ns[calls[on_thread]], at_ns[some], "right") - 1
        inside = call >= 0
        call = on_thread[call[inside]]
        some = some[inside]
        inside = at_ns[some] <= ranges.end_ns[calls[call]]
        positions[call[inside]] = counts[some[inside]]
    return positions


def divided(
    attribution: Attribution, steps: Steps, *, include_warm_up: bool = False
) -> dict[int, dict[str, int | None]]:
    """Return the own time of each step that generates, divided into prefill and decode, by row of the table.

    The keys are those of report.account.StepRow.
    """
    table = steps.table
    parts_of_step = generations(attribution, include_warm_up=include_warm_up)
    if not parts_of_step:
        return {}
    step_of_work = step_of_nodes(attribution, include_warm_up=include_warm_up)[attribution.node]
    work = dict(rows_of_each(step_of_work))
    figures: dict[int, dict[str, int | None]] = {}
    for loop in steps.loops:
        pieces = loop.pieces.in_steps()
        for row in loop.rows.tolist():
            number = int(table.number[row])
            if number in parts_of_step:
                generation = parts_of_step[number]
                ends_ns = _ends_of_parts(attribution, generation, work[number,])
                before_ns = table.before_ns[row]
                end_ns = table.end_ns[row]
                edges_ns = np.concatenate([[before_ns], np.clip(ends_ns, before_ns, end_ns), [end_ns]])
                of_row = pieces.take(pieces.row == row)
                times_ns = union(of_row.start_ns, of_row.end_ns).covered(edges_ns[:-1], edges_ns[1:])
                figures[row] = {
                    "prefill_ns": int(times_ns[generation.is_prefill].sum()),
                    "decode_ns": int(times_ns[~generation.is_prefill].sum()),
                    "decode_calls": int((~generation.is_prefill).sum()),
                    "tokens": generation.tokens,
                }
    return figures


def _ends_of_parts(attribution: Attribution, generation: Generation, work: Int64s) -> Int64s:
    """Return when each part of a step but the last ends, ns: with the work that was launched before the next.

    `work` are the positions of the step's work. On a CPU, parts end where the next begins.
    """
    trace = attribution.trace
    if trace.provenance.unit_of_work == "CPU":
        return generation.start_ns
    work = work[trace.work.launch[work] >= 0]
    launched_ns = trace.launches.start_ns[trace.work.launch[work]]
    order = np.argsort(launched_ns, kind="stable")
    reach_ns = np.maximum.accumulate(np.append(-1, trace.work.end_ns[work][order]))
    reached: Int64s = reach_ns[np.searchsorted(launched_ns[order], generation.start_ns)]
    return reached
