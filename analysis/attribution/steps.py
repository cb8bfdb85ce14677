"""What the steps of a report are, what of them is warm-up or evaluation, and what work lies in them.

docs/attribution.md has the definitions, under "Steps". Where our annotation recorded a program's training, steps
are times between updates (`step_decisions`), and get ranges of their own here; in any other report, they are the
program's ranges that are called so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..support.small_numbers import distinct
from ..support.units import count_text, time_text
from ..trace import (
    EVALUATION,
    KERNEL,
    MODEL_FORWARD,
    NO_GRADIENT,
    Bools,
    Int32s,
    Int64s,
    working_calls,
)
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES, is_of_engine, without_marks
from .attributed import Attribution, Steps
from .step_decisions import WHOLE_BLOCK, Activity, Calls, TrainingFacts, Windows, windows
from .step_windows import Segments, placed_in_windows
from .user_ranges import of_titles

IN_FORWARD, IN_BACKWARD, IN_OPTIMIZER = map(PHASES.index, (FORWARD, BACKWARD, OPTIMIZER))
#: What tutorials call the range around an optimizer's update.
UPDATE = re.compile(r"(?:optimi[sz]er[-_ .])?step(?:\(\))?[-_ #:]*\d*", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


def measured_steps(attribution: Attribution, *, include_warm_up: bool = False) -> Int32s:
    """Return the measured steps, int32 (steps,), in order of start: positions in the attribution's ranges."""
    steps = attribution.steps
    return steps.range[include_warm_up | ~steps.warm_up]


def step_of_nodes(attribution: Attribution, *, include_warm_up: bool) -> Int32s:
    """Return the measured step of each node, -1 for none: int32 (nodes + 1,); the last entry is for node -1."""
    steps, forest = measured_steps(attribution, include_warm_up=include_warm_up), attribution.forest
    number = np.full(len(attribution.ranges), -1, np.int32)
    number[steps] = np.arange(len(steps))
    return np.append(forest.nearest(number[forest.range]), np.int32(-1))


def in_measured_steps(attribution: Attribution, *, include_warm_up: bool = False) -> Attribution:
    """Return the attribution with only the work inside measured steps, from which figures per step are computed.

    The ranges that are shown are those in a step, or around one.
    """
    of_node = step_of_nodes(attribution, include_warm_up=include_warm_up)
    rows, home = np.flatnonzero(of_node[attribution.node] >= 0), attribution.home
    visible = of_node >= 0
    for nodes in attribution.forest.by_depth()[:0:-1]:
        visible[attribution.forest.parent[nodes[visible[nodes]]]] = True
    return replace(
        attribution,
        trace=replace(attribution.trace, work=attribution.trace.work.take(rows)),
        home=np.where(visible[home], home, -1).astype(np.int32),
        part_of=(attribution.of_all_work, attribution.rows_of_all[rows]),
        **{name: getattr(attribution, name)[rows] for name in ("node", "how", "phase", "unfit")},
    )


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
    marked = np.zeros(len(names), np.bool_)
    called = [int(name) for name in np.flatnonzero(facts.step) if UPDATE.fullmatch(without_marks(names[name]))]
    marked[called] = True
    rows = np.flatnonzero(of_titles(marked, ranges) & (attribution.home >= 0))
    has_optimizer = of_titles(facts.opens_phase & (facts.phase == IN_OPTIMIZER), ranges).any()
    if not len(rows) or attribution.rules.step or has_optimizer:
        return np.zeros(len(names), np.bool_)
    flag = np.full(len(ranges), -1, np.int32)
    flag[rows] = 0
    inside = np.append(attribution.forest.nearest(flag[attribution.forest.range]) >= 0, False)[attribution.node]
    phases_inside = distinct(attribution.phase[inside]).tolist()
    phases_outside = distinct(attribution.phase[~inside]).tolist()
    is_update = (
        inside.any()
        and {IN_FORWARD, IN_BACKWARD} <= {*phases_outside}
        and not {IN_FORWARD, IN_BACKWARD} & {*phases_inside}
    )
    return marked if is_update else np.zeros(len(names), np.bool_)


