"""The rule on pauses of the program: the host computes or loads, and the GPU has nothing to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ..account.lines import line_of_pauses
from ..support.small_numbers import distinct, rows_of_each
from ..support.text import capitalized
from ..support.units import time_in_digits
from ..trace import Int64s, marked
from ..vocabulary import BACKWARD, OTHER, PATH_SEPARATOR, PHASES
from .copy_rules import copied_results, following_calls
from .fix_subject import AT_ONCE_NS, FixSubject
from .gpu_time import Floats
from .size_rules import set_ups
from .symptoms import Found, HostTime, Unjudged
from .timeline import PAUSE_NS, Timeline

#: What functions and ranges are called in which the program collects garbage itself.
COLLECTS = re.compile(r"\bgc\.collect\b|<built-in (?:function|method) collect\b")
#: A pause that is in one step alone shows nothing of the others, unless it is for data.
FEWEST_STEPS = 2


def host_pause(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find pauses of the program at one place of nearly all steps, in which the GPU has nothing to do."""
    timeline = subject.timeline
    work = subject.work
    long = np.flatnonzero(timeline.before_ns > PAUSE_NS)
    long = long[~subject.opening_backward[long]]
    long = np.setdiff1d(long, following_calls(subject, copied_results(subject)))  # `to_cpu` has those
    long = np.setdiff1d(long, set_ups(subject))  # and `new_sizes` these
    long = np.array([call for call in long.tolist() if subject.idle_before(call) > 0.5], np.int64)
    if not len(long):
        return
    following = np.minimum(np.searchsorted(work.call, long), len(work.call) - 1)
    for _key, rows in rows_of_each(_places(subject, long, following)):
        calls = long[rows]
        next_work = following[rows]
        loads = subject.loads_data(calls)
        if not subject.in_most_steps(calls) or (subject.steps < FEWEST_STEPS and not loads):
            continue

        def change(timeline: Timeline, calls: Int64s = calls) -> Timeline:
            return timeline.pausing(calls, AT_ONCE_NS)

        paused = distinct(timeline.step_of_call[calls])  # without the first step, if it begins behind them
        mean_ns = min(float(timeline.before_ns[calls].sum()) / len(paused), subject.step_ns)
        copies = subject.timeline.copied.bytes[next_work] > 0
        is_copy = subject.matching(r"memcpy Host-to-Device")[next_work] & (copies | (subject.trace.copies is None))
        time = time_in_digits(mean_ns)
        if loads:
            does = f"loads data for {time}"
            remedy, short = _batch(subject, loads)
        elif is_copy.mean() >= 0.5:
            does = f"computes for {time} before the step's first copy to the GPU"
            remedy, short = _batch(subject, loads)
        else:
            place = _place_of_pause(subject, calls, next_work)
            does = f"computes for {time} {place}"
            remedy, short = _shorter_code(subject, calls, place)
        concerned = marked(next_work, len(work.row))
        sentence = f"The program {does}, and the GPU has nothing to do: {remedy}"
        yield Found(change, sentence, short, concerned, host=HostTime(pauses=calls))


def _places(subject: FixSubject, calls: Int64s, following: Int64s) -> Int64s:
    """Return a number of the place of the pause before each of some calls: equal ones are of one line and phase.

    `following` is the work that comes next, one piece for each call. Pauses between the same calls are at one
    place, and two such places are one if most of their pauses are at the same line.
    """
    before = np.where(calls > 0, subject.host.name[calls - 1], -1)
    line = line_of_pauses(subject.attribution, subject.host.row[calls])
    phase = subject.timeline.work_phase[following]
    place = np.arange(len(calls))
    first_at: dict[tuple[int, int], int] = {}
    for _key, rows in rows_of_each(before, subject.host.name[calls], subject.path_id[following]):
        known = line[rows][line[rows] >= 0]
        place[rows] = rows[0]
        if 2 * len(known) > len(rows):
            at = int(np.bincount(known).argmax()), int(phase[rows[0]])
            place[rows] = first_at.setdefault(at, int(rows[0]))
    return place


def remedy_of_loading(has_workers: bool | None) -> str:
    """Return what to do about waiting for data, of a loader with workers, without, or where that is unknown."""
    if has_workers is None:
        return "more DataLoader workers (num_workers), or a faster __getitem__"
    if has_workers:
        return "more workers, or a faster __getitem__ (the DataLoader has workers)"
    return "make batches in DataLoader(num_workers=…), or make __getitem__ faster"


def _batch(subject: FixSubject, loads: bool) -> tuple[str, str]:
    """Return what to do about batches that the program makes or waits for; and the same in short."""
    if not loads and not subject.run.get("loaders"):
        remedy = "make the batch on the GPU or in workers (device=…, or DataLoader(num_workers=…))"
        return remedy, "Make the batch on the GPU (device=…) or in DataLoader workers"
    remedy = remedy_of_loading(subject.has_workers)
    return remedy, capitalized(remedy)


def _place_of_pause(subject: FixSubject, calls: Int64s, following: Int64s) -> str:
    """Return where the pauses before some calls are: `between backward and optimizer`, else `before GPT > e`.

    `following` is the work that comes next, one piece for each call.
    """
    phase = subject.timeline.work_phase
    previous = np.maximum(np.searchsorted(subject.work.call, calls) - 1, 0)
    before, after = (PHASES[np.bincount(phase[rows]).argmax()] for rows in (previous, following))
    if before != after and OTHER not in (before, after):
        return f"between {before} and {after}"
    path = subject.below_step(subject.path(int(subject.node[following[0]])))
    if path:
        of_backward = "backward of " if after == BACKWARD and len(path) > 1 else ""
        return f"before {of_backward}{PATH_SEPARATOR.join(path[-2:])}"
    call = "" if calls[0] - 1 in subject.work.call else subject.host_call(calls[0] - 1)
    return f"after {call}" if call else "between two launches"


def _shorter_code(subject: FixSubject, calls: Int64s, place: str) -> tuple[str, str]:
    """Return what to do about code in the pauses before some calls; and the same in short, with their place."""
    if any(map(COLLECTS.search, subject.running_before(calls))):
        remedy = "call gc.collect() less often, or gc.freeze() after warm-up"
        return remedy, f"{capitalized(remedy)} ({place})"
    remedy = "shorten this code, or run it every N steps (logging, checks, gc.collect())"
    return remedy, f"Python {place}: shorten it, or run it every N steps"
