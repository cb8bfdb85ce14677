"""Time the steps of a program without disturbing its loop, in the process that runs it.

The device is waited for at the end of the last step of warm-up, where measuring begins, and at the end of the last
measured step. Between them an event is recorded at each step's end, and the loss of each backward is copied on the
device; nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from ..annotate import others, range_stack
from ..annotate.regions import in_backward
from ..annotate.replacing import replaced
from ..recorder.beside import between_ns, moment, wait_for_gpu
from ..recorder.steps import Bounds
from .capture import Capture
from .loop import Phases
from .roots import telling_roots


class EnoughError(BaseException):
    """As many steps as wanted were timed; not an Exception, so that the program does not handle it."""


class Deaf:
    """Ignores the program's own NVTX ranges, which raise without CUDA where nothing hears them."""

    def push(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    pop = block_began = block_ended = push


class Ends:
    """The ends of a program's steps: moments on the device that works, and the loss of each step.

    Where nothing updates, each call of a model is a step. Raises EnoughError with the last step wanted.
    """

    def __init__(self, warm_up: int, steps: int) -> None:
        self._warm_up, self._wanted = warm_up, warm_up + steps
        self.steps = 0
        self._is_training = False
        self._moments: list[Any] = []
        self._losses: list[list[torch.Tensor]] = [[]]

    def updated(self) -> None:
        """End a step with an update."""
        self._trains()
        self._end()

    @contextmanager
    def call(self) -> Iterator[None]:
        """End a step with the call of a model, for programs that only call one."""
        yield
        if not self._is_training:
            self._end()

    def backward(self, loss: torch.Tensor) -> None:
        """Keep the value of a loss, which its own memory may soon not hold."""
        self._trains()
        if loss.numel() == 1 and not in_backward():
            self._losses[-1].append(loss.detach().clone())

    def _trains(self) -> None:
        """Forget the calls of models before the first backward: they were no steps."""
        if not self._is_training:
            self._is_training, self.steps, self._moments, self._losses = True, 0, [], [[]]

    def _end(self) -> None:
        self.steps += 1
        self._losses.append([])
        if self.steps in (self._warm_up, self._wanted):
            wait_for_gpu()
        if self.steps >= self._warm_up:
            self._moments.append(moment())
        if self.steps >= self._wanted:
            raise EnoughError

    def step_ns(self) -> list[float]:
        """Return the time of each measured step, ns; [] where fewer than two ends were seen."""
        wait_for_gpu()
        return [between_ns(*pair) for pair in zip(self._moments, self._moments[1:], strict=False)]

    def losses(self) -> list[float | None]:
        """Return the mean loss of each step from the first one on, also of warm-up; None of a step without."""
        steps = self._losses[: self.steps]
        return [sum(map(float, of_step)) / len(of_step) if of_step else None for of_step in steps]


class _Watching(Phases):
    """Phases that report each step's end immediately."""

    def __init__(self, ends: Ends) -> None:
        super().__init__(Capture(flops=False, memory=False, facts=dict), Bounds.of(0, None), ())
        self._told = ends

    def _step_ended(self) -> None:
        super()._step_ended()
        self._told.updated()


def timed(program: Callable[[], int], warm_up: int, steps: int) -> dict[str, Any]:
    """Run a program until `steps` were measured; return their times, losses, and the program's status.

    `program` is a function that returns its exit status.
    """
    ends = Ends(warm_up, steps)
    phases, status = _Watching(ends), None
    backward = torch.Tensor.backward

    def heard(self: torch.Tensor, *args: Any, **options: Any) -> Any:
        ends.backward(self)
        return backward(self, *args, **options)  # type: ignore[no-untyped-call]

    with ExitStack() as watching:
        watching.callback(range_stack.shrink, len(range_stack.stack()))
        watching.enter_context(others.hear(Deaf()))
        watching.enter_context(phases.running())
        watching.enter_context(telling_roots(ends.call))
        watching.enter_context(replaced((torch.Tensor, "backward", heard)))
        watching.enter_context(suppress(EnoughError))
        status = program()
    return {
        "step_ns": ends.step_ns(),
        "losses": ends.losses(),
        "steps": ends.steps,
        "by": phases.counted_by,
        "status": status,
        "device": _device(),
    }


def _device() -> str:
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_device_name() if used else "CPU"
