"""What a step, evaluation and warm-up are, of one process whose training our annotation recorded.

Annotation writes facts: when a model was called and how, when autograd ran, when an optimizer updated, when the
program said that a step ends. Only who sees the whole program knows which optimizer counts, or whether a call
without gradient is a teacher or an evaluation; so that is decided here. docs/attribution.md has the rules, under
"Steps".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from ..readers.marks import TrainingMark
from ..support.small_numbers import counted, distinct, grouped_rows
from ..trace import EVALUATION, GRADIENT, MODEL_BACKWARD, MODEL_FORWARD, Bools, Int64s, Ranges, Trace
from ..vocabulary import BACKWARD, OPTIMIZER, PHASES
from ..vocabulary.step_ends import IN_BACKWARD, ending_optimizer, warm_up_steps
from .user_ranges import NameFacts, named_phases

BY_CALLS = "call of step()"
WHOLE_BLOCK = "end of the block"
FROM_FIRST_CALL = f"{WHOLE_BLOCK} after the first call of a model"
#: Fewer steps than this do not show what comes in most of them.
FEW_STEPS = 3
FOREVER_NS = 2**62


@dataclass(slots=True)
class TrainingFacts:
    """What annotation wrote of a process's training: the block of `nk.profile`, and moments in it, ns.

    `begin_ns` is None where the report begins with the measured steps, at `measure_ns`, and both are None where
    models are annotated without such a block. `optimizers` are those that were given, by name and number.
    """

    process: int  # position in Trace.processes
    begin_ns: int | None = None
    measure_ns: int | None = None
    end_ns: int | None = None
    warm_up: int = 0
    fewest: int = 0  # of fewer steps than this, one is warm-up
    optimizers: tuple[str, ...] = ()
    calls_ns: list[int] = field(default_factory=list)  # of `p.step()`
    updates: list[tuple[int, str]] = field(default_factory=list)  # when an optimizer's update ended, and its name
    in_backward: dict[int, list[int]] = field(default_factory=dict)  # when updates ended, by their run of autograd
    error: str = ""  # that ended the block
    calls_by: str = ""  # who called `p.step()`, where that was a trainer
    unused: tuple[str, ...] = ()  # optimizers that never updated, where none did

    @classmethod
    def by_process(cls, trace: Trace) -> dict[int, TrainingFacts]:
        """Collect the marks of each process, by its position in the trace's processes."""
        by_process: dict[int, TrainingFacts] = {}
        for fact in trace.facts:
            if isinstance(fact.mark, TrainingMark):
                process = trace.threads[fact.thread].process
                by_process.setdefault(process, cls(process)).add(fact.mark, fact.at_ns)
        return by_process

    def add(self, mark: TrainingMark, at_ns: int) -> None:
        """Add the event of a mark."""
        match mark.event:
            case "begin":
                self.begin_ns = at_ns
                self.end_ns = None
                self.error = ""
                self.warm_up = mark.warmup
                self.fewest = mark.fewest
                self.optimizers = tuple(mark.optimizers)
            case "measure":
                self.measure_ns = at_ns
                self.optimizers = tuple(mark.optimizers)
            case "end":
                self.end_ns = at_ns
                self.error = mark.error
                self.unused = tuple(mark.unused)
            case "step":
                self.calls_ns.append(at_ns)
                self.calls_by = mark.by
            case "update":
                self.updates.append((at_ns, mark.optimizer))
                if mark.backward is not None:
                    self.in_backward.setdefault(mark.backward, []).append(at_ns)


def training_processes(trace: Trace, facts: NameFacts) -> Int64s:
    """Return the positions of the processes that train: in which autograd ran, or an optimizer updated."""
    ranges = trace.ranges
    process = trace.process_of_thread()
    trains = np.isin(ranges.category, [MODEL_BACKWARD, GRADIENT]) | facts.backward_operator[ranges.name_id]
    trains |= np.isin(named_phases(facts, ranges), [PHASES.index(BACKWARD), PHASES.index(OPTIMIZER)])
    updated = [
        process[fact.thread]
        for fact in trace.facts
        if isinstance(fact.mark, TrainingMark) and fact.mark.event == "update"
    ]
    return distinct(np.append(process[ranges.thread[trains]], np.array(updated, np.int64)))


