"""Rules that judge by a replay, as they are about the host: pauses, reads, copies, launches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..account.idle import LATENCY, LAUNCHING, MODULE_LOADING
from ..account.lines import line_of_pauses
from ..report.limits import CAUSE_FROM, IDLE_LIMITS_BELOW
from ..support.small_numbers import distinct, rows_of_each
from ..support.text import capitalized
from ..support.units import count_text, mib_text, time_in_digits
from ..trace import Bools, Int8s, Int64s, marked
from ..vocabulary import BACKWARD, FORWARD, OPTIMIZER, OTHER, PATH_SEPARATOR, PHASES
from .copy_rules import COPIED_BYTES, READ_BYTES, copied_results, following_calls
from .fix_subject import AT_ONCE_NS, FixSubject
from .gpu_time import Floats
from .size_rules import set_ups
from .symptoms import Found, HostTime, Unjudged
from .timeline import PAUSE_NS, Timeline
from .waste_rules import ALLOCATES, autograd_checks

#: What a launch takes where CUDA graphs or a compiler make most of them go away, ns.
CHEAP_LAUNCH_NS = 300.0
#: What a pinned copy reaches, bytes per ns, and what its call takes, ns.
PINNED_RATE, PINNED_CALL_NS = 50.0, 10_000.0
#: More reads than of a loss and a norm are of code that decides by them.
FEW_READS = 2
#: A number that is read outside of forward is computed for that by so many kernels at most: a norm, a maximum.
MOST_FOR_READ = 4
PINNED = "pin_memory=True and .to(device, non_blocking=True)"
#: What functions and ranges are called in which the program collects garbage itself.
COLLECTS = re.compile(r"\bgc\.collect\b|<built-in (?:function|method) collect\b")
#: A pause that is in one step alone shows nothing of the others, unless it is for data.
FEWEST_STEPS = 2


#: The kernels of recurrent cells, and of how many a step is a loop over time.
OF_CELLS, MANY_CELLS = {"LSTM": r"lstm_cell_forward", "GRU": r"gru_cell_forward"}, 8


class _Deciding(NamedTuple):
    """By which calls a program reads what it decides by, and what to write instead; each also in short."""

    calls: str
    short_calls: str
    remedy: str
    short_remedy: str


DECIDING, MASKS = ".item(), `if tensor`, nonzero()", "use torch.where, masks and fixed shapes"
BY_VALUES = _Deciding(DECIDING, DECIDING, MASKS, "use masks or torch.where(c, a, b)")
#: The kernel of `.all()`, and what is read by it.
ALL_TRUE = r"\band_kernel"
BY_CHECKS = _Deciding(
    "`if tensor.all()`, as in checks of torch.distributions",
    ".all()",
    f"Distribution.set_default_validate_args(False), or {MASKS}",
    "validate_args=False if of distributions",
)


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


def scalar_read(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find small copies to the CPU that the program waits for, outside of forward."""
    yield from _reads(subject, in_forward=False)


