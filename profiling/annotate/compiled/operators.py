"""What an operator of a graph does in the kernel that it is compiled into: it computes, moves, or only views.

In a kernel that computes, a cast, a copy into another layout or a constant is made on the way, in registers, and
a view is an index: they read and write no memory of their own, and the kernel is not their module's. Autocast's
casts are recorded in the module that asks for them: that of a norm's output is in the next projection. What
follows from constants alone counts as one: each layer's softmax makes the first layer's causal mask again.
A kernel that only casts, copies or fills is the work of who asked for it, such as the cast of a weight.
"""

from __future__ import annotations

import torch

VIEWS, MOVES, COMPUTES = range(3)
# How many nodes are looked at to tell whether one follows from constants alone; masks are made of a dozen.
_MAX_LOOKED_AT = 48

_CASTS = ("prims::convert_element_type", "aten::_to_copy", "prims::device_put", "prims::copy_to")
_COPIES = ("aten::clone", "aten::copy", "aten::copy_", "aten::lift_fresh_copy")
_NUMBERS = ("prims::iota", "aten::arange", "aten::scalar_tensor")
_FILLS = ("aten::fill", "aten::full", "aten::full_like", "aten::new_full")
_ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros")
_ONES = ("aten::ones", "aten::ones_like", "aten::new_ones")
# What writes values that exist already, or that are known: by the operator's name, without its overload.
_MOVING = frozenset((*_CASTS, *_COPIES, *_NUMBERS, *_FILLS, *_ZEROS, *_ONES))
_EMPTY = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided")
# What writes nothing, though its schema does not say that it returns its argument's memory.
_VIEWING = frozenset(("aten::_unsafe_view", *_EMPTY, "aten::sym_size", "aten::sym_numel"))


def work_of(node: torch.fx.Node) -> int:
    """Return what a node does: VIEWS, MOVES or COMPUTES, from the least to the most."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # Python's: items of a tuple, arithmetic of sizes; or an operator of a higher order
        is_view = getattr(node.target, "__module__", "") == "_operator"
    elif schema.name in _MOVING:
        return MOVES
    else:
        aliases = [argument.alias_info for argument in schema.arguments]
        returns_argument = any(alias is not None and not alias.is_write for alias in aliases)
        is_view = schema.name in _VIEWING or returns_argument
    if is_view:
        return VIEWS
    return MOVES if _is_constant(node) else COMPUTES


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