@dataclass(frozen=True, slots=True)
class Windows:
    """The steps of a process as disjoint times in order, then the evaluation that was taken out of them.

    Work is in a step if it was launched after its start, and not after its end; in evaluation also at its start.
    Where a report has no launches, work is in a step if it began then on the GPU (`on_gpu`).
    """

    start_ns: Int64s
    end_ns: Int64s
    is_step: Bools
    warm_up: Bools
    thread: int  # that trains; -1 where the report has no thread of the process
    ended_by: str
    never_updated: tuple[str, ...]
    on_gpu: bool = False


def windows(
    facts: TrainingFacts,
    calls: Ranges,
    backward: Ranges,
    own_warm_up: Ranges,
    launched_ns: Int64s,
    thread: int,
    forward_ns: Int64s,
    *,
    trains: bool,
) -> Windows:
    """Decide what the steps of a process are, by what its annotation wrote and by what it did.

    That is its outermost calls of models, its runs of autograd, the program's own ranges of warm-up, the sorted
    moments at which work was launched, the thread that trains, the starts of the phase forward, and whether it
    trains at all.
    """
    updates = _updates(facts, backward)
    updated = {name for _, name in facts.updates}
    ends_ns, ended_by = _ends(facts, updates, updated)
    has_block = facts.begin_ns is not None or facts.measure_ns is not None
    begin_ns = facts.begin_ns if facts.begin_ns is not None else facts.measure_ns
    until_ns = facts.end_ns if facts.end_ns is not None else FOREVER_NS
    if begin_ns is None:  # nothing shows where the first step begins
        begin_ns, ends_ns = (int(ends_ns[0]), ends_ns[1:]) if len(ends_ns) else (0, ends_ns)
    ends_ns = ends_ns[(ends_ns > begin_ns) & (ends_ns <= until_ns)]
    is_whole = not len(ends_ns) and has_block
    if is_whole:
        ends_ns = np.array([until_ns])
        ended_by = WHOLE_BLOCK
        called_ns = np.concatenate([calls.start_ns, forward_ns])
        called_ns = called_ns[(called_ns > begin_ns) & (called_ns <= until_ns)]
        # Of a program that does not train, what is before the first call is set-up.
        if len(calls) and len(called_ns) and not trains:
            begin_ns = int(called_ns.min()) - 1
            ended_by = FROM_FIRST_CALL
    start_ns = np.concatenate([[begin_ns], ends_ns[:-1]]) if len(ends_ns) else ends_ns
    if facts.measure_ns is not None and not is_whole:
        prepares = (start_ns < facts.measure_ns) & (facts.measure_ns < ends_ns)
        prepares &= _count(launched_ns, start_ns, np.full(len(start_ns), facts.measure_ns)) == 0
        start_ns = np.where(prepares, facts.measure_ns, start_ns)  # until then, the recorder prepared itself
    worked = _count(launched_ns, start_ns, ends_ns) > 0
    start_ns = start_ns[worked]
    ends_ns = ends_ns[worked]

    evaluating = calls.take(calls.category == EVALUATION if trains else np.zeros(len(calls), np.bool_))
    forward = calls.take(calls.category == MODEL_FORWARD)
    evaluation_start_ns, evaluation_end_ns = _evaluation(
        evaluating, forward, backward, updates, start_ns, ends_ns, by_calls=bool(facts.calls_ns)
    )
    step_of_evaluation = _positions(start_ns, ends_ns, evaluation_start_ns)
    evaluated = _count(launched_ns, evaluation_start_ns - 1, evaluation_end_ns)
    left = _count(launched_ns, start_ns, ends_ns)
    np.subtract.at(left, step_of_evaluation[step_of_evaluation >= 0], evaluated[step_of_evaluation >= 0])
    start_ns = start_ns[left > 0]
    ends_ns = ends_ns[left > 0]

    number = np.arange(len(ends_ns) + len(evaluation_end_ns))
    if len(own_warm_up):  # the program's own ranges decide
        is_warm_up = np.append(
            _positions(own_warm_up.start_ns, own_warm_up.end_ns, ends_ns) >= 0, evaluation_end_ns < 0
        )
    else:
        has_warm_up = not is_whole and facts.begin_ns is not None
        warm_up = warm_up_steps(facts.warm_up, updates, ends_ns.tolist(), facts.fewest) if has_warm_up else 0
        is_warm_up = number < min(warm_up, len(ends_ns))
    return Windows(
        np.concatenate([start_ns, evaluation_start_ns]),
        np.concatenate([ends_ns, evaluation_end_ns]),
        is_step=number < len(ends_ns),
        warm_up=is_warm_up,
        thread=thread,
        ended_by=ended_by if len(ends_ns) else "",
        never_updated=tuple(name for name in facts.optimizers if name not in updated),
    )


