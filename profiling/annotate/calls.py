"""Ranges around the calls of annotated modules.

Modules get no hooks. While a tool or recording receives the ranges, `nn.Module.__call__` is a function of ours
that opens a range around the calls of annotated modules, their own hooks included, and passes all others on;
otherwise it is PyTorch's. So an annotated model runs at full speed while nothing records, its copies and pickles
are plain, torch.jit.script sees nothing, modules keep the fast paths that hooks would disable, and a call closes
its range however it ends.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import range_stack, regions
from .engine import Root, next_number
from .open_ranges import DependentRange, Label, Thread
from .regions import Frame, Names

_is_compiling = torch.compiler.is_dynamo_compiling
_is_recording = torch.is_grad_enabled
_local = range_stack.local


class Plan:
    """What to do around each call of one module; `inside` is another plan for the same module.

    A `quiet` module launches nothing while it does not train; `around` are the labels of the backward of the
    modules around it, from the inside. `on_call` and `on_return` are called before and after a call that is in
    no other annotated one; `roots` keeps what such calls leave to their backward.
    """

    __slots__ = (
        "around",
        "inside",
        "is_leaf",
        "key",
        "names",
        "on_call",
        "on_return",
        "quiet",
        "roots",
        "until",
        "users",
    )

    on_return: Callable[[], None] | None

    def __init__(
        self, names: Names, roots: weakref.WeakSet[Root], *, quiet: bool, on_call: Callable[[], None] | None
    ) -> None:
        self.names, self.roots, self.quiet, self.on_call = names, roots, quiet, on_call
        self.on_return = None
        self.around: tuple[Label, ...] = ()
        self.inside: Plan | None = None
        self.users = 1
        self.key = 0
        self.is_leaf = False
        self.until: object = None


class _Call:
    """An outermost call of an annotated module, while it runs."""

    __slots__ = ("__weakref__",)


_plans: dict[int, Plan] = {}
_lock = threading.RLock()
_call = nn.Module.__call__
_is_installed = False
# Makes a call of a module, or returns LEFT: the part in C++, where it is used (`quick_calls`).
quick: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any] | None = None
LEFT = object()
# Called with whether calls are seen, when that changes.
observers: list[Callable[[bool], None]] = []


def add(module: nn.Module, plan: Plan) -> Plan:
    """Use the plan for calls of the module; if it already has one of the same name, return that one."""
    # Replicas of a module, as nn.DataParallel makes them, share this dictionary; deep copies have their own.
    hooks = module._forward_hooks
    plan.key = key = id(hooks)
    plan.is_leaf = type(module).__module__.startswith("torch.nn.modules.") and not module._modules
    with _lock:
        first = known = _plans.get(key)
        while known is not None:
            if known.names is plan.names:
                known.users += 1
                return known
            known = known.inside
        plan.until = weakref.ref(hooks, lambda _: _plans.pop(key, None))
        plan.inside, _plans[key] = first, plan
        _install(range_stack.active)
    return plan


def remove(plan: Plan) -> None:
    """Undo one `add`."""
    with _lock:
        plan.users -= 1
        if plan.users:
            return
        _link(plan.key, [one for one in _chain(_plans.get(plan.key)) if one is not plan])
        _install(range_stack.active)


def any_left() -> bool:
    """Return whether any module is annotated."""
    return bool(_plans)


def _chain(plan: Plan | None) -> list[Plan]:
    chain = []
    while plan is not None:
        chain.append(plan)
        plan = plan.inside
    return chain


def _link(key: int, chain: list[Plan]) -> None:
    for outer, inner in zip(chain, [*chain[1:], None], strict=False):
        outer.inside = inner
    if chain:
        _plans[key] = chain[0]
    else:
        _plans.pop(key, None)


def _install(is_heard: bool) -> None:
    """Replace PyTorch's call, or restore it, unless another library has replaced ours."""
    global _call, _is_installed
    with _lock:
        wanted = is_heard and bool(_plans)
        if wanted == _is_installed or (_is_installed and nn.Module.__call__ is not _annotated):
            return
        if wanted:
            _call = nn.Module.__call__
            nn.Module.__call__ = _annotated  # type: ignore[method-assign]
        else:
            nn.Module.__call__ = _call  # type: ignore[method-assign]
        _is_installed = wanted
        for observer in observers:
            observer(wanted)


range_stack.observe(_install)


