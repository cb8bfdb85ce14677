"""What the steps of a report are, and what of them is warm-up or evaluation.

docs/attribution.md has the definitions, under "Steps". Where our annotation recorded a program's training, steps
are times between updates (`step_decisions`), and get ranges of their own here; in any other report, they are
ranges that the program calls so (`named_steps`). Without them, `evidence` looks at what the program does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..report.evidence import NAMED, NONE, StepEvidence
from ..support.small_numbers import rows_of_each, sorted_by
from ..trace import Bools, Int64s, Ranges, working_calls
from ..vocabulary.step_ends import warm_up_steps
from .evidence import calls_as_steps, evidence_of, updates_every
from .named_steps import IN_FORWARD, ranges_called_steps
from .places import Attribution, Steps
from .step_decisions import TrainingFacts, Windows, training_processes, windows
from .step_notes import with_notes
from .step_windows import placed_in_windows
from .steps import measured_steps, nodes_in, outermost_calls
from .user_ranges import of_titles


def with_steps(attribution: Attribution, updates: Bools, copying_threads: frozenset[int]) -> Attribution:
    """Return the attribution with its steps; those that are times between updates get ranges and nodes.

    `updates` marks the names of ranges that are an optimizer's update, by name id; a thread that only copies has
    no steps.
    """
    training = TrainingFacts.by_process(attribution.trace)
    training |= {facts.process: facts for facts in _facts_of_updates(attribution, updates)}
    by_calls = {process for process, facts in training.items() if facts.calls_ns}
    named = ranges_called_steps(attribution, by_calls, updates, copying_threads)
    rows = named.rows
    has_launches = (attribution.trace.work.launch >= 0).any()
    are_empty = bool(len(rows) and not has_launches)
    is_chosen = bool(attribution.rules.step)
    if are_empty and not is_chosen:  # nothing shows what ran in them
        rows = rows[:0]
    ranges = attribution.ranges
    process_of_thread = attribution.trace.process_of_thread()
    rows = sorted_by(rows, ranges.start_ns)
    process = process_of_thread[ranges.thread[rows]]
    start_ns = ranges.start_ns[rows]
    warm_up = attribution.warm_up[attribution.home[rows]]
    own_warm_up = {number: _own_warm_up(attribution, facts, rows) for number, facts in training.items()}
    for number, facts in training.items():  # the first of the program's own steps in a block of `nk.profile`
        if facts.begin_ns is not None and not len(own_warm_up[number]):
            started = np.flatnonzero((process == number) & (start_ns >= facts.begin_ns))
            count = warm_up_steps(facts.warm_up, {}, started.tolist(), facts.fewest)
            warm_up[started[:count]] = True
    if warm_up.any():
        below = nodes_in(attribution, rows[warm_up])
        attribution = replace(attribution, warm_up=attribution.warm_up | below)
    steps = Steps(
        range=rows.astype(np.int32),
        warm_up=warm_up,
        evaluation=np.zeros(len(attribution.forest), np.bool_),
        validation=named.validation,
        ended_by=named.ended_by,
        notes=named.notes,
        refusal=named.refusal,
    )
    decided: dict[int, Windows] = {}
    undecided = training.keys() - {*process.tolist()}
    if undecided and not (named.refusal or is_chosen):
        decided = _decided(attribution, training, own_warm_up, sorted(undecided))
    attribution = replace(attribution, steps=steps)
    evidence = StepEvidence()
    if decided:
        evidence, decided = calls_as_steps(attribution, training, decided)
        attribution = placed_in_windows(attribution, decided)
        steps = with_notes(attribution, [*decided.values()], training)
        attribution = replace(attribution, steps=steps)
    elif not (len(rows) or named.refusal or is_chosen):
        return _by_evidence(attribution, are_empty=are_empty)
    return _named(attribution, evidence)


def _named(attribution: Attribution, evidence: StepEvidence) -> Attribution:
    """Return the attribution with the evidence of its steps, which are named if none is given."""
    steps = measured_steps(attribution).astype(np.int64)
    if len(steps) and evidence.by == NONE:
        every = updates_every(attribution, steps)
        evidence = StepEvidence(NAMED, count=len(steps), updates_every=every)
    return _with_evidence(attribution, evidence)


def _with_evidence(attribution: Attribution, evidence: StepEvidence) -> Attribution:
    return replace(attribution, steps=replace(attribution.steps, evidence=evidence))


def _by_evidence(attribution: Attribution, *, are_empty: bool) -> Attribution:
    """Return the attribution with steps by what the program does, or with the reason why these are not known.

    `are_empty` says whether ranges name steps, in which the report has no launches.
    """
    if not attribution.rules.adopt:  # counted as nsys does, which knows no steps
        return attribution
    evidence, windows = evidence_of(attribution, attribution.rules.evidence)
    if windows:
        attribution = placed_in_windows(attribution, windows)
    return _with_evidence(attribution, replace(evidence, names_are_empty=are_empty))


def _facts_of_updates(attribution: Attribution, updates: Bools) -> Iterator[TrainingFacts]:
    """Yield each process's facts on training from the ranges that are an optimizer's update."""
    ranges = attribution.ranges
    rows = np.flatnonzero(of_titles(updates, ranges) & (attribution.home >= 0))
    rows = sorted_by(rows, ranges.end_ns)
    end_ns = ranges.end_ns[rows]
    process_of_thread = attribution.trace.process_of_thread()
    for (process,), of_process in rows_of_each(process_of_thread[ranges.thread[rows]]):
        moments = [(at_ns, "a range named step") for at_ns in end_ns[of_process].tolist()]
        yield TrainingFacts(process, begin_ns=-1, updates=moments)


def _own_warm_up(attribution: Attribution, facts: TrainingFacts, steps: Int64s) -> Ranges:
    """Return the program's ranges of warm-up in which training happened, while it was recorded, in order of start.

    That is a step, an update, a call of `step()` or of a model. Their ends never fall.
    """
    ranges = attribution.ranges
    process = attribution.trace.process_of_thread()[ranges.thread]
    of_process = (process == facts.process) & (attribution.home >= 0)
    begin_ns = facts.begin_ns if facts.begin_ns is not None else facts.measure_ns
    is_recorded = ranges.start_ns >= (begin_ns or 0)
    is_warm_up = of_titles(attribution.facts.warm_up, ranges) & of_process & is_recorded
    warm_up = ranges.take(is_warm_up)
    if not len(warm_up):
        return warm_up
    calls_ns = ranges.start_ns[of_process & ranges.of_forward]
    updates_ns = [at_ns for at_ns, _ in facts.updates]
    happened_ns = np.sort(np.concatenate([calls_ns, ranges.start_ns[steps], facts.calls_ns, updates_ns]))
    before = np.searchsorted(happened_ns, warm_up.start_ns)
    until = np.searchsorted(happened_ns, warm_up.end_ns, "right")
    warm_up = warm_up.take(before < until)
    warm_up = warm_up.take(np.argsort(warm_up.start_ns, kind="stable"))
    return replace(warm_up, end_ns=np.maximum.accumulate(warm_up.end_ns))


def _decided(
    attribution: Attribution,
    training: dict[int, TrainingFacts],
    own_warm_up: dict[int, Ranges],
    processes: Sequence[int],
) -> dict[int, Windows]:
    """Return the windows of processes whose training was recorded, where there are any."""
    decided: dict[int, Windows] = {}
    trace = attribution.trace
    ranges = attribution.ranges
    process_of_thread = trace.process_of_thread()
    calls = working_calls(trace)
    outermost = outermost_calls(attribution)
    facts = attribution.facts
    backward = of_titles(facts.backward_phase, ranges)
    forward = of_titles(facts.opens_phase & (facts.phase == IN_FORWARD), ranges)
    trains = {*training_processes(trace, facts).tolist()}
    for process in processes:
        of_process = process_of_thread[ranges.thread] == process
        called = ranges.take(of_process & outermost & ranges.of_forward)
        launched = calls.take(process_of_thread[calls.thread] == process)
        roots = called.thread if len(called) else launched.thread
        thread = int(np.bincount(roots).argmax()) if len(roots) else 0
        runs = ranges.take(of_process & backward)
        launched_ns = np.sort(launched.start_ns)
        forward_ns = ranges.start_ns[of_process & forward]
        decided[process] = windows(
            training[process],
            called,
            runs,
            own_warm_up[process],
            launched_ns,
            thread,
            forward_ns,
            trains=process in trains,
        )
    return {process: times for process, times in decided.items() if len(times.start_ns)}
