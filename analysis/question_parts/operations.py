"""What a forward computes besides matrix products: kernels by the operation that their ranges name."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from analysis import attention
from analysis.report import KernelRow, Number, Path, Report
from analysis.vocabulary import FORWARD, phase_of

SOFTMAX, MASK, SCALE, ROPE, NORM = attention.SOFTMAX, attention.MASK, attention.SCALE, "rope", "norm"
ACTIVATION, RESIDUAL, LOSS, CASTS, COPIES, REST = "activation", "residual", "loss", "casts", "copies", "rest"
#: How the ranges of an operation are named, in full and in any case.
NAMES = {
    SOFTMAX: attention.NAMES[SOFTMAX],
    MASK: attention.NAMES[MASK],
    SCALE: attention.NAMES[SCALE],
    ROPE: re.compile(r"(.*[\W_])?(rope|rotary([\W_].*)?)", re.IGNORECASE),
    NORM: re.compile(r"(.*[\W_])?(((rms|layer)_?)?norm|ln)_?(\d+|f|final)?", re.IGNORECASE),
    ACTIVATION: re.compile(r"activation|act(_?fn)?|silu|swish|swiglu|gelu|relu", re.IGNORECASE),
    RESIDUAL: re.compile(r"(.*[\W_])?residual([\W_]add)?", re.IGNORECASE),
    LOSS: re.compile(r"(.*[\W_])?(loss|cross[\W_]?entropy)", re.IGNORECASE),
}
#: Copies whose names say that they change the type.
CAST = re.compile(
    r"float\w*_copy_kernel|half_copy_kernel|(Load|Store)WithCast|gpu_kernel_impl<|_to_copy|convert", re.IGNORECASE
)


def operations_of(report: Report) -> dict[str, Number]:
    """Add up the time of the forward's kernels that are no GEMMs, ns, by the outermost operation that is named.

    What no range names is a residual where it is element-wise and directly in the range around a norm, a cast or a
    copy by the kernel, and else the rest. What no range could name is not in it, and nothing where none does.
    """
    rows = [row for row in report.kernels if row.phase == FORWARD and row.kind == "kernel"]
    paths = {row.path for row in report.ranges if row.phase == FORWARD}
    layers = {path[:at] for path in paths for at, name in enumerate(path) if named(name) == NORM}
    known = {operation for path in paths for name in path if (operation := named(name))}
    if not known - {LOSS}:
        return {}
    told = {*known, CASTS, COPIES, REST, *([RESIDUAL] if layers else [])}
    sums: dict[str, Number] = dict.fromkeys(told, 0)
    for row in (row for row in rows if row.category != "gemm"):
        sums[_operation(row, layers)] += row.total_ns
    return sums


@lru_cache(maxsize=65_536)
def named(name: str) -> str:
    """Return the operation that a range's name names, or nothing."""
    bare = name.lstrip(":").strip()
    return next((operation for operation, pattern in NAMES.items() if pattern.fullmatch(bare)), "")


def _operation(row: KernelRow, layers: Collection[Path]) -> str:
    found = next((operation for name in row.path if (operation := named(name))), "")
    if found:
        return found
    if row.category == "copy":
        return CASTS if CAST.search(row.kernel) else COPIES
    is_layer = row.path in layers and not phase_of(row.path[-1])
    return RESIDUAL if is_layer and row.category == "elementwise" else REST
