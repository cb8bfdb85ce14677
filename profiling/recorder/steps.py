"""How many steps are recorded, and a count of them where no `nk.profile` counts: it decides when recording ends.

What a step is, the analysis decides; this is a picture of it, as good as can be known at the time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from nvtx_kernels.analysis.vocabulary.step_ends import ending_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..annotate import optimizers
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
    def of(cls, warmup: int | None, steps: int | None, *, is_watched: bool = False) -> Self:
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


class StepCount:
    """Counts the program's own ranges `step` on this thread, else the updates of the optimizer that ends steps."""

    def __init__(self, bounds: Bounds, ended: Callable[[], None], done: Callable[[], None]) -> None:
        self._bounds, self._ended, self._done = bounds, ended, done
        self._ranges, self._updates, self._moments = 0, dict[str, list[int]](), 0

    @contextmanager
    def counting(self, log: RangeLog) -> Iterator[None]:
        """Count while the block runs, and note in the log what the analysis should know of it."""
        log.on_step = self._range_begins
        hook = register_optimizer_step_post_hook(self._updated)
        try:
            yield
        finally:
            hook.remove()
            log.on_step = None

    def note(self, log: RangeLog, at_ns: int) -> None:
        """Note how many steps are warm-up, if there are several."""
        if max(self._ranges, *map(len, self._updates.values()), 0) > 1:
            text = json.dumps({"event": "begin", "optimizers": [], **self._bounds.facts()})
            log.note_mark(at_ns, f"{optimizers.TRAINING_MARK}{text}")

    def _range_begins(self) -> None:
        self._ranges += 1
        self._step_ended(self._ranges - 1)

    def _updated(self, optimizer: Any, *_: object) -> None:
        name = optimizers.name_of(optimizer)
        self._moments += 1
        self._updates.setdefault(name, []).append(self._moments)
        if not optimizers.calls_are_heard:
            optimizers.tell("update", optimizer=name)
        if not self._ranges and name == ending_optimizer(self._updates, (), ()):
            self._step_ended(len(self._updates[name]))

    def _step_ended(self, count: int) -> None:
        self._ended()
        if self._bounds.steps is not None and count >= self._bounds.warmup + self._bounds.steps:
            self._done()
