"""What the steps of a report are, what of them is warm-up or evaluation, and what work lies in them.

docs/attribution.md has the definitions, under "Steps". Where our annotation recorded a program's training, steps
are times between updates (`step_decisions`), and get ranges of their own here; in any other report, they are the
program's ranges that are called so. Without them, `evidence` looks at what the program does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..report.evidence import NAMED, NONE, StepEvidence
from ..support.small_numbers import distinct, rows_of_each, summed
from ..support.units import count_text, time_text
from ..trace import EVALUATION, KERNEL, NO_GRADIENT, Bools, Int32s, Int64s, Ranges, working_calls
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES, is_of_engine, without_marks, without_numbers
from ..vocabulary.step_ends import no_step_text, warm_up_steps
from .evidence import calls_as_steps, evidence_of, updates_every
from .places import Attribution, Steps
from .step_decisions import (
    FROM_FIRST_CALL,
    WHOLE_BLOCK,
    TrainingFacts,
    Windows,
    training_processes,
    windows,
)
from .step_windows import placed_in_windows
from .user_ranges import of_titles

IN_FORWARD, IN_BACKWARD, IN_OPTIMIZER = map(PHASES.index, (FORWARD, BACKWARD, OPTIMIZER))
#: What tutorials call the range around an optimizer's update.
UPDATE = re.compile(r"(?:optimi[sz]er[-_ .])?step(?:\(\))?[-_ #:]*\d*", re.IGNORECASE)
#: Groups of ranges between the steps that evaluate, whatever phases they have.
EVALUATES = re.compile(r"val(?:id(?:ate|ation)?)?(?![a-z])|eval|test(?![a-z])", re.IGNORECASE)
#: The share of the steps' work without gradient from which a note says so.
MUCH = 0.1
_DIGITS = re.compile(r"\d+")


def measured_steps(attribution: Attribution, *, include_warm_up: bool = False) -> Int32s:
    """Return the measured steps, int32 (steps,), in order of start: positions in the attribution's ranges."""
    steps = attribution.steps
    counts = include_warm_up | ~steps.warm_up
    return steps.range[counts]


def step_numbers(attribution: Attribution, *, include_warm_up: bool = False) -> Int64s:
    """Return the number of each of `measured_steps`: its place among all measured steps, int64 (steps,)."""
    number = attribution.steps.number
    if number is not None:
        return number
    steps = measured_steps(attribution, include_warm_up=include_warm_up)
    return np.arange(len(steps))


def step_of_nodes(attribution: Attribution, *, include_warm_up: bool) -> Int32s:
    """Return the measured step of each node, -1 for none: int32 (nodes + 1,); the last entry is for node -1."""
    steps = measured_steps(attribution, include_warm_up=include_warm_up)
    return range_of_nodes(attribution, steps)


def nodes_in(attribution: Attribution, ranges: NDArray[np.integer]) -> Bools:
    """Mark the nodes that are in some ranges, or are these: bool (nodes,)."""
    return range_of_nodes(attribution, ranges)[:-1] >= 0


def range_of_nodes(attribution: Attribution, ranges: NDArray[np.integer]) -> Int32s:
    """Return which of some ranges each node is in, as its place among them, -1 for none: int32 (nodes + 1,).

    The last entry is for node -1.
    """
    forest = attribution.forest
    if not len(ranges):
        return np.full(len(forest) + 1, -1, np.int32)
    number = np.full(len(attribution.ranges), -1, np.int32)
    number[ranges] = np.arange(len(ranges))
    number_of_node = number[forest.range]
    return forest.nearest(number_of_node)


def in_steps(
    attribution: Attribution, numbers: NDArray[np.integer], *, include_warm_up: bool = False
) -> Attribution:
    """Return the attribution with only the work inside some of the measured steps, for figures per step.

    `numbers` are their places among the measured steps, in order. The ranges that are shown are those in such a
    step, or around one.
    """
    trace = attribution.trace
    all_steps = attribution.steps
    home = attribution.home
    steps = measured_steps(attribution, include_warm_up=include_warm_up)[numbers]
    step_of_node = range_of_nodes(attribution, steps)
    is_in_step = step_of_node >= 0
    inside = is_in_step[attribution.node]
    rows = np.flatnonzero(inside)
    visible = attribution.forest.around(is_in_step[:-1])
    is_warm_up = np.isin(steps, all_steps.range[all_steps.warm_up])
    return replace(
        attribution,
        trace=replace(trace, work=trace.work.take(inside)),
        home=np.where(visible[home], home, -1).astype(np.int32),
        part_of=(attribution.of_all_work, attribution.rows_of_all[rows]),
        steps=replace(all_steps, range=steps, warm_up=is_warm_up, number=np.asarray(numbers)),
        node=attribution.node[rows],
        how=attribution.how[rows],
        phase=attribution.phase[rows],
        unfit=attribution.unfit[rows],
    )


