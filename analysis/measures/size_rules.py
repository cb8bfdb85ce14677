"""What a step of a new size pays: libraries choose and plan kernels for each new length of a batch.

layer 0   [pause ········] kernel     layer 1  kernel     layer 2  kernel     …     in a step of a new length
layer 0   kernel                      layer 1  kernel     layer 2  kernel     …     in a step of a known one
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..readers.columns import Interner
from ..support.small_numbers import distinct
from ..support.units import time_in_digits
from ..trace import Bools, Int64s, Path, marked
from ..vocabulary import BACKWARD, FORWARD, PATH_SEPARATOR, collapsed
from .fix_subject import AT_ONCE_NS, FixSubject
from .gpu_time import Floats
from .symptoms import Found, HostTime, Unjudged
from .timeline import PAUSE_NS, Timeline

#: Steps have one size if the sums of their kernels' blocks differ by no more than this share.
SAME_SIZE = 0.001
#: Sizes that a program must have to vary them, and the share of the paused steps that are of a new one.
FEWEST_SIZES, MOSTLY_NEW = 3, 0.8
#: Steps with such pauses, and how often a step does the same without one for each time with it.
FEWEST_STEPS, ALIKE_WITHOUT = 2, 2
#: What cuDNN's kernels for attention are called, and how PyTorch takes others.
CUDNN_ATTENTION = r"\bcudnn\w*sdpa"
OTHER_ATTENTION = ", or torch.backends.cuda.enable_cudnn_sdp(False)"


def new_sizes(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find pauses that steps of new sizes have in forward and backward, at the first of several equal places."""
    calls = set_ups(subject)
    if not len(calls):
        return
    timeline = subject.timeline
    paused = distinct(timeline.step_of_call[calls])
    time = time_in_digits(float(timeline.before_ns[calls].sum()) / len(paused))
    work = _following(subject, calls)
    ranges = subject.places(marked(work, len(subject.row)))
    is_cudnn = bool(subject.matching(CUDNN_ATTENTION)[np.isin(subject.path_id, subject.path_id[work])].any())
    other = OTHER_ATTENTION if is_cudnn else ""
    inside = f" in {PATH_SEPARATOR.join(ranges[0][-2:])}" if ranges else ""

    def change(timeline: Timeline) -> Timeline:
        return timeline.pausing(calls, AT_ONCE_NS)

    sentence = (
        f"{len(paused)} of {subject.steps} steps have a new size, such as a batch's length, and choosing kernels "
        f"for it takes {time}{inside}: pad to few lengths (multiples of 64){other}"
    )
    short = f"Pad to few lengths (multiples of 64){other}: a new length takes {time}"
    yield Found(change, sentence, short, marked(work, len(subject.row)), host=HostTime(pauses=calls))


def set_ups(subject: FixSubject) -> Int64s:
    """Return the calls before which steps of new sizes pause, while equal places of the same steps have no pause.

    A place is the ranges around work, their indices left away, and its name; the program pauses in the innermost
    of these ranges. Ranges tell equal places apart: without, any pause before a kernel looks alike.
    """
    none = np.empty(0, np.int64)
    sizes, is_new = _sizes(subject)
    if sizes < FEWEST_SIZES:
        return none
    is_paused = (subject.timeline.before_ns > PAUSE_NS) & ~subject.opening_backward
    long = np.flatnonzero(is_paused)
    rows = _following(subject, long)
    in_model = subject.of_phase(FORWARD, BACKWARD)[rows]
    in_place = in_model & _are_inside(subject, long, rows)
    long, rows = long[in_place], rows[in_place]
    if not len(long):
        return none
    place = _places(subject)
    paused = np.bincount(place[rows], minlength=place.max() + 1)
    ranges, _ = np.unique(np.stack([place, subject.node]), axis=1)
    is_alone = np.bincount(ranges)[place[rows]] >= (1 + ALIKE_WITHOUT) * paused[place[rows]]
    calls = long[is_alone]
    calls = np.array([call for call in calls.tolist() if subject.idle_before(call) > 0.5], np.int64)
    steps = distinct(subject.timeline.step_of_call[calls])
    return calls if len(steps) >= FEWEST_STEPS and is_new[steps].mean() >= MOSTLY_NEW else none


def _are_inside(subject: FixSubject, calls: Int64s, rows: Int64s) -> Bools:
    """Return whether the program is in the ranges of some work amid the pause before each of some calls."""
    amid = subject.nodes_at(calls, subject.amid_pauses(calls)).tolist()
    pairs = zip(amid, subject.node[rows].tolist(), strict=True)
    return np.array([subject.path(there) == subject.path(node) for there, node in pairs], np.bool_)


def _following(subject: FixSubject, calls: Int64s) -> Int64s:
    """Return the work that comes next after each of some calls, or that it launches."""
    return np.minimum(np.searchsorted(subject.work.call, calls), len(subject.row) - 1)


def _places(subject: FixSubject) -> Int64s:
    """Return the place of each piece of work in each step and phase, as a number, int64 (work,)."""
    number = Interner[Path]()
    _, first, path = np.unique(subject.path_id, return_index=True, return_inverse=True)
    inside = [subject.below_step(subject.path(node)) for node in subject.node[first].tolist()]
    alike = np.array([number(tuple(map(collapsed, names))) for names in inside], np.int64)
    timeline = subject.timeline
    columns = np.stack([alike[path], subject.code, timeline.step_of_work, timeline.work_phase])
    _, place = np.unique(columns, axis=1, return_inverse=True)
    return place.astype(np.int64).ravel()


def _sizes(subject: FixSubject) -> tuple[int, Bools]:
    """Return how many sizes the steps have, and which steps have one that no step before them had, per step."""
    blocks = subject.trace.work.grid[subject.row]
    of_steps = np.bincount(subject.timeline.step_of_work, blocks, subject.steps)
    known = list[float]()
    is_new = np.zeros(subject.steps, np.bool_)
    for step, size in enumerate(of_steps.tolist()):
        is_new[step] = not any(abs(size - other) <= SAME_SIZE * other for other in known)
        if is_new[step]:
            known.append(size)
    return len(known), is_new
