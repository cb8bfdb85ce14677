"""Ranges written into the code that Inductor generates: around every kernel call, by its path.

    with nvtx_kernels_ranges.opened() as nvtx_kernels_at:
        nvtx_kernels_at(0)
        triton_poi_fused_add_0.run(...)
        nvtx_kernels_at(1)
        extern_kernels.mm(...)
        return (buf1, )

The lines are in the cached code, so a second process has the ranges too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from . import inductor, names, ranges
from .names import ModuleName, Names
from .ranges import NOWHERE, Leaves

TABLE, AT = "nvtx_kernels_ranges", "nvtx_kernels_at"


@dataclass(frozen=True, slots=True)
class Naming:
    """How the kernel calls of one graph are named."""

    module_name: ModuleName
    backward: bool
    model: str | None  # whose forward the graph is of, if its call is in no node

    def path(self, nodes: list[torch.fx.Node]) -> Names:
        """Return where a kernel call made of these nodes of the graph belongs; () if nowhere."""
        working = [(names.work_of(node), node.meta) for node in nodes]
        path = names.kernel_path(working, self.module_name, backward=self.backward)
        if path:
            return path
        before = inductor.metas_before(nodes, lambda meta: bool(names.path_of(meta, self.module_name)))
        return names.path_of_sum(before, self.module_name)


class _Annotated:
    """Mixed into a wrapper code generator of Inductor's, of a whole graph or of a part of one."""

    _nk_naming: Naming
    _nk_table: dict[Names, int]  # shared by the parts of a graph
    _nk_open: int
    _nk_node: Any
    _nk_is_root: bool

    def write_provenance_debug_handle(self, kernel_name: str, *args: Any, **kwargs: Any) -> None:
        """Assign the call that is written next to the path of its nodes."""
        super().write_provenance_debug_handle(kernel_name, *args, **kwargs)  # type: ignore[misc]
        path = self._nk_naming.path(inductor.nodes_of_call(inductor.caller(1)))
        self._nk_move(self._nk_number(path))
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
        naming = self._nk_naming
        category = "model/backward" if naming.backward else "model/forward"
        leaves = self._nk_leaves() if naming.backward else ()
        table = f"NvtxKernelsRanges({tuple(self._nk_table)!r}, {category!r}, {leaves!r}, {naming.model!r})"
        self.header.writeline(f"from {ranges.__name__} import Ranges as NvtxKernelsRanges")  # type: ignore[attr-defined]
        self.header.writeline(f"{TABLE} = {table}")  # type: ignore[attr-defined]

    def _nk_leaves(self) -> Leaves:
        """Return the path and the size of each gradient that a backward graph returns."""
        return tuple(
            (self._nk_number(self._nk_naming.path([node])), inductor.elements(node)) if node else None
            for node in inductor.outputs()
        )

    def _nk_number(self, path: Names) -> int:
        return self._nk_table.setdefault(path, len(self._nk_table)) if path else NOWHERE

    def generate_return(self, output_refs: list[str]) -> None:
        """Close the block after the return."""
        super().generate_return(output_refs)  # type: ignore[misc]
        self.wrapper_call.do_unindent()  # type: ignore[attr-defined]


@cache
def _mixed(wrapper: type) -> type:
    return type(f"Annotated{wrapper.__name__}", (_Annotated, wrapper), {})


def fits(parent: Any) -> bool:
    """Return whether a part of a graph can have ranges: the whole has them, or it is the whole."""
    return parent is None or hasattr(parent, "_nk_table")


def annotated(wrapper: Any, parent: Any, naming: Naming) -> Any:
    """Make a wrapper code generator write ranges; `parent` is that of the graph of which this one's is a part."""
    kind: Any = type(wrapper)
    wrapper.__class__ = _mixed(kind)
    wrapper._nk_naming, wrapper._nk_is_root = naming, parent is None
    wrapper._nk_table = {} if parent is None else parent._nk_table
    wrapper._nk_open, wrapper._nk_node = NOWHERE, None
    return wrapper
