"""The names of a model's modules in the order of their calls, for traces that have only their classes.

    nk.names(model, "names.json")                  # in the order in which the model defines them

    with nk.names(model, "names.json"):            # in the order in which a call calls them, which is better
        model(batch)

    nvtx-kernels rank trace.json.gz --names names.json

PyTorch's traces with stacks number the modules of a class in the order of their calls (`Linear_7`). Where
`forward` calls modules in another order than `__init__` defines them, only a call tells which is which.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from .modules import CONTAINERS, Named, named_modules, uncompiled

VERSION = 1


class CallOrder:
    """The modules of a model; as a `with` block, in the order in which its first calls come."""

    def __init__(self, model: nn.Module, path: Path) -> None:
        model = uncompiled(model)
        self.model = type(model).__name__
        self.path = path
        self._modules = {named.module: named for named in named_modules(model, None)}
        self._hooks: list[Any] = []
        self._open: list[str] = []
        self._calls: dict[tuple[str, str], Named] = {}  # by the caller's path and the module's own
        parts = [named for named in self._modules.values() if named.parent is not None]
        defined = [(_caller(named), named) for named in parts if not _is_held(named)]
        self._write(defined, "definition")

    def _write(self, modules: list[tuple[str, Named]], order: str) -> None:
        rows = [
            {
                "path": named.path,
                "class": type(uncompiled(named.module)).__name__,
                "name": named.name,
                "below": caller,
            }
            for caller, named in modules
        ]
        content = {"version": VERSION, "model": self.model, "order": order, "modules": rows}
        text = json.dumps(content, indent=1, ensure_ascii=False)
        self.path.write_text(f"{text}\n", encoding="utf-8")

    def __enter__(self) -> CallOrder:
        for module in self._modules:
            self._hooks.append(module.register_forward_pre_hook(self._begin))
            self._hooks.append(module.register_forward_hook(self._end, always_call=True))
        return self

    def __exit__(self, *_error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._calls:
            called = [(caller, named) for (caller, _), named in self._calls.items()]
            self._write(called, "calls")

    def _begin(self, module: nn.Module, _inputs: object) -> None:
        named = self._modules[module]
        if self._open:
            self._calls.setdefault((self._open[-1], named.path), named)
        self._open.append(named.path)

    def _end(self, _module: nn.Module, _inputs: object, _output: object) -> None:
        self._open.pop()


def _is_held(named: Named) -> bool:
    """Return whether a module is a list or a dictionary of modules, which is never called."""
    return type(named.module) in CONTAINERS


def _caller(named: Named) -> str:
    """Return the path of the module that holds this one, passing over lists and dictionaries of modules."""
    holder = named.parent
    while holder is not None and _is_held(holder):
        holder = holder.parent
    return holder.path if holder is not None else ""


def names(model: nn.Module, path: str | Path = "names.json") -> CallOrder:
    """Write the names of a model's modules for `--names`, and return what watches their order in a `with` block.

    The file is written at once, in the order of definition, and after the block in the order of the first calls in
    it. It holds classes and attributes' names, and nothing of what the modules compute.
    """
    return CallOrder(model, Path(path))
