"""How many steps are recorded, and a count of them where no `nk.profile` counts: it decides when recording ends.

What a step is, the analysis decides; this is a picture of it, as good as can be known at the time.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self
from weakref import ref

import torch
from nvtx_kernels.analysis.vocabulary.step_ends import ending_optimizer
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..annotate import nodes, optimizers
from ..annotate.compiled import tracing
from ..annotate.regions import in_backward
from ..harmless import forgiving, json_text
from ..machine import optimizer_flags, parameter_facts
from .beside import Follower, Settling, recorded
from .range_log import RangeLog

WARMUP, STEPS = 3, 10
#: Under nsys some of the warm-up is for what the program takes without recording.
WARMUP_UNDER_NSYS = 6


class Bounds(NamedTuple):
    """How many steps are warm-up, and how many measured (None: all).

    A block of fewer steps than `fewest` has one of warm-up.
    """

    warmup: int
    steps: int | None
    fewest: int

    @classmethod
    def of(
        cls,
        warmup: int | None,
        steps: int | None,
        *,
        is_watched: bool = False,
    ) -> Self:
        """Return the bounds asked for, or the usual warm-up for None; raises ValueError for impossible ones."""
        if (warmup is not None and warmup < 0) or (steps is not None and steps < 1):
            raise ValueError(f"warmup must be ≥ 0 and steps ≥ 1, not {warmup} and {steps}")
        if warmup is not None:
            return cls(warmup, steps, 0)
        usual = WARMUP_UNDER_NSYS if is_watched else WARMUP
        return cls(usual, steps, min(2 * usual, usual + (steps or usual)))

    @property
    def are_counted(self) -> bool:
        """Return whether anything depends on a count."""
        return self.warmup > 0 or self.steps is not None

    def facts(self) -> dict[str, int]:
        """Return the facts on these steps for the report."""
        return {"warmup": self.warmup, **({"fewest": self.fewest} if self.fewest else {})}


def ends_are_known(ranges: int, ends: int) -> bool:
    """Return whether what ended these steps ends also the program's own ranges `step`, if it has any."""
    return ends > 0 and (not ranges or abs(ranges - ends) <= 1)


class StepCount:
    """Counts the program's own ranges `step` on this thread, else the updates of the optimizer that ends steps.

    Where it decides when recording ends, it follows backwards and updates, and times the steps after it. It knows
    no model: neither the forward nor its inputs.
    """

    def __init__(
        self,
        bounds: Bounds,
        step_ended: Callable[[], None],
        all_ended: Callable[[], None],
    ) -> None:
        self._bounds = bounds
        self._ended = step_ended
        self._done = all_ended
        self._ranges = 0
        self._updates = dict[str, list[int]]()
        self._moments = 0
        self._follower = Follower(has_phases=False)
        self._ended_by = ""
        self._settling: Settling | None = None
        self._is_recorded = True
        self._hearing = ExitStack()
        self._following = ExitStack()
        self._last: Callable[[], Optimizer | None] = lambda: None

    def hear(self) -> None:
        """Hear updates from here on, and what else steps do, until `close`."""
        self._hearing.callback(register_optimizer_step_post_hook(self._updated).remove)
        if self._bounds.steps is not None:
            self._following.enter_context(_hearing_backward(self._follower))

    def close(self) -> None:
        """Hear nothing any more; called by no hook of an optimizer, as PyTorch is going through these then."""
        self._hearing.close()
        self._following.close()

    @contextmanager
    def counting(self, log: RangeLog) -> Iterator[None]:
        """Count the ranges in a log while the block runs."""
        log.on_step = self._range_begins
        try:
            yield
        finally:
            log.on_step = None
            self._is_recorded = False

    def note(self, log: RangeLog, at_ns: int) -> None:
        """Note how many steps are warm-up, if there are several, and what the measured ones did."""
        if max(self._ranges, *map(len, self._updates.values()), 0) > 1:
            text = json_text({"event": "begin", "optimizers": [], **self._bounds.facts()})
            log.note_mark(at_ns, f"{optimizers.TRAINING_MARK}{text}")
            steps = self._follower.steps
            unseen = len(self._updates.get(self._ended_by, ())) - len(steps)
            measured = steps[max(self._bounds.warmup - unseen, 0) :]
            if self._bounds.steps is not None and measured:
                log.note_mark(at_ns, recorded(measured[: self._bounds.steps]))

    @property
    def measured(self) -> int:
        """Return how many of the steps so far are no warm-up."""
        ends = max(self._ranges, *map(len, self._updates.values()), 0)
        return max(ends - self._bounds.warmup, int(ends > 1))

    @property
    def facts(self) -> dict[str, Any]:
        """Return the facts on the optimizer that updated last, and on its parameters; none without an update."""
        optimizer = self._last()
        if optimizer is None:
            return {}
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        facts = {"optimizer": type(optimizer).__name__, **optimizer_flags(optimizer)}
        return facts | parameter_facts(parameters)

    def time(self) -> None:
        """Time the steps that follow, unless it is not known where they end."""
        if ends_are_known(self._ranges, len(self._updates.get(self._ended_by, ()))):
            self._settling = Settling(self._follower)
        else:
            self.close()

    def timed(self) -> str:
        """Return the mark of the steps that were timed, "" without any."""
        return self._settling.mark() if self._settling is not None else ""

    @forgiving("a step is not counted")
    def _range_begins(self) -> None:
        self._ranges += 1
        self._step_ended(self._ranges - 1)

    @forgiving("an update is not counted")
    def _updated(self, optimizer: Any, *_: object) -> None:
        if self._settling is not None and self._settling.is_over:
            return
        name = optimizers.name_of(optimizer)
        self._follower.updated(name)
        if self._settling is not None:
            if name == self._ended_by:
                self._follower.end()
                self._settling.step_ended()
                if self._settling.is_over:
                    self._following.close()
            return
        if not self._is_recorded:
            return
        self._moments += 1
        self._last = ref(optimizer)
        self._updates.setdefault(name, []).append(self._moments)
        if not optimizers.calls_are_heard:
            optimizers.tell("update", optimizer=name)
        if name != ending_optimizer(self._updates, (), ()):
            return
        self._follower.end()
        if name != self._ended_by:  # what was followed so far were other steps
            self._ended_by = name
            self._follower.keep()
        if not self._ranges:
            self._step_ended(len(self._updates[name]))

    def _step_ended(self, count: int) -> None:
        self._ended()
        if self._bounds.steps is not None and count >= self._bounds.warmup + self._bounds.steps:
            self._done()


@contextmanager
def _hearing_backward(follower: Follower) -> Iterator[None]:
    """Have every run of autograd's engine that is in no other followed."""
    run = torch.autograd.graph._engine_run_backward
    begin, end = map(forgiving("a backward is not timed"), (follower.backward, follower.leave))

    @functools.wraps(run)
    def followed(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling() or in_backward():
            return run(*args, **options)
        begin()
        try:
            return run(*args, **options)
        finally:
            end()

    with nodes.running_backward(followed):
        yield


tracing.keep_eager(sys.modules[__name__], and_what_it_calls=False)
