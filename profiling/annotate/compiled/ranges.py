"""What the code that Inductor generated calls: one open path at a time, moved from kernel call to kernel call.

    ranges = Ranges((("layer 0", "ffn"), ("layer 0", "ffn", "norm + up projection")), "model/forward")
    with ranges.opened() as at:
        at(0)               # the next kernel call belongs to this path
        ...
        at(-1)              # and the next one to none

Moving closes and opens as few ranges as it takes. The block closes what is open, also when it raises. With
no tool and no listener, nothing is opened, and a move costs a call of an empty function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from .. import range_stack
from ..range_stack import OpenRange
from .leaves import Leaves, follow

NOWHERE = -1

Names = tuple[str, ...]


class _Thread(threading.local):
    blocks = 0


_thread = _Thread()


def in_generated_code() -> bool:
    """Return whether this thread is inside generated code: PyTorch has blocks of its own open around it."""
    return _thread.blocks > 0


class Ranges:
    """The paths of one generated module, by their number in its code; for a backward, those of its gradients."""

    def __init__(self, paths: Sequence[Names], category: str, leaves: Leaves = ()) -> None:
        self.paths, self.leaves = tuple(paths), leaves
        names = {name for path in self.paths for name in path}
        self.labels = {name: range_stack.label(name, None, category) for name in names}

    def opened(self) -> Opened:
        """Return the block in which a call of the generated code runs."""
        return Opened(self)


class _GeneratedRange(OpenRange):
    """A range that is not put back where one around it ends out of turn: the call of generated code is over."""

    __slots__ = ()
    returns = False


class Opened:
    """The ranges of one call of generated code, on the thread that runs it."""

    __slots__ = ("_names", "_of", "_ranges")

    def __init__(self, ranges: Ranges) -> None:
        self._of = ranges
        self._names: Names = ()
        self._ranges: list[OpenRange] = []

    def __enter__(self) -> Callable[[int], None]:
        _thread.blocks += 1
        return self._move if range_stack.active else _stay

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._move(NOWHERE)
        _thread.blocks -= 1
        if self._of.leaves and error is None and range_stack.active:
            follow(self._of.leaves, Opened(self._of)._move, NOWHERE)

    def _move(self, number: int) -> None:
        wanted = self._of.paths[number] if number != NOWHERE else ()
        if wanted == self._names:
            return
        kept = 0
        for name, open_name in zip(wanted, self._names, strict=False):
            if name != open_name:
                break
            kept += 1
        for _ in self._names[kept:]:
            range_stack.close(self._ranges.pop())
        for name in wanted[kept:]:
            self._open(name)
        self._names = wanted

    def _open(self, name: str) -> None:
        self._ranges.append(range_stack.push(_GeneratedRange(self._of.labels[name])))


def _stay(_number: int) -> None:
    pass
