"""Steps that a program names: its own ranges that are called steps, and those that only are an update.

    ranges called steps ─► groups of names ─► without lost ends ─► one group: trains, or has the most work

docs/attribution.md has the definitions, under "Steps".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..support.small_numbers import distinct, summed
from ..support.units import count_text
from ..trace import Bools, Int32s, Int64s
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, PHASES, is_of_engine, without_marks, without_numbers
from .places import Attribution
from .steps import range_of_nodes
from .user_ranges import of_titles

IN_FORWARD, IN_BACKWARD, IN_OPTIMIZER = map(PHASES.index, (FORWARD, BACKWARD, OPTIMIZER))
#: What tutorials call the range around an optimizer's update.
UPDATE = re.compile(r"(?:optimi[sz]er[-_ .])?step(?:\(\))?[-_ #:]*\d*", re.IGNORECASE)
#: Groups of ranges between the steps that evaluate, whatever phases they have.
EVALUATES = re.compile(r"val(?:id(?:ate|ation)?)?(?![a-z])|eval|test(?![a-z])", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


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


class NamedSteps(NamedTuple):
    """Ranges that the program calls its steps, those that validate, and their names on screens.

    `refusal` explains why there are no steps, or is "".
    """

    rows: Int64s
    validation: Int64s
    ended_by: str = ""
    notes: tuple[str, ...] = ()
    refusal: str = ""


def ranges_called_steps(
    attribution: Attribution, by_calls: set[int], updates: Bools, copying_threads: frozenset[int]
) -> NamedSteps:
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
        return NamedSteps(rows, rows)
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
            return NamedSteps(none, none, refusal=refusal)
    outermost = (group == chosen) & ~lost
    for higher in ancestors:  # a step inside another is part of it
        outermost &= ~((higher >= 0) & (group[higher] == chosen))
    validation = rows[evaluates[group] & ~lost]
    ended_by = f"ranges {distinct_titles[chosen]}"
    return NamedSteps(rows[outermost], validation, ended_by, (note,) if note else ())


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