def outermost_calls(attribution: Attribution) -> Bools:
    """Mark the ranges around calls of models, and around their backward, that are in no other such range."""
    ranges = attribution.ranges
    home = attribution.home
    forest = attribution.forest
    of_model = ranges.of_model & (home >= 0)
    is_below = forest.below(of_model[forest.range])
    outermost: Bools = of_model & ~is_below[forest.above(home)]
    return outermost


def kernels_per_step(attribution: Attribution) -> Int64s:
    """Count the kernels inside each of `measured_steps`, including adopted and linked ones: int64 (steps,)."""
    step_of_node = step_of_nodes(attribution, include_warm_up=False)
    is_kernel = attribution.trace.work.kind == KERNEL
    step = step_of_node[attribution.node[is_kernel]]
    count = len(measured_steps(attribution))
    return np.bincount(step[step >= 0], minlength=count).astype(np.int64)


def evaluation_ns(attribution: Attribution) -> int:
    """Add up the work of evaluation, which is in no step, ns."""
    is_evaluation = np.append(attribution.steps.evaluation, False)
    inside = is_evaluation[attribution.node]
    return int(attribution.trace.work.duration_ns[inside].sum())


def updates_called_steps(attribution: Attribution) -> Bools:
    """Mark the names `step` of ranges that hold only an optimizer's update, as tutorials write them: by name id.

    Forward and backward lie outside all of them, and no range has an optimizer's own name.
    """
    facts = attribution.facts
    ranges = attribution.ranges
    names = attribution.trace.names
    is_update = np.zeros(len(names), np.bool_)
    for name_id in np.flatnonzero(facts.step).tolist():
        title = without_marks(names[name_id])
        is_update[name_id] = UPDATE.fullmatch(title) is not None
    rows = np.flatnonzero(of_titles(is_update, ranges) & (attribution.home >= 0))
    none = np.zeros_like(is_update)
    opens_optimizer = facts.opens_phase & (facts.phase == IN_OPTIMIZER)
    has_optimizer = of_titles(opens_optimizer, ranges).any()
    if not len(rows) or attribution.rules.step or has_optimizer:
        return none
    inside = (range_of_nodes(attribution, rows) >= 0)[attribution.node]
    model_phases = {IN_FORWARD, IN_BACKWARD}
    phases_inside = model_phases.intersection(distinct(attribution.phase[inside]).tolist())
    phases_outside = model_phases.intersection(distinct(attribution.phase[~inside]).tolist())
    if inside.any() and len(phases_outside) == 2 and not phases_inside:
        return is_update
    return none


class _NamedSteps(NamedTuple):
    """Ranges that the program calls its steps, those that validate, and their names on screens.

    `refusal` explains why there are no steps, or is "".
    """

    rows: Int64s
    validation: Int64s
    ended_by: str = ""
    notes: tuple[str, ...] = ()
    refusal: str = ""


def with_steps(attribution: Attribution, updates: Bools, copying_threads: frozenset[int]) -> Attribution:
    """Return the attribution with its steps; those that are times between updates get ranges and nodes.

    `updates` marks the names of ranges that are an optimizer's update, by name id; a thread that only copies has
    no steps.
    """
    training = TrainingFacts.by_process(attribution.trace)
    training |= {facts.process: facts for facts in _facts_of_updates(attribution, updates)}
    by_calls = {process for process, facts in training.items() if facts.calls_ns}
    named = _ranges_called_steps(attribution, by_calls, updates, copying_threads)
    rows = named.rows
    has_launches = (attribution.trace.work.launch >= 0).any()
    are_empty = bool(len(rows) and not has_launches)
    is_chosen = bool(attribution.rules.step)
    if are_empty and not is_chosen:  # nothing shows what ran in them
        rows = rows[:0]
    ranges = attribution.ranges
    process_of_thread = attribution.trace.process_of_thread()
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
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
        steps = _with_notes(attribution, [*decided.values()], training)
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
    rows = rows[np.argsort(ranges.end_ns[rows], kind="stable")]
    end_ns = ranges.end_ns[rows]
    process_of_thread = attribution.trace.process_of_thread()
    for (process,), of_process in rows_of_each(process_of_thread[ranges.thread[rows]]):
        moments = [(at_ns, "a range named step") for at_ns in end_ns[of_process].tolist()]
        yield TrainingFacts(process, begin_ns=-1, updates=moments)


