"""What people are told of steps that were recorded: what ended them, and what is in none of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..support.small_numbers import distinct
from ..support.units import count_text, ordinal, time_text
from ..trace import EVALUATION, NO_GRADIENT, Int32s
from ..vocabulary.step_ends import no_step_text
from .places import Attribution, Steps
from .step_decisions import (
    FROM_FIRST_CALL,
    WHOLE_BLOCK,
    TrainingFacts,
    Windows,
)
from .steps import evaluation_ns, step_of_nodes

#: The share of the steps' work without gradient from which a note says so.
MUCH = 0.1
#: An optimizer among several of its class: `Adam#2`.
NUMBERED = re.compile(r"\b(\w+)#(\d{1,9})\b")


def with_notes(attribution: Attribution, decided: Sequence[Windows], training: dict[int, TrainingFacts]) -> Steps:
    """Return the steps with what ended them, and notes on what is not in them."""
    steps = attribution.steps
    endings = [*dict.fromkeys(times.ended_by for times in decided if times.ended_by)]
    unused = [*dict.fromkeys(name for facts in training.values() for name in facts.unused)]
    notes = []
    for ending in endings:
        if ending in (WHOLE_BLOCK, FROM_FIRST_CALL):
            notes.append(no_step_text(unused, from_first_call=ending == FROM_FIRST_CALL))
        else:
            notes.append(f"A step ends with each {NUMBERED.sub(_numbered, ending)}.")
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


def _numbered(name: re.Match[str]) -> str:
    """Return an optimizer among several of its class in words: `the 2nd Adam`."""
    return f"the {ordinal(int(name[2]))} {name[1]}"


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
