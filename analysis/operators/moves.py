"""The least bytes of operators: what a call reads, each input once, and what it writes, each output once.

Most kernels move more. A cache can let a GPU move less between two operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from .calls import DTYPES, UNKNOWN_TYPE, OperatorCall, Tensor, TensorType, Unknown, tensor

Reads: TypeAlias = Callable[[OperatorCall, Sequence[Tensor]], float]
Writes: TypeAlias = Callable[[OperatorCall], list[Tensor]]

_BOOL = DTYPES["bool"]
_INT64 = DTYPES["int64"]
_FLOAT = DTYPES["fp32"]


def bytes_of(tensors: Sequence[Tensor]) -> float:
    """Add up the bytes of tensors; raises Unknown if a type was not recorded."""
    return sum(each.bytes for each in tensors)


# What a call reads, given what it writes.


def read_all(call: OperatorCall, written: Sequence[Tensor]) -> float:  # noqa: ARG001
    """Read every argument once."""
    return bytes_of(call.tensors)


def read_first(count: int) -> Reads:
    """Read the first arguments alone: those behind are places for results."""

    def read(call: OperatorCall, written: Sequence[Tensor]) -> float:  # noqa: ARG001
        return bytes_of(OperatorCall(call.name, call.arguments[:count]).tensors)

    return read


def read_others(call: OperatorCall, written: Sequence[Tensor]) -> float:  # noqa: ARG001
    """Read all but the first argument, which is overwritten."""
    return bytes_of(OperatorCall(call.name, call.arguments[1:]).tensors)


def read_all_but(place: int) -> Reads:
    """Read all arguments but one, where only the shape matters."""

    def read(call: OperatorCall, written: Sequence[Tensor]) -> float:  # noqa: ARG001
        return bytes_of(call.tensors) - call.tensor(place).bytes

    return read


def read_picked(call: OperatorCall, written: Sequence[Tensor]) -> float:
    """Read of the first argument only as much as is written, and the others whole."""
    first = call.tensor(0)
    others = [each for each in call.tensors[1:] if not _is_place_for(each, written)]
    return min(first.bytes, bytes_of(written)) + bytes_of(others)


def _is_place_for(argument: Tensor, written: Sequence[Tensor]) -> bool:
    """Return whether an argument can be the place of a float result (`out=`), not the indices."""
    return argument.dtype.is_float and any(argument.shape == result.shape for result in written)


def read_nothing(call: OperatorCall, written: Sequence[Tensor]) -> float:  # noqa: ARG001
    """Read nothing."""
    return 0


def read_targets(call: OperatorCall, written: Sequence[Tensor]) -> float:  # noqa: ARG001
    """Read of the first argument one number for each of the second, and the second."""
    first = call.tensor(0)
    targets = call.tensor(1)
    return targets.held * first.dtype.bytes + targets.bytes


# What a call writes, where that is not recorded.


def like(place: int = 0, dtype: TensorType = UNKNOWN_TYPE) -> Writes:
    """Write a tensor of an argument's shape, of its type unless another is given."""

    def write(call: OperatorCall) -> list[Tensor]:
        model = call.tensor(place)
        return [tensor(model.shape, dtype if dtype.bytes else model.dtype)]

    return write


def broadcast(count: int, dtype: TensorType = UNKNOWN_TYPE) -> Writes:
    """Write one number for each position of the first arguments broadcast together."""

    def write(call: OperatorCall) -> list[Tensor]:
        operands = [each for each in call.arguments[:count] if isinstance(each, Tensor)]
        if not operands:
            raise Unknown
        depth = max(len(each.shape) for each in operands)
        padded = [(1,) * (depth - len(each.shape)) + each.shape for each in operands]
        sizes = [0 if 0 in column else max(column) for column in zip(*padded, strict=True)]
        return [tensor(sizes, dtype if dtype.bytes else _promoted(operands))]

    return write


def _promoted(operands: Sequence[Tensor]) -> TensorType:
    """Return the type of a result: floats before integers and bool, tensors before single numbers, then size."""

    def rank(operand: Tensor) -> tuple[bool, bool, bool, float]:
        dtype = operand.dtype
        return dtype.is_float, dtype.name != "bool", bool(operand.shape), dtype.bytes

    with_sizes = [each for each in operands if each.shape] or operands
    strongest = max(with_sizes, key=rank)
    others = max(operands, key=rank)
    if others.dtype.is_float and not strongest.dtype.is_float:
        return others.dtype
    return strongest.dtype


def reduced(place: int, dtype: TensorType = UNKNOWN_TYPE) -> Writes:
    """Write one number for each position that a reduction leaves; one at least, where dimensions are unknown."""

    def write(call: OperatorCall) -> list[Tensor]:
        first = call.tensor(0)
        try:
            numbers = call.numbers(place)
        except Unknown:
            numbers = []
        depth = len(first.shape)
        gone = {number % depth for number in numbers if depth and -depth <= number < depth} or set(range(depth))
        sizes = [size for number, size in enumerate(first.shape) if number not in gone]
        return [tensor(sizes, dtype if dtype.bytes else first.dtype)]

    return write


