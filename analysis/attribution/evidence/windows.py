"""Times for the steps that periods of a sequence are, in which all work of the process belongs to them.

launches     copy  k  k  k  k     copy  k  k  k  k        (a copy, also of another thread's, before the first
windows    ├──────────────────┼──────────────────┤         kernel belongs to the step, from the longest pause on)
"""

from __future__ import annotations

import numpy as np

from ...trace import Int64s, Trace
from ..step_decisions import Windows
from .finding import Finding, Subject
from .sequence import Sequence


def windows_of(subject: Subject, finding: Finding) -> Windows:
    """Return the time of each of a process's periods, in which the work of its steps is launched.

    Where launches are not known, it is the time in which the work begins on the GPU.
    """
    trace, process, sequence = subject.attribution.trace, subject.process, subject.sequence
    begin, until = finding.periods.begin, finding.periods.end
    begun_ns, ended_ns = _work(trace, process, on_host=sequence.on_host)
    start_ns = _starts(sequence, begin, begun_ns, ended_ns)
    last_ns = int(max(begun_ns[-1], sequence.start_ns[-1]))
    following_ns = np.append(sequence.start_ns, last_ns + 1)[until] - 1  # before the kernel behind the period
    is_followed = np.append(begin[1:] == until[:-1], False)
    next_ns = np.append(start_ns[1:], last_ns)
    end_ns = np.where(is_followed, next_ns, np.minimum(following_ns, next_ns))
    count = len(start_ns)
    return Windows(
        start_ns,
        end_ns,
        is_step=np.ones(count, np.bool_),
        warm_up=np.zeros(count, np.bool_),
        thread=_thread(trace, process, sequence, begin),
        ended_by="",
        never_updated=(),
        on_gpu=not sequence.on_host,
    )


def _work(trace: Trace, process: int, *, on_host: bool) -> tuple[Int64s, Int64s]:
    """Return when a process's work was launched, or began on the GPU, and until when, in order of the begin."""
    work, launches = trace.work, trace.launches
    rows = np.flatnonzero(work.process == process)
    start_ns, end_ns = work.start_ns[rows], work.end_ns[rows]
    if on_host:
        launch = work.launch[rows[work.launch[rows] >= 0]]
        start_ns, end_ns = launches.start_ns[launch], launches.end_ns[launch]
    order = np.argsort(start_ns, kind="stable")
    return start_ns[order], end_ns[order]


def _starts(sequence: Sequence, begin: Int64s, begun_ns: Int64s, ended_ns: Int64s) -> Int64s:
    """Return when each period's time starts: before the work since the longest pause before its first kernel.

    `begun_ns` and `ended_ns` are of all work of the process. Work at a start is in the step before.
    """
    before_ns = np.concatenate([[begun_ns[0] - 1], sequence.start_ns])[begin]
    first = np.searchsorted(begun_ns, before_ns, "right")
    last = np.searchsorted(begun_ns, sequence.start_ns[begin], "left")  # the first kernel itself
    reach_ns = np.concatenate([begun_ns[:1], np.maximum.accumulate(ended_ns)[:-1]])
    pause_ns = begun_ns - reach_ns
    length = np.maximum(last + 1 - first, 1)
    period = np.repeat(np.arange(len(begin)), length)
    offset = np.arange(len(period)) - np.repeat(np.cumsum(length) - length, length)
    place = np.minimum(first[period] + offset, last[period])
    order = np.lexsort((-offset, pause_ns[place], period))  # of equal pauses, the first
    chosen = place[order][np.cumsum(length) - 1]
    starts: Int64s = begun_ns[chosen] - 1
    return starts


def _thread(trace: Trace, process: int, sequence: Sequence, begin: Int64s) -> int:
    """Return the thread that launches the first kernels of most periods; any of the process where none is known.

    It is -1 if the report has no thread of that process.
    """
    if not sequence.on_host:
        return next((number for number, thread in enumerate(trace.threads) if thread.process == process), -1)
    launch = trace.work.launch[sequence.row[begin]]
    return int(np.bincount(trace.launches.thread[launch]).argmax())
