"""Steps beside a recording, timed while nothing listens: what they take without it, and what they did.

    |  forward  | backward | optimizer |  other  |  forward  …
    ^           ^          ^           ^         ^

At each boundary of phases is an event on the GPU's stream, or a look at the clock where no GPU is used; nothing is
waited for, and elapsed times are read when the GPU has passed the events. After our own recording, steps are left
out until two in a row agree; before a capture of nsys, the first two are. Then a step waits for the GPU at each
boundary: it has the phases' times on the host, which in others may be times of waiting for the queue. After our
own recording, whole steps follow, where only the end is noticed: looking at phases takes time, too.

Recorded and timed steps are compared by their shape (the letters of their phases), the number of input values and
the allocations on the GPU.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from nvtx_kernels.analysis.vocabulary import BACKWARD, FORWARD, OPTIMIZER, OTHER

from ..annotate.given import count_values
from ..harmless import json_text
from .open_blocks import is_capturing
from .session import detaches

RECORDED, UNRECORDED = "nvtx-kernels recorded: ", "nvtx-kernels unrecorded: "
#: Steps left out at least after a recording, and at most; by how much two in a row agree; how many are timed.
LEAST_LEFT, MOST_LEFT, AGREEMENT, TIMED = 4, 40, 0.05, 5
#: Whole steps left out after the one that was emptied, until the GPU's queue is full again.
LEFT_AFTER_EMPTIED = 2
#: The step of warm-up that is timed first before a capture; the last one is emptied.
FIRST_TIMED = 2
#: What marks hold of a step's shape, and of steps; how deep, and in how many parts, input values are looked for.
MOST_LETTERS, MOST_STEPS, DEEP, LONG = 1000, 1000, 4, 100
#: Of optimizers' updates in a step's shape; the last one is of all further optimizers.
LETTERS = "ABCDEFGH"
COMPILED, CAPTURED, SEVERAL_CLOCKS = "compiled", "captured", "several clocks"
OTHER_SHAPE, UNSETTLED, COLD = "shape", "unsettled", "cold"


@dataclass(slots=True)
class Step:
    """What one step did, and the moments at which its phases began; the last one is its end.

    `trouble` says why it cannot be timed; `spans_ns` are the times of its phases once they were read, `host_ns`
    those on the host of a step that was emptied.
    """

    shape: str = ""
    sizes: int = 0
    allocations: tuple[int, int] | None = None
    moments: list[tuple[str, Any]] = field(default_factory=list)
    trouble: str = ""
    spans_ns: Counter[str] = field(default_factory=Counter)
    host_ns: Counter[str] = field(default_factory=Counter)

    def has_passed(self) -> bool:
        """Return whether the device has finished the step."""
        if not self.moments:
            return True
        _, end = self.moments[-1]
        return isinstance(end, int) or bool(end.query())

    def read(self) -> None:
        """Read the times of its phases, whose sum is the step's, from the moments."""
        try:
            for (phase, began), (_, ended) in pairwise(self.moments):
                self.spans_ns[phase] += round(between_ns(began, ended))
        except (RuntimeError, ValueError, TypeError):  # moments of several GPUs, or of a GPU and the clock
            self.trouble = SEVERAL_CLOCKS
        self.moments = []

    @property
    def is_timed(self) -> bool:
        """Whether its time was read."""
        return bool(self.spans_ns) and not self.trouble


