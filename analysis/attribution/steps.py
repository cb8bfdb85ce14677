"""What the steps of a report are, what of them is warm-up or evaluation, and what work lies in them.

docs/attribution.md has the definitions, under "Steps". Where our annotation recorded a program's training, steps
are times between updates (`step_decisions`), and get ranges of their own here; in any other report, they are the
program's ranges that are called so. Where there are none, `evidence` looks at what the program does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
    return steps.range[include_warm_up | ~steps.warm_up]


def step_numbers(attribution: Attribution, *, include_warm_up: bool = False) -> Int64s:
    """Return how each of `measured_steps` is told: its place among all measured steps, int64 (steps,)."""
    number = attribution.steps.number
    return (
        np.arange(len(measured_steps(attribution, include_warm_up=include_warm_up))) if number is None else number
    )


def step_of_nodes(attribution: Attribution, *, include_warm_up: bool) -> Int32s:
    """Return the measured step of each node, -1 for none: int32 (nodes + 1,); the last entry is for node -1."""
    return range_of_nodes(attribution, measured_steps(attribution, include_warm_up=include_warm_up))


def nodes_in(attribution: Attribution, ranges: NDArray[np.integer]) -> Bools:
    """Mark the nodes that are in some ranges, or are these: bool (nodes,)."""
    return range_of_nodes(attribution, ranges)[:-1] >= 0


def range_of_nodes(attribution: Attribution, ranges: NDArray[np.integer]) -> Int32s:
    """Return which of some ranges each node is in, as its place among them, -1 for none: int32 (nodes + 1,).

    The last entry is for node -1.
    """
    if not len(ranges):
        return np.full(len(attribution.forest) + 1, -1, np.int32)
    number = np.full(len(attribution.ranges), -1, np.int32)
    number[ranges] = np.arange(len(ranges))
    return attribution.forest.nearest(number[attribution.forest.range])


def in_steps(
    attribution: Attribution, numbers: NDArray[np.integer], *, include_warm_up: bool = False
) -> Attribution:
    """Return the attribution with only the work inside some of the measured steps, of which figures are per step.

    `numbers` are their places among the measured steps, in order. The ranges that are shown are those in such a
    step, or around one.
    """
    steps = measured_steps(attribution, include_warm_up=include_warm_up)[numbers]
    of_node = range_of_nodes(attribution, steps)
    inside, home = of_node[attribution.node] >= 0, attribution.home
    rows = np.flatnonzero(inside)
    visible = attribution.forest.around(of_node[:-1] >= 0)
    is_warm_up = np.isin(steps, attribution.steps.range[attribution.steps.warm_up])
    return replace(
        attribution,
        trace=replace(attribution.trace, work=attribution.trace.work.take(inside)),
        home=np.where(visible[home], home, -1).astype(np.int32),
        part_of=(attribution.of_all_work, attribution.rows_of_all[rows]),
        steps=replace(attribution.steps, range=steps, warm_up=is_warm_up, number=np.asarray(numbers)),
        **{name: getattr(attribution, name)[rows] for name in ("node", "how", "phase", "unfit")},
    )


def outermost_calls(attribution: Attribution) -> Bools:
    """Mark the ranges around calls of models, and around their backward, that are in no other such range."""
    ranges, home, forest = attribution.ranges, attribution.home, attribution.forest
    of_model = ranges.of_model & (home >= 0)
    outermost: Bools = of_model & ~forest.below(of_model[forest.range])[forest.above(home)]
    return outermost


def kernels_per_step(attribution: Attribution) -> Int64s:
    """Count the kernels inside each of `measured_steps`, including adopted and linked ones: int64 (steps,)."""
    step_of_node = step_of_nodes(attribution, include_warm_up=False)
    step = step_of_node[attribution.node[attribution.trace.work.kind == KERNEL]]
    return np.bincount(step[step >= 0], minlength=len(measured_steps(attribution))).astype(np.int64)


def evaluation_ns(attribution: Attribution) -> int:
    """Add up the work of evaluation, which is in no step, ns."""
    inside = np.append(attribution.steps.evaluation, False)[attribution.node]
    return int(attribution.trace.work.duration_ns[inside].sum())


def updates_called_steps(attribution: Attribution) -> Bools:
    """Mark the names `step` of ranges that hold only an optimizer's update, as tutorials write them: by name id.

    Forward and backward lie outside all of them, and no range has an optimizer's own name.
    """
    facts, ranges, names = attribution.facts, attribution.ranges, attribution.trace.names
    marked, none = np.zeros((2, len(names)), np.bool_)
    marked[[name for name in np.flatnonzero(facts.step) if UPDATE.fullmatch(without_marks(names[name]))]] = True
    rows = np.flatnonzero(of_titles(marked, ranges) & (attribution.home >= 0))
    has_optimizer = of_titles(facts.opens_phase & (facts.phase == IN_OPTIMIZER), ranges).any()
    if not len(rows) or attribution.rules.step or has_optimizer:
        return none
    inside = (range_of_nodes(attribution, rows) >= 0)[attribution.node]
    phases_inside, phases_outside = (
        {*distinct(attribution.phase[some]).tolist()} & {IN_FORWARD, IN_BACKWARD} for some in (inside, ~inside)
    )
    return marked if inside.any() and len(phases_outside) == 2 and not phases_inside else none


def with_steps(attribution: Attribution, updates: Bools, copying_threads: frozenset[int]) -> Attribution:
    """Return the attribution with its steps; those that are times between updates get ranges and nodes.

    `updates` marks the names of ranges that are an optimizer's update, by name id; a thread that only copies has
    no steps.
    """
    training = TrainingFacts.by_process(attribution.trace)
    training |= {facts.process: facts for facts in _facts_of_updates(attribution, updates)}
    by_calls = {process for process, facts in training.items() if facts.calls_ns}
    found = _ranges_called_steps(attribution, by_calls, updates, copying_threads)
    rows, validation, ended_by, notes, refusal = found
    are_empty = bool(len(rows) and not (attribution.trace.work.launch >= 0).any())
    if are_empty and not attribution.rules.step:  # nothing shows what ran in them
        rows = rows[:0]
    ranges, process_of_thread = attribution.ranges, attribution.trace.process_of_thread()
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    process = process_of_thread[ranges.thread[rows]]
    warm_up = attribution.warm_up[attribution.home[rows]]
    own_warm_up = {number: _own_warm_up(attribution, facts, rows) for number, facts in training.items()}
    for number, facts in training.items():  # the first of the program's own steps in a block of `nk.profile`
        if facts.begin_ns is not None and not len(own_warm_up[number]):
            started = np.flatnonzero((process == number) & (ranges.start_ns[rows] >= facts.begin_ns))
            warm_up[started[: warm_up_steps(facts.warm_up, {}, started.tolist(), facts.fewest)]] = True
    if warm_up.any():
        below = nodes_in(attribution, rows[warm_up])
        attribution = replace(attribution, warm_up=attribution.warm_up | below)
    evaluation = np.zeros(len(attribution.forest), np.bool_)
    steps = Steps(rows.astype(np.int32), warm_up, evaluation, validation, ended_by, notes, refusal)
    undecided = training.keys() - {*process.tolist()} if not (refusal or attribution.rules.step) else set()
    decided = _decided(attribution, training, own_warm_up, sorted(undecided)) if undecided else {}
    attribution = replace(attribution, steps=steps)
    evidence = StepEvidence()
    if decided:
        evidence, decided = calls_as_steps(attribution, training, decided)
        attribution = placed_in_windows(attribution, decided)
        attribution = replace(attribution, steps=_with_notes(attribution, [*decided.values()], training))
    elif not (len(rows) or refusal or attribution.rules.step):
        return _by_evidence(attribution, are_empty=are_empty)
    return _named(attribution, evidence)


def _named(attribution: Attribution, evidence: StepEvidence) -> Attribution:
    """Return the attribution with the evidence of its steps, which are named if none is given."""
    steps = measured_steps(attribution).astype(np.int64)
    if len(steps) and evidence.by == NONE:
        evidence = StepEvidence(NAMED, count=len(steps), updates_every=updates_every(attribution, steps))
    return replace(attribution, steps=replace(attribution.steps, evidence=evidence))


def _by_evidence(attribution: Attribution, *, are_empty: bool) -> Attribution:
    """Return the attribution with steps by what the program does, or with the reason why these are not known.

    `are_empty` says whether ranges name steps, in which the report has no launches.
    """
    if not attribution.rules.adopt:  # counted as nsys does, which knows no steps
        return attribution
    evidence, windows = evidence_of(attribution, attribution.rules.evidence)
    attribution = placed_in_windows(attribution, windows) if windows else attribution
    evidence = replace(evidence, names_are_empty=are_empty)
    return replace(attribution, steps=replace(attribution.steps, evidence=evidence))


def _facts_of_updates(attribution: Attribution, updates: Bools) -> Iterator[TrainingFacts]:
    """Yield each process's facts on training from the ranges that are an optimizer's update."""
    ranges = attribution.ranges
    rows = np.flatnonzero(of_titles(updates, ranges) & (attribution.home >= 0))
    rows = rows[np.argsort(ranges.end_ns[rows], kind="stable")]
    for (process,), of_process in rows_of_each(attribution.trace.process_of_thread()[ranges.thread[rows]]):
        moments = [(end_ns, "a range named step") for end_ns in ranges.end_ns[rows[of_process]].tolist()]
        yield TrainingFacts(process, begin_ns=-1, updates=moments)


def _ranges_called_steps(
    attribution: Attribution, by_calls: set[int], updates: Bools, copying_threads: frozenset[int]
) -> tuple[Int64s, Int64s, str, tuple[str, ...], str]:
    """Return the program's own ranges that are steps, those of validation, the steps' name, notes, and the reason.

    The reason explains why there are no steps, or is "". Steps are one group of names: one with backward or an
    optimizer's work if there is any, else the one with the most work. Of nested groups, the outermost counts.
    """
    ranges, home, called = attribution.ranges, attribution.home, attribution.rules.step
    is_step = of_titles(attribution.facts.measured & ~updates, ranges) & (home >= 0)
    if not called:
        is_step &= ~np.isin(ranges.thread, [*copying_threads])
        is_step &= ~np.isin(attribution.trace.process_of_thread()[ranges.thread], [*by_calls])
    rows = np.flatnonzero(is_step)
    if not len(rows):
        return rows, rows, "", (), ""
    # Groups of names without numbers; steps that serving engines name by their content are one.
    ids, name = np.unique(ranges.name_id[rows], return_inverse=True)
    names = [attribution.trace.names[name_id] for name_id in ids.tolist()]
    titles = [
        "of the engine" if is_of_engine(title) else f"`{without_numbers(title)}`"
        for title in map(without_marks, names)
    ]
    if called:
        titles = [f"`{called}`"] * len(names)
    number = {title: place for place, title in enumerate(dict.fromkeys(titles))}
    distinct_titles, group = [*number], np.array([number[title] for title in titles], np.int64)[name]
    step_of_node = range_of_nodes(attribution, rows)
    above = step_of_node[attribution.forest.above(home[rows])].astype(np.int64)
    lost = np.zeros(len(rows), np.bool_)
    if not called:
        lost = _with_lost_end(names, name, group, above) | _with_its_like(name, above, ranges.open_ended[rows])
    while (skipped := (above >= 0) & lost[above]).any():  # a range that has lost its end is not a step
        above = np.where(skipped, above[above], above)
    ancestors = []
    nearest = above
    while (nearest >= 0).any():
        ancestors.append(nearest)
        nearest = np.where(nearest >= 0, above[nearest], -1)
    chosen, note, refusal = 0, "", ""
    evaluates = np.zeros(len(distinct_titles), np.bool_)
    if len(distinct_titles) > 1:
        # The work of each step by phase, for the innermost of the steps only.
        step = step_of_node[attribution.node]
        inside = np.flatnonzero(step >= 0)
        cell = step[inside].astype(np.int64) * len(PHASES) + attribution.phase[inside]
        own_ns = summed(cell, attribution.trace.work.duration_ns[inside], len(rows) * len(PHASES))
        own_ns = own_ns.reshape(len(rows), len(PHASES))
        chosen, note, refusal = _chosen_group(distinct_titles, group, ~lost, ancestors, own_ns)
        evaluates = _evaluating(distinct_titles, group, own_ns)
    if refusal:
        return rows[:0], rows[:0], "", (), refusal
    outermost = (group == chosen) & ~lost
    for higher in ancestors:  # a step inside another is part of it
        outermost &= ~((higher >= 0) & (group[higher] == chosen))
    titled = f"ranges {distinct_titles[chosen]}"
    return rows[outermost], rows[evaluates[group] & ~lost], titled, (note,) if note else (), ""


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
    inner, outer = np.flatnonzero(above >= 0), above[above >= 0]
    while len(inner):
        lost[outer[(group[inner] == group[outer]) & (place[inner] > place[outer])]] = True
        inner, outer = inner[above[outer] >= 0], above[outer][above[outer] >= 0]
    return lost


def _with_its_like(name: Int64s, above: Int64s, open_ended: Bools) -> Bools:
    """Mark the steps that contain others of their own name, as one without an end contains all that follow.

    Where most steps do, the program names each twice, or names its parts so: those are steps.
    """
    inner = np.flatnonzero((above >= 0) & (name == name[above]))
    contains, is_outermost = np.zeros(len(name), np.bool_), np.ones(len(name), np.bool_)
    contains[above[inner]] = True
    is_outermost[inner] = False
    count = int(name.max(initial=0)) + 1
    of_name, containing = (
        np.bincount(name[some], minlength=count) for some in (is_outermost, is_outermost & contains)
    )
    is_usual = (containing > 1) & (2 * containing > of_name)
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
        new = np.logical_and.reduce([column[inside] != outer for column in earlier])
        np.add.at(inclusive_ns, outer[new], own_ns[inside[new]])
        np.add.at(nested, (group[inside[new]], outer[new]), 1)
        earlier.append(np.where(higher >= 0, group[higher], -1))
    count = np.bincount(group, counted, len(titles))
    trains = (inclusive_ns[:, [IN_BACKWARD, IN_OPTIMIZER]].sum(axis=1) > 0) & (count > 0)
    pool = np.flatnonzero(trains if trains.any() else count > 0)
    within = nested[np.ix_(pool, pool)] > count[pool, None] / 2
    outermost = pool[~within.any(axis=1)]
    size = inclusive_ns[outermost, IN_OPTIMIZER] if trains.any() else inclusive_ns[outermost].sum(axis=1)
    order = np.argsort(-size, kind="stable")
    if trains.any() and len(outermost) > 1 and size[order[0]] == size[order[1]]:
        several = ", ".join(titles[candidate] for candidate in outermost.tolist())
        return -1, "", f"Several kinds of ranges could be its steps ({several}): choose one with --step NAME."
    chosen = int(outermost[order[0]])
    beside = (count > 0) & (nested[:, chosen] <= count / 2) & (nested[chosen] == 0)
    beside[chosen] = False
    others = ", ".join(
        f"{titles[other]} ({count_text(int(count[other]))})" for other in np.flatnonzero(beside).tolist()
    )
    note = f"Steps are the ranges {titles[chosen]}; not counted as steps: {others}." if others else ""
    return chosen, note, ""


def _own_warm_up(attribution: Attribution, facts: TrainingFacts, steps: Int64s) -> Ranges:
    """Return the program's ranges of warm-up in which training happened, while it was recorded, in order of start.

    That is a step, an update, a call of `step()` or of a model. Their ends never fall.
    """
    ranges, process = attribution.ranges, attribution.trace.process_of_thread() == facts.process
    of_process = process[ranges.thread] & (attribution.home >= 0)
    begin_ns = facts.begin_ns if facts.begin_ns is not None else facts.measure_ns
    is_warm_up = of_titles(attribution.facts.warm_up, ranges) & of_process & (ranges.start_ns >= (begin_ns or 0))
    found = ranges.take(is_warm_up)
    if not len(found):
        return found
    called = ranges.start_ns[of_process & ranges.of_forward]
    of_updates = [at_ns for at_ns, _ in facts.updates]
    happened_ns = np.sort(np.concatenate([called, ranges.start_ns[steps], facts.calls_ns, of_updates]))
    before = np.searchsorted(happened_ns, found.start_ns)
    found = found.take(before < np.searchsorted(happened_ns, found.end_ns, "right"))
    found = found.take(np.argsort(found.start_ns, kind="stable"))
    return replace(found, end_ns=np.maximum.accumulate(found.end_ns))


def _decided(
    attribution: Attribution,
    training: dict[int, TrainingFacts],
    own_warm_up: dict[int, Ranges],
    processes: Sequence[int],
) -> dict[int, Windows]:
    """Return the windows of processes whose training was recorded, where there are any."""
    decided: dict[int, Windows] = {}
    trace, ranges = attribution.trace, attribution.ranges
    process_of_thread, calls = trace.process_of_thread(), working_calls(trace)
    outermost = outermost_calls(attribution)
    backward = of_titles(attribution.facts.backward_phase, ranges)
    forward = of_titles(attribution.facts.opens_phase & (attribution.facts.phase == IN_FORWARD), ranges)
    trains = {*training_processes(trace, attribution.facts).tolist()}
    for process in processes:
        of_process = process_of_thread[ranges.thread] == process
        called = ranges.take(of_process & outermost & ranges.of_forward)
        launched = calls.take(process_of_thread[calls.thread] == process)
        roots = called.thread if len(called) else launched.thread
        thread = int(np.bincount(roots).argmax()) if len(roots) else 0
        runs, launched_ns = ranges.take(of_process & backward), np.sort(launched.start_ns)
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
    ranges, home = attribution.ranges, attribution.home
    is_call = (ranges.category == EVALUATION) & (home >= 0) & np.append(attribution.steps.evaluation, False)[home]
    is_call &= ~attribution.forest.below((ranges.category == EVALUATION)[attribution.forest.range])[
        attribution.forest.above(home)
    ]
    models = ", ".join(attribution.trace.names[name_id] for name_id in distinct(ranges.name_id[is_call]).tolist())
    runs = sum(int((~times.is_step).sum()) for times in decided)
    count = f"{count_text(runs)} run{'s' * (runs > 1)}"
    note = f"{time_text(removed_ns)} of evaluation by {models} ({count}) is in no step."
    if any(facts.calls_ns for facts in training.values()):
        return [note]
    return [f"{note} If it is part of one, as a reference model is, call p.step() after each iteration."]


def _with_notes(attribution: Attribution, decided: Sequence[Windows], training: dict[int, TrainingFacts]) -> Steps:
    """Return the steps with what ended them, and notes on what is not in them."""
    steps = attribution.steps
    ended = [*dict.fromkeys(times.ended_by for times in decided if times.ended_by)]
    unused = [*dict.fromkeys(name for facts in training.values() for name in facts.unused)]
    notes = [
        no_step_text(unused, from_first_call=ending == FROM_FIRST_CALL)
        if ending in (WHOLE_BLOCK, FROM_FIRST_CALL)
        else f"A step ends with each {ending}."
        for ending in ended
    ]
    never = dict.fromkeys(name for times in decided for name in times.never_updated if name not in unused)
    notes += [f"{name}.step() was never called." for name in never]
    # The recorder's own note says so too.
    is_noted = any(note.startswith("Interrupted by ") for note in attribution.trace.shortfalls)
    errors = [] if is_noted else filter(None, (facts.error for facts in training.values()))
    notes += [f"Interrupted by {error}; the last step may be incomplete." for error in errors]
    notes += _on_evaluation(attribution, decided, training)
    # Much of the steps' work may be in calls without gradient, as a forgotten eval() makes.
    forest, ranges, duration_ns = attribution.forest, attribution.ranges, attribution.trace.work.duration_ns
    name_id = np.where(ranges.category == NO_GRADIENT, ranges.name_id, -1).astype(np.int32)
    model = forest.nearest(name_id[forest.range])[attribution.node]
    in_step = step_of_nodes(attribution, include_warm_up=False)[attribution.node] >= 0
    free = in_step & (model >= 0)
    whole_ns, free_ns = int(duration_ns[in_step].sum()), int(duration_ns[free].sum())
    if free_ns > MUCH * whole_ns:
        models = ", ".join(attribution.trace.names[name_id] for name_id in distinct(model[free]).tolist())
        notes.append(
            f"{free_ns / whole_ns:.0%} of the steps' work is in calls of {models} without gradient in "
            "training mode; if they are an evaluation, call eval() before them."
        )
    ended_by = " and ".join(filter(None, (steps.ended_by, *ended)))
    return replace(steps, ended_by=ended_by, notes=(*steps.notes, *notes))
