"""FLOPs of matrix products, convolutions and fused attention, 2 per multiply-add, and what they write.

They follow PyTorch's own counter (torch/utils/flop_counter.py), with two differences. It counts the gradient of a
grouped convolution's weight once for each group, and attention in the layout of `_flash_attention_forward` with
heads and positions exchanged. Scores that a causal mask leaves out count there and here; `causal_share` says how
many remain.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from .calls import DTYPES, OperatorCall, Shape, Tensor, TensorType, Unknown, tensor


class Operands(NamedTuple):
    """The places of a product's two matrices among its arguments, and of the value that is its result's type."""

    left: int
    right: int
    type_place: int = -1


def sizes_of_product(call: OperatorCall, operands: Operands) -> tuple[Shape, int, int, int]:
    """Return the batch, rows, columns and inner size of `left @ right`, which may be vectors or batches.

    Raises Unknown where the sizes do not fit.
    """
    left = call.tensor(operands.left).shape
    right = call.tensor(operands.right).shape
    rows, inner = (1, left[0]) if len(left) == 1 else left[-2:] if left else (0, -1)
    fits, columns = (right[0], 1) if len(right) == 1 else right[-2:] if right else (-1, 0)
    if inner != fits:
        raise Unknown
    batches = (left[:-2], right[:-2])
    return max(batches, key=math.prod), rows, columns, inner


def flops_of_product(call: OperatorCall, operands: Operands) -> int:
    """Return the FLOPs of a product of matrices."""
    batch, rows, columns, inner = sizes_of_product(call, operands)
    return 2 * math.prod(batch) * rows * columns * inner


def product(call: OperatorCall, operands: Operands) -> list[Tensor]:
    """Return the tensors that a product of matrices writes."""
    batch, rows, columns, _ = sizes_of_product(call, operands)
    left = call.tensor(operands.left)
    return [tensor((*batch, rows, columns), _result_type(call, operands, left.dtype))]


def shape_of_product(call: OperatorCall, operands: Operands) -> str:
    """Write a product's sizes: rows × columns × inner, behind those of its batch."""
    batch, rows, columns, inner = sizes_of_product(call, operands)
    batches = f"{math.prod(batch)}×" if math.prod(batch) > 1 else ""
    return f"{batches}{rows}×{columns}×{inner}"


#: What tensor cores read at once: rows that begin elsewhere take slower kernels.
ALIGNED_BYTES = 16


def is_aligned(call: OperatorCall, operands: Operands) -> bool:
    """Return whether every row in memory of a product's matrices, and of its result, begins at 16 bytes.

    Without recorded strides, both matrices are taken to be stored row by row. Raises Unknown where the sizes do
    not fit.
    """
    left = call.tensor(operands.left)
    right = call.tensor(operands.right)
    _, _, columns, _ = sizes_of_product(call, operands)
    sizes = [(_row_in_memory(each), each.dtype.bytes) for each in (left, right)]
    return all(size * width % ALIGNED_BYTES == 0 for size, width in (*sizes, (columns, left.dtype.bytes)))


def _row_in_memory(matrix: Tensor) -> int:
    """Return how many elements are from the start of one row, or column, in memory to that of the next."""
    if len(matrix.shape) < 2:
        return 0
    if len(matrix.strides) < 2:
        return matrix.shape[-1]
    return max(matrix.strides[-2:])


def _result_type(call: OperatorCall, operands: Operands, default: TensorType) -> TensorType:
    if operands.type_place < 0:
        return default
    values = call.values
    text = values[operands.type_place] if operands.type_place < len(values) else ""
    return DTYPES.get(text.lower(), default)


def with_transposed_weight(call: OperatorCall, operands: Operands) -> OperatorCall:
    """Return a call of `linear` as the product that it is: its weight has the output features first."""
    left = call.tensor(operands.left)
    weight = call.tensor(operands.right)
    inner = left.shape[-1:]
    flat = replace(left, shape=(math.prod(left.shape[:-1]), *inner))
    arguments = [*call.arguments]
    arguments[operands.left] = flat
    arguments[operands.right] = replace(weight, shape=weight.shape[::-1])
    return replace(call, arguments=tuple(arguments))


