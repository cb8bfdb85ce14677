"""Where a kernel call of generated code belongs: from the metadata of the graph nodes that it was made of.

A node carries the modules that were running when it was traced, outermost first, and the regions with how
many modules were around each: both together are its path, as the eager program would have opened it. A
kernel is made of the nodes that do the most in it: those that compute, else those that cast or copy, else views.
One made of nodes of several paths is a fusion. It has one range below what the paths have in common, named for
its parts in the order of the graph: `norm + up projection`; `self` is the common module's own work. A part of an
indexed module keeps that module in its name, so that a fusion across layers shows:
`layer 3 down projection + layer 4 norm`.

In a kernel that computes, a cast, a copy into another layout or a constant is made on the way, in registers, and
a view is an index: they read and write no memory of their own, and the kernel is not their module's. Autocast's
casts are recorded in the module that asks for them: that of a norm's output is in the next projection. What
follows from constants alone counts as one: each layer's softmax makes the first layer's causal mask again.
A kernel that only casts, copies or fills is the work of who asked for it, such as the cast of a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from nvtx_kernels.analysis.vocabulary import FUSED

Names = tuple[str, ...]
REGIONS = "nvtx_kernels"
RECOMPUTE, SELF = "recompute", "self"
MAX_PARTS, MAX_PART = 4, 48
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

# The name of the module that a key and a value of `nn_module_stack` refer to; None for one without a range.
ModuleName = Callable[[str, tuple[str, Any]], str | None]
Meta = Mapping[str, Any]


def path_of(meta: Meta, name_of: ModuleName) -> Names:
    """Return the names of the ranges around a node, outermost first; () for a node of no annotated part."""
    regions = list((meta.get("custom") or {}).get(REGIONS, ()))
    path: list[str] = []
    for depth, (key, value) in enumerate(modules_of(meta).items()):
        while regions and regions[0][0] <= depth:
            path.append(regions.pop(0)[1])
        name = name_of(key, value)
        if name is not None:
            path.append(name)
    return (*path, *(name for _, name in regions))


def modules_of(meta: Meta) -> Mapping[str, tuple[str, Any]]:
    """Return the modules that were running when a node was traced, outermost first: `nn_module_stack`."""
    return meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack") or {}


def kernel_path(nodes: Iterable[tuple[int, Meta]], name_of: ModuleName, *, backward: bool) -> Names:
    """Return the path of a kernel call made of nodes, given by what they do in it; () if none of them has one."""
    by_work: dict[int, list[tuple[Names, Meta]]] = {}
    for work, meta in nodes:
        path = path_of(meta, name_of)
        if path:
            by_work.setdefault(work, []).append((path, meta))
    if not by_work:
        return ()
    working = by_work[max(by_work)]
    # A node of a backward graph that repeats a node of the forward is recomputed.
    again = backward and all(meta.get("partitioner_tag") == "is_forward" for _, meta in working)
    above = (RECOMPUTE,) if again else ()
    return fused((*above, *path) for path, _ in working)


def fused(paths: Iterable[Names]) -> Names:
    """Return the one path of a kernel with these paths: itself, or a named fusion below what they share."""
    distinct = list(dict.fromkeys(paths))
    if len(distinct) == 1:
        return distinct[0]
    around = shared(distinct)
    return (*around, fusion_name([path[len(around) :] for path in distinct]))


def path_of_sum(metas: Iterable[Meta], name_of: ModuleName) -> Names:
    """Return the path of a kernel that no module made, from those of what it adds up: the part that they share.

    A sum of parts that share nothing, such as the gradient of a tied weight, is named like their fusion.
    """
    paths = [path for meta in metas if (path := path_of(meta, name_of))]
    return (shared(paths) or fused(paths)) if paths else ()


def shared(paths: Sequence[Names]) -> Names:
    """Return the names that all paths begin with."""
    by_depth = zip(*paths, strict=False)
    common = takewhile(lambda names: len(set(names)) == 1, by_depth)
    return tuple(names[0] for names in common)


def fusion_name(parts: Sequence[Names]) -> str:
    """Name a fusion for its parts, given by their paths below the range that they share; of bounded length."""
    for label in (_short, _ends, " ".join):
        names = [label(part)[:MAX_PART] if part else SELF for part in parts]
        labels = list(dict.fromkeys(names))
        if len(labels) == len(parts):
            break
    more = len(labels) - MAX_PARTS
    if more > 1:
        labels[MAX_PARTS:] = [f"{more} more"]
    return FUSED.join(labels)


def _short(part: Names) -> str:
    """Return a part's own name; with the outermost one before it where that has an index."""
    outermost, innermost = part[0], part[-1]
    return _ends(part) if outermost[-1].isdigit() else innermost


def _ends(part: Names) -> str:
    return f"{part[0]} {part[-1]}" if len(part) > 1 else part[0]


def work_of(node: torch.fx.Node) -> int:
    """Return the kind of a node's work: VIEWS, MOVES or COMPUTES, in increasing order."""
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
