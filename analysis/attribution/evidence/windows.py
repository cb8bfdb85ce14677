"""Times for the steps that periods of a sequence are, in which all work of the process belongs to them.

launches     copy  k  k  k  k     copy  k  k  k  k        (a copy, also of another thread's, before the first
windows    ├──────────────────┼──────────────────┤         kernel belongs to the step, from the longest pause on)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...support.small_numbers import looked_up, positions_between
from ...trace import Int64s, Spots, Trace, Work
from ..step_decisions import Windows
from .arrays import first_of_each, reach_before
from .finding import Finding, Subject
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class _Begun:
    """When each piece of a process's work was launched, or began on the GPU, in order; and the pause before it.

    `last_ns` is when the last of these launches, or the work, ended.
    """

    at_ns: Int64s
    pause_ns: Int64s
    last_ns: int


def windows_of(subject: Subject, finding: Finding) -> Windows:
    """Return the time of each of a process's periods, in which the work of its steps is launched.

    Where launches are not known, it is the time in which the work begins on the GPU.
    """
    sequence = subject.sequence
    periods = finding.periods
    work = _begun(subject)
    last_ns = work.last_ns
    start_ns = _starts(sequence, periods.begin, work)
    next_ns = np.append(start_ns[1:], last_ns)
    following_ns = looked_up(sequence.start_ns, periods.end, last_ns + 1)
    end_ns = np.minimum(following_ns - 1, next_ns)
    is_followed = periods.end[:-1] == periods.begin[1:]
    end_ns[:-1] = np.where(is_followed, next_ns[:-1], end_ns[:-1])
    count = len(start_ns)
    return Windows(
        start_ns,
        end_ns,
        is_step=np.ones(count, np.bool_),
        warm_up=np.zeros(count, np.bool_),
        thread=_thread(subject, periods.begin),
        ended_by="",
        never_updated=(),
        on_gpu=not sequence.on_host,
    )


def _begun(subject: Subject) -> _Begun:
    """Return when all work of a process was launched, or began on the GPU."""
    trace = subject.attribution.trace
    work = trace.work.take(trace.work.process == subject.process)
    times: Spots | Work = work
    if subject.sequence.on_host:
        launch = work.launch[work.launch >= 0]
        times = trace.launches.take(launch)
    order = np.argsort(times.start_ns, kind="stable")
    times = times.take(order)
    reach_ns = reach_before(times.end_ns, times.start_ns[:1])
    return _Begun(times.start_ns, times.start_ns - reach_ns, int(times.end_ns.max()))


def _starts(sequence: Sequence, begin: Int64s, work: _Begun) -> Int64s:
    """Return when each period's time starts: before the work since the longest pause before its first kernel.

    Work at a start is in the step before.
    """
    before_all_ns = work.at_ns[0] - 1
    before_ns = np.append(before_all_ns, sequence.start_ns)[begin]
    kernel = np.searchsorted(work.at_ns, sequence.start_ns[begin], "left")
    first = np.searchsorted(work.at_ns, before_ns, "right")
    first = np.minimum(first, kernel)
    number, place = positions_between(first, kernel + 1)
    pause_ns = work.pause_ns[place]
    order = np.lexsort((-place, pause_ns, number))  # of equal pauses, the first comes last
    length = kernel + 1 - first
    longest = first_of_each(length) + length - 1
    chosen = place[order][longest]
    starts: Int64s = work.at_ns[chosen] - 1
    return starts


def _thread(subject: Subject, begin: Int64s) -> int:
    """Return the thread that launches the first kernels of most periods; any of the process where none is known.

    It is -1 if the report has no thread of that process.
    """
    trace: Trace = subject.attribution.trace
    if not subject.sequence.on_host:
        threads = (number for number, thread in enumerate(trace.threads) if thread.process == subject.process)
        return next(threads, -1)
    launch = trace.work.launch[subject.sequence.row[begin]]
    times = np.bincount(trace.launches.thread[launch])
    return int(times.argmax())