def _annotated(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module, in its ranges if it is annotated."""
    if _is_compiling():
        return _call(self, *args, **kwargs)
    if quick is not None and (output := quick(self, args, kwargs)) is not LEFT:
        return output
    # Where its __init__ has not run, it has no hooks: the error is PyTorch's to raise.
    plan = _plans.get(id(getattr(self, "_forward_hooks", None)))
    if plan is None or (plan.quiet and not self.training) or not range_stack.active:
        return _in_no_range(self, args, kwargs)
    thread = _local.thread
    if plan.inside is not None or thread.calls() is None:
        return _in_range(plan, self, args, kwargs)
    around = thread.frame
    if not _is_recording():
        return _in_bare_range(plan, self, args, kwargs)
    if around is None or not around.running or around.trail is None or around.opened.ended:
        return _in_range(plan, self, args, kwargs)
    if plan.is_leaf and not (
        kwargs or self._forward_hooks or self._forward_pre_hooks or "forward" in self.__dict__
    ):
        return _in_leaf_range(plan, self, args, thread)
    return _in_inner_range(plan, self, args, kwargs)


def _in_no_range(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module that is not annotated; what `torch.compile` made of an annotated one is announced.

    The ranges of a compiled model are in its code, or nowhere: it looked the model's call up when it was made.
    """
    children = module.__dict__.get("_modules")  # of a module of TorchScript, no dictionary
    compiled = children.get("_orig_mod") if isinstance(children, dict) else None
    plan = _plans.get(id(compiled._forward_hooks)) if compiled is not None else None
    if plan is None or not range_stack.active or _local.thread.calls() is not None:
        return _call(module, *args, **kwargs)
    try:
        if plan.on_call is not None:
            plan.on_call()
    except Exception:  # annotation must not break the program
        range_stack.say_failed("a call of a compiled model is not announced")
    try:
        return _call(module, *args, **kwargs)
    finally:
        if plan.on_return is not None:
            plan.on_return()


def _in_bare_range(plan: Plan, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module inside another annotated one, where no gradients are recorded."""
    thread = _local.thread
    opened = DependentRange(plan.names.forward, thread.calls)
    try:
        range_stack.open_in(thread.ranges, opened)
        return _call(module, *args, **kwargs)
    finally:
        range_stack.close(opened)


def _in_leaf_range(plan: Plan, module: nn.Module, args: tuple[Any, ...], thread: Thread) -> Any:
    """Call a leaf inside another annotated module: nothing in it opens ranges or needs a frame."""
    opened = DependentRange(plan.names.forward, thread.calls)
    around, start = thread.frame, next_number()
    try:
        range_stack.open_in(thread.ranges, opened)
        output = _call(module, *args)
        try:
            if not around.trail.leaf(plan.names.backward, around, start, output, args, module):
                regions.say_unnamed(plan.names.backward)
        except Exception:  # annotation must not break the program
            range_stack.say_failed("a module has no backward range")
        return output
    finally:
        range_stack.close(opened)


def _in_inner_range(plan: Plan, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module inside another annotated one."""
    thread = _local.thread
    opened = DependentRange(plan.names.forward, thread.calls)
    frame = None
    try:
        frame = regions.begin_inside(thread.frame, plan.names, opened, thread)
        output = _call(module, *args, **kwargs)
        try:
            regions.end_inside(frame, thread, output, (*args, *kwargs.values()) if kwargs else args)
        except Exception:  # annotation must not break the program
            range_stack.say_failed("a region has no backward range")
        return output
    finally:
        if frame is None:
            range_stack.close(opened)
        elif frame.trail is not None or not opened.ended:
            regions.end(frame, failed=True)


def _in_range(plan: Plan, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    thread = range_stack.here()
    alive, call = thread.calls, None
    if alive() is None:
        call = _Call()
        alive = thread.calls = weakref.ref(call)
    opened = DependentRange(plan.names.forward, alive)
    frame, failed = None, True
    try:
        frame = _begin(plan, opened, thread, is_outermost=call is not None)
        inside = plan.inside
        output = _call(module, *args, **kwargs) if inside is None else _in_range(inside, module, args, kwargs)
        if frame is not None and frame.trail is not None:
            regions.add_call(frame, output, (*args, *kwargs.values()) if kwargs else args)
        failed = False
        return output
    finally:
        # From here on the range is over, even where Ctrl-C keeps the rest from running.
        is_outermost, call = call is not None, None
        if frame is None:
            range_stack.close(opened)
        else:
            regions.end(frame, failed=failed)
        if is_outermost and plan.on_return is not None:
            plan.on_return()


def _begin(plan: Plan, opened: DependentRange, thread: Thread, *, is_outermost: bool) -> Frame | None:
    try:
        if not is_outermost:
            return regions.begin(plan.names, opened, thread, plan.around)
        regions.close_interrupted(thread)
        if plan.on_call is not None:
            plan.on_call()
        frame = regions.begin(plan.names, opened, thread, plan.around)
        if frame.trail is not None:
            plan.roots.add(frame.trail.root)
        return frame
    except Exception:  # annotation must not break the program
        range_stack.say_failed("a call of a module is not annotated")
        return None