def with_steps(attribution: Attribution, updates: Bools, copying_threads: frozenset[int]) -> Attribution:
    """Return the attribution with its steps; those that are times between updates get ranges and nodes.

    `updates` marks the names of ranges that are an optimizer's update, by name id; a thread that only copies has
    no steps.
    """
    training = TrainingFacts.by_process(attribution.trace)
    training |= {facts.process: facts for facts in _facts_of_updates(attribution, updates)}
    by_calls = {process for process, facts in training.items() if facts.calls_ns}
    rows, ended_by, notes, refusal = _ranges_called_steps(attribution, by_calls, updates, copying_threads)
    thread_process = attribution.trace.process_of_thread()
    processes = distinct(thread_process[attribution.ranges.thread[rows]]).tolist()
    decided = {} if refusal else _decided(attribution, training, processes)
    starts_ns = attribution.ranges.start_ns[rows]
    warm_up = attribution.warm_up[attribution.home[rows]] | _first_steps(attribution, rows, training)
    nodes = np.zeros(len(attribution.forest), np.bool_)
    if warm_up.any():
        flag = np.full(len(attribution.ranges), -1, np.int32)
        flag[rows[warm_up]] = 0
        below = attribution.forest.nearest(flag[attribution.forest.range]) >= 0
        attribution = replace(attribution, warm_up=attribution.warm_up | below)
    order = np.argsort(starts_ns, kind="stable")
    steps = Steps(rows[order].astype(np.int32), warm_up[order], nodes, ended_by, tuple(notes), refusal)
    if not decided:
        return replace(attribution, steps=steps)
    by_process = {process: process_windows for process, (process_windows, _) in decided.items()}
    segments = {process: of_process for process, (_, of_process) in decided.items()}
    attribution = placed_in_windows(replace(attribution, steps=steps), by_process, segments)
    return replace(attribution, steps=_told(attribution, decided, training))


def _facts_of_updates(attribution: Attribution, updates: Bools) -> Iterator[TrainingFacts]:
    """Yield what ranges that are an optimizer's update tell of each process."""
    if not updates.any():
        return
    ranges, home = attribution.ranges, attribution.home
    rows = np.flatnonzero(of_titles(updates, ranges) & (home >= 0))
    process = attribution.trace.process_of_thread()[ranges.thread[rows]]
    for number in distinct(process).tolist():
        of_process = rows[process == number]
        of_process = of_process[np.argsort(ranges.end_ns[of_process], kind="stable")]
        moments = [(end_ns, "a range named step") for end_ns in ranges.end_ns[of_process].tolist()]
        warm_up = int(attribution.warm_up[home[of_process]].sum())
        yield TrainingFacts(number, begin_ns=-1, warm_up=warm_up, updates=moments)


def _ranges_called_steps(
    attribution: Attribution, by_calls: set[int], updates: Bools, copying_threads: frozenset[int]
) -> tuple[Int64s, str, list[str], str]:
    """Return the program's own ranges that are steps, what they are called, notes, and why there are none.

    They are of one group of names: of those with backward or an optimizer's work if there are any, else of that
    with the most work. Of groups that nest, the outermost counts.
    """
    facts, ranges, home = attribution.facts, attribution.ranges, attribution.home
    thread_process = attribution.trace.process_of_thread()
    is_step = of_titles(facts.measured & ~updates, ranges) & (home >= 0)
    if not attribution.rules.step:
        is_step &= ~np.isin(ranges.thread, [*copying_threads])
        is_step &= ~np.isin(thread_process[ranges.thread], [*by_calls])
    rows = np.flatnonzero(is_step)
    if not len(rows):
        return rows, "", [], ""
    titles, group = _grouped_by_title(attribution, rows)
    if attribution.rules.step:
        titles, group = [f"`{attribution.rules.step}`"], np.zeros(len(rows), np.int64)
    above, own_ns = _steps_above(attribution, rows, with_work=len(titles) > 1)
    lost = rows < 0 if attribution.rules.step else _with_lost_end(attribution, rows, group, above)
    while (skipped := (above >= 0) & lost[above]).any():  # a step that has lost its end is none
        above = np.where(skipped, above[above], above)
    ancestors = []
    nearest = above
    while (nearest >= 0).any():
        ancestors.append(nearest)
        nearest = np.where(nearest >= 0, above[nearest], -1)
    chosen, notes, refusal = _chosen_group(titles, group, ~lost, ancestors, own_ns)
    if refusal:
        return rows[:0], "", notes, refusal
    outermost = (group == chosen) & ~lost
    for higher in ancestors:  # a step inside another is part of it
        outermost &= ~((higher >= 0) & (group[higher] == chosen))
    return rows[outermost], f"ranges {titles[chosen]}", notes, ""


