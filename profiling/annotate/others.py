"""Ranges that a program opens without us: through the package nvtx, and through torch.cuda.nvtx.

    with hear(listener):    # for a recorder, where no tool listens to NVTX itself
        ...

These are heard: `nvtx.annotate` (block and decorator), `nvtx.push_range` and `pop_range`, and `range`,
`range_push` and `range_pop` of `torch.cuda.nvtx`, which do not raise meanwhile without CUDA. Not heard:
functions decorated by `nvtx.annotate` before (nvtx returns them unchanged if no tool listens), `push_range`
imported by name before, `nvtx.Domain` objects, start/end ranges, and NVTX of C++ code.

Blocks of `torch.profiler.record_function` are in the profiler's own events; here they are only counted, because a
profiler must not be stopped inside one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import nvtx
import nvtx.nvtx
import torch
import torch.cuda.nvtx

from .replacing import replaced

#: NVTX's default domain has no name.
DEFAULT_DOMAIN = ""
_CAN_PUSH = hasattr(torch._C, "_nvtx")


class Hearer(Protocol):
    """Receives the program's own ranges, on the thread where they happen."""

    def push(self, name: str, payload: int | float | None = None, domain: str = ...) -> None:
        """Handle the start of a range."""

    def pop(self, domain: str = ...) -> None:
        """Handle the end of the range that began last in a domain on this thread."""

    def block_ended(self) -> None:
        """Handle the end of the outermost record_function block of this thread."""


class _Blocks(threading.local):
    def __init__(self) -> None:
        self.open = 0


_blocks = _Blocks()


def in_block() -> bool:
    """Return whether this thread is inside a record_function block that began while a listener was active."""
    return _blocks.open > 0


@contextmanager
def hear(hearer: Hearer) -> Iterator[None]:
    """Send a listener the ranges that this program opens without us."""
    with replaced(*_replacements(hearer)):
        yield


def _replacements(hearer: Hearer) -> Iterator[tuple[Any, str, Any]]:
    """Yield the replacements: an object, the name of its attribute, and the new value."""
    record_function = torch.autograd.profiler.record_function
    yield record_function, "__enter__", _counted_enter(record_function.__enter__)
    yield record_function, "__exit__", _counted_exit(record_function.__exit__, hearer)
    yield torch.cuda.nvtx, "_nvtx", _HeardNvtx(getattr(torch.cuda.nvtx, "_nvtx"), hearer)  # noqa: B009 - not exported
    if not nvtx.enabled() or hasattr(nvtx.get_domain(), "handle"):
        return  # switched off, or a tool listens: the package is left as it is
    yield nvtx.annotate, "__enter__", functools.partialmethod(_enter, hearer)
    yield nvtx.annotate, "__exit__", lambda self, *_: hearer.pop(self.init_args[2] or DEFAULT_DOMAIN)
    yield nvtx.annotate, "__call__", _decorated
    for module in (nvtx, nvtx.nvtx):
        yield module, "push_range", functools.partial(_push, hearer)
        yield module, "pop_range", lambda domain=None: hearer.pop(domain or DEFAULT_DOMAIN)


def _named(arguments: tuple[Any, ...]) -> tuple[str, Any, str]:
    """Return name, payload and domain of `nvtx.annotate(message, color, domain, category, payload)`."""
    message, _, domain, _, payload = arguments
    return str(message or ""), payload if type(payload) in (int, float) else None, domain or DEFAULT_DOMAIN


def _enter(self: nvtx.annotate, hearer: Hearer) -> nvtx.annotate:
    hearer.push(*_named(self.init_args))
    return self


def _push(
    hearer: Hearer,
    message: str = "",
    color: Any = None,
    domain: str = "",
    category: Any = None,
    payload: Any = None,
) -> None:
    hearer.push(*_named((message, color, domain, category, payload)))


def _decorated(self: nvtx.annotate, function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate so that a later recording receives the calls too."""
    message, *others = self.init_args
    arguments = (message or function.__name__, *others)

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        with nvtx.annotate(*arguments):
            return function(*args, **kwargs)

    return inner


class _HeardNvtx:
    """Replaces PyTorch's own binding of NVTX, and receives the calls to it."""

    def __init__(self, real: Any, hearer: Hearer) -> None:
        self._real, self._hearer = real, hearer

    def rangePushA(self, message: str) -> int:  # noqa: N802 - the binding's name
        self._hearer.push(message, None, DEFAULT_DOMAIN)
        return int(self._real.rangePushA(message)) if _CAN_PUSH else 0

    def rangePop(self) -> int:  # noqa: N802
        self._hearer.pop(DEFAULT_DOMAIN)
        return int(self._real.rangePop()) if _CAN_PUSH else 0

    def markA(self, message: str) -> Any:  # noqa: N802
        return self._real.markA(message) if _CAN_PUSH else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _counted_enter(enter: Callable[..., Any]) -> Callable[..., Any]:
    def counted(self: Any) -> Any:
        _blocks.open += 1  # first, so that it is never open and not counted
        try:
            return enter(self)
        except BaseException:
            _blocks.open -= 1
            raise

    return counted


def _counted_exit(exit_: Callable[..., Any], hearer: Hearer) -> Callable[..., Any]:
    def counted(self: Any, *error: Any) -> Any:
        try:
            return exit_(self, *error)
        finally:
            _blocks.open = max(0, _blocks.open - 1)
            if not _blocks.open:
                hearer.block_ended()

    return counted
