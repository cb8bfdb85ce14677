"""Leave functions of this package to Python, not Dynamo, where a program calls them directly.

Where Dynamo inlines an annotation into a graph, the annotation sees that it is traced, and opens nothing.
Where a compiled program calls one between its graphs (a hook of the module that is compiled, a region around
a graph break), Dynamo would make an empty graph of it, and the range would never open.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch


def keep_eager(module: ModuleType, *, and_what_it_calls: bool) -> None:
    """Have Python run a module's functions where they are not part of a graph."""
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "_FrameAction") and hasattr(frames, "set_code_exec_strategy"):
        skip, as_usual = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
        strategy = frames._FrameExecStrategy(skip, skip if and_what_it_calls else as_usual)
        for code in _codes(module, module.__name__):
            frames.set_code_exec_strategy(code, strategy)


def _codes(owner: ModuleType | type, module: str) -> Iterator[CodeType]:
    for member in vars(owner).values():
        function = (
            inspect.unwrap(member) if isinstance(member, FunctionType) else getattr(member, "__func__", None)
        )
        if isinstance(function, FunctionType) and function.__module__ == module:
            yield function.__code__
            yield from (part for part in function.__code__.co_consts if isinstance(part, CodeType))
        elif inspect.isclass(member) and member.__module__ == module:
            yield from _codes(member, module)
