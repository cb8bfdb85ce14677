"""The steps of an unchanged program: when each ends, its loss, and the calls of its models."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from ..annotate import others, range_stack
from ..annotate.regions import in_backward
from ..annotate.replacing import replaced
from ..recorder.steps import Bounds
from ..training.capture import Capture
from ..training.loop import Phases
from ..training.roots import Caller, telling_roots


class Steps(Phases):
    """Phases that call `ended` with the number of each step as it ends, and keep the losses.

    Where nothing updates, each call of a model is a step; at the first backward, those before it are forgotten, by
    a call of `ended` with 0.
    """

    def __init__(self, ended: Callable[[int], None], make_call: Caller) -> None:
        super().__init__(Capture(flops=False, memory=False, facts=dict), Bounds.of(0, None), ())
        self.count, self.began_s = 0, 0.0
        self._ended, self._make_call = ended, make_call
        self._losses: list[list[torch.Tensor]] = [[]]

    @property
    def losses(self) -> list[float | None]:
        """Return the mean loss of each step, None of one without."""
        steps = self._losses[: self.count]
        return [sum(map(float, losses)) / len(losses) if losses else None for losses in steps]

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Follow the program while the block runs it."""
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def heard_backward(tensors: Any, *arguments: Any, **options: Any) -> None:
            if not in_backward():
                for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
                    self._keep_loss(tensor)
            backward(tensors, *arguments, **options)

        with ExitStack() as watching:
            watching.callback(range_stack.shrink, len(range_stack.stack()))
            watching.enter_context(others.hear(others.Deaf()))
            watching.enter_context(self.running())
            watching.enter_context(telling_roots(self._called))
            watching.enter_context(replaced((torch.autograd, "backward", heard_backward)))
            yield

    def _called(
        self,
        call: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        self.began_s = self.began_s or time.perf_counter()
        output = self._make_call(call, module, args, kwargs)
        if not self._is_training:
            self._end()
        return output

    def _keep_loss(self, tensor: Any) -> None:
        """Keep the value of a loss, whose own memory may soon not hold it."""
        self._note_training()
        if isinstance(tensor, torch.Tensor) and tensor.numel() == 1:
            self._losses[-1].append(tensor.detach().clone())

    _is_training = False

    def _note_training(self) -> None:
        if not self._is_training:
            self._is_training, self.count, self._losses = True, 0, [[]]
            self.began_s = time.perf_counter()
            self._ended(0)

    def _step_ended(self) -> None:
        super()._step_ended()
        self._note_training()
        self._end()

    def _end(self) -> None:
        self.count += 1
        self._losses.append([])
        self._ended(self.count)