def _ranges_called_steps(
    attribution: Attribution, by_calls: set[int], updates: Bools, copying_threads: frozenset[int]
) -> _NamedSteps:
    """Return the program's own ranges that are steps, those of validation, the steps' name, notes, and the reason.

    Steps are one group of names: one with backward or an optimizer's work if there is any, else the one with the
    most work. Of nested groups, the outermost counts.
    """
    trace = attribution.trace
    ranges = attribution.ranges
    home = attribution.home
    chosen_name = attribution.rules.step
    is_step = of_titles(attribution.facts.measured & ~updates, ranges) & (home >= 0)
    if not chosen_name:
        process = trace.process_of_thread()[ranges.thread]
        is_step &= ~np.isin(ranges.thread, [*copying_threads])
        is_step &= ~np.isin(process, [*by_calls])
    rows = np.flatnonzero(is_step)
    if not len(rows):
        return _NamedSteps(rows, rows)
    ids, name = np.unique(ranges.name_id[rows], return_inverse=True)
    names = [trace.names[name_id] for name_id in ids.tolist()]
    titles = [f"`{chosen_name}`" if chosen_name else _title_of_group(name) for name in names]
    number = {title: place for place, title in enumerate(dict.fromkeys(titles))}
    distinct_titles = [*number]
    group_of_name = np.array([number[title] for title in titles], np.int64)
    group = group_of_name[name]
    step_of_node = range_of_nodes(attribution, rows)
    above = step_of_node[attribution.forest.above(home[rows])].astype(np.int64)
    lost = np.zeros(len(rows), np.bool_)
    if not chosen_name:
        lost |= _with_lost_end(names, name, group, above)
        lost |= _with_its_like(name, above, ranges.open_ended[rows])
    ancestors = _ancestors(above, lost)
    chosen = 0
    note = ""
    evaluates = np.zeros(len(distinct_titles), np.bool_)
    if len(distinct_titles) > 1:
        own_ns = _innermost_work(attribution, step_of_node, len(rows))
        chosen, note, refusal = _chosen_group(distinct_titles, group, ~lost, ancestors, own_ns)
        evaluates = _evaluating(distinct_titles, group, own_ns)
        if refusal:
            none = rows[:0]
            return _NamedSteps(none, none, refusal=refusal)
    outermost = (group == chosen) & ~lost
    for higher in ancestors:  # a step inside another is part of it
        outermost &= ~((higher >= 0) & (group[higher] == chosen))
    validation = rows[evaluates[group] & ~lost]
    ended_by = f"ranges {distinct_titles[chosen]}"
    return _NamedSteps(rows[outermost], validation, ended_by, (note,) if note else ())


def _title_of_group(name: str) -> str:
    """Return a name without its numbers; steps that serving engines name by their content are one group."""
    title = without_marks(name)
    if is_of_engine(title):
        return "of the engine"
    return f"`{without_numbers(title)}`"


def _ancestors(above: Int64s, lost: Bools) -> list[Int64s]:
    """Return the step around each step, then the one around that, and so on; -1 for none: int64 (steps,) each.

    A range that has lost its end is not a step, so it is nobody's ancestor.
    """
    while (skipped := (above >= 0) & lost[above]).any():
        above = np.where(skipped, above[above], above)
    ancestors = []
    nearest = above
    while (nearest >= 0).any():
        ancestors.append(nearest)
        nearest = np.where(nearest >= 0, above[nearest], -1)
    return ancestors


def _innermost_work(attribution: Attribution, step_of_node: Int32s, steps: int) -> Int64s:
    """Add up the work of each step by phase that is in no step inside it, ns: int64 (steps, phases)."""
    step = step_of_node[attribution.node]
    inside = np.flatnonzero(step >= 0)
    cell = step[inside].astype(np.int64) * len(PHASES) + attribution.phase[inside]
    duration_ns = attribution.trace.work.duration_ns[inside]
    sums_ns = summed(cell, duration_ns, steps * len(PHASES))
    return sums_ns.reshape(steps, len(PHASES))


