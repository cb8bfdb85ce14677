"""Ranges inside programs that torch.compile has compiled: by module and region, forward and backward.

Inductor is asked, while it generates the code of an annotated model, which graph nodes each kernel call was
made of; the code then opens the ranges of their modules and regions around the call. Graphs of models
without annotations are left alone. What Inductor has registered for the whole process is wrapped, not
replaced, and put back by `restore`. With a PyTorch whose Inductor is unknown, a
compiled program is one piece, and this is logged once. Generated code is:

    with nvtx_kernels_ranges.opened() as nvtx_kernels_at:
        nvtx_kernels_at(0)
        triton_poi_fused_add_0.run(...)
        nvtx_kernels_at(1)
        extern_kernels.mm(...)
        return (buf1, )

The lines are in the cached code, so a second process has the ranges too.

It belongs to `annotate`, and all that is private in Inductor is in `inductor.py`.
"""

from __future__ import annotations

import hashlib
import re
import sys
import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from nvtx_kernels.analysis.vocabulary import collapsed
from torch import nn

from ...harmless import say_once
from ..replacing import replaced
from . import inductor, names, ranges, tracing
from .names import Names
from .ranges import NOWHERE, Leaves

__all__ = ["Registered", "restore"]

# Changes with what is written into generated code, and with what names a kernel, so that no cache brings back what
# an older release wrote.
FORMAT = 6
TABLE, AT = "nvtx_kernels_ranges", "nvtx_kernels_at"

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
        if not _names:
            restore()


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
        say_once(f"a compiled program is one piece: {lacking}")
        return
    generators = [
        (entry, "wrapper_codegen", _chained(entry.wrapper_codegen)) for entry in inductor.wrappers().values()
    ]
    _installed = ExitStack()
    _installed.enter_context(replaced(*generators, inductor.cache_keys(_digest)))


def restore() -> None:
    """Put back what Inductor had registered, and wait for it no more."""
    global _installed
    inductor.stop_waiting()
    if _installed is not None:
        _installed.close()
        _installed = None


tracing.on_trace.append(_install)


class _Annotated:
    """Mixed into a wrapper code generator of Inductor's, of a whole graph or of a part of one."""

    _nk_backward: bool
    _nk_model: str | None  # whose forward the graph is of, if its call is in no node
    _nk_is_root: bool
    _nk_table: dict[Names, int]  # shared by the parts of a graph
    _nk_open = NOWHERE
    _nk_node: Any = None

    def write_provenance_debug_handle(self, kernel_name: str, *args: Any, **kwargs: Any) -> None:
        """Assign the call that is written next to the path of its nodes."""
        super().write_provenance_debug_handle(kernel_name, *args, **kwargs)  # type: ignore[misc]
        self._nk_move(self._nk_number(inductor.nodes_of_call(sys._getframe(1))))
        self._nk_node = inductor.scheduler_node()

    def writeline(self, line: Any) -> None:
        """Write a line; a call that is not announced belongs to no path."""
        moved_on = self._nk_open != NOWHERE and inductor.scheduler_node() is not self._nk_node
        if moved_on and not inductor.is_bookkeeping(line):
            self._nk_move(NOWHERE)
        super().writeline(line)  # type: ignore[misc]

    def _nk_move(self, number: int) -> None:
        if number != self._nk_open:
            self._nk_open = number
            super().writeline(f"{AT}({number})")  # type: ignore[misc]

    def run_wrapper_ir_passes(self, is_inference: bool) -> None:
        """Open the block around the whole body, just before its lines are put together."""
        super().run_wrapper_ir_passes(is_inference)  # type: ignore[misc]
        self._nk_open = NOWHERE
        if self._nk_is_root:
            self._nk_write_table()
        self.wrapper_call.writeline(f"with {TABLE}.opened() as {AT}:")  # type: ignore[attr-defined]
        self.wrapper_call.do_indent()  # type: ignore[attr-defined]

    def _nk_write_table(self) -> None:
        leaves: Leaves = ()
        if self._nk_backward:  # the path and the size of each gradient that it returns
            leaves = tuple(
                (self._nk_number([node]), inductor.elements(node)) if node else None for node in inductor.outputs()
            )
        category = "model/backward" if self._nk_backward else "model/forward"
        table = f"NvtxKernelsRanges({tuple(self._nk_table)!r}, {category!r}, {leaves!r}, {self._nk_model!r})"
        self.header.writeline(f"from {ranges.__name__} import Ranges as NvtxKernelsRanges")  # type: ignore[attr-defined]
        self.header.writeline(f"{TABLE} = {table}")  # type: ignore[attr-defined]

    def _nk_number(self, nodes: list[torch.fx.Node]) -> int:
        """Return the number of the path of a kernel call made of these nodes of the graph, or NOWHERE."""
        working = [(names.work_of(node), node.meta) for node in nodes]
        path = names.kernel_path(working, _name_of, backward=self._nk_backward)
        if not path:
            before = inductor.metas_before(nodes, lambda meta: bool(names.path_of(meta, _name_of)))
            path = names.path_of_sum(before, _name_of)
        return self._nk_table.setdefault(path, len(self._nk_table)) if path else NOWHERE

    def generate_return(self, output_refs: list[str]) -> None:
        """Close the block after the return."""
        super().generate_return(output_refs)  # type: ignore[misc]
        self.wrapper_call.do_unindent()  # type: ignore[attr-defined]


@cache
def _mixed(wrapper: type) -> type:
    return type(f"Annotated{wrapper.__name__}", (_Annotated, wrapper), {})


def _chained(before: Any) -> Any:
    """Return a class whose `create` makes what the class before makes, writing ranges for annotated graphs."""

    class Chained(before):  # type: ignore[misc]
        @staticmethod
        def create(
            is_subgraph: bool,
            name: str | None,
            parent: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            generator = before.create(is_subgraph, name, parent, *args, **kwargs)
            module, backward = inductor.graph_in_work()
            # A part of a graph has ranges if the whole has.
            is_possible = _installed is not None and (parent is None or hasattr(parent, "_nk_table"))
            if is_possible and _is_annotated(module):
                kind: Any = type(generator)
                generator.__class__ = _mixed(kind)
                generator._nk_backward, generator._nk_model = backward, _model_of(module)
                generator._nk_is_root = parent is None
                generator._nk_table = {} if parent is None else parent._nk_table
            return generator

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
