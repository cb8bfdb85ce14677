"""One call that gives every submodule of a model a forward and a backward range."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import TracebackType

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from profiling import backward_ranges, range_stack
from profiling.backward_ranges import Frame
from profiling.range_stack import Payload, Running


class ModuleAnnotation:
    """Ranges around the modules of one model, until `remove` is called or the `with` block ends."""

    def __init__(self, ranges: list[_ModuleRange]) -> None:
        self._ranges = ranges

    def remove(self) -> None:
        """Take every hook off the model; ranges that are open just now are closed."""
        for one in reversed(self._ranges):
            one.remove()

    def __enter__(self) -> ModuleAnnotation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class _ModuleRange:
    def __init__(self, module: nn.Module, name: str, payload: Payload) -> None:
        self.name, self.payload = name, payload
        self._running: Running[Frame] = Running()
        self._handles: list[RemovableHandle] = [
            module.register_forward_pre_hook(self._before, prepend=True),
            module.register_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        while (frame := self._running.take()) is not None:
            backward_ranges.end(frame, failed=True)

    def _before(self, _module: nn.Module, _args: object) -> None:
        if not torch.compiler.is_compiling() and range_stack.active:
            frame = backward_ranges.begin(self.name, self.payload)
            # PyTorch calls no hook after a call that is interrupted: the range around it ends this one.
            frame.opened.returns = False
            self._running.add(frame)

    def _after(self, _module: nn.Module, args: object, kwargs: object, output: object) -> None:
        if torch.compiler.is_compiling() or not self._running:
            return
        frame = self._running.take()
        if frame is not None:
            frame.add_outputs(output)
            frame.add_outputs((args, kwargs), depth=2)
            backward_ranges.end(frame)


def annotate_modules(model: nn.Module) -> ModuleAnnotation:
    """Give every submodule of `model`, and the model itself, a range in forward and one in backward.

    Names are constant strings: an attribute's own name (`lm_head`), list items as the singular of their
    list with the index, which is the payload too (`layers.3` is `layer 3`), the model its class's name.
    A module that is reached under two names has the first. Containers that are never called have none.
    """
    return ModuleAnnotation([_ModuleRange(*named) for named in _names(model)])


def _names(model: nn.Module) -> Iterator[tuple[nn.Module, str, Payload]]:
    for path, module in model.named_modules():
        *above, last = path.split(".")
        if last.isdigit():
            yield module, f"{_singular(above[-1] if above else type(model).__name__)} {last}", int(last)
        else:
            yield module, last or type(model).__name__, None


def _singular(name: str) -> str:
    return re.sub(r"(?<=[^s])s$", "", name)
