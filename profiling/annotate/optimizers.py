"""What optimizers do while a model is annotated: a range `optimizer` around each update, and a mark at its end.

The mark has the optimizer's name, a class with a number from the second of that class on; what a wrapper
(Accelerate's) wraps is one with it. An update inside another is part of it, one that raises ends at the next
update or forward, and what it calls itself (LBFGS runs forward and backward) is outside its range. An update that
a CUDA graph captures did not happen; each replay of that graph is one.

Where nothing else tells steps, a range `step` lasts from the first forward after an update of an optimizer until
its next: a picture for nsys's timeline, as the analysis decides what a step is. The program's own ranges come
first: no `step` where one of a phase or step is open, no `optimizer` where one of that phase is.
A `Guide` (`nvtx_kernels.profile` is one) takes the place of that, and is notified by all optimizers.
"""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from typing import Any, Protocol

import torch
from nvtx_kernels.analysis.vocabulary import OPTIMIZER, is_step, opens_phase, phase_of
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from . import calls, range_stack
from .open_ranges import Label, OpenRange, Thread, label

TRAINING_MARK = "nvtx-kernels training: "
_OPTIMIZER = label("optimizer", None, "phase")
_is_compiling = torch.compiler.is_compiling


class AutomaticRange(OpenRange):
    """A range that annotation opens automatically; it ends with the range around it."""

    __slots__ = ()
    returns = False


class _Update(AutomaticRange):
    """The range of an optimizer's update."""

    __slots__ = ("optimizer",)

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(_OPTIMIZER)
        self.optimizer = weakref.ref(optimizer)


class Guide(Protocol):
    """Is notified of calls and updates, and draws the steps instead of this module."""

    def before_forward(self) -> None:
        """Handle that an annotated model is about to be called."""

    def after_forward(self) -> None:
        """Handle that the call has ended."""

    def before_update(self) -> None:
        """Handle that an optimizer is about to update, before its range opens."""

    def after_update(self, name: str) -> None:
        """Handle that an optimizer of this name has updated, after its range has ended."""


class Follower(Protocol):
    """What wants to know when an optimizer has updated."""

    def after_optimizer(self) -> None:
        """Note that it has."""


#: Those that are notified.
on_step: set[Follower] = set()


class _Training:
    """What is known of training in this process: the annotated models, and their optimizers by name."""

    def __init__(self) -> None:
        # How many annotations each model has.
        self.models: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self.is_theirs: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self.names: weakref.WeakKeyDictionary[Optimizer, str] = weakref.WeakKeyDictionary()
        self.counting: weakref.ref[Optimizer] | None = None
        self.steps = 0
        self.handles: list[RemovableHandle] = []
        self.guide: Guide | None = None

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

    def counts(self, optimizer: Optimizer) -> bool:
        """Return whether this optimizer's updates are drawn as steps: the first seen of those that are left."""
        counting = self.counting() if self.counting else None
        if counting is None:
            counting, self.counting = optimizer, weakref.ref(optimizer)
        return counting is optimizer

    def name(self, optimizer: Optimizer) -> str:
        """Return an optimizer's name, of what it wraps if it wraps another."""
        inner: Optimizer | None = optimizer
        while inner is not None:
            optimizer = inner
            inner = next((part for part in vars(optimizer).values() if isinstance(part, Optimizer)), None)
        if optimizer not in self.names:
            kind, taken = type(optimizer).__name__, {*self.names.values()}
            numbered = (f"{kind}#{number}" for number in count(2))
            self.names[optimizer] = next(name for name in chain([kind], numbered) if name not in taken)
        return self.names[optimizer]


_training = _Training()


def named(given: Sequence[Optimizer]) -> tuple[str, ...]:
    """Return the names by which marks speak of these optimizers; the first of each class from now on."""
    _training.names.clear()
    return tuple(map(_training.name, given))


def tell(event: str, **facts: object) -> None:
    """Write into the report what training does at this moment (`TrainingMark` of the readers has the facts)."""
    if range_stack.active:
        range_stack.mark(TRAINING_MARK + json.dumps({"event": event, **facts}))


def watch(model: nn.Module) -> None:
    """Open ranges around the updates of this model's optimizers, while something is annotated and recorded."""
    _training.models[model] = _training.models.get(model, 0) + 1
    _training.is_theirs.clear()


def unwatch(model: nn.Module) -> None:
    """Undo one `watch`; updates of an optimizer whose models are no longer annotated are drawn no more."""
    _training.models[model] = _training.models.get(model, 0) - 1
    if _training.models[model] <= 0:
        del _training.models[model]
    _training.is_theirs.clear()
    counting = _training.counting() if _training.counting else None
    if counting is None or not _training.holds(counting):
        _training.counting, _training.steps = None, 0
        close(range_stack.here(), "step")


@contextmanager
def guided(guide: Guide) -> Iterator[None]:
    """Let a guide draw the steps, and notify it of every optimizer, while the block runs."""
    before, _training.guide = _training.guide, guide
    _install(True)
    try:
        yield
    finally:
        _training.guide = before
        _install(calls.any_left() and range_stack.active)


def before_forward() -> None:
    """End what a failed update left open, and begin to draw a step where one is due."""
    thread = range_stack.here()
    close(thread, "optimizer")
    if _training.guide is not None:
        _training.guide.before_forward()
        return
    if thread.step is not None and thread.step.ended:
        thread.step = None
    is_due = thread.step is None and _training.counting is not None and _training.counting() is not None
    in_backward = torch._C._current_graph_task_id() != -1
    if is_due and torch.is_grad_enabled() and not in_backward and own_range(_tells_steps) is None:
        thread.step = range_stack.push(AutomaticRange(Label("step", _training.steps, "timeline")))


