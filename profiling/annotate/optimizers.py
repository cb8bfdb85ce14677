"""Ranges that training opens by itself while a model is annotated: `optimizer`, and `step` with its number.

The forward and backward ranges of modules say by their category which phase they are; what an optimizer
does gets a range `optimizer` from PyTorch's hooks on all optimizers, for those that hold a parameter of an
annotated model. A step begins with the first forward after a step of the first such optimizer, and ends
with its next step; so the very first step, before any optimizer is known, is in no range `step`. A
training program's own ranges come first: no `step` where a range of a phase or step is open, no `optimizer`
where one of that name is.

A step that raises calls no second hook: its range ends at the next step or forward, or when the annotation
is taken off. A step that GradScaler skips does not count, and the next one is longer. What an optimizer calls
itself (LBFGS runs forward and backward) is outside its range. Of several optimizers, as a GAN has, the
first one seen counts the steps, and `counted_by` says so.

A `Guide` (`nvtx_kernels.profile` is one) takes over: it opens the steps, and is notified by all optimizers.
"""

from __future__ import annotations

import functools
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from . import calls, range_stack
from .open_ranges import Label, OpenRange, Thread, label

_OPTIMIZER = label("optimizer", None, "phase")
_PHASES = re.compile(r"(?:\w+[ _-])?(?:step|iter\w*|batch|forward|fwd|backward|bwd|optimi[sz]er|optim)\b", re.I)
_STEPS = re.compile(r"(?:\w+[ _-])?(?:step|iter\w*|batch)\b", re.I)
_PHASE = re.compile(r"(?:\w+[ _-])?(?:forward|fwd|backward|bwd|optimi[sz]er|optim)\b", re.I)
_OPTIMIZERS = re.compile(r"(?:\w+[ _-])?(?:optimi[sz]er|optim)\b", re.I)
_is_compiling = torch.compiler.is_compiling


class AutomaticRange(OpenRange):
    """A range that annotation opens automatically; it ends with the range around it."""

    __slots__ = ()
    returns = False


class Guide(Protocol):
    """Opens the ranges of steps instead of this module, which notifies it when to.

    `counted_by` names what the steps are steps of, such as `steps of AdamW`; empty if there are none yet.
    """

    @property
    def counted_by(self) -> str:
        """Return what the steps are steps of."""

    def before_forward(self) -> None:
        """Handle that an annotated model is about to be called."""

    def after_forward(self) -> None:
        """Handle that the call has ended."""

    def before_step(self) -> None:
        """Handle that an optimizer is about to step, before its range opens."""

    def after_step(self, optimizer: Optimizer) -> None:
        """Handle that an optimizer has stepped, after its range has ended."""


class Follower(Protocol):
    """What wants to know when the optimizer that counts the steps has stepped."""

    def after_optimizer(self) -> None:
        """Note that it has."""


#: Those that are notified.
on_step: set[Follower] = set()


