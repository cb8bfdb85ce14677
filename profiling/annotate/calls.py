"""Ranges around the calls of annotated modules.

Modules get no hooks. While a tool or recording receives the ranges, `nn.Module.__call__` is a function of ours
that opens a range around the calls of annotated modules, their own hooks included, and passes all others on;
otherwise it is PyTorch's. So an annotated model runs at full speed while nothing records, its copies and pickles
are plain, torch.jit.script sees nothing, modules keep the fast paths that hooks would disable, and a call closes
its range however it ends.

    PyTorch's __call__ ◄─────── nothing receives ranges, or no module is annotated ───────┐
        │                       (later, where another library's call is over ours)        │
        └── both do ──► ours ─────────────────────────────────────────────────────────────┘
                         ├── the module has a plan: range opened ► PyTorch's ► range closed
                         └── it has none: PyTorch's; compiled from one that has: in the range of that one
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..harmless import forgive
from . import optimizers, places, range_stack, recursion, regions
from .compiled.ranges import CompiledCall
from .given import shape_of
from .range_stack import AutomaticRange, Label
from .regions import Names, in_backward
from .replacing import is_on_top, replaced

#: Of tokens: sequences and positions.
TOKENS, INTEGERS = 2, frozenset({torch.int64, torch.int32})
#: `CallMark` of the readers has its content.
CALL_MARK = "nvtx-kernels call: "
_is_compiling = torch.compiler.is_dynamo_compiling
_local = range_stack.local


@dataclass(slots=True, eq=False)
class Plan:
    """What to do around each call of one module.

    A `quiet` module launches nothing while it does not train; `around` are the labels of the backward of the
    modules around it, from the inside. `on_call` gets the arguments of a call that is in no other annotated one,
    before it begins.
    """

    names: Names
    around: tuple[Label, ...]
    quiet: bool
    on_call: Callable[[object], None]
    users: int = 1
    key: int = 0
    until: object = None


class _Call:
    """An outermost call of an annotated module, while it runs."""

    __slots__ = ("__weakref__",)


# By module, from the outside: it may have one of each name.
_plans: dict[int, tuple[Plan, ...]] = {}
_lock = threading.RLock()
_call = nn.Module.__call__
_installed: ExitStack | None = None


def add(module: nn.Module, plan: Plan) -> Plan:
    """Use the plan for calls of the module; if it already has one of the same name, return that one."""
    # Replicas of a module, as nn.DataParallel makes them, share this dictionary; deep copies have their own.
    hooks = module._forward_hooks
    plan.key = key = id(hooks)
    with _lock:
        plans = _plans.get(key, ())
        for other in plans:
            if other.names is plan.names:
                other.users += 1
                return other
        plan.until = weakref.ref(hooks, lambda _: _forget(key))
        _plans[key] = (plan, *plans)
        _install(range_stack.active)
    return plan


def remove(plan: Plan) -> None:
    """Undo one `add`."""
    with _lock:
        plan.users -= 1
        if plan.users:
            return
        plans = tuple(other for other in _plans.pop(plan.key, ()) if other is not plan)
        if plans:
            _plans[plan.key] = plans
        if not _plans:
            places.forget()
        _install(range_stack.active)


def is_annotated(module: nn.Module) -> bool:
    """Return whether calls of a module, or of the one that `torch.compile` made it of, are annotated."""
    modules = (module, _compiled_from(module))
    return any(id(getattr(called, "_forward_hooks", None)) in _plans for called in modules)


def _compiled_from(module: nn.Module) -> nn.Module | None:
    """Return the module that `torch.compile` made this one of; None of any other."""
    children = module.__dict__.get("_modules")  # of a module of TorchScript, no dictionary
    return children.get("_orig_mod") if isinstance(children, dict) else None


def _forget(key: int) -> None:
    """Forget the plans of a module that is gone."""
    with _lock:
        _plans.pop(key, None)
        _install(range_stack.active)


def _install(is_heard: bool) -> None:
    """Replace PyTorch's call, or restore it, unless another library has put its own over ours."""
    global _call, _installed
    with _lock:
        optimizers.calls_are_heard = is_needed = is_heard and bool(_plans)
        is_buried = _installed is not None and not is_on_top(nn.Module, "__call__")
        if is_needed == (_installed is not None) or is_buried:
            return
        if _installed is None:
            _call, _installed = nn.Module.__call__, ExitStack()
            _installed.enter_context(replaced((nn.Module, "__call__", _annotated)))
        else:
            _installed.close()
            _installed = None
        optimizers.install()


range_stack.observers.append(_install)


