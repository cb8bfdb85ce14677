"""Rules on copies between CPU and GPU: results that the CPU computes on, and tensors that are made there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..support.small_numbers import looked_up
from ..support.units import count_text, mib_text, time_in_digits
from ..trace import Int64s, marked
from ..vocabulary import BACKWARD, FORWARD
from .fix_subject import AT_ONCE_NS, FixSubject
from .gpu_time import Floats, GpuTime
from .host_line import SYNCHRONIZES
from .symptoms import Found, HostTime, Unjudged
from .timeline import TO_GPU, Timeline

#: A copy to the CPU of more bytes is no number that is read; and from how many on a copy to the GPU counts.
READ_BYTES, COPIED_BYTES = 64, 1024
#: What a pinned copy reaches, bytes per ns, and what its call takes, ns.
PINNED_RATE, PINNED_CALL_NS = 50.0, 10_000.0
PINNED = "pin_memory=True and .to(device, non_blocking=True)"


def to_cpu(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find results that are copied to the CPU in nearly all steps, where the program computes on them."""
    rows = copied_results(subject)
    if not len(rows):
        return
    computing = following_calls(subject, rows)
    count = count_text(max(round(len(rows) / subject.steps), 1))
    copying = time_in_digits(float(subject.duration_ns[rows].sum()) / subject.steps)
    pause_ns = float(subject.timeline.before_ns[computing].sum()) / max(len(computing), 1)
    pause_ns *= len(rows) / subject.steps
    bring = "copy brings" if count == "1" else "copies bring"
    sentence = (
        f"{count} {bring} {_size(subject, rows)} to the CPU ({copying}), which computes on it for "
        f"{time_in_digits(pause_ns)}: compute on the GPU, or copy every N steps"
    )
    short = f"Do not copy {_size(subject, rows)} a step to the CPU: use it on the GPU, or copy every N steps"
    yield _without_copies(subject, rows, (sentence, short), pauses=computing, shorter=computing)


def copied_results(subject: FixSubject) -> Int64s:
    """Return the copies to the CPU of more than a number, at places that have them in nearly all steps."""
    copied = subject.timeline.copied
    return np.sort(subject.rows_in_most_steps(copied.to_cpu & (copied.bytes > READ_BYTES)))


def following_calls(subject: FixSubject, rows: Int64s) -> Int64s:
    """Return the calls after the copies, and after the waits for them: the host's time before is the program's."""
    after = subject.work.call[rows] + 1
    waits = looked_up(subject.host.kind, after, 0) == SYNCHRONIZES
    following = np.where(waits, after + 1, after)
    return following[following < len(subject.host.row)]


def from_cpu(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find tensors that the program makes on the CPU in forward or backward, and copies to the GPU."""
    is_large = subject.timeline.copied.bytes > COPIED_BYTES
    to_gpu = subject.named(TO_GPU.__eq__)
    rows = np.sort(subject.rows_in_most_steps(to_gpu & is_large & subject.of_phase(FORWARD, BACKWARD)))
    if not len(rows):
        return
    making = _since_last_launch(subject, rows)
    count = round(len(rows) / subject.steps)
    times = f" in {count_text(count)} copies" if count > 1 else ""
    size = _size(subject, rows)
    sentence = (
        f"Forward or backward copies {size} to the GPU{times}, of tensors made on the CPU: "
        "make tensors on the GPU (device=x.device), or once (register_buffer)"
    )
    short = f"Make tensors on the GPU (device=x.device): {size} a step are made on the CPU"
    shorter = np.concatenate([making, following_calls(subject, rows)])
    yield _without_copies(subject, rows, (sentence, short), pauses=making, shorter=shorter)


def _without_copies(
    subject: FixSubject, rows: Int64s, words: tuple[str, str], *, pauses: Int64s, shorter: Int64s
) -> Found:
    """Return the symptom of some copies, whose change drops them, the waits for them and the host's time for them.

    `words` are its sentence, and the same in short. `pauses` is the host's time concerned, before some calls;
    before the calls of `shorter` it goes on at once.
    """
    copies = marked(rows, len(subject.work.row))
    calls = np.concatenate([subject.work.call[rows], subject.waits_behind(rows)])

    def change(timeline: Timeline) -> Timeline:
        return GpuTime.without(timeline.pausing(shorter, AT_ONCE_NS).returning(calls), copies)

    return Found(change, *words, copies, host=HostTime(calls, pauses))


def _size(subject: FixSubject, rows: Int64s) -> str:
    """Return how many bytes some copies of a step have."""
    return mib_text(float(subject.timeline.copied.bytes[rows].sum()) / subject.steps)


def _since_last_launch(subject: FixSubject, rows: Int64s) -> Int64s:
    """Return the calls from each copy back to the launch or wait before it: the tensor was made since then."""
    launches = marked(subject.work.call, len(subject.host.row))
    stops = np.flatnonzero(launches | subject.waiting)
    making = []
    for call in subject.work.call[rows].tolist():
        place = int(np.searchsorted(stops, call)) - 1
        begin = int(stops[place]) + 1 if place >= 0 else call
        making.append(np.arange(begin, call + 1))
    return np.concatenate(making)


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
