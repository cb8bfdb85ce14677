"""One call of an operator: the shapes and types of its tensors, and the values of its other arguments.

PyTorch's profiler writes them with `record_shapes=True` as `Input Dims`, `Input type`, `Concrete Inputs` and,
since 2.5, `Input Strides` (torch/csrc/autograd/profiler_kineto.cpp, torch/csrc/profiler/util.cpp):

    aten::addmm  [[768], [788, 768], [768, 768], [], []]  ["float", "float", "float", "Scalar", "Scalar"]
                 ["", "", "", "1", "1"]

An argument without sizes is a tensor of no dimension if its type is that of numbers, else no tensor. Of a list of
tensors, only the sizes are written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import msgspec

Shape: TypeAlias = tuple[int, ...]


class TensorType(NamedTuple):
    """A type of numbers: its name in tables, how many bytes a number has, and whether it is a float."""

    name: str
    bytes: float
    is_float: bool = False


#: No recorded type, as of a list of tensors.
UNKNOWN_TYPE = TensorType("", 0)

# The name in tables | bytes | as PyTorch, C++ and c10::ScalarType write it, and its number in c10::ScalarType.
_TYPES = """
fp64 | 8 | float64 double 7
fp32 | 4 | float32 float 6
bf16 | 2 | bfloat16 c10::bfloat16 15
fp16 | 2 | float16 half c10::half 5
fp8 | 1 | float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz float8_e8m0fnu c10::float8_e5m2 \
c10::float8_e4m3fn c10::float8_e5m2fnuz c10::float8_e4m3fnuz c10::float8_e8m0fnu 23 24 25 26 44
fp4 | 0.5 | float4_e2m1fn_x2 c10::float4_e2m1fn_x2 45
complex64 | 8 | complexfloat c10::complex<float> 9
complex128 | 16 | complexdouble c10::complex<double> 10
complex32 | 4 | complexhalf c10::complex<c10::half> 8
int64 | 8 | long long_int long_long 4
uint64 | 8 | unsigned_long unsigned_long_long
int32 | 4 | int 3
uint32 | 4 | unsigned_int
int16 | 2 | short short_int 2
uint16 | 2 | unsigned_short
int8 | 1 | char signed_char 1
uint8 | 1 | byte unsigned_char 0
bool | 1 | 11
"""


def _types() -> dict[str, TensorType]:
    types: dict[str, TensorType] = {}
    for row in _TYPES.strip().splitlines():
        name, size, spellings = row.split(" | ")
        is_float = name.startswith(("fp", "bf", "complex"))
        types |= dict.fromkeys((name, *spellings.split()), TensorType(name, float(size), is_float))
    return types


#: Types by their names in lower case, with `_` for blanks.
DTYPES = _types()


def type_of(name: str) -> TensorType:
    """Return a type by its name in PyTorch, C++ or c10; UNKNOWN_TYPE for any other."""
    return DTYPES.get(name.lower().replace(" ", "_"), UNKNOWN_TYPE)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Sizes and type of a tensor, and how many elements it holds: what is expanded is held once."""

    shape: Shape
    dtype: TensorType
    held: int
    strides: Shape = ()  # () where they were not recorded

    @property
    def elements(self) -> int:
        """How many elements the tensor shows."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> float:
        """How many bytes it holds; raises Unknown if its type was not recorded."""
        if not self.dtype.bytes and self.held:
            raise Unknown
        return self.held * self.dtype.bytes


class Unknown(ValueError):  # noqa: N818 - no error: what a formula raises for what shapes do not tell
    """Shapes do not tell it."""


Argument: TypeAlias = Tensor | tuple[Tensor, ...] | None


def tensor(shape: Sequence[int], dtype: TensorType, strides: Sequence[int] = ()) -> Tensor:
    """Return a tensor; without strides, it is not expanded."""
    sizes = tuple(shape)
    if len(strides) != len(sizes):
        return Tensor(sizes, dtype, math.prod(sizes))
    held = math.prod(size for size, step in zip(sizes, strides, strict=True) if step or not size)
    return Tensor(sizes, dtype, held, tuple(strides))


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call: its arguments, the values of those that are no tensors as text, and what it wrote.

    `written` is None where that is not recorded and has to follow from the arguments.
    """

    name: str
    arguments: tuple[Argument, ...]
    values: tuple[str, ...] = ()
    written: tuple[Tensor, ...] | None = None

    def tensor(self, place: int) -> Tensor:
        """Return an argument that is a tensor; raises Unknown if it is not."""
        argument = self.arguments[place] if place < len(self.arguments) else None
        if not isinstance(argument, Tensor):
            raise Unknown
        return argument

    def has_tensor(self, place: int) -> bool:
        """Return whether an argument is a tensor."""
        return place < len(self.arguments) and isinstance(self.arguments[place], Tensor)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments, also those in lists, in order."""
        flat: list[Tensor] = []
        for argument in self.arguments:
            if isinstance(argument, Tensor):
                flat.append(argument)
            elif argument is not None:
                flat.extend(argument)
        return flat

    @property
    def has_lists(self) -> bool:
        """Whether an argument is a list of tensors, whose type the profiler does not write."""
        return any(isinstance(argument, tuple) for argument in self.arguments)

    def with_lists_of(self, dtype: TensorType) -> OperatorCall:
        """Return the call with a type for the tensors in lists that have none."""
        arguments = list(self.arguments)
        for place, argument in enumerate(arguments):
            if isinstance(argument, tuple):
                tensors = (each if each.dtype.bytes else replace(each, dtype=dtype) for each in argument)
                arguments[place] = tuple(tensors)
        return replace(self, arguments=tuple(arguments))

    def value(self, place: int) -> str:
        """Return the text of an argument that is no tensor; raises Unknown if it was not recorded."""
        text = self.values[place] if place < len(self.values) else ""
        if not text:
            raise Unknown
        return text

    def numbers(self, place: int) -> list[int]:
        """Return the whole numbers of an argument, such as `[1, 1]`; raises Unknown if it was not recorded."""
        return [int(number) for number in _NUMBER.findall(self.value(place))]

    def flag(self, place: int) -> bool:
        """Return a truth value; raises Unknown if it was not recorded."""
        return self.value(place) in ("True", "true", "1")


_NUMBER = re.compile(r"-?\d+")
_DIMS = msgspec.json.Decoder(list[object])
_TEXTS = msgspec.json.Decoder(list[str])
#: More than any tensor has: what is beyond it is damaged.
MOST_ELEMENTS = 1 << 48


def call_of_text(name: str, dims: bytes, types: bytes, values: bytes, strides: bytes) -> OperatorCall | None:
    """Return a call as PyTorch's profiler writes it, in JSON; None where shapes are missing or damaged.

    >>> call = call_of_text("aten::mm", b"[[2, 3], [3, 4]]", b'["float", "c10::BFloat16"]', b"", b"")
    >>> [(tensor.shape, tensor.dtype.name) for tensor in call.tensors]
    [((2, 3), 'fp32'), ((3, 4), 'bf16')]
    """
    try:
        sizes = _DIMS.decode(dims)
        names = _TEXTS.decode(types) if types else []
        texts = _TEXTS.decode(values) if values else []
        steps = _DIMS.decode(strides) if strides else []
    except msgspec.DecodeError:
        return None
    names += [""] * (len(sizes) - len(names))
    steps += [[]] * (len(sizes) - len(steps))
    arguments = [_argument(*each) for each in zip(sizes, names, steps, strict=False)]
    if sizes:
        return OperatorCall(name, tuple(arguments), tuple(texts))
    return None


def _argument(sizes: object, type_name: str, strides: object) -> Argument:
    """Return a tensor, a list of tensors, or None for anything else."""
    if not isinstance(sizes, list):
        return None
    steps = strides if isinstance(strides, list) else []
    dtype = type_of(type_name)
    if _are_sizes(sizes):
        is_tensor = sizes or dtype is not UNKNOWN_TYPE
        if is_tensor:
            return tensor(sizes, dtype, steps if _are_sizes(steps) else ())
        return None
    if not all(isinstance(inner, list) and _are_sizes(inner) for inner in sizes):
        return None
    steps = steps if len(steps) == len(sizes) else [()] * len(sizes)
    return tuple(
        tensor(inner, UNKNOWN_TYPE, step if _are_sizes(step) else ())
        for inner, step in zip(sizes, steps, strict=True)
    )


def _are_sizes(values: object) -> bool:
    if not isinstance(values, list) or not all(type(size) is int and size >= 0 for size in values):
        return False
    return bool(math.prod(size for size in values if size) < MOST_ELEMENTS)