def _annotated(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module, in its ranges if it is annotated."""
    if _is_compiling():
        return _call(self, *args, **kwargs)
    thread, room = _local.thread, 0
    thread.module_calls += 1
    try:
        if thread.module_calls > recursion.DEEP:
            room = recursion.make_room(thread.module_calls)
        # Where its __init__ has not run, it has no hooks: the error is PyTorch's to raise.
        plans = _plans.get(id(getattr(self, "_forward_hooks", None)))
        if plans is None or (plans[0].quiet and not self.training) or not range_stack.active:
            return _in_no_range(self, args, kwargs)
        return _in_ranges(plans, self, args, kwargs)
    finally:
        thread.module_calls -= 1
        if room:
            recursion.give_back(room)


def _in_no_range(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module that is not annotated; what `torch.compile` made of an annotated one is a call of that one.

    The ranges of its parts are in its code, or nowhere: it looked the model's call up when it was made.
    """
    compiled = _compiled_from(module)
    plans = _plans.get(id(compiled._forward_hooks)) if compiled is not None else None
    if compiled is None or plans is None or not range_stack.active or _local.thread.calls() is not None:
        return _call(module, *args, **kwargs)
    thread = range_stack.here()
    category_around, opened = thread.compiled_call, None
    try:
        label = _label(plans[0].names, compiled)
        thread.compiled_call = label.category
        plans[0].on_call((args, kwargs))
        if not _calls_annotated(module):
            opened = range_stack.push(CompiledCall(label))
            _mark_positions(compiled, args, kwargs)
    except Exception:  # annotation must not break the program
        forgive("a call of a compiled model is not announced")
    try:
        return _call(module, *args, **kwargs)
    finally:
        thread.compiled_call = category_around
        range_stack.close(opened)
        optimizers.after_forward()


def _calls_annotated(compiled: nn.Module) -> bool:
    """Return whether a compiled model calls the model itself by `_annotated`, in whose ranges it then runs."""
    called = getattr(compiled.__dict__.get("forward"), "_torchdynamo_orig_callable", None)
    wrapped = [cell.cell_contents for cell in getattr(called, "__closure__", None) or ()]
    return any(getattr(method, "__func__", None) is _annotated for method in (called, *wrapped))


def _in_ranges(
    plans: tuple[Plan, ...],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    plan, thread = plans[0], _local.thread
    alive, call = thread.calls, None
    if alive() is None:
        call = _Call()
        alive = thread.calls = weakref.ref(call)
    opened = AutomaticRange(plan.names.forward if call is None else _label(plan.names, module), alive)
    part = None
    try:
        try:
            if call is not None:
                regions.close_interrupted(thread)
                plan.on_call((args, kwargs))
            part = regions.begin(plan.names, opened, thread, plan.around)
            if call is not None:
                _mark_positions(module, args, kwargs)
        except Exception:  # annotation must not break the program
            forgive("a call of a module is not annotated")
        if part is not None and part.call is not None:
            _note(part.call.note_given, (args, kwargs, _replicated(module)))
        if len(plans) == 1:
            returned = _call(module, *args, **kwargs)
        else:
            returned = _in_ranges(plans[1:], module, args, kwargs)
        if part is not None and part.call is not None:
            _note(part.call.hold, returned)
        return returned
    finally:
        # From here on the range is over, even where Ctrl-C keeps the rest from running.
        is_outermost, call = call is not None, None
        try:
            if part is None:
                range_stack.close(opened)
            else:
                regions.end(part)
        except Exception:
            forgive("a call of a module has no end")
        if is_outermost:
            optimizers.after_forward()


def _label(names: Names, module: nn.Module) -> Label:
    """Return the label of a call from outside, which says whether it is without gradient, and why."""
    if torch.is_grad_enabled() or in_backward() or in_function():
        return names.forward
    return names.no_gradient if module.training else names.evaluation


def _mark_positions(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Mark how many positions a call from outside has, as decoding differs by them from its prompt.

    That is the last dimension of the first integer tensor of two dimensions, such as `input_ids`.
    """
    if module.training and torch.is_grad_enabled():
        return
    for value in (*args, *kwargs.values()):
        shape = shape_of(value)
        if shape is not None and len(shape.sizes) == TOKENS and shape.dtype in INTEGERS:
            if positions := shape.sizes[-1]:
                range_stack.mark(f'{CALL_MARK}{{"positions": {positions}}}')
            return


def in_function() -> bool:
    """Return whether this thread runs an autograd Function's forward, where no gradients are recorded.

    PyTorch disables forward-mode gradients there (`THPFunction_apply`), and else only in inference mode.
    """
    return not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()


def _replicated(module: nn.Module) -> list[object]:
    """Return the parameters of a replica of DataParallel, which are copies with nodes of their own."""
    if "_former_parameters" not in module.__dict__:
        return []
    return [part.__dict__.get("_former_parameters") for part in module.modules()]


def _note(note: Callable[[object], None], values: object) -> None:
    try:
        note(values)
    except Exception:  # annotation must not break the program
        forgive("what a module was given or returned cannot be inspected")
