"""NVTX ranges for a PyTorch program: phases, parts of a model, and the backward of those parts.

    with annotate.range("forward"):                          # a phase: a plain range on this thread
        ...

    with annotate.region("computing softmax") as part:       # a part of a model: also has a backward range
        probs = part.output(softmax(scores))

    @annotate.region("rope")                                 # the same, around every call
    def rotate(x): ...

    with annotate.annotate_modules(model):                   # every submodule of any nn.Module
        ...

Ranges are in one NVTX domain of our own, `DOMAIN`, with registered strings, so `nsys profile -c nvtx
-p measure@nvtx-kernels` works. With no tool and no listener they cost well under a microsecond; with
NVTX_KERNELS_OFF=1 they are off altogether; inside torch.compile they break no graph, and modules and
regions are ranges of its code (docs/compiled.md). They add no operator and no autograd node: see `regions`
for how a backward gets its ranges.

A region whose gradients are not recorded has its forward range alone.

This room imports no other room of `profiling`. It promises that a program computes what it computes without, and
that an error in our code reaches no program.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, ParamSpec, Self, TypeVar

try:
    import torch
except ModuleNotFoundError as error:
    message = "annotation needs PyTorch: pip install 'nvtx-kernels[profiling]'"
    raise ModuleNotFoundError(message, name=error.name) from None

from nvtx_kernels import DOMAIN

from .. import harmless
from ..harmless import say
from . import calls, given, marks, modules, nodes, optimizers, places, range_stack, regions, untrained
from .compiled import ranges, tracing
from .modules import ModuleAnnotation, annotate_modules
from .range_stack import Listener, OpenRange, Payload, category, label, listen
from .regions import Part

__all__ = [
    "DOMAIN",
    "Listener",
    "ModuleAnnotation",
    "annotate_modules",
    "category",
    "listen",
    "mark",
    "range",
    "region",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def __dir__() -> list[str]:
    return __all__  # what completion offers


class Range:
    """A plain range on the calling thread, for phases: warmup, measure, step, forward, backward, optimizer.

    Backward ranges that were left open inside it are closed with it.
    """

    # What it has open on each thread that uses it, by the thread's number, innermost last.
    _open: list[tuple[int, Any]] | None = None

    def __init__(self, name: str, *, payload: Payload = None) -> None:
        self.name, self.payload = name, payload

    def __enter__(self) -> Self:
        if not torch.compiler.is_compiling() and range_stack.active:
            self._note_open(range_stack.push(OpenRange(label(self.name, self.payload, "phase"))))
        return self

    def __exit__(self, *_error: object) -> None:
        if not torch.compiler.is_compiling():
            range_stack.close(self._innermost(is_over=True))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Open the range around every call; in a generator or coroutine, whenever its own code runs."""
        if inspect.isclass(function):
            raise TypeError("a class cannot be annotated; annotate its methods, or use annotate_modules")
        is_async_generator: bool = inspect.isasyncgenfunction(function)
        if is_async_generator:
            say(f"{function.__qualname__} is an asynchronous generator and is not annotated")
            return function
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            return _stepwise(self, function)

        @functools.wraps(function)
        def annotated(*args: P.args, **kwargs: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return self._traced(function, args, kwargs)
            if not range_stack.active:
                return function(*args, **kwargs)
            return self._run(function, args, kwargs)

        return annotated

    def _run(
        self,
        function: Callable[..., R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> R:
        """Call the function inside a range."""
        with Range(self.name, payload=self.payload):
            return function(*args, **kwargs)

    def _traced(
        self,
        function: Callable[..., R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> R:
        """Call the function while a compiler traces it."""
        return function(*args, **kwargs)

    def _note_open(self, opened: OpenRange | Part) -> None:
        self.__dict__.setdefault("_open", []).append((threading.get_ident(), opened))

    def _innermost(self, *, is_over: bool = False) -> Any:
        """Return the entry that this thread opened last, or else any thread's; remove it if `is_over`."""
        if not self._open:
            return None
        latest_first = self._open[::-1]
        thread = threading.get_ident()
        entry = next((entry for entry in latest_first if entry[0] == thread), latest_first[0])
        if is_over:
            with suppress(ValueError):  # another thread took it
                self._open.remove(entry)
        return entry[1]


class Region(Range):
    """A part of a model: a range around its forward, and one of the same name around its backward."""

    def __enter__(self) -> Self:
        if torch.compiler.is_compiling():
            tracing.note_entering(self)
        elif range_stack.active:
            labels = regions.names(self.name, self.payload)
            self._note_open(regions.begin(labels, OpenRange(labels.forward), range_stack.here()))
        return self

    def output(self, value: T) -> T:
        """Return `value` unchanged; what is known of the nodes that led to it is kept as long as those."""
        if not torch.compiler.is_compiling():
            part = self._innermost()
            if part is not None and part.call is not None:
                part.call.hold(value)
        return value

    def __exit__(self, *_error: object) -> None:
        if torch.compiler.is_compiling():
            tracing.note_leaving()
            return
        part = self._innermost(is_over=True)
        if part is not None:
            regions.end(part)

    def _traced(
        self,
        function: Callable[..., R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> R:
        tracing.note_entering(self)
        result = function(*args, **kwargs)
        tracing.note_leaving()
        return result

    def _run(
        self,
        function: Callable[..., R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> R:
        with Region(self.name, payload=self.payload) as region:
            part = region._innermost()
            if part is not None and part.call is not None:
                part.call.note_given((args, kwargs))
            return region.output(function(*args, **kwargs))


range = Range  # noqa: A001
region = Region


def mark(message: str) -> None:
    """Put one instantaneous mark on the timeline, and send it to the listeners."""
    if not torch.compiler.is_compiling() and range_stack.active:
        range_stack.mark(message)


def _stepwise(annotation: Range, function: Callable[P, Any]) -> Callable[P, Any]:
    """Annotate a generator or coroutine function: a range each time it runs, none while it waits."""

    def steps(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
        running = function(*args, **kwargs)
        resume, value = running.send, None
        while True:
            try:
                waits_for = annotation._run(resume, (value,), {})
            except StopIteration as finished:
                return finished.value
            try:
                value, resume = (yield waits_for), running.send
            except GeneratorExit:
                running.close()
                raise
            except BaseException as error:
                value, resume = error, running.throw

    if not inspect.iscoroutinefunction(function):
        return functools.wraps(function)(steps)
    awaitable = types.coroutine(steps)

    @functools.wraps(function)
    async def annotated(*args: P.args, **kwargs: P.kwargs) -> Any:
        return await awaitable(*args, **kwargs)

    return annotated


for _module in (given, marks, modules, nodes, optimizers, places, range_stack, ranges, regions, untrained):
    tracing.keep_eager(_module, and_what_it_calls=True)
for _module in (calls, harmless, sys.modules[__name__]):  # these call the program's own functions
    tracing.keep_eager(_module, and_what_it_calls=False)