def _evaluating(titles: Sequence[str], group: Int64s, own_ns: Int64s) -> Bools:
    """Mark the groups that validate between steps that train: they have forward work alone, or are called so.

    `own_ns` is as in `_chosen_group`.
    """
    sums_ns = np.zeros((len(titles), len(PHASES)), np.int64)
    np.add.at(sums_ns, group, own_ns)
    trains = sums_ns[:, [IN_BACKWARD, IN_OPTIMIZER]].sum(axis=1) > 0
    called = np.array([EVALUATES.search(title) is not None for title in titles])
    marked: Bools = trains.any() & ~trains & (called | (sums_ns[:, IN_FORWARD] > 0))
    return marked


def _with_lost_end(names: Sequence[str], name: Int64s, group: Int64s, above: Int64s) -> Bools:
    """Mark the steps that contain a later number of their own group: an exception took their ends."""
    numbers = [tuple(map(int, _DIGITS.findall(text))) for text in names]
    order = {step_number: place for place, step_number in enumerate(sorted({*numbers}))}
    place = np.array([order[step_number] for step_number in numbers], np.int64)[name]
    lost = np.zeros(len(name), np.bool_)
    inner = np.flatnonzero(above >= 0)
    outer = above[above >= 0]
    while len(inner):
        lost[outer[(group[inner] == group[outer]) & (place[inner] > place[outer])]] = True
        inner = inner[above[outer] >= 0]
        outer = above[outer][above[outer] >= 0]
    return lost


def _with_its_like(name: Int64s, above: Int64s, open_ended: Bools) -> Bools:
    """Mark the steps that contain others of their own name, as one without an end contains all that follow.

    Where most steps do, the program names each twice, or names its parts so: those are steps.
    """
    inner = np.flatnonzero((above >= 0) & (name == name[above]))
    contains = np.zeros(len(name), np.bool_)
    is_outermost = np.ones(len(name), np.bool_)
    contains[above[inner]] = True
    is_outermost[inner] = False
    names = int(name.max(initial=0)) + 1
    outermost = np.bincount(name[is_outermost], minlength=names)
    containing = np.bincount(name[is_outermost & contains], minlength=names)
    is_usual = (containing > 1) & (2 * containing > outermost)
    return contains & (open_ended | ~is_usual[name])


def _chosen_group(
    titles: Sequence[str], group: Int64s, counted: Bools, ancestors: Sequence[Int64s], own_ns: Int64s
) -> tuple[int, str, str]:
    """Return the group of names that is the steps, a note on the others, and why none can be chosen.

    `own_ns` is the work of each step by phase that is in no step inside it: int64 (steps, phases).
    """
    inclusive_ns = np.zeros((len(titles), len(PHASES)), np.int64)
    np.add.at(inclusive_ns, group, own_ns)
    nested = np.zeros((len(titles), len(titles)), np.int64)  # how many steps of a group are inside another's
    earlier = [group]
    for higher in ancestors:
        inside = np.flatnonzero(higher >= 0)
        outer = group[higher[inside]]
        is_new = np.logical_and.reduce([column[inside] != outer for column in earlier])
        inside = inside[is_new]
        outer = outer[is_new]
        np.add.at(inclusive_ns, outer, own_ns[inside])
        np.add.at(nested, (group[inside], outer), 1)
        earlier.append(np.where(higher >= 0, group[higher], -1))
    count = np.bincount(group, counted, len(titles))
    training_ns = inclusive_ns[:, [IN_BACKWARD, IN_OPTIMIZER]].sum(axis=1)
    trains = (training_ns > 0) & (count > 0)
    pool = np.flatnonzero(trains if trains.any() else count > 0)
    nested_in_pool = nested[np.ix_(pool, pool)]
    within = nested_in_pool > count[pool, None] / 2
    outermost = pool[~within.any(axis=1)]
    size = inclusive_ns[outermost].sum(axis=1)
    if trains.any():
        size = inclusive_ns[outermost, IN_OPTIMIZER]
    order = np.argsort(-size, kind="stable")
    if trains.any() and len(outermost) > 1 and size[order[0]] == size[order[1]]:
        several = ", ".join(titles[candidate] for candidate in outermost.tolist())
        return -1, "", f"Several kinds of ranges could be its steps ({several}): choose one with --step NAME."
    chosen = int(outermost[order[0]])
    is_mostly_outside = nested[:, chosen] <= count / 2
    beside = (count > 0) & is_mostly_outside & (nested[chosen] == 0)
    beside[chosen] = False
    others = [f"{titles[other]} ({count_text(int(count[other]))})" for other in np.flatnonzero(beside).tolist()]
    note = ""
    if others:
        note = f"Steps are the ranges {titles[chosen]}; not counted as steps: {', '.join(others)}."
    return chosen, note, ""


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


