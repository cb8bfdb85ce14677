"""The work of `benchmark train.py`: time the phases of a program, and show them as those of the course's model.

The device is waited for before and after each forward, backward and update, which are those of `nk.profile`; a
clock is read each time. Nothing is recorded, and no node of autograd has a hook.
"""

import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from nvtx_kernels.analysis.presenters.output import format_of

from ..annotate import others, range_stack
from ..annotate.range_stack import Payload
from ..cli import CommandError
from ..machine import cpu_facts, gpu_facts, versions
from ..recorder.beside import wait_for_gpu
from ..recorder.steps import Bounds
from ..tool import watcher
from ..training.capture import Capture
from ..training.loop import FROM_FIRST_CALL, WHOLE_BLOCK, Phases
from ..training.roots import telling_roots
from .results import PROGRAM, VERSION
from .table import show

PHASES = ("forward", "backward", "optimizer")
BY_FORWARD = "forwards, as no optimizer updated"
WARM_UP, STEPS = 5, 10
ONE_RUN = "Lines of another warm-up are of the same run: they leave out its first steps."
NEXT = "What the phases spend this time in: nvtx-kernels record {}, and nvtx-kernels ask report.sqlite."
BETWEEN = (
    "step is from the begin of its first phase to the end of its last: what comes between two steps is in none."
)


class EnoughError(BaseException):
    """As many steps as wanted were timed; not an Exception, so that the program does not handle it."""


class _Phase(NamedTuple):
    name: str
    began_ns: int
    ended_ns: int


class Timed(NamedTuple):
    """The steps of a program: times in ms by phase, and of the whole `step` from its first phase to its last.

    `by` is what ends the steps, `status` the program's exit status, None if it was stopped after the steps wanted.
    """

    steps: list[dict[str, float]]
    by: str
    status: int | None


