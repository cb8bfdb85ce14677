"""Know every model that an unchanged program calls; a file of its own, as it replaces `nn.Module.__call__`."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from .. import annotate
from ..annotate import optimizers
from ..annotate.regions import in_backward
from ..annotate.replacing import replaced
from ..harmless import forgiving


class _Thread(threading.local):
    is_inside = False


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _is_inner(thread: _Thread) -> bool:
    """Return whether a module that is called now is part of another's call.

    Backward calls modules again that checkpointing computes anew: they are parts, though no call is open there.
    """
    return thread.is_inside or torch.compiler.is_compiling() or in_backward()


@contextmanager
def annotating_roots(on_root: Callable[[nn.Module], None] = lambda _: None, **choice: Any) -> Iterator[None]:
    """Annotate each module with parameters whose call is in no other module's, from its first call on.

    `on_root` is called with each such module then. What is called in a backward is no model: checkpoints call
    parts of one there again.
    """
    call = nn.Module.__call__
    thread = _Thread()
    is_over = threading.Event()
    annotated: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    entered = ExitStack()

    @forgiving("a model is not annotated")
    def annotate_new(module: nn.Module) -> bool:
        if module in annotated or not _has_parameters(module):
            return False
        annotated.add(module)
        on_root(module)
        entered.enter_context(annotate.annotate_modules(module, **choice))
        return True

    def seen(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _is_inner(thread) or is_over.is_set():
            return call(self, *args, **kwargs)
        if annotate_new(self):
            return nn.Module.__call__(self, *args, **kwargs)
        thread.is_inside = True
        try:
            return call(self, *args, **kwargs)
        finally:
            thread.is_inside = False

    with replaced((nn.Module, "__call__", seen)), entered:
        entered.callback(is_over.set)
        yield


#: Makes a call of a module: what calls it, the module, and its arguments.
Caller = Callable[[Callable[..., Any], nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def _made(
    call: Callable[..., Any],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    return call(module, *args, **kwargs)


@contextmanager
def telling_roots(
    make_call: Caller = _made, is_told: Callable[[nn.Module], bool] = _has_parameters
) -> Iterator[None]:
    """Tell the phases of the calls of such modules, which `make_call` makes, without annotating these."""
    call = nn.Module.__call__
    thread = _Thread()
    is_over = threading.Event()
    is_model = forgiving("a model is not known")(is_told)

    def seen(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _is_inner(thread) or is_over.is_set() or not is_model(self):
            return call(self, *args, **kwargs)
        thread.is_inside = True
        optimizers.before_forward((args, kwargs))
        try:
            return make_call(call, self, args, kwargs)
        finally:
            thread.is_inside = False
            optimizers.after_forward()

    with replaced((nn.Module, "__call__", seen)):
        try:
            yield
        finally:
            is_over.set()
