"""Know every model that an unchanged program calls; a file of its own, as it replaces `nn.Module.__call__`."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
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


@contextmanager
def annotating_roots(told: Callable[[nn.Module], None] = lambda _: None, **choice: Any) -> Iterator[None]:
    """Annotate each module with parameters whose call is in no other module's, from its first call on.

    `told` is called with each such module then. What is called in a backward is no model: checkpoints call parts
    of one there again.
    """
    call, thread, is_over = nn.Module.__call__, _Thread(), threading.Event()
    annotated: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    entered = ExitStack()

    @forgiving("a model is not annotated")
    def annotate_new(module: nn.Module) -> bool:
        if module in annotated or not _has_parameters(module):
            return False
        annotated.add(module)
        told(module)
        entered.enter_context(annotate.annotate_modules(module, **choice))
        return True

    def seen(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if thread.is_inside or torch.compiler.is_compiling() or in_backward() or is_over.is_set():
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


@contextmanager
def telling_roots(
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
    is_told: Callable[[nn.Module], bool] = _has_parameters,
) -> Iterator[None]:
    """Tell the phases of the calls of such modules, each inside `around()`, without annotating these."""
    call, thread, is_over = nn.Module.__call__, _Thread(), threading.Event()
    is_model = forgiving("a model is not known")(is_told)

    def seen(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        is_inside = thread.is_inside or torch.compiler.is_compiling() or in_backward()
        if is_inside or is_over.is_set() or not is_model(self):
            return call(self, *args, **kwargs)
        thread.is_inside = True
        optimizers.before_forward((args, kwargs))
        try:
            with around():
                return call(self, *args, **kwargs)
        finally:
            thread.is_inside = False
            optimizers.after_forward()

    with replaced((nn.Module, "__call__", seen)):
        try:
            yield
        finally:
            is_over.set()
