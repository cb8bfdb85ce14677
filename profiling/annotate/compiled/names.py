"""Where a kernel call of generated code belongs: from the metadata of the graph nodes that it was made of.

A node carries the modules that were running when it was traced, outermost first, and the regions with how
many modules were around each: both together are its path, as the eager program would have opened it. A
kernel is made of the nodes that do the most in it: those that compute, else those that cast or copy, else views.
One made of nodes of several paths is a fusion. It has one range below what the paths have in common, named for
its parts in the order of the graph: `norm + up projection`; `self` is the common module's own work. A part of an
indexed module keeps that module in its name, so that a fusion across layers shows:
`layer 3 down projection + layer 4 norm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from nvtx_kernels.analysis.vocabulary import FUSED

Names = tuple[str, ...]
REGIONS = "nvtx_kernels"
RECOMPUTE, SELF = "recompute", "self"
MAX_PARTS, MAX_PART = 4, 48

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


def is_recomputed(meta: Meta) -> bool:
    """Return whether a node of a backward graph repeats a node of the forward."""
    return meta.get("partitioner_tag") == "is_forward"


class Kernel(NamedTuple):
    """A kernel call's path, and the paths of the parts that it works for, in the order of the graph.

    `working` has by its place in the call each node that does the most in it, with its path.
    """

    path: Names
    working: Mapping[int, Names]


def kernel_of(nodes: Iterable[tuple[int, Meta]], name_of: ModuleName, *, backward: bool) -> Kernel:
    """Return the path of a kernel call made of nodes, given by what they do in it; () if none of them has one."""
    placed = [
        (position, work, path, meta)
        for position, (work, meta) in enumerate(nodes)
        if (path := path_of(meta, name_of))
    ]
    if not placed:
        return Kernel((), {})
    most = max(work for _, work, _, _ in placed)
    working = [(position, path, meta) for position, work, path, meta in placed if work == most]
    again = backward and all(is_recomputed(meta) for _, _, meta in working)
    above = (RECOMPUTE,) if again else ()
    parts = {position: (*above, *path) for position, path, _ in working}
    return Kernel(fused(parts.values()), parts)


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
    common = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return tuple(names[0] for names in common)


def fusion_name(parts: Sequence[Names]) -> str:
    """Name a fusion for its parts, given by their paths below the range that they share; of bounded length."""
    for label in (_short, _ends, " ".join):
        labels = list(dict.fromkeys(label(part)[:MAX_PART] if part else SELF for part in parts))
        if len(labels) == len(parts):
            break
    more = len(labels) - MAX_PARTS
    if more > 1:
        labels[MAX_PARTS:] = [f"{more} more"]
    return FUSED.join(labels)


def _short(part: Names) -> str:
    """Return a part's own name; with the outermost one before it where that has an index."""
    return _ends(part) if part[0][-1].isdigit() else part[-1]


def _ends(part: Names) -> str:
    return f"{part[0]} {part[-1]}" if len(part) > 1 else part[0]
