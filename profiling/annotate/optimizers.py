"""What optimizers do while a model is annotated: a range `optimizer` around each update, and a mark at its end.

The mark has the optimizer's name: its class, with a number from the second of that class on. A wrapper
(Accelerate's) and the optimizer inside count as one. An update inside another is part of it. An update that raises
ends at the next update or forward. Forward and backward that an update calls itself (LBFGS) are outside its range.
Capturing an update in a CUDA graph does not count; each replay of that graph does. The work of a GradScaler is the
optimizer's, and an update that it skips because gradients overflowed counts.

If the program does not mark steps, a range `step` lasts from the first forward after an update of an optimizer
to its next update. It only serves nsys's timeline; the analysis decides what a step is. The program's own ranges
take precedence: there is no `step` inside a range of a phase or step, and no `optimizer` inside one of that phase.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from types import FrameType
from typing import Any, Protocol

import torch
from nvtx_kernels.analysis.vocabulary import OPTIMIZER, is_step, is_warm_up, opens_phase, phase_of
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..harmless import forgive, forgiving, json_text
from . import range_stack
from .compiled import tracing
from .range_stack import AutomaticRange, Label, OpenRange, Thread, label
from .regions import in_backward, pass_id
from .replacing import replaced

TRAINING_MARK = "nvtx-kernels training: "
#: What the program's own ranges may mean, in addition to their phase.
STEP, WARM_UP, WHOLE_PHASE = "step", "warm-up", "whole phase"
_OPTIMIZER = label("optimizer", None, "phase")
_is_compiling = torch.compiler.is_compiling


class Guide(Protocol):
    """Draws the steps instead of this module; is notified of models' calls and of every optimizer's updates."""

    def before_forward(self, arguments: object) -> None:
        """Handle that an annotated model is about to be called with these arguments."""

    def after_forward(self) -> None:
        """Handle that the call has ended."""

    def before_update(self) -> None:
        """Handle that an optimizer is about to work, before its range opens."""

    def after_work(self) -> None:
        """Handle that it no longer works."""

    def after_update(self, name: str) -> None:
        """Handle that an optimizer of this name has updated, after its range has ended."""


#: Called after an update of the optimizer by which steps are drawn.
on_step: set[Callable[[], None]] = set()


class _Training:
    """What is known of training in this process: the annotated models, and their optimizers by name."""

    def __init__(self) -> None:
        # The names of each annotated model, and how many annotations have each.
        self.models: weakref.WeakKeyDictionary[nn.Module, Counter[str]] = weakref.WeakKeyDictionary()
        self.is_theirs: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self.names: weakref.WeakKeyDictionary[Optimizer, str] = weakref.WeakKeyDictionary()
        # Whose updates are drawn as steps: the first seen of those that are left.
        self.counting: Callable[[], Optimizer | None] = lambda: None
        self.steps = 0
        self.guide: Guide | None = None
        # The optimizers that were made while a guide was there.
        self.made: weakref.WeakKeyDictionary[Optimizer, str] = weakref.WeakKeyDictionary()
        # Which optimizers updated while a CUDA graph was captured, and those of the one that is.
        self.captured: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
        self.capturing: list[str] | None = None

    @forgiving("an optimizer is not known")
    def holds(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer has a parameter of an annotated model; with a guide, every one counts."""
        if self.guide is not None:
            return True
        is_theirs = self.is_theirs.get(optimizer)
        if is_theirs is None:
            trained = {id(parameter) for model in self.models for parameter in model.parameters()}
            updated = (parameter for group in optimizer.param_groups for parameter in group["params"])
            is_theirs = self.is_theirs[optimizer] = any(id(parameter) in trained for parameter in updated)
        return is_theirs

    def name(self, optimizer: Optimizer) -> str:
        """Return an optimizer's name, of what it wraps if it wraps another."""
        inner: Optimizer | None = optimizer
        while inner is not None:
            optimizer = inner
            inner = next((part for part in vars(optimizer).values() if isinstance(part, Optimizer)), None)
        if optimizer not in self.names:
            self.names[optimizer] = _numbered(type(optimizer).__name__, {*self.names.values()})
        return self.names[optimizer]


