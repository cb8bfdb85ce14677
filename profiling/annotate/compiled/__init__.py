"""Ranges inside programs that torch.compile has compiled: by module and region, forward and backward.

Inductor is asked, while it generates the code of an annotated model, which graph nodes each kernel call was
made of; the code then opens the ranges of their modules and regions around the call. Graphs of models
without annotations are left alone. What Inductor has registered for the whole process is wrapped, not
replaced, and put back by `restore`. With a PyTorch whose Inductor is unknown, a
compiled program is one piece, and this is logged once.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from nvtx_kernels.analysis.vocabulary import collapsed
from torch import nn

from .. import range_stack
from ..replacing import replaced
from . import inductor, names, ranges, tracing, wrapper

__all__ = ["Registered", "restore"]

# Changes with what is written into generated code, and with what names a kernel, so that no cache brings back what
# an older release wrote.
FORMAT = 6

_names: dict[int, tuple[weakref.ref[nn.Module], str]] = {}


class Registered:
    """The names of one model's modules in compiled code, until `remove` is called."""

    def __init__(self, named: Iterable[tuple[nn.Module, str]]) -> None:
        self._entries = {id(module): (weakref.ref(module), name) for module, name in named}
        _names.update(self._entries)
        if not tracing.opaque:
            inductor.after_import(_install)

    def remove(self) -> None:
        """Compile the model without ranges from now on; what is compiled keeps them."""
        for key, entry in self._entries.items():
            if _names.get(key) is entry:
                del _names[key]


def _name_of(key: str, value: tuple[str, Any]) -> str | None:
    """Return the name of the module that an entry of `nn_module_stack` refers to, if it is annotated."""
    number = key.partition("@")[0]
    entry = _names.get(int(number)) if number.isdigit() else None
    module = entry[0]() if entry else None
    if entry is None or module is None:
        return None
    name, (_, attributes) = entry[1], _local_and_attributes(value[0])
    last = attributes[-1] if attributes else ""
    if last and (name == last or (last.isdigit() and name.endswith(f" {last}"))):
        return name  # it comes from the module's path in the program: its like have it too
    return _name_of_its_like(module, name)


def _local_and_attributes(path: str) -> tuple[str, list[str]]:
    """Return the local variable and the attributes of a module's path in the program."""
    # L['self'].layers.3, in some releases L['self']._modules['layers']…
    words = [word for word in re.findall(r"\w+", path) if word != "_modules"]
    return "".join(words[1:2]), words[2:]


def _name_of_its_like(module: nn.Module, name: str) -> str | None:
    """Return a name that holds for every annotated module of this class: the code may serve them all."""
    like = {entry[1] for entry in _names.values() if type(entry[0]()) is type(module)}
    if like <= {name}:
        return name
    without_indices = {collapsed(name) for name in (name, *like)}
    return without_indices.pop() if len(without_indices) == 1 else None


def _model_of(module: Any) -> str | None:
    """Return the name of the annotated model whose forward a graph is of, if no node of it has the model's call.

    Where the model's class is a program's own, Dynamo begins with its forward, and not with the call around that.
    """
    stacks = (names.modules_of(meta) for meta in inductor.metas_of_graph(module))
    key, (path, _) = next((entry for stack in stacks for entry in stack.items()), ("", ("", None)))
    local, attributes = _local_and_attributes(path)
    number = key.partition("@")[0]
    if local != "self" or not attributes or not number.isdigit():
        return None
    for reference, name in list(_names.values()):
        model = part = reference()
        for attribute in attributes:
            part = part._modules.get(attribute) if part is not None else None
        if model is not None and id(part) == int(number):
            return _name_of_its_like(model, name)
    return None


# What is wrapped in Inductor: the generators of wrapper code, and the keys of its caches.
_installed: ExitStack | None = None
_unknown = False


def _install() -> None:
    global _installed, _unknown
    if _installed is not None or _unknown:
        return
    lacking = inductor.missing()
    if lacking:
        _unknown = True
        range_stack.say_once("inductor", "a compiled program is one piece: %s", lacking)
        return
    generators = [
        (entry, "wrapper_codegen", _chained(entry.wrapper_codegen)) for entry in inductor.wrappers().values()
    ]
    _installed = ExitStack()
    _installed.enter_context(replaced(*generators, inductor.cache_keys(_digest)))


def restore() -> None:
    """Put back what Inductor had registered."""
    global _installed
    if _installed is not None:
        _installed.close()
        _installed = None


tracing.on_trace(_install)


def _chained(before: Any) -> Any:
    """Return a class whose `create` makes what the class before makes, writing ranges for annotated graphs."""

    class Chained(before):  # type: ignore[misc]
        @staticmethod
        def create(is_subgraph: bool, name: str | None, parent: Any, *args: Any, **kwargs: Any) -> Any:
            generator = before.create(is_subgraph, name, parent, *args, **kwargs)
            module, backward = inductor.graph_in_work()
            if _installed is None or not _is_annotated(module) or not wrapper.fits(parent):
                return generator
            return wrapper.annotated(generator, parent, wrapper.Naming(_name_of, backward, _model_of(module)))

    return Chained


def _is_annotated(module: Any) -> bool:
    metas = inductor.metas_of_graph(module)
    return any(names.path_of(meta, _name_of) for meta in metas) or _model_of(module) is not None


def _digest(module: Any) -> str:
    """Return a text that differs for graphs whose generated code has other ranges; empty without ranges."""
    if _installed is None or not _is_annotated(module):
        return ""
    paths = [names.path_of(meta, _name_of) for meta in inductor.metas_of_graph(module)]
    return hashlib.sha256(repr((FORMAT, ranges.__name__, _model_of(module), paths)).encode()).hexdigest()