class Follower:
    """Follows the phases of a program, and keeps the steps that have ended.

    Unless it `has_phases`, because it hears of all of them, only whole steps are timed. While it is `timing`,
    moments are taken; while it is `emptying`, the GPU is waited for at each boundary, and each phase's time on the
    host is noted. Once only `whole` steps are timed, nothing is noted of what they do. `autocast` is the type to
    which the first call casts.
    """

    def __init__(self, *, has_phases: bool = True) -> None:
        self.has_phases = has_phases
        self.timing = self.emptying = self.whole = False
        self.autocast = ""
        self.steps: list[Step] = []
        self._step = Step()
        self._phase = OTHER
        self._letters: dict[str, str] = {}
        self._allocated = _allocated()
        self._compiled = _compiled()
        self._entered_ns = 0

    def forward(self, arguments: object) -> None:
        """Follow that a model is called from outside, with these arguments."""
        if self.whole:
            return
        self.autocast = self.autocast or _autocast()
        self._step.sizes += count_values(arguments, DEEP, LONG)
        self._enter(FORWARD, "f" if torch.is_grad_enabled() else "n")

    def backward(self) -> None:
        """Follow that autograd begins to run."""
        self._enter(BACKWARD, "b")

    def update(self) -> None:
        """Follow that an optimizer begins to work."""
        self._enter(OPTIMIZER, "")

    def updated(self, name: str) -> None:
        """Follow that an optimizer of this name has updated."""
        next_letter = LETTERS[min(len(self._letters), len(LETTERS) - 1)]
        letter = self._letters.setdefault(name, next_letter)
        self._note_letter(letter)

    def leave(self) -> None:
        """Follow that a phase has ended, and none begins."""
        self._enter(OTHER, "")

    def keep(self, *, timing: bool = False) -> None:
        """Keep the steps from here on, and time them if asked to."""
        self.steps = []
        self.timing = timing
        self.emptying = False
        self._allocated = _allocated()
        self._compiled = _compiled()
        self._begin()

    def empty(self) -> None:
        """Empty the step that has just begun."""
        self.timing, self.emptying = False, True
        self._begin()

    def time_whole(self) -> None:
        """Time whole steps from the one that has just begun on, and watch only these."""
        self.timing = True
        self.emptying = False
        self.whole = True
        self._begin()

    def mark(self, where: str, dropped: Mapping[str, int]) -> str:
        """Return the text of the mark of all steps that were timed, "" without any."""
        wait_for_gpu()
        for step in self.steps:
            step.read()
        return mark(self.steps, self.steps, where, dropped)

    def _begin(self) -> None:
        """Begin a step here, forgetting what was of it before."""
        self._phase, self._step = OTHER, Step()
        if self.timing:
            self._take(OTHER)
        if self.emptying:
            self._wait()

    def end(self) -> None:
        """End the step, and begin the next."""
        if self.emptying:
            self._note_host_time()
        step = self._step
        if step.moments:
            self._take(OTHER)
        if not self.whole:
            before, self._allocated = self._allocated, _allocated()
            if before is not None and self._allocated is not None:
                count_before, bytes_before = before
                count, size = self._allocated
                step.allocations = (count - count_before, size - bytes_before)
        compiled, self._compiled = self._compiled, _compiled()
        if compiled != self._compiled:
            step.trouble = COMPILED
        if len(self.steps) < MOST_STEPS:
            self.steps.append(step)
        self._begin()

    def _enter(self, phase: str, letter: str) -> None:
        if phase == self._phase or self.whole:
            return
        self._note_letter(letter)
        if self.emptying:
            self._note_host_time()
        self._phase = phase
        if self._step.moments and (self.has_phases or is_capturing()):
            self._take(phase)

    def _take(self, phase: str) -> None:
        """Take the moment at which a phase begins, unless the stream is captured."""
        if is_capturing():
            self._step.trouble = CAPTURED
        else:
            self._step.moments.append((phase, moment()))

    def _note_letter(self, letter: str) -> None:
        if len(self._step.shape) < MOST_LETTERS:
            self._step.shape += letter

    def _note_host_time(self) -> None:
        self._step.host_ns[self._phase] += time.perf_counter_ns() - self._entered_ns
        self._wait()

    def _wait(self) -> None:
        if is_capturing():
            self._step.trouble = CAPTURED
        else:
            wait_for_gpu()
        self._entered_ns = time.perf_counter_ns()


