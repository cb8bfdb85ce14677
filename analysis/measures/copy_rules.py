"""Rules on copies between CPU and GPU: results that the CPU computes on, and tensors that are made there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..support.small_numbers import rows_of_each
from ..support.units import count_text, time_in_digits
from ..trace import Bools, Int64s
from ..vocabulary import BACKWARD, FORWARD
from .fix_subject import AT_ONCE_NS, FixSubject
from .gpu_time import Floats
from .host_line import SYNCHRONIZES
from .symptoms import Found, HostTime, Unjudged
from .timeline import TO_GPU, Timeline

#: A copy to the CPU of more bytes is no number that is read; and from how many on a copy to the GPU counts.
READ_BYTES, COPIED_BYTES = 64, 1024


def to_cpu(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find results that are copied to the CPU in nearly all steps, where the program computes on them."""
    rows = copied_results(subject)
    if not len(rows):
        return
    copied, call = subject.timeline.copied, subject.work.call
    waits, computing = _waits(subject, rows), following_calls(subject, rows)

    def change(timeline: Timeline) -> Timeline:
        before, own, still = timeline.before_ns.copy(), timeline.own_ns.copy(), timeline.waits.copy()
        before[computing] = np.minimum(before[computing], AT_ONCE_NS)
        own[call[rows]] = own[waits] = 0.0
        still[call[rows]] = still[waits] = False
        return replace(timeline.without(_marked(subject, rows)), before_ns=before, own_ns=own, waits=still)

    count = count_text(max(round(len(rows) / subject.steps), 1))
    copying = time_in_digits(float(subject.duration_ns[rows].sum()) / subject.steps)
    pause_ns = float(subject.timeline.before_ns[computing].sum()) / max(len(computing), 1)
    pause_ns *= len(rows) / subject.steps
    size = mib(float(copied.bytes[rows].sum()) / subject.steps)
    bring = "copy brings" if count == "1" else "copies bring"
    sentence = (
        f"{count} {bring} {size} to the CPU ({copying}), which computes on it for {time_in_digits(pause_ns)}: "
        "compute on the GPU, or copy every N steps"
    )
    host = HostTime(np.concatenate([call[rows], waits]), computing)
    yield Found(change, sentence, _marked(subject, rows), host=host)


def copied_results(subject: FixSubject) -> Int64s:
    """Return the copies to the CPU of more than a number, at places that have them in nearly all steps."""
    copied = subject.timeline.copied
    return _in_most_steps(subject, copied.to_cpu & (copied.bytes > READ_BYTES))


def following_calls(subject: FixSubject, rows: Int64s) -> Int64s:
    """Return the calls after the copies, and after the waits for them: the host's time before is the program's."""
    after = subject.work.call[rows] + 1
    waits = np.append(subject.host.kind, 0)[after] == SYNCHRONIZES
    following = np.where(waits, after + 1, after)
    return following[following < len(subject.host.row)]


def from_cpu(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find tensors that the program makes on the CPU in forward or backward, and copies to the GPU."""
    copied, names = subject.timeline.copied, np.array(subject.names)[subject.code]
    rows = _in_most_steps(
        subject, (names == TO_GPU) & (copied.bytes > COPIED_BYTES) & subject.of_phase(FORWARD, BACKWARD)
    )
    if not len(rows):
        return
    call, waits = subject.work.call, _waits(subject, rows)
    making, after = _since_last_launch(subject, rows), following_calls(subject, rows)

    def change(timeline: Timeline) -> Timeline:
        before, own, still = timeline.before_ns.copy(), timeline.own_ns.copy(), timeline.waits.copy()
        for calls in (making, after):
            before[calls] = np.minimum(before[calls], AT_ONCE_NS)
        own[call[rows]] = own[waits] = 0.0
        still[call[rows]] = still[waits] = False
        return replace(timeline.without(_marked(subject, rows)), before_ns=before, own_ns=own, waits=still)

    count = round(len(rows) / subject.steps)
    times = f" in {count_text(count)} copies" if count > 1 else ""
    size = mib(float(copied.bytes[rows].sum()) / subject.steps)
    sentence = (
        f"Forward or backward copies {size} to the GPU{times}, of tensors made on the CPU: make tensors "
        "on the GPU (device=x.device), or once (register_buffer)"
    )
    host = HostTime(np.concatenate([call[rows], waits]), making)
    yield Found(change, sentence, _marked(subject, rows), host=host)


def _in_most_steps(subject: FixSubject, work: Bools) -> Int64s:
    """Return some copies' positions, of the ranges that have them in all steps but one."""
    rows = np.flatnonzero(work)
    places = [
        rows[some]
        for _, some in rows_of_each(subject.path_id[rows])
        if subject.in_most_steps(subject.work.call[rows[some]])
    ]
    found: Int64s = np.sort(np.concatenate(places)) if places else rows[:0]
    return found


def _waits(subject: FixSubject, rows: Int64s) -> Int64s:
    """Return the calls right after some copies that wait for the GPU."""
    after = np.minimum(subject.work.call[rows] + 1, len(subject.host.row) - 1)
    waits: Int64s = after[subject.host.kind[after] == SYNCHRONIZES]
    return waits


def _since_last_launch(subject: FixSubject, rows: Int64s) -> Int64s:
    """Return the calls from each copy back to the launch or wait before it: the tensor was made since then."""
    launches = np.zeros(len(subject.host.row), np.bool_)
    launches[subject.work.call] = True
    stops = np.flatnonzero(launches | subject.waiting)
    making = []
    for call in subject.work.call[rows].tolist():
        place = int(np.searchsorted(stops, call)) - 1
        begin = int(stops[place]) + 1 if place >= 0 else call
        making.append(np.arange(begin, call + 1))
    return np.concatenate(making)


def _marked(subject: FixSubject, rows: Int64s) -> Bools:
    work = np.zeros(len(subject.work.row), np.bool_)
    work[rows] = True
    return work


def mib(count: float) -> str:
    """Return a number of bytes in MiB."""
    size = count / 2**20
    return f"{size:,.0f} MiB" if size >= 10 else f"{size:.2g} MiB"