def after_forward() -> None:
    """Notify the guide that a model's call has ended."""
    if _training.guide is not None:
        _training.guide.after_forward()


def own_range(is_called: Callable[[str], object]) -> OpenRange | None:
    """Return the outermost range with such a name that the program has opened itself on this thread."""
    for opened in range_stack.here().ranges:
        is_own = opened.label.category == "phase" and not isinstance(opened, AutomaticRange)
        if is_own and is_called(opened.label.name):
            return opened
    return None


def own_step() -> OpenRange | None:
    """Return the range of a step that the program has opened itself, on this thread."""
    return own_range(is_step)


def own_phase_open() -> bool:
    """Return whether the program has opened a range of a phase itself, on this thread."""
    return own_range(opens_phase) is not None


@functools.lru_cache(maxsize=1024)
def _tells_steps(name: str) -> bool:
    return is_step(name) or opens_phase(name)


def _before_update(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    thread = range_stack.here()
    if _is_compiling() or _is_inside_another(thread, optimizer) or not _training.holds(optimizer):
        return None
    close(thread, "optimizer")
    if _training.guide is not None:
        _training.guide.before_update()
    update = thread.optimizer = _Update(optimizer)
    if range_stack.active and own_range(lambda name: phase_of(name) == OPTIMIZER) is None:
        range_stack.push(update)
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _outside(kwargs["closure"], optimizer)}
    if len(args) > 1 and callable(args[1]):
        return (args[0], _outside(args[1], optimizer), *args[2:]), kwargs
    return None


def _after_update(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    thread = range_stack.here()
    if _is_compiling() or _is_inside_another(thread, optimizer) or not _training.holds(optimizer):
        return
    close(thread, "optimizer")
    name = _training.name(optimizer)
    if graphs.is_capturing(name):
        return
    run_of_autograd = torch._C._current_graph_task_id()
    tell("update", optimizer=name, **({"backward": run_of_autograd} if run_of_autograd != -1 else {}))
    if _training.guide is not None:
        _training.guide.after_update(name)
    elif _training.counts(optimizer):
        _training.steps += 1
        for follower in tuple(on_step):
            follower.after_optimizer()
        close(thread, "step")


def replayed(names: list[str]) -> None:
    """Handle that a CUDA graph was replayed in whose capture these optimizers updated."""
    for name in names:
        tell("update", optimizer=name)
        if _training.guide is not None:
            _training.guide.after_update(name)


def _is_inside_another(thread: Thread, optimizer: Optimizer) -> bool:
    """Return whether an update of another optimizer runs on this thread, of which this one is part."""
    update: Any = thread.optimizer
    return update is not None and update.optimizer() not in (None, optimizer)


def _outside(closure: Callable[..., Any], optimizer: Optimizer) -> Callable[..., Any]:
    """Return the closure such that it runs outside the optimizer's range."""

    @functools.wraps(closure)
    def run(*args: Any, **kwargs: Any) -> Any:
        thread = range_stack.here()
        close(thread, "optimizer")
        try:
            return closure(*args, **kwargs)
        finally:
            thread.optimizer = range_stack.push(_Update(optimizer))

    return run


def close(thread: Thread, what: str) -> None:
    """End a thread's automatic range of this attribute, if it has one."""
    opened: OpenRange | None = getattr(thread, what)
    if opened is not None:
        setattr(thread, what, None)
        if not opened.ended:
            range_stack.close(opened)


class _Graphs:
    """Which optimizers updated while a CUDA graph was captured, and tells so whenever it is replayed."""

    def __init__(self) -> None:
        self._updates: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
        self._capturing: list[str] | None = None
        self._methods: dict[str, Any] = {}

    def is_capturing(self, name: str) -> bool:
        """Return whether a graph is being captured, and note that this optimizer updates in it."""
        if self._capturing is not None:
            self._capturing.append(name)
        return self._capturing is not None

    def follow(self, is_wanted: bool) -> None:
        """Follow captures and replays from now on, or no more."""
        graph: Any = torch.cuda.CUDAGraph
        if is_wanted == bool(self._methods):
            return
        if not is_wanted:
            for method, original in self._methods.items():
                setattr(graph, method, original)
            self._methods.clear()
            return
        self._methods = {method: getattr(graph, method) for method in ("capture_begin", "capture_end", "replay")}
        begin, end, replay = self._methods.values()

        @functools.wraps(begin)
        def capture_begin(this: Any, *args: Any, **kwargs: Any) -> None:
            self._capturing = self._updates[this] = []
            begin(this, *args, **kwargs)

        @functools.wraps(end)
        def capture_end(this: Any) -> None:
            self._capturing = None
            end(this)

        @functools.wraps(replay)
        def replay_and_tell(this: Any) -> None:
            replay(this)
            replayed(self._updates.get(this, []))

        graph.capture_begin = capture_begin
        graph.capture_end = capture_end
        graph.replay = replay_and_tell


graphs = _Graphs()


def _install(is_wanted: bool) -> None:
    for handle in _training.handles:
        handle.remove()
    _training.handles = []
    is_wanted = is_wanted or _training.guide is not None
    graphs.follow(is_wanted)
    if is_wanted:
        before, after = _before_update, _after_update
        _training.handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    else:
        _training.names.clear()
        thread = range_stack.here()
        close(thread, "optimizer")
        close(thread, "step")


calls.observers.append(_install)
