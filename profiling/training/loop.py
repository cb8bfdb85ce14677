"""The facts of a training loop without annotations: its phases as ranges, its steps as marks.

`forward` lasts from a model's call until backward begins, so that it holds the loss; without gradients, until the
call returns. `backward` is a run of autograd's engine, and `gradient` one whose results a loss is made of. Ranges
of a phase that the program opens through `annotate` itself come first.

What a step is, the analysis decides, which sees the whole program. What is counted here is a picture, as good as
can be known at the time: when `warmup` ends, when `measure` and with it a capture range begin, and when as many
steps as asked for are done.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from nvtx_kernels.analysis.vocabulary import BACKWARD, phase_of
from nvtx_kernels.analysis.vocabulary.step_ends import IN_BACKWARD, ending_optimizer, warm_up_steps

from ..annotate import calls, optimizers, range_stack
from ..annotate.open_ranges import OpenRange, label
from ..annotate.optimizers import AutomaticRange

BY_HAND, BY_BACKWARD = "calls of step()", "updates in backward"
WHOLE_BLOCK = "the whole block, in which nothing ended a step"
_NO_PASS = -1


class Measuring(Protocol):
    """Is notified when the measured steps begin and end."""

    def begin(self) -> None:
        """Handle that they are about to begin."""

    def begun(self) -> None:
        """Handle that the range around them has begun."""

    def ending(self) -> None:
        """Handle the end of the last step, inside the range around them; also where none began."""

    def end(self, *, warmed: int, measured: int) -> None:
        """Handle the end of the last of these steps, and of the range around them."""

    def drain(self) -> None:
        """Wait for the device, so that a range ends after its work."""

    def step_begins(self, *, is_last_warm_up: bool) -> None:
        """Note that a step has begun, and whether the next step is measured."""

    def step_ended(self) -> None:
        """Note that a step is about to end."""


class Plan(NamedTuple):
    """How many steps are warm-up and how many are measured (None: all that follow), and the optimizers given.

    `is_drawn` asks for ranges `warmup`, `measure` and `step`, for a tool with a timeline or a capture range.
    """

    warmup: int
    steps: int | None
    optimizer_names: tuple[str, ...]
    is_drawn: bool


class Phases:
    """Tells what happens in one block of a program, and counts its steps as they seem at the time."""

    def __init__(self, plan: Plan, measuring: Measuring) -> None:
        self._plan, self._measuring = plan, measuring
        # The moments of updates by optimizer, and of calls of step(): how many of both there were before.
        self._updates: dict[str, list[int]] = {}
        self._calls: list[int] = []
        self._now = 0
        self._outer: OpenRange | None = None
        self._drawn: object = None
        self._forward: OpenRange | None = None
        self._backwards = 0
        self._inside: set[str] = set()  # the optimizers that updated in a backward
        self._updated_in_backward = self._has_begun = False
        self._is_measuring = self._is_whole = self.is_over = False

    @property
    def counted_by(self) -> str:
        """Return what ends the steps, as far as it can be known; empty if nothing has yet."""
        if self._calls or not self._updates:
            return BY_HAND if self._calls else WHOLE_BLOCK if self._is_whole else ""
        optimizer = self._ending_optimizer()
        return BY_BACKWARD if optimizer == IN_BACKWARD else f"steps of {optimizer}"

    @property
    def warmed(self) -> int:
        """Return how many steps were warm-up."""
        ends = self._ends()
        return 0 if self._is_whole else min(len(ends), warm_up_steps(self._plan.warmup, self._updates, ends))

    @property
    def measured(self) -> int:
        """Return how many steps were measured."""
        return 1 if self._is_whole else len(self._ends()) - self.warmed

    @property
    def never_updated(self) -> list[str]:
        """Return the optimizers that were given, and have not updated."""
        return [
            name for name in self._plan.optimizer_names if name not in self._updates and name not in self._inside
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Tell what happens while the block runs."""
        with optimizers.guided(self), _around_backward(self):
            plan = self._plan
            optimizers.tell("begin", optimizers=[*plan.optimizer_names], warmup=plan.warmup, steps=plan.steps)
            if plan.warmup:
                self._draw_outer("warmup")
                self._begin_step()
            else:
                self._measure()
            try:
                yield
            except BaseException as error:
                self._finish(type(error).__name__)
                raise
            self._finish()

    def step(self) -> None:
        """End a step; from now on, no optimizer's updates do."""
        if not self.is_over:
            optimizers.tell("step")
            if self._has_begun:  # one before all work ends nothing
                self._calls.append(self._tick())
                self._step_ended()

    def before_forward(self) -> None:
        """Begin the phase."""
        if torch._C._current_graph_task_id() != _NO_PASS or self.is_over:
            return
        self._has_begun = True
        if not _is_open(self._forward) and not optimizers.own_phase_open():
            self._forward = range_stack.push(AutomaticRange(label("forward", None, "phase")))

    def after_forward(self) -> None:
        """End the phase if no backward can follow."""
        if not torch.is_grad_enabled() and not calls.in_function():
            self._end_forward()

    def before_backward(self, kind: str, *, ends_forward: bool) -> OpenRange | None:
        """Begin the phase, unless the program or a backward around it has; return its range.

        Inside another backward only a gradient has a range. One inside a model's call is nested in its forward.
        """
        in_backward = torch._C._current_graph_task_id() != _NO_PASS
        if self.is_over or torch.compiler.is_compiling() or (in_backward and kind == "backward"):
            return None
        if ends_forward and range_stack.here().calls() is None:
            self._end_forward()
        self._backwards += 1
        self._has_begun = True
        opened = AutomaticRange(label(kind, None, "phase" if kind == "backward" else kind))
        if kind == "backward" and optimizers.own_range(_is_backward) is not None:
            opened.ended = True  # the program has opened it
            return opened
        return range_stack.push(opened)

    def after_backward(self, opened: OpenRange) -> None:
        """End the phase; optimizers that updated in it are one, which updates now."""
        _close(opened)
        self._backwards -= 1
        if self._updated_in_backward and not self._backwards:
            self._updated_in_backward = False
            self._note_update(IN_BACKWARD)

    def before_update(self) -> None:
        """End the forward."""
        if not self._backwards:
            self._end_forward()

    def after_update(self, name: str) -> None:
        """Count an update, and a step if this is the optimizer that ends them."""
        self._has_begun = True
        if self._backwards:
            self._updated_in_backward = True
            self._inside.add(name)
        else:
            self._note_update(name)

    def _note_update(self, name: str) -> None:
        if self.is_over:
            return
        self._updates.setdefault(name, []).append(self._tick())
        if not self._calls and name == self._ending_optimizer():
            self._step_ended()

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _ending_optimizer(self) -> str:
        return ending_optimizer(self._updates, self._plan.optimizer_names, self._inside)

    def _ends(self) -> list[int]:
        """Return the moments at which steps ended."""
        return self._calls or self._updates.get(self._ending_optimizer(), [])

    def _step_ended(self) -> None:
        self._end_forward()
        self._measuring.step_ended()
        if not self._is_measuring and len(self._ends()) >= self._plan.warmup:
            self._draw_end()
            self._measure()
        elif self._plan.steps is not None and self._is_measuring and self.measured >= self._plan.steps:
            self._finish()
        else:
            self._draw_end(with_outer=False)
            self._begin_step()

    def _measure(self) -> None:
        self._is_measuring = True
        self._measuring.drain()
        self._measuring.begin()
        self._draw_outer("measure")
        optimizers.tell("measure", optimizers=[*self._plan.optimizer_names])
        self._measuring.begun()
        self._begin_step()

    def _begin_step(self) -> None:
        if self._plan.is_drawn:
            number = len(self._ends()) - self._plan.warmup * self._is_measuring
            self._drawn = range_stack.draw(label("step", max(0, number), "timeline"))
        self._measuring.step_begins(is_last_warm_up=len(self._ends()) == self._plan.warmup - 1)

    def _finish(self, error: str = "") -> None:
        if self.is_over:
            return
        self.is_over, self._is_whole = True, not self._ends() and self._has_begun
        self._end_forward()
        optimizers.tell("end", **({"error": error} if error else {}))
        self._measuring.ending()
        self._draw_end()
        self._measuring.end(warmed=self.warmed, measured=self.measured)

    def _draw_outer(self, name: str) -> None:
        if self._plan.is_drawn:
            self._outer = range_stack.push(OpenRange(label(name, None, "timeline")))

    def _draw_end(self, *, with_outer: bool = True) -> None:
        drawn, self._drawn = self._drawn, None
        range_stack.drawn(drawn)
        if with_outer:
            self._measuring.drain()
            outer, self._outer = self._outer, None
            _close(outer)

    def _end_forward(self) -> None:
        forward, self._forward = self._forward, None
        _close(forward)


