"""The phases and steps of a training loop without annotations, as ranges on the thread that trains.

    warmup > step > forward, backward, optimizer        as many steps as asked for
    measure > step > forward, backward, optimizer       the rest, or as many as asked for

A step begins with the first forward of an annotated model that records gradients, and ends when the counting
optimizer has stepped: what lies between, such as evaluation and the loading of data, is in no step. Without a
model a step begins where the one before it ended. `forward` lasts from a model's call until backward begins, so
that it holds the loss; without gradients, until the call returns. `backward` is the run of autograd's engine.
Ranges of a phase or step that the program opens through `annotate` itself come first.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch.optim import Optimizer

from ..annotate import optimizers, range_stack
from ..annotate.open_ranges import OpenRange, label
from ..annotate.optimizers import AutomaticRange

BY_HAND = "calls of step()"
WHOLE_BLOCK = "the whole block, in which no optimizer stepped"
# Ranges of the program that hold steps; others that it opened since the last step are parts of the next.
HOLDS_STEPS = re.compile(r"(?:\w+[ _-])?(?:epochs?|train\w*|fit\w*|loop|run|main)\b", re.IGNORECASE)
_NO_PASS = -1


class Measuring(Protocol):
    """Is notified when the measured steps begin and end."""

    def begin(self) -> None:
        """Handle that they are about to begin."""

    def begun(self) -> None:
        """Handle that the range around them has begun."""

    def ending(self) -> None:
        """Handle the end of the last step, inside the range around them; also where none began."""

    def end(self) -> None:
        """Handle the end of the last step and of the range around them."""

    def drain(self) -> None:
        """Wait for the device, so that a range ends after its work."""

    def step_begins(self, *, is_last_warm_up: bool) -> None:
        """Note that a step's range has begun, and whether the next step is measured."""

    def step_ended(self) -> None:
        """Note that a step's range is about to end."""

    def unfinished(self) -> None:
        """Handle that the open step will not be finished and does not count."""


class Plan(NamedTuple):
    """How many steps are warm-up and how many are measured (None: all that follow), and who counts them.

    `counter` is the optimizer whose steps count, None for the first that steps. Where `forward_begins_step` is
    not set, no model shows when a step begins, and `tiles` says whether they follow each other without a gap.
    """

    warmup: int
    steps: int | None
    counter: Optimizer | None
    forward_begins_step: bool
    tiles: bool