class _Training:
    """What is known of training in this process: the annotated models, their optimizers, the steps."""

    def __init__(self) -> None:
        # How many annotations each model has.
        self.models: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self.optimizers: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self.counting: weakref.ref[Optimizer] | None = None
        self.steps = 0
        self.has_opened_steps = False
        self.handles: list[RemovableHandle] = []
        self.guide: Guide | None = None

    def holds(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer has a parameter of an annotated model; with a guide, every one counts."""
        if self.guide is not None:
            return True
        known = self.optimizers.get(optimizer)
        if known is None:
            ours = {id(parameter) for model in self.models for parameter in model.parameters()}
            its = (parameter for group in optimizer.param_groups for parameter in group["params"])
            known = self.optimizers[optimizer] = any(id(parameter) in ours for parameter in its)
        return known

    def counts(self, optimizer: Optimizer) -> bool:
        """Return whether this optimizer's steps are the steps: the first one seen of those that are left."""
        counting = self.counting() if self.counting else None
        if counting is None:
            counting, self.counting = optimizer, weakref.ref(optimizer)
        return counting is optimizer


_training = _Training()


def watch(model: nn.Module) -> None:
    """Open ranges around the steps of this model's optimizers, while something is annotated and recorded."""
    _training.models[model] = _training.models.get(model, 0) + 1
    _training.optimizers.clear()


def unwatch(model: nn.Module) -> None:
    """Undo one `watch`; steps of an optimizer whose models are no longer annotated are counted no more."""
    _training.models[model] = _training.models.get(model, 0) - 1
    if _training.models[model] <= 0:
        del _training.models[model]
    _training.optimizers.clear()
    counting = _training.counting() if _training.counting else None
    if counting is None or not _training.holds(counting):
        _training.counting, _training.steps, _training.has_opened_steps = None, 0, False
        _close(range_stack.here(), "step")


def counted_by() -> str:
    """Return what the ranges `step` are steps of, empty where annotation has opened none yet."""
    if _training.guide is not None:
        return _training.guide.counted_by
    counting = _counting() if _training.has_opened_steps else None
    return f"steps of {type(counting).__name__}" if counting is not None else ""


def _counting() -> Optimizer | None:
    return _training.counting() if _training.counting else None


@contextmanager
def guided(guide: Guide) -> Iterator[None]:
    """Let a guide open the steps, and notify it of every optimizer, while the block runs."""
    before, _training.guide = _training.guide, guide
    _install(True)
    try:
        yield
    finally:
        _training.guide = before
        _install(calls.any_left() and range_stack.active)


def before_forward() -> None:
    """End what a failed step left open, and begin a step where one is due."""
    thread = range_stack.here()
    _close(thread, "optimizer")
    if _training.guide is not None:
        _training.guide.before_forward()
        return
    if thread.step is not None and thread.step.ended:
        thread.step = None
    if (
        thread.step is None
        and _counting() is not None
        and torch.is_grad_enabled()
        and torch._C._current_graph_task_id() == -1
        and not own_step_open()
    ):
        thread.step = range_stack.push(AutomaticRange(Label("step", _training.steps, "phase")))
        _training.has_opened_steps = True


def after_forward() -> None:
    """Notify the guide that a model's call has ended."""
    if _training.guide is not None:
        _training.guide.after_forward()


def own_step() -> OpenRange | None:
    """Return the range of a step or iteration that the program has opened itself, on this thread."""
    return _own(range_stack.here(), _STEPS)


def own_step_open() -> bool:
    """Return whether the program has opened a range of a step or phase itself, on this thread."""
    return _is_open(range_stack.here(), _PHASES)


def own_phase_open() -> bool:
    """Return whether the program has opened a range of a phase itself, on this thread."""
    return _is_open(range_stack.here(), _PHASE)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    if _is_compiling() or _is_nested() or not _training.holds(optimizer):
        return None
    thread = range_stack.here()
    _close(thread, "optimizer")
    if _training.guide is not None:
        _training.guide.before_step()
    if not range_stack.active or _is_open(thread, _OPTIMIZERS):
        return None
    thread.optimizer = range_stack.push(AutomaticRange(_OPTIMIZER))
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _outside(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _outside(args[1]), *args[2:]), kwargs
    return None


def _after_step(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    if _is_compiling() or _is_nested() or not _training.holds(optimizer):
        return
    thread = range_stack.here()
    _close(thread, "optimizer")
    if _training.guide is not None:
        _training.guide.after_step(optimizer)
    elif _training.counts(optimizer):
        _training.steps += 1
        for follower in tuple(on_step):
            follower.after_optimizer()
        _close(thread, "step")


def _outside(closure: Callable[..., Any]) -> Callable[..., Any]:
    """Return the closure such that it runs outside the optimizer's range."""

    @functools.wraps(closure)
    def run(*args: Any, **kwargs: Any) -> Any:
        thread = range_stack.here()
        _close(thread, "optimizer")
        try:
            return closure(*args, **kwargs)
        finally:
            thread.optimizer = range_stack.push(AutomaticRange(_OPTIMIZER))

    return run


def _close(thread: Thread, what: str) -> None:
    opened: OpenRange | None = getattr(thread, what)
    if opened is not None:
        setattr(thread, what, None)
        if not opened.ended:
            range_stack.close(opened)


def _is_open(thread: Thread, names: re.Pattern[str]) -> bool:
    return _own(thread, names) is not None


def _own(thread: Thread, names: re.Pattern[str]) -> OpenRange | None:
    """Return the outermost range of such a name that the program has opened itself."""
    return next((one for one in thread.ranges if _is_own(one) and names.match(one.label.name)), None)


def _is_own(opened: OpenRange) -> bool:
    return opened.label.category == "phase" and not isinstance(opened, AutomaticRange)


def _is_nested() -> bool:
    """Return whether the optimizer that calls a hook is called by another one, which has the range."""
    frame = sys._getframe(2)
    code, above = frame.f_code, frame.f_back
    while above is not None:
        if above.f_code is code:
            return True
        above = above.f_back
    return False


def _install(is_wanted: bool) -> None:
    for handle in _training.handles:
        handle.remove()
    _training.handles = []
    if is_wanted or _training.guide is not None:
        before, after = _before_step, _after_step
        _training.handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    else:
        thread = range_stack.here()
        _close(thread, "optimizer")
        _close(thread, "step")


calls.observers.append(_install)
