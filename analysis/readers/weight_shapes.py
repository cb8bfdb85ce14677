"""The shape of a layer's weight, by the operator that uses it: `512→256`, `3→64 7×7`, `4096×512`.

A trace has it where it was recorded with `record_shapes=True` (`Input Dims`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec


class Weight(NamedTuple):
    """Which input of an operator is the layer's weight, and how its sizes are written."""

    position: int
    text: Callable[[list[int]], str]


def _linear(sizes: list[int]) -> str:
    if len(sizes) == 2:
        return f"{sizes[1]}→{sizes[0]}"
    return ""


def _convolution(sizes: list[int]) -> str:
    """Write output channels last; those of a group count as inputs, as PyTorch has them in the weight."""
    if len(sizes) > 2:
        return f"{sizes[1]}→{sizes[0]} {_product(sizes[2:])}"
    return ""


def _transposed(sizes: list[int]) -> str:
    if len(sizes) > 2:
        return f"{sizes[0]}→{sizes[1]} {_product(sizes[2:])}"
    return ""


def _product(sizes: list[int]) -> str:
    return "×".join(map(str, sizes))


WEIGHTS = {
    "aten::linear": Weight(1, _linear),
    "aten::conv1d": Weight(1, _convolution),
    "aten::conv2d": Weight(1, _convolution),
    "aten::conv3d": Weight(1, _convolution),
    "aten::conv_transpose1d": Weight(1, _transposed),
    "aten::conv_transpose2d": Weight(1, _transposed),
    "aten::conv_transpose3d": Weight(1, _transposed),
    "aten::embedding": Weight(0, lambda sizes: _product(sizes) if len(sizes) == 2 else ""),
}
_SIZES = msgspec.json.Decoder(list[object])


def weight_shape(operator: str, dims: msgspec.Raw) -> str:
    """Return the shape of the weight that an operator of `WEIGHTS` used; empty where it is not recorded.

    >>> weight_shape("aten::linear", msgspec.Raw(b"[[2, 8, 512], [256, 512], []]"))
    '512→256'
    """
    weight = WEIGHTS[operator]
    try:
        sizes = _SIZES.decode(dims)[weight.position]
    except (msgspec.DecodeError, IndexError):
        return ""
    if not isinstance(sizes, list) or not all(isinstance(size, int) and 0 <= size < 1 << 40 for size in sizes):
        return ""
    return weight.text(sizes)
