"""What an operator of a graph does in the kernel that it is compiled into: it computes, moves, or only views.

In a kernel that computes, a cast, a copy into another layout or a constant is made on the way, in registers, and
a view is an index: they read and write no memory of their own, and the kernel is not their module's. Autocast's
casts are recorded in the module that asks for them: that of a norm's output is in the next projection. What
follows from constants alone counts as one: a causal mask of the first layer is made anew in every layer's softmax.
A kernel that only casts, copies or fills is the work of who asked for it, such as the cast of a weight.
"""

from __future__ import annotations

from typing import Any

import torch

VIEWS, MOVES, COMPUTES = range(3)
# How many nodes are looked at to tell whether one follows from constants alone; masks are made of a dozen.
_MAX_LOOKED_AT = 48

# What writes values that are there already, or known: by the operator's name, without its overload.
_MOVING = frozenset({
    "prims::convert_element_type", "aten::_to_copy", "prims::device_put", "prims::copy_to", "prims::iota",
    "aten::clone", "aten::copy", "aten::copy_", "aten::lift_fresh_copy", "aten::arange", "aten::scalar_tensor",
    "aten::fill", "aten::full", "aten::full_like", "aten::new_full", "aten::zeros", "aten::zeros_like",
    "aten::new_zeros", "aten::ones", "aten::ones_like", "aten::new_ones",
})  # fmt: skip
# What writes nothing, though its schema does not say that it returns its argument's memory.
_VIEWING = frozenset({
    "aten::_unsafe_view", "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
    "aten::new_empty_strided", "aten::sym_size", "aten::sym_numel",
})  # fmt: skip


def work_of(node: torch.fx.Node) -> int:
    """Return what a node does: VIEWS, MOVES or COMPUTES, from the least to the most."""
    work = _work_of_operator(node.target)
    return MOVES if work == COMPUTES and _is_constant(node) else work


def _work_of_operator(target: Any) -> int:
    schema = getattr(target, "_schema", None)
    if schema is None:  # Python's: items of a tuple, arithmetic of sizes; or an operator of a higher order
        return VIEWS if getattr(target, "__module__", "") == "_operator" else COMPUTES
    if schema.name in _MOVING:
        return MOVES
    return VIEWS if schema.name in _VIEWING or _returns_its_argument(schema) else COMPUTES


def _returns_its_argument(schema: Any) -> bool:
    return any(
        argument.alias_info is not None and not argument.alias_info.is_write for argument in schema.arguments
    )


def _is_constant(node: torch.fx.Node) -> bool:
    """Return whether a node's value depends on no input, no stored tensor and no random number."""
    seen, further = {node}, [node]
    while further:
        source = further.pop()
        is_random = torch.Tag.nondeterministic_seeded in getattr(source.target, "tags", ())
        if source.op != "call_function" or is_random or len(seen) > _MAX_LOOKED_AT:
            return False
        new = set(source.all_input_nodes) - seen
        seen |= new
        further += new
    return True
