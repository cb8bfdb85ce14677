"""Rules on calls of models: on one part of a batch after another, and again without gradient.

in_parts         model(a) │ loss │ model(b) │ loss │ …       one call on all parts
second_forward   model(x) │ backward │ no_grad: model(x)     the outputs of the first call
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from ..attribution.operators import outermost_of
from ..support.small_numbers import distinct, looked_up, rows_of_each
from ..support.units import counted
from ..trace import MODEL_FORWARD, Bools, Int32s, Int64s, Path
from ..vocabulary import BACKWARD, FORWARD, PHASES
from .fix_subject import FixSubject
from .gpu_rules import leaving_out
from .gpu_subject import GpuSubject
from .gpu_time import Floats
from .launch_rules import limited_by_launching
from .symptoms import Found, Unjudged
from .timeline import Timeline

#: A model is called in parts from so many calls a step on, of which this share is followed by the next at once.
FEWEST_CALLS, IN_A_ROW = 8, 0.9
#: Batches are of one size if the blocks of calls' kernels differ by less than this share.
SAME_SIZE = 0.05


def second_forward(subject: GpuSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find the only model of a program called once more without gradient, on as large a batch: for a metric."""
    call = _outermost_call(subject)
    ranges = subject.attribution.ranges
    names = distinct(ranges.name_id[call[call >= 0]])
    if len(names) != 1 or len(subject.trace.provenance.models) > 1:
        return
    of_model = (call >= 0) & ~subject.of_phase(BACKWARD)
    has_gradient = _has_gradient(subject, call)
    again = of_model & ~has_gradient
    sizes, again_sizes = (_sizes(subject, call, work) for work in (of_model & has_gradient, again))
    once_a_step = subject.steps - 1, subject.steps, subject.steps + 1
    if len(sizes) not in once_a_step or len(sizes) != len(again_sizes) or not sizes.sum():
        return
    if abs(again_sizes.sum() / sizes.sum() - 1) > SAME_SIZE:
        return
    called = subject.trace.names[names[0]]
    sentence = (
        f"Each step calls {called} again without gradient, on as large a batch as with: "
        "use the outputs of the first call, if the inputs are the same"
    )
    short = f"Use outputs of the first call of {called}, if the second has the same inputs"
    yield Found(leaving_out(again), sentence, short, again)


def _has_gradient(subject: GpuSubject, call: Int32s) -> Bools:
    """Mark the work whose outermost call of a model, given for each, is with gradient."""
    return np.equal(looked_up(subject.attribution.ranges.category, call, -1), MODEL_FORWARD)


def _sizes(subject: GpuSubject, call: Int32s, work: Bools) -> Floats:
    """Return how many blocks the products of each call have whose work this is."""
    rows = np.flatnonzero(work & (subject.products | subject.of_category("convolution", "attention")))
    blocks = subject.trace.work.grid[subject.row[rows]]
    return np.array([blocks[places].sum() for _call, places in rows_of_each(call[rows])], np.float64)


def in_parts(subject: FixSubject, factors: Floats) -> Iterator[Found | Unjudged]:
    """Find a model that each step calls on many parts, one right after another, while launches limit the step.

    With gradient, kernels may be between: those of a loss. Whether a call needs what the one before returned is in
    no report: the row says on which condition it holds.
    """
    if PHASES.index(FORWARD) not in limited_by_launching(subject, factors.min(axis=0)):
        return
    part = np.where(subject.of_phase(FORWARD), _outermost_call(subject), np.int32(-1))
    name_of_part = looked_up(subject.attribution.ranges.name_id, part, -1)
    has_gradient = _has_gradient(subject, part)
    for (name, is_trained), rows in rows_of_each(name_of_part, has_gradient):
        parts = len(distinct(part[rows])) / subject.steps
        if name < 0 or parts < FEWEST_CALLS or not subject.in_most_steps(subject.work.call[rows]):
            continue
        if not _is_in_a_row(subject, part, rows, may_have_kernels=bool(is_trained)):
            continue
        called = subject.trace.names[name]
        work = _until_last(subject, rows) | (_backward_of(subject, called) & bool(is_trained))
        count = counted(round(parts), "call")
        sentence = (
            f"{called} runs in {count} a step, one right after another, and launching limits them: "
            "one call on all parts, if none needs what the one before returned"
        )
        short = f"Call {called} once on all parts ({count} a step), if none needs the one before"
        yield Found(_in_one_call(subject, work, parts), sentence, short, work)


def _outermost_call(subject: GpuSubject) -> Int32s:
    """Return the outermost call of a model that each piece of work is in, a range; -1 for none."""
    forest = subject.attribution.forest
    of_model = subject.attribution.ranges.of_forward[forest.range]
    outermost = outermost_of(forest, np.where(of_model, forest.range, np.int32(-1)))
    return outermost[subject.node]


def _until_last(subject: FixSubject, rows: Int64s) -> Bools:
    """Mark some work, and the kernels of forward from its first to its last in each step."""
    within = np.zeros(len(subject.row), np.bool_)
    for _step, places in rows_of_each(subject.timeline.step_of_work[rows]):
        within[rows[places[0]] : rows[places[-1]]] = True
    within &= subject.of_phase(FORWARD) & subject.kernel
    within[rows] = True
    return within


def _backward_of(subject: FixSubject, called: str) -> Bools:
    """Mark the work of backward inside of ranges that are called like a model."""

    def is_inside(path: Path) -> bool:
        return called in path

    return subject.in_places(is_inside) & subject.of_phase(BACKWARD)


def _is_in_a_row(subject: FixSubject, part: Int32s, rows: Int64s, *, may_have_kernels: bool) -> bool:
    """Return whether most calls, that some work is of, have no work between them and the next in their step.

    There may be kernels. What copies or waits is an environment, or decides how to go on.
    """
    before, after = rows[:-1], rows[1:]
    is_next = part[after] != part[before]
    is_next &= subject.timeline.step_of_work[after] == subject.timeline.step_of_work[before]
    others = np.cumsum(~(subject.kernel & may_have_kernels))
    waits = np.cumsum(subject.waiting)
    call = subject.work.call
    is_free = (others[after - 1] == others[before]) & (waits[call[after]] == waits[call[before]])
    return bool(is_next.any()) and float(is_free[is_next].mean()) >= IN_A_ROW


def _in_one_call(subject: FixSubject, work: Bools, parts: float) -> Callable[[Timeline], Timeline]:
    """Return the change by which some work of each step and phase is launched with one part's launches.

    The first part's kernels then take the time of all.
    """
    dropped = np.zeros(len(work), np.bool_)
    calls = np.zeros(len(subject.host.row), np.bool_)
    chosen = np.flatnonzero(work)
    group = subject.timeline.step_of_work, subject.timeline.work_phase
    for _key, places in rows_of_each(*(column[chosen] for column in group)):
        others = chosen[places][math.ceil(len(places) / parts) :]
        if not len(others):
            continue
        dropped[others] = True
        begin, end = subject.work.call[[others[0], others[-1]]]
        calls[begin : end + 1] = True
    calls[subject.work.call[~dropped]] = False
    factor = subject.taking_over(work, dropped, *group)

    def change(timeline: Timeline) -> Timeline:
        return timeline.lasting(timeline.duration_ns * factor).without_calls(calls, dropped)

    return change