def _ends(facts: TrainingFacts, updates: dict[str, list[int]], updated: set[str]) -> tuple[Int64s, str]:
    """Return when steps end, in order, and what ends them: calls of `step()`, or the updates of an optimizer."""
    if facts.calls_ns:
        ended_by = f"step of {facts.calls_by}" if facts.calls_by else BY_CALLS
        return np.sort(np.array(facts.calls_ns, np.int64)), ended_by
    if not updates:
        return np.empty(0, np.int64), ""
    optimizer = ending_optimizer(updates, facts.optimizers, updated)
    ended_by = optimizer if optimizer == IN_BACKWARD else f"update by {optimizer}"
    return np.sort(np.array(updates[optimizer], np.int64)), ended_by


def _updates(facts: TrainingFacts, backward: Ranges) -> dict[str, list[int]]:
    """Return when each optimizer updated, in the order of their first updates.

    Optimizers that update while a backward runs are one together, which updates when that backward ends; where
    the report has no range of it, with the last of them.
    """
    moments: defaultdict[str, list[int]] = defaultdict(list)
    backward = backward.take(np.argsort(backward.start_ns, kind="stable"))
    last_ns: dict[int, int] = {}
    for run in facts.in_backward.values():
        last_ns |= dict.fromkeys(run, max(run))
    reach_ns = np.maximum.accumulate(backward.end_ns)
    for moment_ns, optimizer in sorted(facts.updates):
        before = int(np.searchsorted(backward.start_ns, moment_ns, "right"))
        around_ns = int(reach_ns[before - 1]) if before else -1
        if around_ns < moment_ns:
            around_ns = last_ns.get(moment_ns, -1)
        if around_ns < moment_ns:
            moments[optimizer].append(moment_ns)
        elif moments[IN_BACKWARD][-1:] != [around_ns]:
            moments[IN_BACKWARD].append(around_ns)
    return moments


def _evaluation(
    calls: Ranges,
    forward: Ranges,
    backward: Ranges,
    updates: dict[str, list[int]],
    start_ns: Int64s,
    end_ns: Int64s,
    *,
    by_calls: bool,
) -> tuple[Int64s, Int64s]:
    """Return the stretches of evaluation: such calls with no forward, backward, update or end of a step between.

    A model that is called so in at least half of the steps is part of them; of few steps in all, if the program
    said where they end (`by_calls`), else if it is never called with gradient.
    """
    chosen = calls.take(np.argsort(calls.start_ns, kind="stable"))
    step = _positions(start_ns, end_ns, chosen.start_ns)
    (model_of_step, _), _ = grouped_rows(chosen.name_id[step >= 0], step[step >= 0])
    models, steps_with = counted(model_of_step)
    if len(start_ns) >= FEW_STEPS:
        belonging = models[2 * steps_with >= len(start_ns)]
    else:
        in_each = models[(steps_with == len(start_ns)) & (by_calls and len(start_ns) > 1)]
        belonging = np.union1d(np.setdiff1d(chosen.name_id, forward.name_id), in_each)
    chosen = chosen.take(~np.isin(chosen.name_id, belonging))
    if not len(chosen):
        return chosen.start_ns, chosen.end_ns
    update_ns = [np.array(moments, np.int64) for moments in updates.values()]
    breaks_ns = np.sort(np.concatenate([forward.start_ns, backward.start_ns, start_ns, end_ns, *update_ns]))
    reach_ns = np.maximum.accumulate(chosen.end_ns)
    broken = np.searchsorted(breaks_ns, chosen.start_ns[1:]) > np.searchsorted(breaks_ns, reach_ns[:-1])
    first = np.concatenate([[0], np.flatnonzero(broken) + 1])
    last = np.append(first[1:], len(chosen)) - 1
    return chosen.start_ns[first], reach_ns[last]


def _count(sorted_ns: Int64s, start_ns: Int64s, end_ns: Int64s) -> Int64s:
    """Count the moments after each start and not after its end."""
    return np.searchsorted(sorted_ns, end_ns, "right") - np.searchsorted(sorted_ns, start_ns, "right")


def _positions(start_ns: Int64s, end_ns: Int64s, moment_ns: Int64s) -> Int64s:
    """Return the window that each moment is in, -1 for none; the windows are disjoint and in order."""
    window = np.searchsorted(start_ns, moment_ns, "left") - 1
    inside = (window >= 0) & (moment_ns <= end_ns[window]) if len(start_ns) else np.zeros(len(moment_ns), np.bool_)
    return np.where(inside, window, -1)
