"""What one operator computes and moves as PyTorch calls it: `analysis.operators`, asked while it runs.

Here more is known than in a trace: what the operator returns, which arguments it changes, and which are views. A
program's own operator counts by the formula that it registered with `torch.utils.flop_counter`.
"""

from __future__ import annotations

from typing import Any

import torch
from nvtx_kernels.analysis import operators
from nvtx_kernels.analysis.operators import Cost, OperatorCall
from nvtx_kernels.analysis.operators.calls import Argument, tensor, type_of
from torch import Tensor
from torch.utils import flop_counter
from torch.utils._pytree import tree_leaves

from ..tf32 import convolutions_take_tf32, products_take_tf32

# Operators without work of their own that their schemas do not call views.
FREE = frozenset(
    ("_unsafe_view", "_reshape_alias", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
)


def cost(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: object,
) -> Cost:
    """Return the FLOPs and bytes of an operator; `flops` is None where there is no formula for it."""
    call = _call(func, args, kwargs, out)
    figures = operators.cost_of(call)
    rule = operators.rule_of(call.name)
    if rule is None or rule.flops is None:
        figures = figures._replace(flops=_registered(func, args, kwargs, out))
    first = next(iter(call.written or ()), None)
    if rule is None and first and first.dtype.is_float and _is_pointwise(func):
        figures = figures._replace(elementwise=first.elements)
    return figures._replace(bytes=0) if _moves_nothing(func) else figures


def _is_pointwise(func: Any) -> bool:
    return torch.Tag.pointwise in getattr(func, "tags", ())


def _registered(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: object,
) -> int | None:
    """Return FLOPs by a formula of PyTorch's registry; None without a formula, or if it fails."""
    registry = flop_counter.flop_registry
    formula = registry.get(getattr(func, "_overloadpacket", func))
    try:
        return None if formula is None else int(formula(*args, **kwargs, out_val=out))
    except Exception:  # a formula may be a program's own
        return None


def arithmetic(func: Any, args: tuple[Any, ...], dtype: str) -> str:
    """Return the arithmetic of an operator: fp64, fp32, tf32, bf16, fp16, fp8, int8, or the type's own name."""
    is_cuda = any(leaf.is_cuda for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
    if dtype != "fp32" or not is_cuda:
        return dtype or "unknown"
    takes_tf32 = convolutions_take_tf32() if "convolution" in str(func) else products_take_tf32()
    return "tf32" if takes_tf32 else dtype


def _call(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: object,
) -> OperatorCall:
    """Return a call as the table knows it."""
    schema = getattr(func, "_schema", None)
    results = _tensors(out)
    if schema is None:  # of a higher order
        name = str(getattr(func, "_name", func))
        tensors = _tensors((args, kwargs))
        return OperatorCall(
            name,
            tuple(map(_argument, tensors)),
            (),
            tuple(map(_described, results)),
        )
    names = [argument.name for argument in schema.arguments]
    values = dict(zip(names, args, strict=False)) | kwargs
    taken = [values.get(argument.name) for argument in schema.arguments if not argument.is_out]
    written: list[Tensor] = []
    for argument in schema.arguments:
        if _is_changed(argument):
            written += _tensors(values.get(argument.name))
    if not _returns_views(schema):
        written += results
    distinct = {id(each): each for each in written}.values()
    texts = ["" if value is None or isinstance(value, Tensor) else str(value) for value in taken]
    return OperatorCall(
        schema.name,
        tuple(map(_argument, taken)),
        tuple(texts),
        tuple(map(_described, distinct)),
    )


def _moves_nothing(func: Any) -> bool:
    """Return whether an operator only returns a view of its arguments, or memory without content."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return False
    changes = any(map(_is_changed, schema.arguments))
    name = schema.name.rpartition("::")[2]
    return (_returns_views(schema) and not changes) or name in FREE


def _is_changed(argument: Any) -> bool:
    """Return whether an operator writes to an argument, given as its schema describes it."""
    return argument.alias_info is not None and argument.alias_info.is_write


def _returns_views(schema: Any) -> bool:
    """Return whether all that an operator returns is memory of its arguments."""
    return bool(schema.returns) and all(returned.alias_info for returned in schema.returns)


def _argument(value: object) -> Argument:
    if isinstance(value, Tensor):
        return _described(value)
    if isinstance(value, list | tuple) and any(isinstance(each, Tensor) for each in value):
        return tuple(_described(each) for each in value if isinstance(each, Tensor))
    return None


def _described(value: Tensor) -> operators.Tensor:
    strides = value.stride() if value.layout is torch.strided else ()
    return tensor(value.shape, type_of(str(value.dtype).removeprefix("torch.")), strides)


def _tensors(value: object) -> list[Tensor]:
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    distinct = {id(tensor): tensor for tensor in tensors}
    return list(distinct.values())
