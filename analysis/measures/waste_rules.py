"""Rules on calls that do nothing for the result: allocations in each step, waits for the whole GPU, checks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..support.units import count_text
from ..trace import Bools, marked
from ..vocabulary import BACKWARD, FORWARD, PHASES
from .fix_subject import FixSubject
from .gpu_time import Floats
from .symptoms import Change, Found, HostTime, Unjudged
from .timeline import PAUSE_NS, Timeline

#: From this many allocations and frees a step on, and this many frees: a cache that still grows frees nothing.
ALLOCATIONS, FREES = 4, 1
ALLOCATES = r"^(cuda|hip)(Malloc|Free)(Async)?(_|$)|^(cu|hip)Mem(Alloc|Create|Map|Unmap|Release|Free)"
RELEASES = r"Free|Release|Unmap"
#: What the host takes before a call of the allocator that the cache answers, ns.
CACHED_NS = 2_000.0
#: From this many reads of one byte in backward on, they are those of autograd's checks; and their kernels.
CHECKS = 20
CHECK_KERNELS = r"isnan|CompareEqFunctor|compare_eq|or_kernel_cuda|func_wrapper_t<bool"
#: What the host takes between two operators with autograd's checks switched off, at most, ns.
UNCHECKED_NS = 30_000.0
WAITS_FOR_ALL, OF_EVENTS = r"DeviceSynchronize|EventSynchronize|CtxSynchronize", r"EventSynchronize"


def allocating(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find memory that each step takes from the driver and gives back."""
    calls = subject.calls_named(ALLOCATES)
    releases = calls & subject.calls_named(RELEASES)
    count, frees = (int(some.sum()) / subject.steps for some in (calls, releases))
    if count < ALLOCATIONS or frees < FREES or not subject.in_most_steps(np.flatnonzero(calls)):
        return

    def change(timeline: Timeline) -> Timeline:
        is_short = calls & (timeline.before_ns <= PAUSE_NS)
        return timeline.pausing(is_short, CACHED_NS).returning(calls)

    allocated, freed = count_text(round(count - frees)), count_text(round(frees))
    sentence = (
        f"Each step allocates {allocated} times from the driver and frees {freed} times: no "
        "torch.cuda.empty_cache() in the loop; if memory is full, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )
    short = f"Remove torch.cuda.empty_cache() from the loop: {allocated} cudaMalloc, {freed} cudaFree a step"
    yield _of_calls(subject, calls, change, sentence, short)


def autograd_checks(subject: FixSubject) -> Bools:
    """Mark the reads by which autograd's anomaly mode learns whether a gradient is NaN; nothing if it is off."""
    copied = subject.timeline.copied
    reads: Bools = copied.to_cpu & (copied.bytes == 1) & subject.of_phase(BACKWARD)
    if subject.per_step(reads) < CHECKS or not subject.in_most_steps(subject.work.call[reads]):
        return np.zeros_like(reads)
    return reads


def anomaly(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find autograd's anomaly mode, which reads after each operation of backward whether a gradient is NaN."""
    call = subject.work.call
    in_backward = subject.of_phase(BACKWARD)
    reads = autograd_checks(subject)
    if not reads.any():
        return
    checks = in_backward & (subject.matching(CHECK_KERNELS) | reads)
    calls = marked(np.concatenate([call[checks], subject.waits_behind(reads)]), len(subject.host.row))
    calls[call[~checks]] = False
    in_model = np.isin(subject.timeline.phase, [PHASES.index(FORWARD), PHASES.index(BACKWARD)])

    def change(timeline: Timeline) -> Timeline:
        return timeline.without_calls(calls, checks).pausing(in_model, UNCHECKED_NS)

    count = count_text(round(subject.per_step(reads)))
    sentence = (
        f"Autograd checks each gradient for NaN and waits for {count} answers: "
        "no torch.autograd.set_detect_anomaly(True)"
    )
    short = f"Remove torch.autograd.set_detect_anomaly(True): it waits {count} times a step"
    yield Found(change, sentence, short, checks)


def device_sync(subject: FixSubject, _: Floats) -> Iterator[Found | Unjudged]:
    """Find waits for the whole GPU, or for an event, in nearly all steps."""
    calls = subject.waiting & subject.calls_named(WAITS_FOR_ALL)
    if not calls.any() or not subject.in_most_steps(np.flatnonzero(calls)):
        return

    def change(timeline: Timeline) -> Timeline:
        return timeline.returning(calls)

    count = max(round(int(calls.sum()) / subject.steps), 1)
    times = f" {count_text(count)} times" if count > 1 else ""
    is_of_events = not (calls & ~subject.calls_named(OF_EVENTS)).any()
    function = "event.synchronize()" if is_of_events else "torch.cuda.synchronize()"
    sentence = (
        f"Each step waits{times} for the GPU ({function}): leave that out; to measure times, record CUDA events, "
        "and read them every N steps"
    )
    short = f"Remove {function} from the step ({count_text(count)} a step)"
    yield _of_calls(subject, calls, change, sentence, short)


def _of_calls(subject: FixSubject, calls: Bools, change: Change, sentence: str, short: str) -> Found:
    """Return a symptom of calls that launch nothing."""
    no_work = np.zeros(len(subject.work.row), np.bool_)
    return Found(change, sentence, short, no_work, host=HostTime(np.flatnonzero(calls)))