def _grouped_by_title(attribution: Attribution, rows: Int64s) -> tuple[list[str], Int64s]:
    """Group ranges by their names without numbers; steps that serving engines name by their content are one."""
    names = attribution.trace.names
    ids, name = np.unique(attribution.ranges.name_id[rows], return_inverse=True)
    titles: dict[str, int] = {}
    group = [
        titles.setdefault("of the engine" if is_of_engine(title) else f"`{_DIGITS.sub('*', title)}`", len(titles))
        for title in (without_marks(names[name_id]) for name_id in ids.tolist())
    ]
    return list(titles), np.array(group, np.int64)[name]


def _steps_above(attribution: Attribution, rows: Int64s, *, with_work: bool) -> tuple[Int64s, NDArray[np.int64]]:
    """Return the nearest of some ranges above each of them, -1 for none, and the work of each by phase, ns.

    Work counts for the innermost of the ranges only: int64 (rows,) and (rows, phases).
    """
    forest, work = attribution.forest, attribution.trace.work
    number = np.full(len(attribution.ranges), -1, np.int32)
    number[rows] = np.arange(len(rows))
    of_node = np.append(forest.nearest(number[forest.range]), np.int32(-1))
    above = of_node[forest.above(attribution.home[rows])].astype(np.int64)
    if not with_work:
        return above, np.zeros((len(rows), len(PHASES)), np.int64)
    innermost = of_node[attribution.node]
    inside = np.flatnonzero(innermost >= 0)
    cell = innermost[inside].astype(np.int64) * len(PHASES) + attribution.phase[inside]
    own_ns = np.bincount(cell, work.duration_ns[inside], len(rows) * len(PHASES)).astype(np.int64)
    return above, own_ns.reshape(len(rows), len(PHASES))


def _with_lost_end(attribution: Attribution, rows: Int64s, group: Int64s, above: Int64s) -> Bools:
    """Mark the steps that contain a later number of their own group: an exception took their ends."""
    names = attribution.trace.names
    ids, name = np.unique(attribution.ranges.name_id[rows], return_inverse=True)
    numbers = [[int(digits) for digits in _DIGITS.findall(names[name_id])] for name_id in ids.tolist()]
    order = {tuple(step_number): place for place, step_number in enumerate(sorted(numbers))}
    place = np.array([order[tuple(step_number)] for step_number in numbers], np.int64)[name]
    lost = np.zeros(len(rows), np.bool_)
    inner, outer = np.flatnonzero(above >= 0), above[above >= 0]
    while len(inner):
        lost[outer[(group[inner] == group[outer]) & (place[inner] > place[outer])]] = True
        inner, outer = inner[above[outer] >= 0], above[outer][above[outer] >= 0]
    return lost


def _chosen_group(
    titles: Sequence[str], group: Int64s, counted: Bools, ancestors: Sequence[Int64s], own_ns: NDArray[np.int64]
) -> tuple[int, list[str], str]:
    """Return the group of names that is the steps, notes on the others, and why none can be chosen.

    `own_ns` is the work of each step by phase that is in no step inside it.
    """
    if len(titles) == 1:
        return 0, [], ""
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
        return -1, [], f"Several kinds of ranges could be its steps ({several}): choose one with --step NAME."
    chosen = int(outermost[order[0]])
    others = [
        f"{titles[candidate]} ({count_text(int(count[candidate]))})"
        for candidate in np.flatnonzero(count > 0).tolist()
        if candidate != chosen
        and not nested[candidate, chosen] > count[candidate] / 2
        and not nested[chosen, candidate]
    ]
    notes = (
        [f"Steps are the ranges {titles[chosen]}; not counted as steps: {', '.join(others)}."] if others else []
    )
    return chosen, notes, ""


def _first_steps(attribution: Attribution, rows: Int64s, training: dict[int, TrainingFacts]) -> Bools:
    """Mark the program's own steps that are the warm-up of a block of `nk.profile`."""
    warm_up, ranges = np.zeros(len(rows), np.bool_), attribution.ranges
    process = attribution.trace.process_of_thread()[ranges.thread[rows]]
    for number, facts in training.items():
        if facts.begin_ns is not None and facts.warm_up:
            started = rows[(process == number) & (ranges.start_ns[rows] >= facts.begin_ns)]
            first = started[np.argsort(ranges.start_ns[started], kind="stable")][: facts.warm_up]
            warm_up |= np.isin(rows, first)
    return warm_up