_training = _Training()


def _numbered(name: str, taken: Collection[str]) -> str:
    """Return a name, with a number from the second on, that is not taken."""
    if name not in taken:
        return name
    numbered = (f"{name}#{number}" for number in count(2))
    return next(candidate for candidate in numbered if candidate not in taken)


def model_name(model: nn.Module) -> str:
    """Return the name that an annotated model has already, or that of its class, numbered if another has that."""
    if names := _training.models.get(model):
        return next(iter(names))
    taken = {name for names in _training.models.values() for name in names}
    return _numbered(type(model).__name__, taken)


def named(optimizers: Sequence[Optimizer]) -> tuple[str, ...]:
    """Return the names by which marks speak of these optimizers; the first of each class from now on."""
    _training.names.clear()
    return tuple(map(_training.name, optimizers))


def name_of(optimizer: Optimizer) -> str:
    """Return the name by which marks speak of an optimizer."""
    return _training.name(optimizer)


def updated() -> list[Optimizer]:
    """Return the optimizers that marks speak of, as they were given or have updated, in this order."""
    return list(_training.names)


def never_updated() -> list[str]:
    """Return the optimizers that were made while a guide was there, and have not updated: their classes."""
    return [name for optimizer, name in _training.made.items() if optimizer not in _training.names]