class Settling:
    """Times steps after a recording: drives a follower, step by step, until `is_over`."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        follower.keep(timing=True)
        self._known: list[Step] = []
        # The position among the follower's steps of the first whole one, once they are timed.
        self._whole_from: int | None = None
        self.is_over = False

    @property
    def is_whole(self) -> bool:
        """Whether only the ends of steps need to be heard from here on."""
        return self._whole_from is not None

    def step_ended(self) -> None:
        """Read what the GPU has passed, and decide whether the next step is emptied, or none needed.

        If the step ended in the capture of a CUDA graph, the next one's end decides: a question to the GPU would
        break the capture.
        """
        follower = self._follower
        if is_capturing():
            follower.emptying = False
            return
        if self._whole_from is not None:
            self.is_over = len(follower.steps) >= self._whole_from + LEFT_AFTER_EMPTIED + TIMED
            return
        if follower.emptying:
            follower.emptying = False
            self._time_whole()
            return
        self._read()
        if len(self._timed()) >= TIMED:
            if not follower.has_phases:
                self.is_over = True
            elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                follower.empty()
            else:
                self._time_whole()
        elif len(self._known) > MOST_LEFT and not self._timed():
            self.is_over = True

    def _time_whole(self) -> None:
        """Time whole steps from here on, unless steps differ: the shape of each would be unknown."""
        shapes = {step.shape for step in self._timed()[:TIMED]}
        self.is_over = len(shapes) > 1
        if not self.is_over:
            self._whole_from = len(self._follower.steps)
            self._follower.time_whole()

    def mark(self) -> str:
        """Return the text of the mark, "" where no step was timed."""
        wait_for_gpu()
        self._read()
        timed = self._timed()
        whole_steps: Sequence[Step] = ()
        if self._whole_from is not None:
            whole_steps = self._known[self._whole_from + LEFT_AFTER_EMPTIED :]
        dropped = {UNSETTLED: len(self._known) - len(timed)}
        return mark(timed[:TIMED], self._follower.steps, "after", dropped, whole_steps)

    def _read(self) -> None:
        while len(self._known) < len(self._follower.steps):
            step = self._follower.steps[len(self._known)]
            if not step.has_passed():
                break
            step.read()
            self._known.append(step)

    def _timed(self) -> list[Step]:
        """Return the steps after two in a row that agree."""
        for row in range(LEAST_LEFT - 1, len(self._known)):
            pair = self._known[row - 1 : row + 1]
            times_ns = [step.spans_ns.total() for step in pair]
            slower, faster = max(times_ns), min(times_ns)
            agree = slower - faster <= AGREEMENT * slower
            if agree and all(step.is_timed for step in pair):
                return self._known[row + 1 :]
        return []


def mark(
    steps: Sequence[Step],
    followed: Sequence[Step],
    where: str,
    dropped: Mapping[str, int],
    whole_steps: Sequence[Step] = (),
) -> str:
    """Return the text of the mark of timed steps, "" without any: those of the most frequent shape.

    If enough `whole_steps` were timed, the times of steps and phases are scaled so that the median step is
    theirs: nobody saw what each of these did, and one may hold an evaluation. The host's times are those of the
    last step of this shape that was followed and emptied.
    """
    timed = [step for step in steps if step.is_timed]
    if not timed:
        return ""
    shapes = Counter(step.shape for step in timed)
    [(shape, _)] = shapes.most_common(1)
    alike = [step for step in timed if step.shape == shape]
    reasons = Counter(step.trouble for step in steps if step.trouble) + Counter(dropped)
    reasons[OTHER_SHAPE] += len(timed) - len(alike)
    phases = dict.fromkeys(phase for step in alike for phase in step.spans_ns)
    if [*phases] == [OTHER]:  # of steps whose phases were not timed
        phases = {}
    steps_ns = [step.spans_ns.total() for step in alike]
    whole_ns = [step.spans_ns.total() for step in whole_steps if step.is_timed]
    share = 1.0
    if len(whole_ns) >= TIMED and median(steps_ns):
        share = median(whole_ns) / median(steps_ns)
    spans_ns = {}
    for phase in phases:
        spans_ns[phase] = [round(share * step.spans_ns[phase]) for step in alike]
    emptied = [step for step in followed if step.host_ns and step.shape == shape and not step.trouble]
    host_ns = emptied[-1].host_ns if emptied else {}
    facts = {
        "version": 1,
        "clock": "gpu" if torch.cuda.is_initialized() else "cpu",  # type: ignore[no-untyped-call]
        "step_ns": [round(share * ns) for ns in steps_ns],
        "span_ns": spans_ns,
        "host_ns": {phase: ns for phase, ns in host_ns.items() if ns},
        "shape": shape,
        "where": where,
        "is_detached": where == "after" and detaches(),
        "dropped": {reason: count for reason, count in reasons.items() if count},
    }
    sizes = [step.sizes for step in alike]
    if any(sizes):
        facts["sizes"] = round(median(sizes))
    allocations = [step.allocations for step in alike if step.allocations is not None]
    if allocations:
        counts, byte_counts = zip(*allocations, strict=True)
        facts["allocations"] = [round(median(counts)), round(median(byte_counts))]
    return UNRECORDED + json_text(facts)


def recorded(steps: Sequence[Step]) -> str:
    """Return the text of the mark of what the measured steps did."""
    sizes = [step.sizes for step in steps]
    facts = {"shapes": [step.shape for step in steps], "sizes": sizes if any(sizes) else []}
    allocations = [step.allocations for step in steps if step.allocations is not None]
    return RECORDED + json_text({**facts, "allocations": allocations})


def wait_for_gpu() -> None:
    """Wait until the GPU has finished its work."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def let_cupti_detach() -> None:
    """Have Kineto detach CUPTI if that is due, which it does at a call of CUDA: it would end a new session.

    A failure of the GPU is the program's to raise.
    """
    with suppress(RuntimeError):
        wait_for_gpu()


def between_ns(began: Any, ended: Any) -> float:
    """Return the time between two moments, ns."""
    return float(ended - began) if isinstance(began, int) else float(began.elapsed_time(ended)) * 1e6


def moment() -> Any:
    """Return an event on the GPU's current stream, or a time in ns where no GPU is used."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _allocated() -> tuple[int, int] | None:
    """Return how many allocations the current GPU has had, and their bytes."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    of_gpu: Any = torch.cuda.memory_stats_as_nested_dict()
    try:
        return of_gpu["allocation"]["all"]["allocated"], of_gpu["allocated_bytes"]["all"]["allocated"]
    except KeyError:  # of another allocator
        return None


def _autocast() -> str:
    """Return the type to which autocast casts here, `off` without it."""
    device = "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
    is_on = torch.is_autocast_enabled(device)
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.") if is_on else "off"


def _compiled() -> int:
    """Return how many graphs Dynamo has compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0
    return int(dynamo.counters["stats"]["unique_graphs"])
