"""Ranges that a program opens without us: through the package nvtx, and through torch.cuda.nvtx.

    with hear(listener):    # for a recorder, and for what counts by range
        ...

These are heard: `nvtx.annotate` (block and decorator), `nvtx.push_range` and `pop_range`, and `range`,
`range_push` and `range_pop` of `torch.cuda.nvtx`, which do not raise without CUDA while this listens. Not heard:
functions decorated by `nvtx.annotate` before (nvtx returns them unchanged if no tool listens), `push_range`
imported by name before, `nvtx.Domain` objects, start/end ranges, and NVTX of C++ code. Where a tool listens, the
package nvtx is left as it is, and only torch.cuda.nvtx is heard.

Blocks of `torch.profiler.record_function` are in the profiler's own events; a recorder hears them because a
profiler must not be stopped inside one.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
import torch.cuda.nvtx

from ..harmless import forgive
from . import range_stack
from .nvtx_package import domain, nvtx
from .replacing import replaced

#: NVTX's default domain has no name.
DEFAULT_DOMAIN = ""
#: How the record_function blocks begin that PyTorch's optimizers open themselves.
OPTIMIZER_BLOCKS = ("Optimizer.step#", "Optimizer.zero_grad#")
_CAN_PUSH = hasattr(torch._C, "_nvtx")


class Hearer(Protocol):
    """Receives the program's own ranges, on the thread where they happen."""

    def push(
        self,
        name: str,
        payload: int | float | None = None,
        domain: str = ...,
    ) -> None:
        """Handle the start of a range."""

    def pop(self, domain: str = ...) -> None:
        """Handle the end of the range that began last in a domain on this thread."""

    def block_began(self, name: str) -> None:
        """Handle the start of a record_function block."""

    def block_ended(self, *, is_outermost: bool) -> None:
        """Handle the end of a record_function block, the outermost of this thread or not."""


class Deaf:
    """Ignores the program's own ranges of NVTX, which raise without CUDA where nothing hears them."""

    def push(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    pop = block_began = block_ended = push


_hearers: tuple[Hearer, ...] = ()
# What Kineto's JSON can hold of a block's name: it escapes no quote, and calls what is not ASCII `unknown`.
_PLAIN = re.compile(r"[ !#-\[\]-~]*")
_STANDS_FOR = "nvtx-kernels name "
_as_tokens = False
_threads_in_blocks: set[int] = set()
_tokens: dict[str, str] = {}
_originals: dict[str, str] = {}
_replaced = ExitStack()


def in_block() -> bool:
    """Return whether this thread is inside a record_function block that began while a listener was active."""
    return range_stack.here().blocks > 0


def threads_in_blocks() -> set[int]:
    """Return the threads, by `threading.get_ident`, that are or ended inside such a block."""
    return {*_threads_in_blocks}


def spell(*, as_tokens: bool) -> None:
    """Have blocks named by tokens where Kineto's file could not hold their names, while our own session runs."""
    global _as_tokens
    _as_tokens = as_tokens


def _token_of(name: str) -> str:
    if not _as_tokens or (_PLAIN.fullmatch(name) and not name.startswith(_STANDS_FOR)):
        return name
    if name not in _tokens:
        token = f"{_STANDS_FOR}{len(_originals)}"
        _originals[token] = name
        _tokens[name] = token
    return _tokens[name]


def original_name(token: str) -> str:
    """Return the name of a block that Kineto knows by this one."""
    return _originals.get(token, token)


@contextmanager
def hear(hearer: Hearer) -> Iterator[None]:
    """Send a listener the ranges that this program opens without us; listeners can begin and end in any order."""
    global _hearers
    if not _hearers:
        _replaced.enter_context(replaced(*_replacements()))
    _hearers = (*_hearers, hearer)
    try:
        yield
    finally:
        _hearers = tuple(other for other in _hearers if other is not hearer)
        if not _hearers:
            _replaced.close()


def _tell(event: str, *facts: object, **named_facts: object) -> None:
    for hearer in _hearers:
        try:
            getattr(hearer, event)(*facts, **named_facts)
        except Exception:
            forgive("a range of the program's is not recorded")


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield the replacements: an object, the name of its attribute, and the new value."""
    record_function: Any = torch.autograd.profiler.record_function
    enter, exit_ = record_function.__enter__, record_function.__exit__

    def counted_enter(self: Any) -> Any:
        range_stack.here().blocks += 1  # first, so that it is never open and not counted
        _threads_in_blocks.add(threading.get_ident())
        try:
            _tell("block_began", str(self.name))
            name, self.name = self.name, _token_of(str(self.name))
            try:
                return enter(self)
            finally:
                self.name = name
        except BaseException:
            range_stack.here().blocks -= 1
            raise

    def counted_exit(self: Any, *error: Any) -> Any:
        try:
            return exit_(self, *error)
        finally:
            thread = range_stack.here()
            thread.blocks = max(0, thread.blocks - 1)
            if not thread.blocks:
                _threads_in_blocks.discard(threading.get_ident())
            _tell("block_ended", is_outermost=not thread.blocks)

    yield record_function, "__enter__", counted_enter
    yield record_function, "__exit__", counted_exit
    yield torch.cuda.nvtx, "_nvtx", _HeardNvtx(getattr(torch.cuda.nvtx, "_nvtx"))  # noqa: B009 - not exported
    if nvtx is None or not nvtx.enabled() or domain() is not None:
        return  # not installed, switched off, or a tool listens: the package is left as it is
    yield nvtx.annotate, "__enter__", _entered
    yield nvtx.annotate, "__exit__", lambda self, *_: _tell("pop", self.init_args[2] or DEFAULT_DOMAIN)
    yield nvtx.annotate, "__call__", _decorated
    for module in (nvtx, nvtx.nvtx):
        yield module, "push_range", _push
        yield module, "pop_range", lambda domain=None: _tell("pop", domain or DEFAULT_DOMAIN)


def _push(
    message: str = "",
    color: Any = None,  # noqa: ARG001 - nvtx's
    domain: str = "",
    category: Any = None,  # noqa: ARG001
    payload: Any = None,
) -> None:
    number = payload if type(payload) in (int, float) else None
    _tell("push", str(message or ""), number, domain or DEFAULT_DOMAIN)


def _entered(self: Any) -> Any:
    _push(*self.init_args)
    return self


def _decorated(self: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate so that a later recording receives the calls too."""
    message, *others = self.init_args

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        with nvtx.annotate(message or function.__name__, *others):
            return function(*args, **kwargs)

    return inner


class _HeardNvtx:
    """Replaces PyTorch's own binding of NVTX, and receives the calls to it."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def rangePushA(self, message: str) -> int:  # noqa: N802 - the binding's name
        _tell("push", message, None, DEFAULT_DOMAIN)
        return int(self._real.rangePushA(message)) if _CAN_PUSH else 0

    def rangePop(self) -> int:  # noqa: N802
        _tell("pop", DEFAULT_DOMAIN)
        return int(self._real.rangePop()) if _CAN_PUSH else 0

    def markA(self, message: str) -> Any:  # noqa: N802
        return self._real.markA(message) if _CAN_PUSH else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