class _Clock:
    """Hears the ranges of phases on this thread, and keeps their times.

    Raises EnoughError after `step_count` steps. A step's end shows when the next range begins.
    """

    def __init__(self, phases: Phases, step_count: int) -> None:
        self._of_training = phases
        self._wanted = step_count
        self._thread = threading.get_ident()
        self._open: list[tuple[str, int]] = []  # a name for the outermost phase, and none for the ranges in it
        self._phases: list[_Phase] = []
        self._ends: list[int] = []  # after how many phases steps ended
        # Calls of models, as long as nothing but such was seen: no backward ends their forward.
        self._calls: list[_Phase] = []
        self._is_more = False

    def push(self, name: str, payload: Payload) -> None:  # noqa: ARG002 - a listener's
        if threading.get_ident() != self._thread:
            return
        self._see_end(self._of_training.measured)
        if len(self._ends) >= self._wanted:
            raise EnoughError
        is_phase = (
            name in PHASES and range_stack.category() == "phase" and not any(outer for outer, _ in self._open)
        )
        if is_phase:
            self._is_more |= name != "forward"
            wait_for_gpu()
        self._open.append((name if is_phase else "", time.perf_counter_ns()))

    def pop(self) -> None:
        if threading.get_ident() == self._thread and self._open:
            name, began_ns = self._open.pop()
            if name:
                wait_for_gpu()
                self._phases.append(_Phase(name, began_ns, time.perf_counter_ns()))

    def mark(self, message: str) -> None:
        pass

    def call(
        self,
        call: Callable[..., Any],
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Time the call of a model, for programs that only call one."""
        if self._is_more or threading.get_ident() != self._thread:
            return call(module, *args, **kwargs)
        wait_for_gpu()
        began_ns = time.perf_counter_ns()
        output = call(module, *args, **kwargs)
        wait_for_gpu()
        self._calls.append(_Phase("forward", began_ns, time.perf_counter_ns()))
        return output

    def _see_end(self, ended: int) -> None:
        if ended > len(self._ends):
            self._ends.append(len(self._phases))

    def steps(self) -> tuple[list[dict[str, float]], str]:
        """Return the times of the steps, and what ended them; where nothing did, each forward begins one."""
        by = self._of_training.counted_by
        ends = self._ends
        if not self._is_more:
            return [_times([phase]) for phase in self._calls], BY_FORWARD
        if by in ("", WHOLE_BLOCK, FROM_FIRST_CALL):
            by = BY_FORWARD
            begins = [place for place, phase in enumerate(self._phases) if phase.name == "forward"]
            ends = [*begins[1:], len(self._phases)] if begins else []
        else:
            self._see_end(self._of_training.measured)
        steps = [self._phases[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return [_times(phases) for phases in steps if phases], by


def _times(phases: list[_Phase]) -> dict[str, float]:
    """Add up a step's times by phase, in ms."""
    times_ms: Counter[str] = Counter()
    for phase in phases:
        times_ms[phase.name] += (phase.ended_ns - phase.began_ns) / 1e6  # type: ignore[assignment]
    return {**times_ms, "step": (phases[-1].ended_ns - phases[0].began_ns) / 1e6}


def timed(program: Callable[[], int], step_count: int) -> Timed:
    """Run a program, given as a function that returns its exit status, until `step_count` steps are timed."""
    phases = Phases(Capture(flops=False, memory=False, facts=dict), Bounds.of(0, None), ())
    clock, status = _Clock(phases, step_count), None
    with ExitStack() as watching:
        # The range in whose push the program was stopped is nobody's.
        watching.callback(range_stack.shrink, len(range_stack.stack()))
        watching.enter_context(range_stack.listen(clock))
        watching.enter_context(others.hear(others.Deaf()))
        watching.enter_context(phases.running())
        watching.enter_context(telling_roots(clock.call))
        watching.enter_context(suppress(EnoughError))
        status = program()
    return Timed(*clock.steps(), status)


def show_times(options: Mapping[str, Any], run: Callable[[], int]) -> int:
    """Time the program that options name and `run` runs, write its table, and return its exit status.

    Raises CommandError where nothing was measured.
    """
    program = options["program"]
    began = datetime.now(UTC)
    format_of(options["format"], options["output"])
    warm_ups = sorted(set(options["warmup"] or [WARM_UP]))
    count = (options["steps"] or [STEPS])[0]
    if warm_ups[0] < 0 or count < 1:
        raise CommandError(f"--warmup must be ≥ 0 and --steps ≥ 1, not {warm_ups[0]} and {count}")
    times = timed(run, warm_ups[-1] + count)
    facts = gpu_facts("cuda") if torch.cuda.is_initialized() else cpu_facts()  # type: ignore[no-untyped-call]
    shared = {
        "started": began.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": VERSION,
        "kind": PROGRAM,
        "state": {**versions(), **facts, **watcher(os.environ)},
        "status": "ok",
    }
    rows = [
        {
            **shared,
            "cell": {"warmup": warm_up, "capture": "none"},
            "warmup": times.steps[:warm_up],
            "measured": times.steps[warm_up : warm_up + count],
        }
        for warm_up in warm_ups
        if len(times.steps) > warm_up
    ]
    script = program[0]
    plural = "" if len(times.steps) == 1 else "s"
    if not times.steps:
        raise CommandError(
            f"{script} called no model and updated no optimizer in this process: there is nothing to time"
        )
    if not rows:
        ran = f"{script} ran {len(times.steps)} step{plural}, and --warmup {warm_ups[0]} leaves none of them"
        raise CommandError(f"{ran}: run more, or --warmup 0")
    stopped = ", and was then stopped" if times.status is None else ""
    ran = f"{Path(script).name} ran {len(times.steps)} steps{stopped}; what ends a step: {times.by}. {BETWEEN}"
    sentences = [ran, NEXT.format(shlex.join(program)), *([ONE_RUN] if len(rows) > 1 else ())]
    if missing := warm_ups[len(rows) :]:
        sentences.append(f"Too few steps for --warmup {', '.join(map(str, missing))}.")
    by = options["by"] or ("phase" if len(rows) == 1 else "warmup")
    groups = options["columns"] or ("times", "first")
    phases = options["phases"] or ()
    show(rows, options, {"by": by, "groups": groups, "phases": phases, "sentences": sentences})
    return times.status or 0