def grouped(call: OperatorCall, operands: Operands) -> OperatorCall:
    """Return a grouped product as the product of all its groups together.

    Groups divide the rows of the one matrix, the columns of the other or, of two matrices, their inner size.
    """
    left = call.tensor(operands.left)
    right = call.tensor(operands.right)
    if len(left.shape) == len(right.shape):
        return call
    arguments = [*call.arguments]
    if len(right.shape) == 3:
        arguments[operands.right] = replace(right, shape=right.shape[1:])
    else:
        arguments[operands.left] = replace(left, shape=left.shape[1:])
    return replace(call, arguments=tuple(arguments))


class Convolution(NamedTuple):
    """The places of a convolution's arguments; -1 for what an operator does not take."""

    input: int
    weight: int
    stride: int
    padding: int
    dilation: int
    transposed: int = -1
    output_padding: int = -1
    groups: int = -1
    gradient: int = -1  # of a backward, the gradient of what the convolution wrote
    mask: int = -1  # and which gradients are asked for


def _is_transposed(call: OperatorCall, places: Convolution) -> bool:
    return places.transposed >= 0 and call.flag(places.transposed)


def _asked(call: OperatorCall, places: Convolution) -> list[Tensor]:
    """Return the input and the weight, as far as their gradients are asked for."""
    flags = call.value(places.mask).lower().strip("[]").split(",")
    both = (call.tensor(places.input), call.tensor(places.weight))
    return [like for like, flag in zip(both, flags, strict=False) if flag.strip() in ("true", "1")]


def _each(numbers: list[int], count: int) -> list[int]:
    """Return a number for each dimension; one alone is of all."""
    if len(numbers) == 1:
        return numbers * count
    return numbers


def convolved(call: OperatorCall, places: Convolution) -> list[Tensor]:
    """Return the tensors that a convolution writes, by the formulas of Conv2d's and ConvTranspose2d's pages."""
    image = call.tensor(places.input)
    weight = call.tensor(places.weight)
    if call.written:
        return [*call.written]
    sizes = image.shape[2:]
    kernel = weight.shape[2:]
    count = len(sizes)
    if len(kernel) != count:
        raise Unknown
    stride, padding = (_each(call.numbers(place), count) for place in (places.stride, places.padding))
    dilation = _each(call.numbers(places.dilation), count) if places.dilation >= 0 else [1] * count
    spans = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
    if _is_transposed(call, places):
        extra = _each(call.numbers(places.output_padding), count)
        groups = call.numbers(places.groups)[0]
        channels = weight.shape[1] * groups
        written = [
            (size - 1) * step - 2 * pad + span + more + 1
            for size, step, pad, span, more in zip(sizes, stride, padding, spans, extra, strict=True)
        ]
    else:
        channels = weight.shape[0]
        written = [
            (size + 2 * pad - span - 1) // step + 1
            for size, step, pad, span in zip(sizes, stride, padding, spans, strict=True)
        ]
    return [tensor((image.shape[0], channels, *written), image.dtype)]


def flops_of_convolution(call: OperatorCall, places: Convolution) -> int:
    """Return the FLOPs of a convolution: its weight meets each position of the output (if transposed, input)."""
    image = call.tensor(places.input)
    weight = call.tensor(places.weight)
    positions = (image if _is_transposed(call, places) else convolved(call, places)[0]).shape[2:]
    return 2 * image.shape[0] * math.prod(positions) * math.prod(weight.shape)


def flops_of_convolution_backward(call: OperatorCall, places: Convolution) -> int:
    """Return the FLOPs of the gradients that are asked for: of the input and of the weight, each as of forward."""
    image = call.tensor(places.input)
    weight = call.tensor(places.weight)
    positions = (image if _is_transposed(call, places) else call.tensor(places.gradient)).shape[2:]
    return len(_asked(call, places)) * 2 * image.shape[0] * math.prod(positions) * math.prod(weight.shape)