def _decided(
    attribution: Attribution, training: dict[int, TrainingFacts], with_ranges: Sequence[int]
) -> dict[int, tuple[Windows, Segments]]:
    """Return the windows of the processes whose training was recorded, and that have no ranges of steps."""
    if attribution.rules.step or not training.keys() - {*with_ranges}:
        return {}
    decided: dict[int, tuple[Windows, Segments]] = {}
    trace, ranges, forest = attribution.trace, attribution.ranges, attribution.forest
    thread_process, calls = trace.process_of_thread(), working_calls(trace)
    of_model = ranges.of_model & (attribution.home >= 0)
    inside_model = forest.nearest(np.where(of_model[forest.range], 0, -1).astype(np.int32)) >= 0
    above = forest.above(attribution.home)
    outermost = of_model & ~np.where(above >= 0, np.append(inside_model, False)[above], False)
    backward = of_titles(attribution.facts.backward_phase, ranges)
    for process in sorted(training.keys() - {*with_ranges}):
        of_process = thread_process[ranges.thread] == process
        called = ranges.take(of_process & outermost & ranges.of_forward)
        ran = ranges.take(of_process & backward)
        activity = Activity(
            Calls(called.start_ns, called.end_ns, called.category, called.name_id),
            ran.start_ns,
            ran.end_ns,
            np.sort(calls.start_ns[thread_process[calls.thread] == process]),
        )
        process_windows = windows(training[process], activity, EVALUATION, MODEL_FORWARD)
        if len(process_windows.start_ns) or len(process_windows.evaluation_start_ns):
            roots = called.thread if len(called) else calls.thread[thread_process[calls.thread] == process]
            thread = int(np.bincount(roots).argmax()) if len(roots) else 0
            decided[process] = process_windows, Segments.of(process_windows, thread)
    return decided


def _told(
    attribution: Attribution,
    decided: dict[int, tuple[Windows, Segments]],
    training: dict[int, TrainingFacts],
) -> Steps:
    """Return the steps with what ended them, and notes on what is not in them."""
    steps = attribution.steps
    ended = list(
        dict.fromkeys(
            process_windows.ended_by for process_windows, _ in decided.values() if process_windows.ended_by
        )
    )
    notes = list(steps.notes)
    for ending in ended:
        if ending == WHOLE_BLOCK:
            notes.append("Nothing ended a step in the block that was profiled: all of it is one.")
        else:
            notes.append(f"A step ends with each {ending}.")
    for process_windows, _ in decided.values():
        notes += [f"{name} was given, and never updated." for name in process_windows.never_updated]
    notes += [
        f"The block that was profiled ended with {facts.error}." for facts in training.values() if facts.error
    ]
    if removed_ns := evaluation_ns(attribution):
        stretches = sum(len(process_windows.evaluation_start_ns) for process_windows, _ in decided.values())
        notes.append(
            f"{time_text(removed_ns)} of work is evaluation, in {count_text(stretches)} stretches, and in no step."
        )
    notes += _without_gradient(attribution)
    return replace(steps, ended_by=" and ".join(filter(None, (steps.ended_by, *ended))), notes=tuple(notes))


#: The share of the steps' work without gradient from which a note says so.
MUCH = 0.1


def _without_gradient(attribution: Attribution) -> Iterator[str]:
    """Yield a note where much of the steps' work is in calls without gradient, as a forgotten eval() makes."""
    forest, ranges, work = attribution.forest, attribution.ranges, attribution.trace.work
    flag = np.where(ranges.category == NO_GRADIENT, ranges.name_id, -1).astype(np.int32)
    model = np.append(forest.nearest(flag[forest.range]), np.int32(-1))[attribution.node]
    in_step = step_of_nodes(attribution, include_warm_up=False)[attribution.node] >= 0
    whole_ns, free_ns = (int(work.duration_ns[rows].sum()) for rows in (in_step, in_step & (model >= 0)))
    if free_ns > MUCH * whole_ns:
        names = [attribution.trace.names[name_id] for name_id in distinct(model[in_step & (model >= 0)]).tolist()]
        yield (
            f"{free_ns / whole_ns:.0%} of the steps' work is in calls of {', '.join(names)} without gradient in "
            "training mode; if they are an evaluation, call eval() before them."
        )
