"""Which step `annotate_modules(model, flops=True)` counts: the first after it, where nothing says what a step is.

It begins with the first call of the model. Inside a range of a step that the program itself has opened it ends
with that range, else with the next step of an optimizer of the model; without gradients, with the next call of
the model. A loop that steps no optimizer and opens no range of a step is not counted: where its steps end is not
known.
"""

from __future__ import annotations

import torch

from . import optimizers, range_stack
from .counting import Counting
from .range_stack import OpenRange

MOST_CALLS = 64
NO_STEP = (
    "%s was called %s times without a step of an optimizer or a range of a step around the calls, so no step "
    "could be counted: open a range, `with annotate.range('step')`, around each"
)


class FirstStep:
    """Counts it, notified of the model's calls and of its optimizers' updates."""

    def __init__(self, model: str) -> None:
        self.counting = Counting()
        self.counting.listen()
        self._model = model
        self._calls, self._records = 0, False
        # The program's own range of a step, open on the thread that trains.
        self._step: OpenRange | None = None
        optimizers.on_step.add(self._after_update)

    def before_call(self) -> None:
        """Note that the model is about to be called from outside."""
        counting = self.counting
        if counting.is_done:
            return
        if not counting.is_running:
            self._step = optimizers.own_range(optimizers.STEP)
            counting.begin(until=self._step)
        elif self._step.ended if self._step is not None else not self._records:
            self.end()
        elif self._step is None and self._calls >= MOST_CALLS:
            self.end(is_step=False)
            range_stack.say_once(f"no step: {self._model}", NO_STEP, self._model, self._calls)
        self._calls += 1
        self._records |= torch.is_grad_enabled()

    def _after_update(self) -> None:
        if self.counting.is_running and self._step is None:
            self.end()

    def end(self, *, is_step: bool = True) -> None:
        """Stop counting; put what was counted into what is recorded, if it is of one step."""
        optimizers.on_step.discard(self._after_update)
        is_new = self.counting.is_running
        self.counting.end()
        if not is_step:
            self.counting.forget()
        elif is_new:
            self.counting.send()
