"""The facts of a training loop without annotations: its phases as ranges, its steps as marks.

`forward` lasts from a model's call until backward begins, so that it holds the loss; without gradients, until the
call returns. `backward` is a run of autograd's engine, and `gradient` one whose results a loss is made of. Ranges
of a phase that the program opens through `annotate` itself come first.

What a step is, the analysis decides, which sees the whole program. What is counted here is a picture, as good as
can be known at the time: when `warmup` ends, when `measure` and with it a capture range begin, and when as many
steps as asked for are done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

import torch
from nvtx_kernels.analysis.vocabulary import BACKWARD
from nvtx_kernels.analysis.vocabulary.step_ends import IN_BACKWARD, ending_optimizer, may_go_on, warm_up_steps

from ..annotate import calls, optimizers, range_stack
from ..annotate.compiled import tracing
from ..annotate.others import hear
from ..annotate.range_stack import AutomaticRange, OpenRange, label
from ..annotate.regions import in_backward
from ..harmless import forgiving
from ..recorder.beside import COLD, FIRST_TIMED, Follower, Settling, recorded
from ..recorder.steps import Bounds, ends_are_known
from ..recorder.trace_file import Content
from . import engine_runs, own_steps
from .capture import Capture
from .engine_runs import EngineRun, OpenRun
from .own_steps import OwnSteps
from .roots import telling_roots

GRADIENT = "gradient"
BY_HAND, BY_BACKWARD = "calls of step()", "updates in backward"
WHOLE_BLOCK = "the whole block, in which nothing ended a step"
FROM_FIRST_CALL = "all from the first call of a model on, in which nothing ended a step"


class Phases:
    """Emits training marks for one block of a program, and counts its steps as far as they are known.

        warm-up ── its steps have ended, or the program's own range `warmup` ──► measuring
           │                                                                         │ all steps have ended,
           └── the block ends ──► over ◄─────────────────────────────────────────────┘ or the block ends
                                   │
                                   └── the report is written ──► settling: more steps are timed ──► settled

    `bounds` has the numbers of warm-up steps and of measured steps; FLOPs are counted in the last step of warm-up
    if asked for. `given_optimizers` are the names of the optimizers given. `when_written` is called once the
    report is written and the program goes on without a profiler: nothing listens from then on, and annotation
    stays; `when_settled` once the steps after it were timed.
    """

    def __init__(
        self,
        capture: Capture,
        bounds: Bounds,
        given_optimizers: tuple[str, ...],
        when_written: Callable[[], None] = lambda: None,
        when_settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._capture = capture
        self._bounds = bounds
        self._given = given_optimizers
        self._when_written = when_written
        self._when_settled = when_settled

        # What is known of steps. The moments of updates by optimizer, and of calls of step(): how many of both
        # there were before.
        self._moments = count(1)
        self._updates: dict[str, list[int]] = {}
        self._calls: list[int] = []
        self._own = OwnSteps()
        self._own_warmed = 0  # the steps in the program's own ranges of warm-up
        self._is_own_warm_up = False
        self._ended_by = (False, "")  # whether calls of step() end steps, else which optimizer
        self._seen: set[str] = set()  # the optimizers that updated
        self._inside: set[str] = set()  # those that updated in a backward
        self._has_begun = False
        self._trains = False
        self.calls_by = ""  # who calls `step()` where the program does not: a trainer

        # Where the block is.
        self._stage = ExitStack()  # warm-up, or the measured steps
        self._is_measuring = False
        self.is_over = False
        self._is_whole = False  # it is over, and nothing ended a step in it
        self._is_left = False
        self.error = ""  # that ended the block

        # What is open.
        self._step: object = None
        self._forward: OpenRange | None = None
        self._backwards = 0
        self._updated_in_backward = False

        # What follows the phases, and times steps that nobody records: the mark of these, once they were.
        self._follower = Follower()
        self._settling: Settling | None = None
        self.unrecorded = ""
        self._unheard = ExitStack()
        self._until_written = ExitStack()  # what is heard of the program
        self._until_timed = ExitStack()

    @property
    def counted_by(self) -> str:
        """Return the name of the event that ends the steps, as far as it is known, or "" before the first."""
        if self._calls:
            return f"steps of {self.calls_by}" if self.calls_by else BY_HAND
        _, name = self._own_steps
        if name:
            return f"ranges `{name}`"
        if not self._updates:
            whole_block = WHOLE_BLOCK if self._trains else FROM_FIRST_CALL
            return whole_block if self._is_whole else ""
        optimizer = self._ending_optimizer()
        return BY_BACKWARD if optimizer == IN_BACKWARD else f"steps of {optimizer}"

    @property
    def autocast(self) -> str:
        """Return the type to which autocast casts in the models' calls, `off` without it, "" before the first."""
        return self._follower.autocast

    @property
    def warmed(self) -> int:
        """Return how many steps were warm-up."""
        if self._own_warmed:
            return self._own_warmed
        warmup = self._bounds.warmup
        fewest = self._bounds.fewest
        own_count, _ = self._own_steps
        if own_count:
            warm_up = warm_up_steps(warmup, {}, range(own_count), fewest)
            return min(own_count, warm_up)
        ends = self._ends()
        warm_up = warm_up_steps(warmup, self._updates, ends, fewest)
        return min(len(ends), warm_up)

    @property
    def measured(self) -> int:
        """Return how many steps were measured."""
        if self._is_whole:
            return 1
        own_count, _ = self._own_steps
        count = own_count or len(self._ends())
        return count if self._own_warmed else count - self.warmed

    @property
    def content(self) -> Content:
        """Return how many steps were measured, and whether these are as many as were asked for."""
        is_complete = not self.error or (self._bounds.steps is None and not self._is_whole)
        return Content(self.measured, self.measured > 0 and is_complete)

    @property
    def _own_steps(self) -> tuple[int, str]:
        """Return how many steps the program's own ranges are, and their name, where these count."""
        return (0, "") if self._calls else self._own.counted

    @property
    def never_updated(self) -> list[str]:
        """Return the optimizers that were given, and have not updated."""
        return [name for name in self._given if name not in self._seen]

    @property
    def unused(self) -> list[str]:
        """Return the optimizers of the program that have not updated, where no optimizer has."""
        if self._seen:
            return []
        names = (*self._given, *optimizers.never_updated())
        return [*dict.fromkeys(names)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Emit marks while the block runs."""
        with optimizers.guided(self), self._until_timed, self._until_written:
            self._until_timed.enter_context(engine_runs.told(self._backward_begins, self._backward_ends))
            self._until_written.enter_context(self._capture.loaders.noting())
            self._until_written.enter_context(hear(self._own))
            optimizers.tell("begin", optimizers=self._given, **self._bounds.facts())
            if self._bounds.warmup:
                self._stage.enter_context(self._capture.drawn("warmup"))
            else:
                self._measure()
            self._begin_step()
            self._capture.hear_of_own_steps(self._own_step_begins)
            try:
                yield
            except BaseException as error:
                self.error = type(error).__name__
                raise
            finally:
                self._finish()
                self._is_left = True
                self._settled()

    @forgiving("the last step has no end")
    def interrupt(self, error: str) -> None:
        """End the last step, as an exception of this name does."""
        self.error = self.error or error
        self._finish()

    @forgiving("a step has no end")
    def step(self) -> None:
        """End a step; from now on, no optimizer's updates do."""
        if self.is_over:
            self._timed_step_ended(BY_HAND)
        else:
            caller = {"by": self.calls_by} if self.calls_by else {}
            optimizers.tell("step", **caller)
            if self._has_begun and not self._is_in_own_warm_up(ends=True):  # one before all work ends nothing
                self._calls.append(next(self._moments))
                self._step_ended()

    @forgiving("a forward has no range")
    def before_forward(self, arguments: object) -> None:
        """Begin the phase."""
        if in_backward():
            return
        self._follower.forward(arguments)
        if self.is_over:
            return
        self._capture.loaders.note_forward()
        self._has_begun = True
        if not self._is_in_own_warm_up():
            self._own.note(updates=False)
        is_open = self._forward is not None and not self._forward.ended
        if not is_open and optimizers.own_range(optimizers.WHOLE_PHASE) is None:
            self._forward = range_stack.push(AutomaticRange(label("forward", None, "phase")))

    @forgiving("a forward has no end")
    def after_forward(self) -> None:
        """End the phase if no backward can follow."""
        if not torch.is_grad_enabled() and not calls.in_function():
            if not self._backwards:
                self._follower.leave()
            self._end_forward()

    @forgiving("a forward has no end")
    def before_update(self) -> None:
        """End the forward."""
        if not self._backwards:
            self._follower.update()
            self._end_forward()

    @forgiving("an update has no end")
    def after_work(self) -> None:
        """Follow the end of an optimizer's work."""
        if not self._backwards:
            self._follower.leave()

    @forgiving("an update is not noted")
    def after_update(self, name: str) -> None:
        """Count an update, and a step if this is the optimizer that ends them."""
        self._has_begun = self._trains = True
        self._seen.add(name)
        if self._backwards:
            self._updated_in_backward = True
            self._inside.add(name)
        else:
            self._note_update(name)

    def _note_update(self, name: str) -> None:
        self._follower.updated(name)
        if self.is_over:
            self._timed_step_ended(name)
            return
        if self._is_in_own_warm_up(ends=True):
            return
        self._own.note(updates=True)
        self._updates.setdefault(name, []).append(next(self._moments))
        if self._calls or name != self._ending_optimizer():
            return
        if not may_go_on(name, self._updates, self._given, self._inside):
            self._step_ended()

    def _is_in_own_warm_up(self, *, ends: bool = False) -> bool:
        """Return whether a range of warm-up is open that the program opened itself, in which a step may end.

        Where the program has any, they decide: what follows is measured.
        """
        is_open = self._own.is_in_warm_up()
        if is_open:
            self._is_own_warm_up = True
            if ends:
                self._own_warmed += 1
                self._end_step()
                self._begin_step()
        elif self._is_own_warm_up and not self._is_measuring:
            self._updates.clear()
            self._calls.clear()
            self._stage.close()
            self._measure()
        return is_open

    def _ending_optimizer(self) -> str:
        return ending_optimizer(self._updates, self._given, self._inside)

    def _ends(self) -> list[int]:
        """Return the moments at which steps ended."""
        return self._calls or self._updates.get(self._ending_optimizer(), [])

    def _step_ended(self) -> None:
        self._follower.end()
        by = (bool(self._calls), self._ending_optimizer())
        if by != self._ended_by:  # what was followed so far were other steps
            self._ended_by = by
            self._follower.keep(timing=self._follower.timing)
        self._end_step()
        if not self._is_measuring and len(self._ends()) >= self._bounds.warmup:
            self._stage.close()
            self._measure()
        elif self._is_done() and (self._capture.is_watched or not self._own_steps[0]):
            self._finish()
            return
        self._capture.step_ended()
        self._begin_step()

    @forgiving("a step has no end")
    def _own_step_begins(self) -> None:
        """Finish if the program's own ranges are the steps and all measured ones have ended."""
        if not self._updates and not self._calls and not self.is_over:  # these may be the steps
            lines = self._capture.lines
            lines.step_ends()
            lines.step_begins(is_last_of_warm_up=len(lines.begun) == self._bounds.warmup)
        if self._own_steps[0] and self._is_done():
            self._finish()

    def _is_done(self) -> bool:
        """Return whether as many steps are measured as were asked for."""
        steps = self._bounds.steps
        if not self._is_measuring or self.is_over or steps is None:
            return False
        own_count, _ = self._own_steps
        ends, updates = (range(own_count), {}) if own_count else (self._ends(), self._updates)
        warm_up = 0 if self._own_warmed else warm_up_steps(self._bounds.warmup, updates, ends)
        return len(ends) - warm_up >= steps

    def _measure(self) -> None:
        self._is_measuring = True
        timed = self._timed_before()
        self._stage.enter_context(self._capture.measuring())
        optimizers.tell("measure", optimizers=self._given)
        if timed:
            range_stack.mark(timed)
        self._follower.keep()

    def _time_before(self, number: int) -> None:
        """Time steps of warm-up that nsys does not capture, and empty the last one; nothing is heard of these."""
        last = self._bounds.warmup - 1
        if not self._capture.is_later or self._is_measuring or self._is_own_warm_up or number < FIRST_TIMED:
            return
        if not self._follower.timing and number == FIRST_TIMED < last:
            self._unheard.enter_context(range_stack.silence())
            self._unheard.enter_context(telling_roots(is_told=calls.is_annotated))
            self._follower.keep(timing=True)
        elif self._follower.timing and number == last:
            self._follower.empty()

    def _timed_before(self) -> str:
        """Stop to time steps, and return the mark of those that were, "" without any."""
        self._unheard.close()
        if not self._capture.is_later:
            return ""
        return self._follower.mark("before", {COLD: FIRST_TIMED})

    def _is_written(self) -> None:
        """Time the steps that follow the recording."""
        self._until_written.close()
        own_count, _ = self._own_steps
        if not self._is_left and ends_are_known(own_count, len(self._ends())):
            self._settling = Settling(self._follower)
            self._unheard.enter_context(telling_roots(is_told=calls.is_annotated))
        else:
            self._settled()
        self._when_written()
        if self._settling is None and not self._is_left:
            self._when_settled()

    def _timed_step_ended(self, by: str) -> None:
        """Handle what may end a step after the recording: a call of step(), or an update."""
        if self._settling is None:
            return
        ended_by = BY_HAND if self._calls else self._ending_optimizer()
        if by != ended_by:
            return
        self._follower.end()
        self._settling.step_ended()
        if self._settling.is_over:
            self._settled()
            self._when_settled()
        elif self._settling.is_whole:
            self._unheard.close()

    def _settled(self) -> None:
        """Hear no more of the program, and take the mark of the steps that were timed."""
        optimizers.leave_alone(self)
        self._unheard.close()
        self._until_timed.close()
        settling, self._settling = self._settling, None
        if settling is not None and not self.error:
            self.unrecorded = settling.mark()

    def _begin_step(self) -> None:
        number = len(self._ends())
        self._time_before(number)
        if self._capture.is_watched:
            number_shown = max(0, number - self._bounds.warmup * self._is_measuring)
            self._step = range_stack.draw(label("step", number_shown, "timeline"))
        is_timed = self._capture.is_later and self._bounds.warmup - 1 > FIRST_TIMED
        last_heard = FIRST_TIMED - 1 if is_timed else self._bounds.warmup - 1
        is_last_of_warm_up = number == last_heard or (not number and self._bounds.fewest)
        if (is_last_of_warm_up or self._is_own_warm_up) and not self._is_measuring:
            self._capture.count()
        # The step whose FLOPs are counted calls each operator from Python: lines are of the one before.
        traced = self._bounds.warmup - (2 if self._capture.counting is not None else 1)
        is_traced = number == traced or (self._is_own_warm_up and self._own_warmed == 1)
        self._capture.lines.step_begins(is_last_of_warm_up=is_traced and not self._is_measuring)

    def _end_step(self) -> None:
        self._capture.lines.step_ends()
        self._end_forward()
        if self._capture.counting is not None:
            self._capture.counting.end()
        step, self._step = self._step, None
        range_stack.drawn(step)

    def _finish(self) -> None:
        if self.is_over:
            return
        self._is_whole = not self._ends() and self._has_begun
        self.is_over = True
        self._end_step()
        if not self._is_measuring and self.measured and not self.error:  # too few steps for the whole warm-up
            self._stage.close()
            self._measure()
        are_compared = self._bounds.steps or self._capture.is_later
        if self._is_measuring and self._follower.steps and are_compared:
            range_stack.mark(recorded(self._follower.steps))
        facts: dict[str, object] = {"error": self.error} if self.error else {}
        if self._is_whole and self.unused:
            facts["unused"] = self.unused
        optimizers.tell("end", **facts)
        self._stage.close()
        if self.measured and not self.error:  # else the block's end writes, and raises what went wrong
            self._capture.write_when_safe(self._is_written)

    def _end_forward(self) -> None:
        forward, self._forward = self._forward, None
        range_stack.close(forward)

    @forgiving("a backward has no range")
    def _backward_begins(self, run: EngineRun) -> OpenRun | None:
        """Tell of a run of the engine, by a range unless the program or a backward around it has one.

        Tensor.backward ends a forward; torch.autograd.grad hands out gradients, which may become part of a loss.
        Inside another backward only a gradient has a range. One inside a model's call is nested in its forward.
        Optimizers that update in it are one, which updates at its end.
        """
        kind = GRADIENT if run.leads_on() else BACKWARD
        if in_backward() and kind == BACKWARD:
            return None
        # Gradients of weights end it, too: what is done with them is no part of a loss.
        ends_forward = run.stores or (kind == BACKWARD and run.is_of_weights())
        if ends_forward and range_stack.here().calls() is None:
            self._end_forward()
        self._has_begun = self._trains = True
        opened = None
        if not self.is_over and (kind == GRADIENT or optimizers.own_range(BACKWARD) is None):
            category = "phase" if kind == BACKWARD else kind
            opened = range_stack.push(AutomaticRange(label(kind, None, category)))
        is_phase = kind == BACKWARD and not self._backwards
        if is_phase:
            self._follower.backward()
        self._backwards += 1
        return OpenRun(opened, is_phase)

    @forgiving("a backward has no end")
    def _backward_ends(self, begun: OpenRun | None) -> None:
        if begun is None:
            return
        range_stack.close(begun.opened)
        self._backwards -= 1
        if begun.is_phase:
            self._follower.leave()
        if self._updated_in_backward and not self._backwards:
            self._updated_in_backward = False
            self._note_update(IN_BACKWARD)


# Their functions are called by compiled code between its graphs.
for _module in (engine_runs, own_steps, sys.modules[__name__]):
    tracing.keep_eager(_module, and_what_it_calls=False)