@contextmanager
def _around_backward(phases: Phases) -> Iterator[None]:
    """Notify the phases of every run of autograd's engine that Python starts."""
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def in_range(outputs: Any, *args: Any, **options: Any) -> Any:
        # Tensor.backward ends a forward; torch.autograd.grad hands out gradients, which may become part of a loss.
        stores = bool(options.get("accumulate_grad"))
        makes_graph = len(args) > _CREATE_GRAPH and bool(args[_CREATE_GRAPH])
        kind = "gradient" if makes_graph and not stores and _leads_on(outputs) else "backward"
        opened = phases.before_backward(kind, ends_forward=stores)
        try:
            return run(outputs, *args, **options)
        finally:
            if opened is not None:
                phases.after_backward(opened)

    places = (torch.autograd.graph, torch.autograd)
    for place in places:
        place._engine_run_backward = in_range  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for place in places:
            if place._engine_run_backward is in_range:  # else annotation has ended, and restored it
                place._engine_run_backward = run  # type: ignore[attr-defined]


#: Which of the engine's arguments after the outputs asks for a graph of the gradients.
_CREATE_GRAPH = 2


def _leads_on(outputs: Any) -> bool:
    """Return whether gradients of these outputs can become part of a loss.

    `torch.func.grad` always makes a graph; at its outermost level that is of use only if something outside it
    requires a gradient.
    """
    functorch = torch._C._functorch
    level = functorch.maybe_current_level()
    if level != 1:
        return True
    tensors = [tensor for tensor in outputs if isinstance(tensor, torch.Tensor)]
    return any(
        functorch.get_unwrapped(tensor).requires_grad
        for tensor in tensors
        if functorch.is_gradtrackingtensor(tensor)
    )


@functools.lru_cache(maxsize=1024)
def _is_backward(name: str) -> bool:
    return phase_of(name) == BACKWARD


def _is_open(opened: OpenRange | None) -> bool:
    return opened is not None and not opened.ended


def _close(opened: OpenRange | None) -> None:
    if opened is not None and not opened.ended:
        range_stack.close(opened)