def forward_read(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find the same in forward, where the model's code decides by what is read."""
    yield from _reads(subject, in_forward=True)


def _reads(subject: FixSubject, *, in_forward: bool) -> Iterator[Found | Unjudged]:
    copied = subject.timeline.copied
    call = subject.work.call
    small = copied.to_cpu & (subject.of_phase(FORWARD) == in_forward)
    if not small.any():
        return
    if subject.trace.copies is None:
        yield Unjudged("the report does not say how many bytes are copied to the CPU")
        return
    small &= (copied.bytes <= READ_BYTES) & ~autograd_checks(subject)
    after = np.minimum(call + 1, len(subject.host.row) - 1)
    waits = np.where(subject.waiting[call], call, np.where(subject.waiting[after], after, -1))
    rows = subject.rows_in_most_steps(small & (waits >= 0))
    if not len(rows):
        return
    waits = waits[rows]

    def returning(timeline: Timeline) -> Timeline:
        return timeline.returning(waits)

    work = marked(rows, len(call))
    count = round(subject.per_step(work))
    times = f" {count_text(count)} times" if count > 1 else ""
    size = f"{int(np.median(copied.bytes[rows]))} bytes"
    waits_for = f"{count_text(max(count, 1))} {'wait' if count <= 1 else 'waits'} a step for"
    reads, short_reads, masks, masks_in_short = _deciding(subject, rows)
    change, least = returning, None
    if in_forward:
        remedy = f"{masks}, which needs other code"
        short = f"{waits_for} {short_reads}: {masks_in_short}"
    elif count > FEW_READS:
        remedy = f"read them every N steps, or {masks}"
        short = f"{waits_for} {short_reads}: read every N steps, or use masks"
    if count > FEW_READS:
        measured = work | _computed_for(subject, rows)

        def change(timeline: Timeline) -> Timeline:
            return timeline.returning(waits).without(measured)

        least = returning
    elif not in_forward:
        remedy = "read the loss every N steps"
        reads = ".item(), float(), print"
        short = f"Read the loss every N steps: {waits_for} .item() or float()"
    inside = "forward" if in_forward else "step"
    sentence = f"Each {inside} waits{times} for {size} from the GPU ({reads}): {remedy}"
    yield Found(change, sentence, short, work, least=least, host=HostTime(waits))


def _deciding(subject: FixSubject, reads: Int64s) -> _Deciding:
    """Return how the program decides by what it reads, which are pieces of work."""
    are_of_all = subject.matching(ALL_TRUE)[np.maximum(reads - 1, 0)]
    return BY_CHECKS if are_of_all.mean() >= 0.5 else BY_VALUES


def _computed_for(subject: FixSubject, reads: Int64s) -> Bools:
    """Mark the kernels that compute what is read: some right before each read, of its step and phase."""
    timeline = subject.timeline
    is_read = marked(reads, len(subject.row))
    computed = np.zeros_like(is_read)
    rows = reads
    for _ in range(MOST_FOR_READ):
        rows, earlier = rows[rows > 0], rows[rows > 0] - 1
        goes_on = ~is_read[earlier] & subject.kernel[earlier]
        goes_on &= timeline.work_phase[earlier] == timeline.work_phase[rows]
        goes_on &= timeline.step_of_work[earlier] == timeline.step_of_work[rows]
        rows = earlier[goes_on]
        computed[rows] = True
    return computed


def pageable_copy(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find copies to the GPU from memory that is not pinned."""
    copied = subject.timeline.copied
    call = subject.work.call
    work = copied.from_pageable & (copied.bytes > COPIED_BYTES)
    if not work.any() or not subject.in_most_steps(call[work]):
        return
    copies = marked(call[work], len(subject.host.row))
    waits = np.concatenate([call[work], subject.waits_behind(work)])

    def change(timeline: Timeline) -> Timeline:
        at_rate_ns = np.minimum(timeline.duration_ns, copied.bytes / PINNED_RATE)
        return replace(
            timeline,
            own_ns=np.where(copies, np.minimum(timeline.own_ns, PINNED_CALL_NS), timeline.own_ns),
            lag_ns=np.where(work, np.minimum(timeline.lag_ns, PINNED_CALL_NS), timeline.lag_ns),
            duration_ns=np.where(work, at_rate_ns, timeline.duration_ns),
            waits=timeline.waits & ~marked(waits, len(copies)),
        )

    size = mib_text(float(copied.bytes[work].sum()) / subject.steps)
    sentence = f"{size} are copied from pageable memory while the program waits: {PINNED}"
    short = f"{PINNED} for {size} a step"
    yield Found(change, sentence, short, work, host=HostTime(waits))


def at_once(
    subject: FixSubject, work: Bools, group: Int64s, lasts_ns: float | None = None
) -> Callable[[Timeline], Timeline]:
    """Return the change that makes each group of some work one kernel, that lasts so long or as long as all.

    `group` (work,) numbers the groups of all work.
    """
    call = subject.work.call
    dropped_calls = np.zeros(len(subject.host.row), np.bool_)
    dropped = work.copy()
    rows_of_groups = [np.flatnonzero(work)[rows] for _key, rows in rows_of_each(group[work])]
    firsts = [rows[0] for rows in rows_of_groups]
    for rows in rows_of_groups:
        dropped_calls[call[rows[0]] + 1 : call[rows[-1]] + 1] = True
    dropped[firsts] = False
    dropped_calls[call[~work]] = False

    def change(timeline: Timeline) -> Timeline:
        duration = timeline.duration_ns.copy()
        if lasts_ns is None:
            duration[firsts] = [timeline.duration_ns[rows].sum() for rows in rows_of_groups]
        else:
            duration[firsts] = lasts_ns
        return timeline.lasting(duration).without_calls(dropped_calls, dropped)

    return change


def launching(subject: FixSubject, factors: Floats) -> Iterator[Found | Unjudged]:
    """Find phases in which the GPU waits for one launch after another."""
    phases = limited_by_launching(subject, factors.min(axis=0))
    if not phases:
        return
    names = [PHASES[phase] for phase in phases]
    of_phase = np.isin(subject.timeline.phase, phases)
    calls = of_phase & ~subject.waiting & ~subject.calls_named(ALLOCATES)

    def change(timeline: Timeline) -> Timeline:
        is_short = calls & (timeline.own_ns <= PAUSE_NS)
        own_ns = np.where(is_short, np.minimum(timeline.own_ns, CHEAP_LAUNCH_NS), timeline.own_ns)
        paused = timeline.pausing(calls & (timeline.before_ns <= PAUSE_NS), CHEAP_LAUNCH_NS)
        return replace(paused, own_ns=own_ns)

    work = np.isin(subject.timeline.work_phase, phases)
    in_model = [name for name in names if name in (FORWARD, BACKWARD)]
    limited = " and ".join(in_model).capitalize() if in_model else "The step"
    verb = "are" if len(in_model) > 1 else "is"
    count = count_text(round(subject.per_step(work & subject.kernel)))
    kernels = f"{count} small kernels"
    reads = _reads_inside(subject)
    remedy, short = _fewer_launches(subject, kernels) if reads is None else _without_reads(subject, reads)
    sentence = f"{limited} {verb} limited by the CPU: {kernels} are launched one by one: {remedy}"
    concerned = np.flatnonzero(calls)
    if reads is not None:
        concerned = np.union1d(subject.work.call[reads], subject.waits_behind(reads))
    begins_with = "" if reads is None else "forward_read"
    yield Found(change, sentence, short, work, host=HostTime(concerned), begins_with=begins_with)


def _reads_inside(subject: FixSubject) -> Bools | None:
    """Mark the work that reads numbers inside of forward and backward, if CUDA graphs cannot contain it."""
    copied = subject.timeline.copied
    reads: Bools = copied.to_cpu & (copied.bytes <= READ_BYTES) & subject.of_phase(FORWARD, BACKWARD)
    return reads if round(subject.per_step(reads)) > FEW_READS else None


def _without_reads(subject: FixSubject, reads: Bools) -> tuple[str, str]:
    """Return how CUDA graphs become possible where a program reads inside of forward; and the same in short."""
    count = count_text(round(subject.per_step(reads)))
    by = _deciding(subject, np.flatnonzero(reads))
    remedy = f"{count} reads inside stop CUDA graphs ({by.calls}): first {by.remedy}"
    return remedy, f"{count} waits a step for {by.short_calls}: {by.short_remedy}, then CUDA graphs"


def _fewer_launches(subject: FixSubject, kernels: str) -> tuple[str, str]:
    """Return the remedy for launches where nothing stops CUDA graphs; and the same in short."""
    for cell, pattern in OF_CELLS.items():
        if subject.per_step(subject.matching(pattern) & subject.of_phase(FORWARD)) >= MANY_CELLS:
            remedy = f"nn.{cell} over all times at once, if no time needs another layer's output; else CUDA graphs"
            return (
                f"{remedy} (torch.compile)",
                f"nn.{cell} in place of a loop over nn.{cell}Cell: {kernels} a step",
            )
    if subject.run.get("compile") == "reduce-overhead":
        return "larger batches, which change training", f"Larger batches (they change training): {kernels} a step"
    if subject.is_compiled:
        remedy = 'CUDA graphs (mode="reduce-overhead" where it is compiled); larger batches change training'
        return remedy, f'CUDA graphs (mode="reduce-overhead" of what is compiled): {kernels} a step'
    remedy = 'torch.compile(mode="reduce-overhead"), CUDA graphs; larger batches change training'
    return remedy, f'torch.compile(mode="reduce-overhead"), CUDA graphs: {kernels} a step'


def limited_by_launching(subject: FixSubject, factor: Floats | float) -> list[int]:
    """Return the phases, as positions in PHASES, that launching limits even with so much of the host's time.

    `factor` is one of all phases, or of each.

    Idle time has the causes that `view idle` shows; launching includes the launched work's way to the GPU. Pauses
    of over 1 ms and loading code do not count.
    """
    phase = subject.timeline.work_phase
    gaps = subject.gaps
    chosen = [PHASES.index(name) for name in (FORWARD, BACKWARD)]
    if not np.isin(phase, chosen).any():
        chosen = sorted(set(distinct(phase).tolist()) - {PHASES.index(OPTIMIZER)})
    of_gap = subject.attribution.phase[gaps.next]
    busy_ns = _by_phase(phase, subject.duration_ns)
    most_ns = IDLE_LIMITS_BELOW * (busy_ns + _by_phase(of_gap, gaps.duration_ns) * factor)
    if not (busy_ns < most_ns)[chosen].any():
        return []
    pieces = subject.idle_pieces
    counted = pieces.take((pieces.cause != MODULE_LOADING) & (pieces.duration_ns <= PAUSE_NS))
    idle_ns, launching_ns = (
        _by_phase(of_gap[np.searchsorted(gaps.start_ns, some.start_ns, "right") - 1], some.duration_ns)
        for some in (counted, counted.take(np.isin(counted.cause, (LAUNCHING, LATENCY))))
    )
    limited = busy_ns < IDLE_LIMITS_BELOW * (busy_ns + idle_ns * factor)
    limited &= launching_ns >= CAUSE_FROM * idle_ns
    return [number for number in chosen if limited[number]]


def _by_phase(phase: Int8s, values: NDArray[Any]) -> Floats:
    """Return the sums by phase, a position in PHASES."""
    return np.bincount(phase, values, len(PHASES)).astype(np.float64)
