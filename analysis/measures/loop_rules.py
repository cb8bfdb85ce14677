"""The rule on loops over tensors: the same small kernels, launched for one tensor after another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..support.small_numbers import rows_of_each
from ..support.units import counted
from ..trace import Bools, Int32s, Int64s
from ..vocabulary import OPTIMIZER, OTHER
from .fix_subject import FixSubject
from .gpu_time import Floats
from .launch_rules import at_once
from .optimizer_rules import BYTES, MANY_LAUNCHES, updating_class
from .symptoms import Found, Unjudged
from .timeline import TO_CPU, TO_GPU

#: A loop launches a kernel of one name so often in a step, and each is shorter than this, ns.
OFTEN, SMALL_NS = 40, 30_000
#: What one call can do with many tensors: kernels of these categories, and copies on the GPU.
OF_EACH_ELEMENT = ("elementwise", "copy", "reduction")
#: A turn of a loop has at most so much work, and a loop at least so many turns in a row.
MOST_IN_TURN, FEWEST_TURNS = 32, 8
#: From one turn to the next, the sizes grow in this share of the work at least, and shrink in this share.
SIZES_VARY = 0.05


def one_by_one(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find loops over tensors beside forward and backward; an optimizer that can be fused has a rule."""
    for phase in (OPTIMIZER, OTHER):
        called = updating_class(subject) if phase == OPTIMIZER else None
        if phase == OPTIMIZER and (called is None or called in BYTES):
            continue
        loop = _loops_of_phase(subject, phase)
        work = _often(subject, (loop >= 0) & (subject.timeline.duration_ns <= SMALL_NS))
        launches = subject.per_step(work & subject.kernel)
        if launches < MANY_LAUNCHES or not subject.in_most_steps(subject.work.call[work]):
            continue
        kernels = counted(round(launches), "kernel")
        sentence, short = _texts(called, kernels)
        yield Found(at_once(subject, work, loop), sentence, short, work)


def _texts(called: str | None, kernels: str) -> tuple[str, str]:
    """Return a sentence on a loop in an optimizer of a class, None for one beside it; and the same in short."""
    short = "One call for all tensors (torch._foreach_…)"
    if called:
        sentence = (
            f"{called} launches {kernels} a step for one tensor after another: "
            "one call for all tensors (torch._foreach_mul_ and others)"
        )
        return sentence, f"{short}: {called} launches {kernels} a step"
    sentence = (
        f"Each step launches {kernels} for one tensor after another, beside forward, backward and optimizer: "
        "one call for all tensors (torch._foreach_lerp_ and others; multi_avg_fn of AveragedModel)"
    )
    return sentence, f"{short}: a loop launches {kernels} a step"


def _loops_of_phase(subject: FixSubject, phase: str) -> Int64s:
    """Return the loop over tensors that each piece of a phase's work is part of, -1 for none, int64 (work,)."""
    between_memories = subject.named(lambda name: name in (TO_CPU, TO_GPU))
    fits = subject.of_category(*OF_EACH_ELEMENT) | (~subject.kernel & ~between_memories)
    fits &= subject.of_phase(phase)
    name = np.where(fits, subject.code, -1 - np.arange(len(fits)))  # what does not fit is like nothing else
    blocks = subject.trace.work.grid[subject.row]
    loop = np.full(len(fits), -1, np.int64)
    for _key, rows in rows_of_each(subject.timeline.step_of_work):
        of_step = tensor_loops(name[rows], blocks[rows])
        loop[rows] = np.where(of_step >= 0, of_step + rows[0], -1)
    return loop


def _often(subject: FixSubject, work: Bools) -> Bools:
    """Mark those of some work whose name they have often in a step."""
    times = np.bincount(subject.code[work], minlength=len(subject.names))
    return work & (times >= OFTEN * subject.steps)[subject.code]


def tensor_loops(name: Int64s, blocks: Int32s) -> Int64s:
    """Return the loop over tensors that each piece of work in a row is part of, -1 for none, int64 (work,).

    `name` (work,) are numbers of names, `blocks` (work,) the sizes of grids, 0 where unknown. A loop does the same
    work in each turn. The sizes of different tensors go up and down from turn to turn; a loop over time has those
    of the turn before, or such as only grow or only shrink. A loop is called by the position where it begins.
    """
    loop = np.full(len(name), -1, np.int64)
    for length in range(1, min(MOST_IN_TURN, len(name) - 1) + 1):
        is_alike = name[length:] == name[:-length]
        for begin, end in _stretches(is_alike, (FEWEST_TURNS - 1) * length):
            is_free = loop[begin : end + length] < 0
            growth = blocks[begin + length : end + length] - blocks[begin:end]
            varies = min((growth > 0).mean(), (growth < 0).mean()) >= SIZES_VARY
            if varies and is_free.mean() > 0.5:
                loop[begin : end + length][is_free] = begin
    return loop


def _stretches(is_alike: Bools, fewest: int) -> Iterator[tuple[int, int]]:
    """Yield where stretches of True, that are so long at least, begin and end."""
    changes = np.diff(np.concatenate([[False], is_alike, [False]]).astype(np.int8))
    begins = np.flatnonzero(changes > 0)
    ends = np.flatnonzero(changes < 0)
    is_long = ends - begins >= fewest
    yield from zip(begins[is_long].tolist(), ends[is_long].tolist(), strict=True)
