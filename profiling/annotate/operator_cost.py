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
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
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
_CONVOLUTIONS = "convolution"
OF_SOFTMAX = {"_softmax": 5, "_softmax_backward_data": 4}
REDUCTIONS = frozenset(("sum", "mean", "amax", "amin", "max", "min", "prod", "norm", "linalg_vector_norm"))
# What PyTorch calls element-wise, and computes nothing.
MOVING = frozenset(("clone", "masked_fill", "masked_fill_", "positive", "where"))


@lru_cache(maxsize=1)
def _of_cpu() -> Mapping[Any, Callable[..., int]]:
    """Return formulas for the CPU's fused attention, which PyTorch's registry lacks: those of the GPU's."""
    aten = torch.ops.aten
    names = {
        "_scaled_dot_product_flash_attention_for_cpu": aten._scaled_dot_product_flash_attention,
        "_scaled_dot_product_flash_attention_for_cpu_backward": aten._scaled_dot_product_flash_attention_backward,
    }
    registry = flop_counter.flop_registry
    return {
        getattr(aten, name): registry[like]
        for name, like in names.items()
        if hasattr(aten, name) and like in registry
    }


def flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> int | None:
    """Return an operator's FLOPs; None where there is no formula for it, or the formula fails."""
    packet = getattr(func, "_overloadpacket", func)
    formula = flop_counter.flop_registry.get(packet) or _of_cpu().get(packet)
    if formula is None:
        return None
    try:
        return int(formula(*args, **kwargs, out_val=out))
    except Exception:  # a formula may be a program's own
        return None


def elementwise_flops(func: Any, args: tuple[Any, ...], out: object) -> int:
    """Return the FLOPs of an element-wise operator or a reduction of floating-point numbers; of all others 0."""
    name = getattr(getattr(func, "_overloadpacket", None), "__name__", "")
    result = next(iter(_tensors(out)), None)
    if result is None or not result.is_floating_point():
        return 0
    if name in REDUCTIONS and any(True for _ in _tensors(args[:1])):
        return sum(int(tensor.numel()) for tensor in _tensors(args[:1]))
    is_elementwise = name not in MOVING and torch.Tag.pointwise in getattr(func, "tags", ())
    return OF_SOFTMAX.get(name, int(is_elementwise)) * int(result.numel())


def arithmetic(func: Any, args: tuple[Any, ...]) -> str:
    """Return what an operator multiplies: fp64, fp32, tf32, bf16, fp16, fp8, int8, or the type's own name."""
    tensor = next((leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)), None)
    if tensor is None:
        return "unknown"
    name = str(tensor.dtype).removeprefix("torch.")
    kind = "fp8" if name.startswith("float8") else ARITHMETIC.get(tensor.dtype, name)
    return "tf32" if kind == "fp32" and tensor.is_cuda and _takes_tf32(str(func)) else kind


def _takes_tf32(name: str) -> bool:
    backends: Any = torch.backends
    library = backends.cudnn if _CONVOLUTIONS in name else backends.cuda.matmul
    try:
        return bool(library.allow_tf32)
    except RuntimeError:  # the program has set PyTorch's newer switch, which the older one then refuses to read
        newer = backends.cudnn.conv if _CONVOLUTIONS in name else library
        return bool(newer.fp32_precision == "tf32")


def least_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> int:
    """Return the bytes that an operator must read and write."""
    schema = getattr(func, "_schema", None)
    name = getattr(getattr(func, "_overloadpacket", None), "__name__", "")
    if schema is None:
        return _size(_tensors((args, kwargs))) + _size(_tensors(out))
    changed = _changed(schema, args, kwargs)
    if name in FREE or (not changed and schema.returns and all(tensor.alias_info for tensor in schema.returns)):
        return 0
    outputs = [] if all(tensor.alias_info for tensor in schema.returns) else list(_tensors(out))
    overwritten = {id(tensor) for tensor in changed} if name in OVERWRITING or "out" in kwargs else set()
    inputs = list(_tensors((args, kwargs)))
    read = [tensor for tensor in inputs if id(tensor) not in overwritten]
    written = [
        *changed,
        *(tensor for tensor in outputs if not any(tensor is changed_tensor for changed_tensor in changed)),
    ]
    if name in PICKING and read:
        return min(_size(read[:1]), _size(written)) + _size(read[1:]) + _size(written)
    if name in FILLING and changed:
        return 3 * min(_size(changed), _size(inputs[-1:]))
    return _size(read) + _size(written)


def _changed(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an operator's schema says it changes."""
    named = zip((argument.name for argument in schema.arguments), args, strict=False)
    values = {**dict(named), **kwargs}
    writes = (
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    return [tensor for name in writes if name in values for tensor in _tensors(values[name])]


def _tensors(value: object) -> Iterable[Tensor]:
    return {id(leaf): leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)}.values()


def _size(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors; what is expanded is held once."""
    return sum(_elements(tensor) * tensor.element_size() for tensor in tensors)


def _elements(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided:
        return int(tensor.numel())
    return math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not n)