def _on_evaluation(
    attribution: Attribution, decided: Sequence[Windows], training: dict[int, TrainingFacts]
) -> list[str]:
    """Return the note on what was taken out of the steps: whose calls, and what to do if it is part of one."""
    removed_ns = evaluation_ns(attribution)
    if not removed_ns:
        return []
    ranges = attribution.ranges
    home = attribution.home
    forest = attribution.forest
    is_evaluation = np.append(attribution.steps.evaluation, False)
    evaluates = ranges.category == EVALUATION
    is_inside_another = forest.below(evaluates[forest.range])[forest.above(home)]
    is_call = evaluates & (home >= 0) & is_evaluation[home] & ~is_inside_another
    models = _names(attribution, ranges.name_id[is_call])
    runs = sum(int((~times.is_step).sum()) for times in decided)
    count = f"{count_text(runs)} run{'s' * (runs > 1)}"
    note = f"{time_text(removed_ns)} of evaluation by {models} ({count}) is in no step."
    if any(facts.calls_ns for facts in training.values()):
        return [note]
    return [f"{note} If it is part of one, as a reference model is, call p.step() after each iteration."]


def _with_notes(attribution: Attribution, decided: Sequence[Windows], training: dict[int, TrainingFacts]) -> Steps:
    """Return the steps with what ended them, and notes on what is not in them."""
    steps = attribution.steps
    endings = [*dict.fromkeys(times.ended_by for times in decided if times.ended_by)]
    unused = [*dict.fromkeys(name for facts in training.values() for name in facts.unused)]
    notes = []
    for ending in endings:
        if ending in (WHOLE_BLOCK, FROM_FIRST_CALL):
            notes.append(no_step_text(unused, from_first_call=ending == FROM_FIRST_CALL))
        else:
            notes.append(f"A step ends with each {ending}.")
    never = dict.fromkeys(name for times in decided for name in times.never_updated if name not in unused)
    notes += [f"{name}.step() was never called." for name in never]
    # The recorder's own note says so too.
    is_noted = any(note.startswith("Interrupted by ") for note in attribution.trace.shortfalls)
    errors = [] if is_noted else filter(None, (facts.error for facts in training.values()))
    notes += [f"Interrupted by {error}; the last step may be incomplete." for error in errors]
    notes += _on_evaluation(attribution, decided, training)
    notes += _on_calls_without_gradient(attribution)
    ended_by = " and ".join(filter(None, (steps.ended_by, *endings)))
    return replace(steps, ended_by=ended_by, notes=(*steps.notes, *notes))


def _on_calls_without_gradient(attribution: Attribution) -> list[str]:
    """Return the note on calls without gradient that hold much of the steps' work, as a forgotten eval() makes."""
    forest = attribution.forest
    ranges = attribution.ranges
    duration_ns = attribution.trace.work.duration_ns
    name_id = np.where(ranges.category == NO_GRADIENT, ranges.name_id, -1).astype(np.int32)
    model = forest.nearest(name_id[forest.range])[attribution.node]
    in_step = step_of_nodes(attribution, include_warm_up=False)[attribution.node] >= 0
    is_free = in_step & (model >= 0)
    total_ns = int(duration_ns[in_step].sum())
    free_ns = int(duration_ns[is_free].sum())
    if free_ns <= MUCH * total_ns:
        return []
    models = _names(attribution, model[is_free])
    return [
        f"{free_ns / total_ns:.0%} of the steps' work is in calls of {models} without gradient in "
        "training mode; if they are an evaluation, call eval() before them."
    ]


def _names(attribution: Attribution, name_id: Int32s) -> str:
    """List the distinct names of some ids."""
    return ", ".join(attribution.trace.names[number] for number in distinct(name_id).tolist())
