"""What one operator computes and moves, from the shapes of its tensors: FLOPs, their arithmetic, least bytes.

FLOPs are those of PyTorch's registry (`torch.utils.flop_counter`), in which `register_flop_formula` enters custom
operators: matrix products, convolutions and attention, 2 per multiply-add. All other operators count none.

FLOPs of element-wise operators and reductions are counted apart: 1 per element that is written, or that is
reduced; of PyTorch's softmax 5 per score (maximum, subtract, exponential, sum, divide), and 4 in its backward,
P * (dP - sum(dP * P)).

Bytes are the least that the operator moves: each input read once, each output written once. A view moves none,
what an operator only overwrites is not read, and of what it picks rows from or into, only as much as it picks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import flop_counter
from torch.utils._pytree import tree_leaves

ARITHMETIC = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int8: "int8",
}
# Operators without work of their own that their schemas do not call views.
FREE = frozenset(
    ("_unsafe_view", "_reshape_alias", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)
# What these change, they do not read.
OVERWRITING = frozenset(
    ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "bernoulli_")
)
# Of their first argument, these read as much as they return; those write as much as their last argument holds.
PICKING = frozenset(("embedding", "index", "index_select", "gather", "take"))
FILLING = frozenset(("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_", "scatter_add_"))
OF_SOFTMAX = {"_softmax": 5, "_softmax_backward_data": 4}
REDUCTIONS = frozenset(("sum", "mean", "amax", "amin", "max", "min", "prod", "norm", "linalg_vector_norm"))
# What PyTorch calls element-wise, and computes nothing.
MOVING = frozenset(("clone", "masked_fill", "masked_fill_", "positive", "where"))


def flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> int | None:
    """Return an operator's FLOPs; None where there is no formula for it, or the formula fails."""
    registry, packet = flop_counter.flop_registry, getattr(func, "_overloadpacket", func)
    formula = registry.get(packet)
    if formula is None and "_for_cpu" in _name(func):  # the CPU's fused attention, which the registry lacks
        formula = registry.get(getattr(torch.ops.aten, _name(func).replace("_for_cpu", ""), None))
    try:
        return None if formula is None else int(formula(*args, **kwargs, out_val=out))
    except Exception:  # a formula may be a program's own
        return None


def _name(func: Any) -> str:
    return str(getattr(getattr(func, "_overloadpacket", None), "__name__", ""))


def elementwise_flops(func: Any, args: tuple[Any, ...], out: object) -> int:
    """Return the FLOPs of an element-wise operator or a reduction of floating-point numbers; of all others 0."""
    name = _name(func)
    result = next(iter(_tensors(out)), None)
    if result is None or not result.is_floating_point():
        return 0
    if name in REDUCTIONS and any(True for _ in _tensors(args[:1])):
        return sum(int(tensor.numel()) for tensor in _tensors(args[:1]))
    is_elementwise = name not in MOVING and torch.Tag.pointwise in getattr(func, "tags", ())
    return OF_SOFTMAX.get(name, int(is_elementwise)) * int(result.numel())


def arithmetic(func: Any, args: tuple[Any, ...]) -> str:
    """Return the arithmetic of an operator: fp64, fp32, tf32, bf16, fp16, fp8, int8, or the type's own name."""
    tensor = next((leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)), None)
    if tensor is None:
        return "unknown"
    name = str(tensor.dtype).removeprefix("torch.")
    kind = "fp8" if name.startswith("float8") else ARITHMETIC.get(tensor.dtype, name)
    if kind != "fp32" or not tensor.is_cuda:
        return kind
    backends: Any = torch.backends
    is_convolution = "convolution" in str(func)
    library = backends.cudnn if is_convolution else backends.cuda.matmul
    try:
        takes_tf32 = library.allow_tf32
    except RuntimeError:  # the program has set PyTorch's newer switch, which the older one then refuses to read
        takes_tf32 = (backends.cudnn.conv if is_convolution else library).fp32_precision == "tf32"
    return "tf32" if takes_tf32 else kind


def least_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> int:
    """Return the bytes that an operator must read and write."""
    schema = getattr(func, "_schema", None)
    name = _name(func)
    if schema is None:
        return _size(_tensors((args, kwargs))) + _size(_tensors(out))
    values = {**dict(zip((argument.name for argument in schema.arguments), args, strict=False)), **kwargs}
    changed = [
        tensor
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(values.get(argument.name))
    ]
    returns_arguments = all(returned.alias_info for returned in schema.returns)
    if name in FREE or (not changed and schema.returns and returns_arguments):
        return 0
    ids_changed = {id(tensor) for tensor in changed}
    overwritten = ids_changed if name in OVERWRITING or "out" in kwargs else set()
    inputs = list(_tensors((args, kwargs)))
    read = [tensor for tensor in inputs if id(tensor) not in overwritten]
    outputs = [] if returns_arguments else _tensors(out)
    written = [*changed, *(tensor for tensor in outputs if id(tensor) not in ids_changed)]
    if name in PICKING and read:
        return min(_size(read[:1]), _size(written)) + _size(read[1:]) + _size(written)
    if name in FILLING and changed:
        return 3 * min(_size(changed), _size(inputs[-1:]))
    return _size(read) + _size(written)


def _tensors(value: object) -> Iterable[Tensor]:
    return {id(leaf): leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)}.values()


def _size(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors; what is expanded is held once."""
    total = 0
    for tensor in tensors:
        shape: Iterable[int] = tensor.shape
        if tensor.layout is torch.strided:
            shape = (n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not n)
        total += math.prod(shape) * tensor.element_size()
    return total