def _noting_made() -> tuple[Any, str, Any]:
    """Return the replacement of a method that notes which optimizers are made."""
    make = Optimizer.__init__

    @functools.wraps(make)
    def made(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        try:
            _training.made[self] = type(self).__name__
        except Exception:
            forgive("an optimizer is not known")

    return Optimizer, "__init__", made


def tell(event: str, **facts: object) -> None:
    """Write into the report what training does at this moment (`TrainingMark` of the readers has the facts)."""
    if range_stack.active:
        range_stack.mark(TRAINING_MARK + json_text({"event": event, **facts}))


def watch(model: nn.Module, name: str) -> None:
    """Open ranges around the updates of this model's optimizers, while something is annotated and recorded."""
    _training.models.setdefault(model, Counter())[name] += 1
    _training.is_theirs.clear()


def unwatch(model: nn.Module, name: str) -> None:
    """Undo one `watch`; updates of an optimizer whose models are no longer annotated get no range."""
    _training.models[model] -= Counter([name])
    if not _training.models[model]:
        del _training.models[model]
    _training.is_theirs.clear()
    counting = _training.counting()
    if counting is None or not _training.holds(counting):
        _training.counting, _training.steps = lambda: None, 0
        _close(range_stack.here(), "step")


@forgiving("a step has no beginning")
def before_forward(arguments: object = ()) -> None:
    """End what a failed update left open, and begin to draw a step where one is due.

    `arguments` are the arguments of the model that is about to be called.
    """
    thread = range_stack.here()
    _close(thread, "optimizer")
    if _training.guide is not None:
        _training.guide.before_forward(arguments)
        return
    if thread.step is not None and thread.step.ended:
        thread.step = None
    is_due = thread.step is None and _training.counting() is not None
    if is_due and torch.is_grad_enabled() and not in_backward() and own_range(STEP, WHOLE_PHASE) is None:
        thread.step = range_stack.push(AutomaticRange(Label("step", _training.steps, "timeline")))


@forgiving("a forward has no end")
def after_forward() -> None:
    """Notify the guide that a model's call has ended."""
    if _training.guide is not None:
        _training.guide.after_forward()


def own_range(*meanings: str) -> OpenRange | None:
    """Return the outermost range that the program has opened itself on this thread and that means one of these."""
    for opened in range_stack.stack():
        is_own = opened.label.category == "phase" and not isinstance(opened, AutomaticRange)
        if is_own and not meanings_of(opened.label.name).isdisjoint(meanings):
            return opened
    return None


@functools.lru_cache(maxsize=1024)
def meanings_of(name: str) -> frozenset[str | None]:
    """Return the meanings of a range's name: a phase, `STEP`, `WARM_UP`, `WHOLE_PHASE`."""
    meant = {STEP: is_step(name), WARM_UP: is_warm_up(name), WHOLE_PHASE: opens_phase(name)}
    return frozenset({phase_of(name), *(meaning for meaning, is_meant in meant.items() if is_meant)})


def _before_update(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    if _is_compiling():
        tracing.note_updating(optimizer)
        return None
    return _begin_update(optimizer, args, kwargs, sys._getframe(1))


@forgiving("an update has no range")
def _begin_update(
    optimizer: Optimizer,
    args: Any,
    kwargs: Any,
    hook: FrameType,
) -> tuple[Any, Any] | None:
    """Open the range of an update, whose hooks this frame calls; return its arguments if its closure changes."""
    if _is_inside_another(hook) or not _training.holds(optimizer):
        return None
    if _scaling.is_asked:  # its range is open
        return None
    thread = range_stack.here()
    if not _open_update(thread):
        return None
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _outside(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _outside(args[1]), *args[2:]), kwargs
    return None


@forgiving("an update has no range")
def _open_update(thread: Thread) -> bool:
    """Open the range of an update, unless nobody listens or the program has one; return whether it is open."""
    _close(thread, "optimizer")
    if _training.guide is not None:
        _training.guide.before_update()
    if not range_stack.active or own_range(OPTIMIZER) is not None:
        return False
    thread.optimizer = range_stack.push(AutomaticRange(_OPTIMIZER))
    return True


@forgiving("an update has no end")
def _end_update(thread: Thread) -> None:
    _close(thread, "optimizer")
    if _training.guide is not None:
        _training.guide.after_work()


def _after_update(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    if _is_compiling():
        tracing.note_update(optimizer, _run_compiled_update)
        return
    _finish_update(optimizer, sys._getframe(1))


@forgiving("an update has no end")
def _finish_update(optimizer: Optimizer, hook: FrameType) -> None:
    """End the range of an update, whose hooks this frame calls, and note it."""
    if _is_inside_another(hook) or not _training.holds(optimizer):
        return
    if not _scaling.is_asked:
        _end_update(range_stack.here())
    _scaling.has_updated = True
    _note_update(optimizer)


def _run_compiled_update(
    optimizer: Callable[[], Optimizer | None],
    works_before: bool,
    code: Callable[..., Any],
    *args: Any,
) -> Any:
    """Run compiled code in which an optimizer updates: in its range, unless other work comes before it there."""
    updating = optimizer()
    is_heard = calls_are_heard or _training.guide is not None
    if not is_heard or updating is None or _scaling.is_asked or not _training.holds(updating):
        return code(*args)
    try:
        if not works_before:
            _open_update(range_stack.here())
        returned = code(*args)
    finally:
        _end_update(range_stack.here())
    _note_update(updating)
    return returned


@forgiving("an update is not noted")
def _note_update(optimizer: Optimizer) -> None:
    """Tell that an optimizer has updated, or that its update was skipped."""
    name = _training.name(optimizer)
    if _training.capturing is not None:
        _training.capturing.append(name)
        return
    _tell_update(name, **({"backward": pass_id()} if in_backward() else {}))
    if _training.guide is not None:
        return
    if _training.counting() is None:
        _training.counting = weakref.ref(optimizer)
    if _training.counting() is optimizer:
        _training.steps += 1
        for has_stepped in tuple(on_step):
            has_stepped()
        _close(range_stack.here(), "step")


@forgiving("an update is not noted")
def _tell_update(name: str, **facts: object) -> None:
    tell("update", optimizer=name, **facts)
    if _training.guide is not None:
        _training.guide.after_update(name)


def _is_inside_another(hook: FrameType) -> bool:
    """Return whether an update runs inside another, given PyTorch's frame that calls the hooks of every update.

    That one may be of the same optimizer: a class whose `step` calls its base class's.
    """
    code, outer = hook.f_code, hook.f_back
    while outer is not None and outer.f_code is not code:
        outer = outer.f_back
    return outer is not None


def _outside(closure: Callable[..., Any]) -> Callable[..., Any]:
    """Return the closure such that it runs outside the optimizer's range."""

    @functools.wraps(closure)
    def run(*args: Any, **kwargs: Any) -> Any:
        thread = range_stack.here()
        _end_update(thread)
        try:
            return closure(*args, **kwargs)
        finally:
            _open_update(thread)

    return run


def _close(thread: Thread, attribute: str) -> None:
    """End a thread's automatic range of this attribute, if it has one."""
    opened: OpenRange | None = getattr(thread, attribute)
    setattr(thread, attribute, None)
    range_stack.close(opened)


def _following_graphs() -> list[tuple[Any, str, Any]]:
    """Return the replacements of methods that follow captures and replays of CUDA graphs."""
    graph: Any = torch.cuda.CUDAGraph
    begin = graph.capture_begin
    end = graph.capture_end
    replay = graph.replay

    @functools.wraps(begin)
    def capture_begin(this: Any, *args: Any, **kwargs: Any) -> None:
        begin(this, *args, **kwargs)
        _training.capturing = _training.captured[this] = []

    @functools.wraps(end)
    def capture_end(this: Any) -> None:
        _training.capturing = None
        end(this)

    @functools.wraps(replay)
    def replayed(this: Any) -> None:
        replay(this)
        for name in _training.captured.get(this, ()):
            _tell_update(name)

    methods = {"capture_begin": capture_begin, "capture_end": capture_end, "replay": replayed}
    return [(graph, name, method) for name, method in methods.items()]


class _Scaling(threading.local):
    """What a GradScaler does on this thread: whether it works for an optimizer, and whether that has updated."""

    is_asked = has_updated = False


_scaling = _Scaling()


def _following_scalers() -> Iterator[tuple[Any, str, Any]]:
    """Yield the replacements of methods by which gradients are unscaled, and updates are asked for."""
    kinds: list[Any] = [torch.amp.GradScaler]
    for kind in kinds:
        kinds += kind.__subclasses__()
        for name in ("unscale_", "step", "update"):
            if name in vars(kind):
                yield kind, name, _asked(vars(kind)[name], updates=name == "step")


def _asked(method: Callable[..., Any], *, updates: bool) -> Callable[..., Any]:
    """Return a scaler's method that runs in the range of an optimizer's update, and tells one if it `updates`."""

    @functools.wraps(method)
    def asked(this: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = kwargs.get("optimizer", next(iter(args), None))
        is_theirs = not isinstance(optimizer, Optimizer) or _training.holds(optimizer)
        if _is_compiling() or _scaling.is_asked or not is_theirs or not this.is_enabled():
            return method(this, *args, **kwargs)
        thread = range_stack.here()
        _scaling.is_asked, _scaling.has_updated = True, False
        try:
            _open_update(thread)
            result = method(this, *args, **kwargs)
        finally:
            _end_update(thread)
            _scaling.is_asked = False
        if updates and not _scaling.has_updated and isinstance(optimizer, Optimizer):
            _note_update(optimizer)
        return result

    return asked


_installed = ExitStack()
#: Whether something receives the calls of annotated models; `calls.py` sets it.
calls_are_heard = False


def install() -> None:
    """Hear of updates if calls of annotated models are heard, or a guide is there; else no longer."""
    _installed.close()
    if calls_are_heard or _training.guide is not None:
        _installed.callback(register_optimizer_step_pre_hook(_before_update).remove)
        _installed.callback(register_optimizer_step_post_hook(_after_update).remove)
        _installed.enter_context(replaced(*_following_graphs(), *_following_scalers()))
    else:
        _training.names.clear()
        _close(range_stack.here(), "optimizer")
        _close(range_stack.here(), "step")


def leave_alone(guide: Guide) -> None:
    """Notify a guide of nothing more. Hooks stay where they are: PyTorch may be going through them."""
    if _training.guide is guide:
        _training.guide = None


@contextmanager
def guided(guide: Guide) -> Iterator[None]:
    """Let a guide draw the steps, and notify it of every optimizer, while the block runs."""
    before, _training.guide = _training.guide, guide
    _training.made.clear()
    install()
    try:
        with replaced(_noting_made()):
            yield
    finally:
        _training.guide = before
        install()
