"""FLOPs and least bytes of one step, by the ranges that are open while it computes them.

    counting = Counting()
    with counting.step():       # on the thread that trains
        train_step()
    counting.send()             # into the report, as marks

A step is counted while PyTorch runs it, in a dispatch mode: every operator below autograd, in backward, in
recomputation and in an optimizer too. The mode calls each operator as it is, so results do not change. In compiled
code it sees the operators that Inductor calls, and not Inductor's own kernels.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from nvtx_kernels.analysis.vocabulary import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    OTHER,
    PATH_SEPARATOR,
    is_library_domain,
    is_step,
)
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from . import others, range_stack
from .counts import Counts, Path
from .range_stack import OpenRange, Payload, Thread
from .regions import in_backward

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_BLOCKS = "record_function"


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operator on, and counts it."""

    supports_higher_order_operators = True

    def __init__(self, counts: Counts, program: _ProgramsOwn) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts, self.thread, self.program = counts, range_stack.here(), program
        self.is_on = True
        # A range after whose end nothing is counted.
        self.until: OpenRange | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code be compiled and run as without this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if FakeTensor in types or not self.is_on or isinstance(func, HigherOrderOperator):
            out = func(*args, **kwargs)
            return self._counted(func, args, kwargs, out) if isinstance(func, HigherOrderOperator) else out
        if any(kind.__torch_dispatch__ != torch.Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # a tensor that is made of others: those come here next
        if _is_composite(func, args, kwargs):
            with self:
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        return self._counted(func, args, kwargs, func(*args, **kwargs))

    def _counted(self, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
        try:
            if self.is_on and not (self.until is not None and self.until.ended):
                self.counts.add(_place(self.thread, self.program), func, (args, kwargs, out))
        except Exception:  # an instrument must not break what it measures
            range_stack.say_failed("an operator is not counted")
        return out


class _Calls:
    """Hears the ranges of the counted step, so that they are open even where nothing else listens."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def push(self, name: str, payload: Payload) -> None:  # noqa: ARG002 - a listener's
        """Count a call of a model."""
        ranges = range_stack.stack()
        inside = [opened.label.category in range_stack.FORWARD_CATEGORIES for opened in ranges]
        if inside and inside[-1] and not any(inside[:-1]) and not in_backward():
            self.counts.calls[PATH_SEPARATOR.join(opened.label.name for opened in ranges)] += 1

    def pop(self) -> None:
        """Handle the end of a range."""

    def mark(self, message: str) -> None:
        """Handle a mark."""


class _ProgramsOwn:
    """Hears the ranges that the program opens without annotation, and where among annotation's they are."""

    def __init__(self) -> None:
        # By thread: domain, how many of annotation's ranges are around it, whether the step began later, name.
        self._open: defaultdict[Thread, list[tuple[str, int, bool, str]]] = defaultdict(list)
        self.is_counting = False

    def push(self, name: str, payload: Payload = None, domain: str = others.DEFAULT_DOMAIN) -> None:  # noqa: ARG002
        """Take the start of a range."""
        thread = range_stack.here()
        self._open[thread].append((domain, len(thread.ranges), not self.is_counting, name))

    def pop(self, domain: str = others.DEFAULT_DOMAIN) -> None:
        """Take the end of the range that began last in a domain on this thread."""
        opened = self._open[range_stack.here()]
        last = next((place for place in reversed(range(len(opened))) if opened[place][0] == domain), None)
        if last is not None:
            del opened[last]

    def block_began(self, name: str) -> None:
        """Take the start of a record_function block, which a recording has as a range; nsys's report has none."""
        self.push("" if range_stack.has_tool or name.startswith(others.OPTIMIZER_BLOCKS) else name, domain=_BLOCKS)

    def block_ended(self, *, is_outermost: bool) -> None:  # noqa: ARG002 - a hearer's
        """Take the end of a record_function block."""
        self.pop(_BLOCKS)

    def path(self, thread: Thread) -> list[str]:
        """Return the names of a thread's open ranges, the program's from before the step if one is called so."""
        names = [opened.label.name for opened in thread.ranges]
        own = [entry for entry in self._open.get(thread, ()) if entry[-1] and not is_library_domain(entry[0])]
        with_earlier = any(is_step(name) for *_, name in own)
        for _, place, is_earlier, name in reversed(own):
            if with_earlier or not is_earlier:
                names.insert(place, name)
        return names


class Counting:
    """Counts one step of this thread, once, and puts the counts into reports."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.is_done = False
        self._mode: _Mode | None = None
        self._program = _ProgramsOwn()
        self._thread = 0
        self._hearing = ExitStack()
        self._texts: list[str] = []

    @property
    def is_running(self) -> bool:
        """Whether the step is being counted."""
        return self._mode is not None

    def listen(self) -> None:
        """Have ranges opened from now on until the step is counted."""
        self._hearing.enter_context(range_stack.listen(_Calls(self.counts)))
        self._hearing.enter_context(others.hear(self._program))

    def begin(self, until: OpenRange | None = None) -> None:
        """Count what this thread computes from here to `end`, or until a range ends."""
        if self.is_done or self._mode is not None:
            return
        self._mode, self._thread = _Mode(self.counts, self._program), threading.get_ident()
        self._program.is_counting = True
        self._mode.until = until
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Stop counting."""
        mode, self._mode = self._mode, None
        self._hearing.close()
        if mode is None:
            return
        mode.is_on, self.is_done = False, True
        if threading.get_ident() == self._thread:
            _leave(mode)
        self._texts = self.counts.texts()

    def forget(self) -> None:
        """Forget what was counted."""
        self._texts = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count the block."""
        self.listen()
        self.begin()
        try:
            yield
        finally:
            self.end()

    def send(self) -> None:
        """Put the counts into what is recorded now."""
        for text in self._texts:
            range_stack.mark(text)


def _leave(mode: _Mode) -> None:
    """Leave a mode also where the program has entered others since, which stay."""
    others = []
    stack: Any = _python_dispatch._get_current_dispatch_mode_stack()
    if not any(entered is mode for entered in stack):
        return
    while _python_dispatch._get_current_dispatch_mode() is not mode:
        others.append(_python_dispatch._pop_mode())
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for other in reversed(others):
        _python_dispatch._push_mode(other)


def _is_composite(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an operator is made of others, which come here if it is taken apart (in inference mode)."""
    name = func.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if not has(name, "CompositeImplicitAutograd"):
        return False
    tensor = next((argument for argument in (*args, *kwargs.values()) if isinstance(argument, torch.Tensor)), None)
    return tensor is not None and not has(name, "CUDA" if tensor.is_cuda else "CPU")


def _place(owner: Thread, program: _ProgramsOwn) -> tuple[str, Path]:
    """Return phase and path of what runs now; autograd's threads work below the ranges of the one that waits."""
    thread = range_stack.here()
    threads = [thread] if thread is owner else [owner, thread]
    ranges = [opened for each in threads for opened in each.ranges]
    return _phase(ranges), tuple(name for each in threads for name in program.path(each))


def _phase(ranges: list[OpenRange]) -> str:
    if in_backward():
        return BACKWARD
    names = {opened.label.name for opened in ranges if opened.label.category == "phase"}
    if OPTIMIZER in names:
        return OPTIMIZER
    is_model = any(opened.label.category in range_stack.FORWARD_CATEGORIES for opened in ranges)
    return FORWARD if is_model or FORWARD in names else BACKWARD if BACKWARD in names else OTHER