def convolution_gradients(call: OperatorCall, places: Convolution) -> list[Tensor]:
    """Return the tensors that a convolution's backward writes."""
    return [tensor(like.shape, like.dtype) for like in _asked(call, places)]


def shape_of_convolution(call: OperatorCall, places: Convolution) -> str:
    """Write a convolution's sizes: its input → channels of the output, window, and the stride if it is not 1."""
    image = call.tensor(places.input).shape
    weight = call.tensor(places.weight).shape
    is_transposed = (
        places.transposed >= 0 and len(call.values) > places.transposed and _is_transposed(call, places)
    )
    channels = weight[int(is_transposed)]
    window = "×".join(map(str, weight[2:]))
    text = f"{'×'.join(map(str, image))}→{channels}, {window}"
    try:
        steps = set(call.numbers(places.stride))
    except Unknown:
        return text
    if steps == {1}:
        return text
    return f"{text} /{max(steps)}"


class Attention(NamedTuple):
    """The places of a fused attention's arguments."""

    query: int
    causal: int = -1  # place of `is_causal`; -1: not known
    heads_last: bool = False  # (batch, positions, heads, width), else heads before positions
    gradient: int = -1  # of a backward, the gradient of its output
    lengths: int = -1  # place of the cumulated lengths of sequences, which are values


class Scores(NamedTuple):
    """The sizes of attention's scores, and the widths of keys and values."""

    heads: int  # of all sequences
    queries: int
    keys: int
    width: int
    value_width: int


def scores_of(call: OperatorCall, places: Attention) -> Scores:
    """Return the sizes of attention; raises Unknown for sequences of several lengths, which are not recorded."""
    if places.lengths >= 0 and call.has_tensor(places.lengths):
        raise Unknown
    shapes = [call.tensor(places.query + number).shape for number in range(3)]
    if any(len(shape) != 4 for shape in shapes):
        raise Unknown
    if places.heads_last:
        shapes = [(shape[0], shape[2], shape[1], shape[3]) for shape in shapes]
    (batch, heads, queries, width), (_, _, keys, key_width), (*_, value_width) = shapes
    if width != key_width:
        raise Unknown
    return Scores(batch * heads, queries, keys, width, value_width)


def flops_of_attention(call: OperatorCall, places: Attention) -> int:
    """Return the FLOPs of attention's two products; of a backward, of five, as it computes the scores again."""
    scores = scores_of(call, places)
    per_score = scores.width + scores.value_width
    if places.gradient >= 0:
        per_score = 3 * scores.width + 2 * scores.value_width
    return 2 * scores.heads * scores.queries * scores.keys * per_score


def causal_share(call: OperatorCall, places: Attention) -> float:
    """Return which share of the scores a causal mask leaves.

    Query i sees the keys up to i (PyTorch's `tril`); in flash_attn's layout the last query sees the last key.
    """
    if places.causal < 0 or not call.flag(places.causal):
        return 1.0
    scores = scores_of(call, places)
    queries = scores.queries
    keys = scores.keys
    square = min(queries, keys)
    left = square * (square + 1) // 2
    if keys > queries and places.heads_last:
        left += queries * (keys - queries)
    if queries > keys and not places.heads_last:
        left += (queries - keys) * keys
    return left / max(queries * keys, 1)


def attended(call: OperatorCall, places: Attention) -> list[Tensor]:
    """Return the tensors that attention writes: its output, or the gradients of query, key and value."""
    query, key, value = (call.tensor(places.query + number) for number in range(3))
    if places.gradient >= 0:
        return [tensor(like.shape, like.dtype) for like in (query, key, value)]
    return [tensor((*query.shape[:-1], value.shape[-1]), query.dtype)]


def shape_of_attention(call: OperatorCall, places: Attention) -> str:
    """Write sequences times heads, queries, keys and width: `192 heads 559×559×64`, and a causal mask."""
    scores = scores_of(call, places)
    try:
        masked = " causal" if causal_share(call, places) < 1 else ""
    except Unknown:
        masked = ""
    return f"{scores.heads} heads {scores.queries}×{scores.keys}×{scores.width}{masked}"