class Phases:
    """Opens the ranges of one block of a program, and counts its steps."""

    def __init__(self, plan: Plan, measuring: Measuring) -> None:
        self.warmed = self.measured = 0
        self.counted_by = f"steps of {type(plan.counter).__name__}" if plan.counter is not None else ""
        self._plan, self._measuring = plan, measuring
        self._counter = plan.counter
        self._outer: OpenRange | None = None
        self._step: OpenRange | None = None
        self._forward: OpenRange | None = None
        # What the program had open when the last step ended: it holds the steps.
        self._around: list[OpenRange] = []
        self._is_over = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Open ranges while the block runs."""
        with optimizers.guided(self), _around_backward(self):
            self._begin("warmup" if self._plan.warmup else "measure")
            try:
                yield
            except BaseException:
                self._finish()
                raise
            self._count_whole_block()
            self._finish()

    def step(self) -> None:
        """End a step; from now on, no optimizer's steps are counted."""
        is_first, self.counted_by = self.counted_by != BY_HAND, BY_HAND
        if self._step is not None or not is_first:
            self._end_step()

    def before_forward(self) -> None:
        """Begin a step if one is due, and the phase."""
        if torch._C._current_graph_task_id() != _NO_PASS or self._is_over:
            return
        if self._plan.forward_begins_step and (torch.is_grad_enabled() or self._counter is None):
            self._begin_step()
        if not _is_open(self._forward) and not optimizers.own_phase_open():
            self._forward = range_stack.push(AutomaticRange(label("forward", None, "phase")))

    def after_forward(self) -> None:
        """End the phase if no backward can follow."""
        if not torch.is_grad_enabled():
            self._end_forward()

    def before_backward(self, *, ends_forward: bool) -> OpenRange | None:
        """Begin the phase, unless the program or a backward around it has; return its range."""
        if self._is_over or torch.compiler.is_compiling() or torch._C._current_graph_task_id() != _NO_PASS:
            return None
        if ends_forward:
            self._end_forward()
        if optimizers.own_phase_open():
            return None
        return range_stack.push(AutomaticRange(label("backward", None, "phase")))

    def before_step(self) -> None:
        """End the forward; an optimizer that steps without one is in a step, too."""
        self._end_forward()
        if self._plan.forward_begins_step:
            self._begin_step()

    def after_step(self, optimizer: Optimizer) -> None:
        """Count a step if this is the optimizer that counts."""
        if self._counter is None:
            self._counter = optimizer
            self.counted_by = self.counted_by or f"steps of {type(optimizer).__name__}"
        if _same(optimizer, self._counter) and self.counted_by != BY_HAND:
            self._end_step()

    def _begin(self, name: str) -> None:
        self._measuring.drain()
        if name == "measure":
            self._measuring.begin()
        self._outer = range_stack.push(OpenRange(label(name, None, "phase")))
        if name == "measure":
            self._measuring.begun()
        self._around = list(range_stack.stack())
        if self._plan.tiles:
            self._begin_step()

    def _begin_step(self) -> None:
        if self._is_over or _is_open(self._step) or optimizers.own_step_open():
            return
        number = self.warmed if self.warmed < self._plan.warmup else self.measured
        step = AutomaticRange(label("step", number, "phase"))
        self._step = range_stack.insert(step, self._outside())
        self._measuring.step_begins(is_last_warm_up=self.warmed == self._plan.warmup - 1)

    def _outside(self) -> int:
        """Return how many of this thread's ranges are around the step, and not parts of it."""
        range_stack.drop_over()
        ranges = range_stack.stack()
        count = len(ranges)
        while count and ranges[count - 1].returns and ranges[count - 1] is not self._outer:
            last = ranges[count - 1]
            if last in self._around or (last.label.category == "phase" and HOLDS_STEPS.match(last.label.name)):
                break
            count -= 1
        return count

    def _end_step(self) -> None:
        if self._is_over:
            return
        self._close_step()
        if self.warmed < self._plan.warmup:
            self.warmed += 1
            if self.warmed == self._plan.warmup:
                self._end_outer()
                self._begin("measure")
                return
        else:
            self.measured += 1
            if self.measured == self._plan.steps:
                self._finish()
                return
        if self._plan.tiles:
            self._begin_step()

    def _count_whole_block(self) -> None:
        """Count a block in which nothing counts steps as one step."""
        if _is_open(self._step) and not self.counted_by and self.warmed == self._plan.warmup and not self._is_over:
            self.counted_by = WHOLE_BLOCK
            self._close_step()
            self.measured += 1

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if _is_open(self._step):
            self._measuring.unfinished()
        self._close_step()
        self._measuring.ending()
        self._end_outer()
        self._measuring.end()

    def _close_step(self) -> None:
        self._end_forward()
        step, self._step = self._step, None
        if step is not None:
            self._measuring.step_ended()
        _close(step)
        self._around = list(range_stack.stack())

    def _end_forward(self) -> None:
        forward, self._forward = self._forward, None
        _close(forward)

    def _end_outer(self) -> None:
        self._measuring.drain()
        outer, self._outer = self._outer, None
        _close(outer)


@contextmanager
def _around_backward(phases: Phases) -> Iterator[None]:
    """Notify the phases of every run of autograd's engine that Python starts."""
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def in_range(*args: Any, **options: Any) -> Any:
        # torch.autograd.grad hands out gradients, which may become part of a loss; Tensor.backward ends a forward.
        opened = phases.before_backward(ends_forward=bool(options.get("accumulate_grad")))
        try:
            return run(*args, **options)
        finally:
            _close(opened)

    places = (torch.autograd.graph, torch.autograd)
    for place in places:
        place._engine_run_backward = in_range  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for place in places:
            place._engine_run_backward = run  # type: ignore[attr-defined]


def _same(one: Optimizer, other: Optimizer) -> bool:
    """Return whether two optimizers are one, or one wraps the other (Accelerate's do) and has its parameters."""
    return one is other or _first_parameter(one) is _first_parameter(other)


def _first_parameter(optimizer: Optimizer) -> object:
    return next((one for group in optimizer.param_groups for one in group["params"]), optimizer)


def _is_open(opened: OpenRange | None) -> bool:
    return opened is not None and not opened.ended


def _close(opened: OpenRange | None) -> None:
    if opened is not None and not opened.ended:
        range_stack.close(opened)