def cast(call: OperatorCall) -> list[Tensor]:
    """Write the first argument in the type that the second names by its number in c10::ScalarType."""
    first = call.tensor(0)
    text = call.values[1] if len(call.values) > 1 else ""
    return [tensor(first.shape, DTYPES.get(text, first.dtype))]


def softmaxed(call: OperatorCall) -> list[Tensor]:
    """Write as much as the first argument has, in fp32 if `half_to_float` asks for it."""
    first = call.tensor(0)
    is_widened = len(call.values) > 2 and call.values[2] == "True"
    return [tensor(first.shape, _FLOAT if is_widened else first.dtype)]


def dropped_out(call: OperatorCall) -> list[Tensor]:
    """Write as much as the first argument has, and which of it was kept."""
    first = call.tensor(0)
    return [tensor(first.shape, first.dtype), tensor(first.shape, _BOOL)]


def joined(call: OperatorCall) -> list[Tensor]:
    """Write all tensors of the first argument, a list, behind each other."""
    parts = call.arguments[0] if call.arguments else None
    if not isinstance(parts, tuple) or not parts:
        raise Unknown
    return [tensor([sum(part.elements for part in parts)], parts[0].dtype)]


def picked_rows(call: OperatorCall) -> list[Tensor]:
    """Write a row of the first argument for each index of the second."""
    table = call.tensor(0)
    indices = call.tensor(1)
    return [tensor((*indices.shape, *table.shape[1:]), table.dtype)]


def selected(call: OperatorCall) -> list[Tensor]:
    """Write the first argument with as many entries of one dimension as there are indices."""
    table = call.tensor(0)
    indices = call.tensor(2)
    place = call.numbers(1)[0] % max(len(table.shape), 1)
    sizes = [indices.elements if number == place else size for number, size in enumerate(table.shape)]
    return [tensor(sizes, table.dtype)]


def gathered(call: OperatorCall) -> list[Tensor]:
    """Write one number of the first argument for each index of the third."""
    return [tensor(call.tensor(2).shape, call.tensor(0).dtype)]


def of_sizes(place: int, batch: int = 0) -> Writes:
    """Write a tensor of the sizes in a value, behind the first sizes of the first argument."""

    def write(call: OperatorCall) -> list[Tensor]:
        first = call.tensor(0)
        return [tensor((*first.shape[:batch], *call.numbers(place)), first.dtype)]

    return write


def weight_gradient(call: OperatorCall) -> list[Tensor]:
    """Write the gradient of an embedding's table: its number of rows is the third argument."""
    gradient = call.tensor(0)
    return [tensor((call.numbers(2)[0], gradient.shape[-1]), gradient.dtype)]


def pooled(call: OperatorCall, *, with_indices: bool) -> list[Tensor]:
    """Write a window's result for each position, by kernel, stride, padding and dilation (MaxPool2d)."""
    image = call.tensor(0)
    kernel = call.numbers(1)
    count = len(kernel)
    padding = call.numbers(3)
    stride = (call.numbers(2) if call.values[2].strip("[]") else []) or kernel
    dilation = call.numbers(4) if with_indices else [1] * count
    sizes = [
        (size + 2 * pad - step * (window - 1) - 1) // jump + 1
        for size, window, jump, pad, step in zip(
            image.shape[-count:], kernel, stride, padding, dilation, strict=True
        )
    ]
    results = tensor((*image.shape[:-count], *sizes), image.dtype)
    if with_indices:
        return [results, tensor(results.shape, _INT64)]
    return [results]


def listed(*places: int) -> Writes:
    """Write the tensors of lists, in place or as new ones of their sizes."""

    def write(call: OperatorCall) -> list[Tensor]:
        lists = [call.arguments[place] for place in places if place < len(call.arguments)]
        return [each for group in lists if isinstance(group, tuple) for each in group]

    return write


def filled(call: OperatorCall) -> float:
    """Return the bytes of putting the last argument into the first: read, and its places read and written."""
    return 3 * min(call.tensor(0).bytes, call.tensors[-1].bytes)


def in_place(*places: int) -> Callable[[OperatorCall], float]:
    """Read and write some arguments, or read them and write as much elsewhere."""

    def count(call: OperatorCall) -> float:
        return 2 * bytes_of([call.tensor(place) for place in places])

    return count


def nothing(call: OperatorCall) -> list[Tensor]:  # noqa: ARG001
    """Write nothing that counts."""
    return []


def unknown(call: OperatorCall) -> list[Tensor]:  # noqa: ARG001
    """Raise Unknown: nothing tells what is written."""
    raise Unknown
