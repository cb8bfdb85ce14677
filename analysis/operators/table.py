"""The table of operators: of each its category, its FLOPs, what it reads and writes, and how sizes are written.

FLOPs are of matrix products, convolutions and fused attention; `torch.utils.flop_counter` is their source, and of
what it lacks the operator's schema in PyTorch's native_functions.yaml or in the library that is named. Bytes are
inputs and outputs once, by the same schemas: the places of arguments are those of the schema.

FLOPs of element-wise operators and reductions are counted apart: 1 per element that is written, or that is
reduced; of PyTorch's softmax 5 per score (maximum, subtract, exponential, sum, divide), and 4 in its backward,
P * (dP - sum(dP * P)).

A *composite* operator calls others, which count. It counts where none of these was recorded: `aten::linear`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, TypeVar

from . import moves, products
from .calls import DTYPES, UNKNOWN_TYPE, OperatorCall, Tensor, TensorType, Unknown
from .moves import Reads, Writes
from .products import Attention, Convolution, Operands


class Cost(NamedTuple):
    """What one call computes and moves at least; None is not known.

    `least_flops` leaves out what a causal mask lets a kernel skip. `shape` are the sizes for tables, `dtype` the
    type of the first operand. `elementwise` FLOPs are no part of `flops`. `is_aligned` is whether, of a product,
    each row of its matrices begins at 16 bytes in memory.
    """

    flops: int | None
    least_flops: float | None
    bytes: float | None
    elementwise: int
    dtype: str
    shape: str
    is_aligned: bool | None = None


class Rule(NamedTuple):
    """One kind of operator; `bytes`, where given, takes the place of what is read and written."""

    category: str
    written: Writes
    read: Reads = moves.read_all
    flops: Callable[[OperatorCall], int] | None = None
    share: Callable[[OperatorCall], float] | None = None  # of the FLOPs that a mask leaves
    shape: Callable[[OperatorCall], str] | None = None
    bytes: Callable[[OperatorCall], float] | None = None
    aligned: Callable[[OperatorCall], bool] | None = None  # whether rows of matrices begin at 16 bytes
    operand: int = 0  # whose type is the arithmetic
    per_written: int = 0  # element-wise FLOPs for each number that is written
    per_read: int = 0
    is_composite: bool = False


def _product(left: int, right: int, type_place: int = -1, *, is_composite: bool = False) -> Rule:
    """Return the rule of a product; what is before its matrices is added to it."""
    operands = Operands(left, right, type_place)
    return Rule(
        "gemm",
        partial(products.product, operands=operands),
        moves.read_first(max(left, right) + 1),
        partial(products.flops_of_product, operands=operands),
        shape=partial(products.shape_of_product, operands=operands),
        aligned=partial(products.is_aligned, operands=operands),
        operand=left,
        is_composite=is_composite,
    )


def _seen_as(
    call_of: Callable[[OperatorCall, Operands], OperatorCall], left: int, right: int, type_place: int = -1
) -> Rule:
    """Return the rule of a product whose matrices are written otherwise."""
    operands = Operands(left, right, type_place)
    plain = _product(left, right, type_place)
    assert plain.flops is not None
    assert plain.shape is not None
    flops = plain.flops
    shape = plain.shape
    return plain._replace(
        written=lambda call: plain.written(call_of(call, operands)),
        flops=lambda call: flops(call_of(call, operands)),
        shape=lambda call: shape(call_of(call, operands)),
    )


_LINEAR = _seen_as(products.with_transposed_weight, 0, 1)


def _convolution(places: Convolution) -> Rule:
    is_backward = places.gradient >= 0
    flops = products.flops_of_convolution_backward if is_backward else products.flops_of_convolution
    written = products.convolution_gradients if is_backward else products.convolved
    return Rule(
        "convolution",
        partial(written, places=places),
        moves.read_all,
        partial(flops, places=places),
        shape=partial(products.shape_of_convolution, places=places),
        operand=places.input,
    )


def _attention(places: Attention, *, is_composite: bool = False) -> Rule:
    return Rule(
        "attention",
        partial(products.attended, places=places),
        moves.read_all,
        partial(products.flops_of_attention, places=places),
        share=partial(products.causal_share, places=places),
        shape=partial(products.shape_of_attention, places=places),
        operand=places.query,
        is_composite=is_composite,
    )


def _pointwise(count: int, dtype: TensorType = UNKNOWN_TYPE, category: str = "elementwise", per: int = 1) -> Rule:
    written = moves.broadcast(count, dtype)
    read = moves.read_first(count)
    return Rule(category, written, read, per_written=per)


#: An operator without a rule reads all that it is given; what it writes has to be recorded.
_NONE = Rule("other", moves.unknown)
_BOOL = DTYPES["bool"]
_INT64 = DTYPES["int64"]
_COPY = _pointwise(1, category="copy", per=0)
_LIKE_FIRST = Rule("normalization", moves.like())
_LISTS = Rule("optimizer", moves.listed(0))
#: Each tensor among the arguments once, results among them: how libraries' operators are called.
_EACH_ONCE = Rule("elementwise", moves.nothing)

_TEMPLATE = _product(0, 1)._replace(written=moves.nothing, read=moves.read_all)

_BACKWARD_CONVOLUTION = Convolution(1, 2, 4, 5, 6, transposed=7, groups=9, gradient=0, mask=10)
_WHOLE_CONVOLUTION = Convolution(0, 1, 3, 4, 5, transposed=6, output_padding=7, groups=8)

#: One operator a row. Where an operator's name ends in `_`, it works in place.
_SINGLE: dict[str, Rule] = {
    # --- products: torch.utils.flop_counter has mm, addmm, bmm, baddbmm and _scaled_mm
    "mm": _product(0, 1),
    "bmm": _product(0, 1),
    "addmm": _product(1, 2),
    "_addmm_activation": _product(1, 2),
    "baddbmm": _product(1, 2),
    "addbmm": _product(1, 2),
    "mv": _product(0, 1),
    "addmv": _product(1, 2),
    "dot": _product(0, 1),
    "vdot": _product(0, 1),
    "_int_mm": _product(0, 1),
    "_scaled_mm": _product(0, 1, 6),
    "_scaled_mm_v2": _product(0, 1),
    "_grouped_mm": _seen_as(products.grouped, 0, 1, 4),
    "_scaled_grouped_mm": _seen_as(products.grouped, 0, 1, 7),
    "matmul": _product(0, 1, is_composite=True),
    "linear": _LINEAR._replace(is_composite=True),
    "mkldnn_linear": _LINEAR,
    "mkldnn::_linear_pointwise": _LINEAR,
    "mkl::_mkl_linear": _LINEAR,
    "vllm::rocm_unquantized_gemm": _LINEAR,
    "_C::cutlass_scaled_mm": _product(1, 2)._replace(written=moves.nothing),  # it is the first argument
    "sgl_kernel::fp8_scaled_mm": _product(0, 1),
    "sgl_kernel::int8_scaled_mm": _product(0, 1),
    # --- convolutions, as above; cuDNN's and MIOpen's are called by `convolution`, which counts
    "convolution": _convolution(_WHOLE_CONVOLUTION),
    "_convolution": _convolution(_WHOLE_CONVOLUTION),
    "convolution_overrideable": _convolution(_WHOLE_CONVOLUTION),
    "cudnn_convolution": _convolution(Convolution(0, 1, stride=3, padding=2, dilation=4)),
    "miopen_convolution": _convolution(Convolution(0, 1, stride=4, padding=3, dilation=5)),
    "mkldnn_convolution": _convolution(Convolution(0, 1, stride=4, padding=3, dilation=5)),
    "mkldnn::_convolution_pointwise": _convolution(Convolution(0, 1, stride=4, padding=3, dilation=5)),
    "_slow_conv2d_forward": _convolution(Convolution(0, 1, stride=4, padding=5, dilation=-1)),
    "_conv_depthwise2d": _convolution(Convolution(0, 1, stride=4, padding=5, dilation=6)),
    "convolution_backward": _convolution(_BACKWARD_CONVOLUTION),
    "convolution_backward_overrideable": _convolution(
        Convolution(1, 2, 3, 4, 5, transposed=6, groups=8, gradient=0, mask=9)
    ),
    # --- fused attention: forward and backward of torch.utils.flop_counter, and flash_attn's
    "scaled_dot_product_attention": _attention(Attention(0, 5), is_composite=True),
    "_scaled_dot_product_flash_attention": _attention(Attention(0, 4)),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(Attention(0, 4)),
    "_scaled_dot_product_efficient_attention": _attention(Attention(0, 6)),
    "_scaled_dot_product_cudnn_attention": _attention(Attention(0, 6)),
    "_scaled_dot_product_fused_attention_overrideable": _attention(Attention(0, 5)),
    "_scaled_dot_product_attention_math_for_mps": _attention(Attention(0, 5)),
    "_scaled_dot_product_flash_attention_backward": _attention(Attention(1, 11, gradient=0, lengths=6)),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(Attention(1, 7, gradient=0)),
    "_scaled_dot_product_efficient_attention_backward": _attention(Attention(1, 11, gradient=0)),
    "_scaled_dot_product_cudnn_attention_backward": _attention(Attention(1, 14, gradient=0, lengths=9)),
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention(
        Attention(1, 13, gradient=0, lengths=8)
    ),
    "_flash_attention_forward": _attention(Attention(0, 8, heads_last=True, lengths=3)),
    "_flash_attention_backward": _attention(Attention(1, 11, heads_last=True, gradient=0, lengths=6)),
    "_efficient_attention_forward": _attention(Attention(0, heads_last=True, lengths=4)),
    "_efficient_attention_backward": _attention(Attention(1, heads_last=True, gradient=0, lengths=6)),
    "flash_attn::_flash_attn_forward": _attention(Attention(0, 5, heads_last=True)),
    "flash_attn::_flash_attn_backward": _attention(Attention(1, 11, heads_last=True, gradient=0)),
    "FlashAttnFunc": _attention(Attention(0, 5, heads_last=True)),
    "aiter::_flash_attn_forward": _attention(Attention(0, 5, heads_last=True)),
    "aiter::mha_fwd": _attention(Attention(0, 5, heads_last=True)),
    "aiter::fmha_v3_fwd": _attention(Attention(0, 5, heads_last=True)),
    "aiter::mha_bwd": _attention(Attention(1, 8, heads_last=True, gradient=0)),
    # --- one number for each
    "masked_fill": _pointwise(2, per=0),
    "where": _pointwise(3, per=0),
    "tril": _pointwise(1, per=0),
    "triu": _pointwise(1, per=0),
    "log_sigmoid_forward": _pointwise(1),
    "native_dropout": Rule("rng", moves.dropped_out, moves.read_first(1)),
    "native_dropout_backward": _pointwise(2),
    # --- softmax
    "_softmax": Rule("softmax", moves.softmaxed, moves.read_first(1), per_written=5),
    "_log_softmax": Rule("softmax", moves.softmaxed, moves.read_first(1)),
    "_safe_softmax": Rule("softmax", moves.like(), moves.read_first(1), is_composite=True),
    "_softmax_backward_data": Rule("softmax", moves.like(), moves.read_first(2), per_written=4),
    "_log_softmax_backward_data": Rule("softmax", moves.like(), moves.read_first(2)),
    # --- losses and pooling
    "nll_loss_forward": Rule("reduction", moves.nothing, moves.read_targets),
    "nll_loss2d_forward": Rule("reduction", moves.nothing, moves.read_targets),
    "nll_loss_backward": Rule("reduction", moves.like(1), moves.read_all_but(1)),
    "nll_loss2d_backward": Rule("reduction", moves.like(1), moves.read_all_but(1)),
    "mse_loss": Rule("reduction", moves.nothing, moves.read_first(2)),
    "binary_cross_entropy": Rule("reduction", moves.nothing, moves.read_first(2)),
    "mse_loss_backward": Rule("reduction", moves.like(1), moves.read_first(3)),
    "binary_cross_entropy_backward": Rule("reduction", moves.like(1), moves.read_first(3)),
    "max_pool2d_with_indices": Rule("reduction", partial(moves.pooled, with_indices=True), moves.read_first(1)),
    "avg_pool2d": Rule("reduction", partial(moves.pooled, with_indices=False), moves.read_first(1)),
    "_adaptive_avg_pool2d": Rule("reduction", moves.of_sizes(1, batch=2), moves.read_first(1)),
    "max_pool2d_with_indices_backward": Rule("reduction", moves.like(1), moves.read_all_but(1)),
    "avg_pool2d_backward": Rule("reduction", moves.like(1), moves.read_first(1)),
    "_adaptive_avg_pool2d_backward": Rule("reduction", moves.like(1), moves.read_first(1)),
    # --- reductions, by the place of their dimensions
    "norm": Rule("reduction", moves.reduced(2), moves.read_first(1), per_read=1),
    "linalg_vector_norm": Rule("reduction", moves.reduced(2), moves.read_first(1), per_read=1),
    "argmax": Rule("reduction", moves.reduced(1, _INT64), moves.read_first(1)),
    "argmin": Rule("reduction", moves.reduced(1, _INT64), moves.read_first(1)),
    # --- copies
    "_to_copy": Rule("copy", moves.cast, moves.read_first(1)),
    "cat": Rule("copy", moves.joined, moves.read_first(1)),
    "constant_pad_nd": Rule("copy", moves.like(), moves.read_first(1)),
    "copy_": Rule("copy", moves.like(), moves.read_others),
    "_foreach_copy_": Rule("copy", moves.listed(0), moves.read_others),
    # --- rows and places
    "embedding": Rule("index", moves.picked_rows, moves.read_picked),
    "index_select": Rule("index", moves.selected, moves.read_picked),
    "gather": Rule("index", moves.gathered, moves.read_picked),
    "index": Rule("index", moves.picked_rows, moves.read_picked),
    "take": Rule("index", moves.gathered, moves.read_picked),
    "embedding_dense_backward": Rule("index", moves.weight_gradient, moves.read_first(2)),
    "slice_backward": Rule("index", moves.of_sizes(1), moves.read_first(1)),
    "select_backward": Rule("index", moves.of_sizes(1), moves.read_first(1)),
    # --- lists of tensors, of optimizers
    "_foreach_zero_": Rule("optimizer", moves.listed(0), moves.read_nothing),
    "_foreach_norm": Rule("optimizer", moves.nothing),
    "_foreach_max": Rule("optimizer", moves.nothing),
    "_fused_adam_": Rule("optimizer", moves.listed(0, 2, 3, 4)),
    "_fused_adamw_": Rule("optimizer", moves.listed(0, 2, 3, 4)),
    "_fused_sgd_": Rule("optimizer", moves.listed(0, 2)),
    "_amp_foreach_non_finite_check_and_unscale_": _LISTS,
}

#: Rules of several operators.
_MANY: tuple[tuple[Rule, str], ...] = (
    (
        _pointwise(1),
        """abs acos acosh angle asin asinh atan atanh ceil celu clamp_max clamp_min cos cosh deg2rad digamma elu
        erf erfc erfinv exp exp2 expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh i0 leaky_relu
        lgamma log log10 log1p log2 logit mish nan_to_num neg rad2deg reciprocal relu relu6 round rsqrt selu sgn
        sigmoid sign silu sin sinc sinh softplus softshrink sqrt square tan tanh threshold trunc bitwise_not""",
    ),
    (_pointwise(1, _BOOL), "logical_not isnan isinf isfinite isposinf isneginf signbit"),
    (
        _pointwise(2),
        """add sub mul div rsub pow remainder fmod floor_divide true_divide atan2 hypot copysign maximum minimum
        fmax fmin logaddexp logaddexp2 xlogy heaviside bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__
        bitwise_left_shift bitwise_right_shift prelu _prelu_kernel gelu_backward silu_backward sigmoid_backward
        tanh_backward threshold_backward hardtanh_backward hardswish_backward hardsigmoid_backward
        leaky_relu_backward softplus_backward softshrink_backward hardshrink_backward mish_backward
        logit_backward""",
    ),
    (_pointwise(2, _BOOL), "eq ne lt le gt ge logical_and logical_or logical_xor"),
    (_pointwise(3), "addcmul addcdiv lerp clamp log_sigmoid_backward"),
    (_COPY, "clone flip roll _reshape_copy _conj_physical positive resolve_conj"),
    (
        Rule("elementwise", moves.like(), moves.read_nothing),
        "fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_",
    ),
    (
        Rule("reduction", moves.reduced(1), moves.read_first(1), per_read=1),
        "sum mean amax amin max min prod",
    ),
    (
        Rule("reduction", moves.reduced(1), moves.read_first(1)),
        "nansum nanmean logsumexp var std var_mean std_mean",
    ),
    (Rule("reduction", moves.reduced(1, _BOOL), moves.read_first(1)), "any all"),
    (Rule("reduction", moves.reduced(1, _INT64), moves.read_first(1)), "count_nonzero"),
    (Rule("scan", moves.like(), moves.read_first(1)), "cumsum cumprod cummax cummin logcumsumexp sort"),
    (
        _LIKE_FIRST,
        """native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
        native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward miopen_batch_norm
        miopen_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional
        _batch_norm_with_update batch_norm_backward _fused_rms_norm _fused_rms_norm_backward
        miopen_layer_norm cudnn_layer_norm batch_norm_elemt batch_norm_backward_elemt""",
    ),
    (Rule("normalization", moves.nothing), "batch_norm_stats batch_norm_backward_reduce"),
    (
        Rule("index", moves.nothing, bytes=moves.filled),
        "index_put_ _index_put_impl_ index_add_ index_copy_ scatter_ scatter_add_",
    ),
    (
        Rule("index", moves.of_sizes(1, batch=2), moves.read_first(1)),
        """upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_trilinear3d
        upsample_linear1d upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa""",
    ),
    (
        Rule("index", moves.of_sizes(2), moves.read_first(1)),
        """upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_bilinear2d_backward upsample_bicubic2d_backward""",
    ),
)

_LIBRARY = r"(?!aten::)\w+::"
# Operators of libraries, by the arguments that they take: inputs and results once.
_PATTERNS: tuple[tuple[str, Rule], ...] = (
    (r"aten::_foreach_\w+", _LISTS),
    # Inductor's own kernels; a template's first two arguments are its matrices
    (r"triton_(?:poi|per|red|mix|spl|for)_\w+", _EACH_ONCE),
    (r"triton_tem_fused_(?!\w*(?:conv|attention|flex))\w*mm\w*", _TEMPLATE),
    (_LIBRARY + r"\w*(?:rms|layer|group|batch)_?norm\w*", _EACH_ONCE._replace(category="normalization")),
    (_LIBRARY + r"(?:\w+_)?(?:silu|gelu|swiglu|geglu|relu)_and_mul\w*", _EACH_ONCE),
    (_LIBRARY + r"\w*(?i:quant)\w*", _EACH_ONCE._replace(category="copy")),
    (r"fbgemm::(?!\w*(?:lookup|embedding))\w+", _EACH_ONCE._replace(category="index")),
    # keys and values into a cache, where they take some rows; rotations of queries and keys
    (_LIBRARY + r"(?:reshape_and_cache\w*|store_cache)", Rule("copy", moves.nothing, bytes=moves.in_place(0, 1))),
    (_LIBRARY + r"rotary_embedding", Rule("elementwise", moves.nothing, bytes=moves.in_place(1, 2))),
)


def _table() -> dict[str, Rule]:
    rules = dict(_SINGLE)
    for rule, names in _MANY:
        rules |= dict.fromkeys(names.split(), rule)
    return {name if "::" in name or name[0].isupper() else f"aten::{name}": rule for name, rule in rules.items()}


RULES = _table()
_MATCHES = tuple((re.compile(pattern), rule) for pattern, rule in _PATTERNS)


@cache
def rule_of(name: str) -> Rule | None:
    """Return the rule of an operator by its name, `aten::mm`; None without a rule.

    An operator in place, `aten::add_`, writes its first argument.
    """
    if name in RULES:
        return RULES[name]
    if name.endswith("_") and (rule := RULES.get(name[:-1])):
        return rule._replace(written=moves.like())
    return next((rule for pattern, rule in _MATCHES if pattern.fullmatch(name)), None)


def is_known(name: str) -> bool:
    """Return whether there is a rule of an operator."""
    return rule_of(name) is not None


def cost_of(call: OperatorCall, *, of_lists: str = "") -> Cost:
    """Return the FLOPs and bytes of a call; None for those that its shapes do not give.

    `of_lists` is the type of tensors in lists, which the profiler does not write.
    """
    if of_lists:
        call = call.with_lists_of(DTYPES[of_lists])
    rule = rule_of(call.name) or _NONE
    flops = None if rule is _NONE else _known(lambda: rule.flops(call) if rule.flops else 0)
    share = _known(lambda: rule.share(call) if rule.share else 1.0)
    written = list(call.written) if call.written is not None else _known(lambda: rule.written(call))
    moved = _known(lambda: _bytes(rule, call, written))
    shape = _known(lambda: rule.shape(call) if rule.shape else _plain_shape(call))
    operand = _known(lambda: call.tensor(rule.operand)) or next(iter(call.tensors), None)
    return Cost(
        flops,
        flops if flops is None or share is None else flops * share,
        moved,
        _elementwise(rule, call, written or []),
        operand.dtype.name if operand else "",
        shape or _plain_shape(call),
        _known(lambda: rule.aligned(call) if rule.aligned else None),
    )


def _bytes(rule: Rule, call: OperatorCall, written: list[Tensor] | None) -> float:
    if rule.bytes:
        return rule.bytes(call)
    if written is None:
        raise Unknown
    return rule.read(call, written) + moves.bytes_of(written)


def _elementwise(rule: Rule, call: OperatorCall, written: list[Tensor]) -> int:
    if not written or not written[0].dtype.is_float:
        return 0
    if rule.per_read:
        return rule.per_read * call.tensors[0].elements
    return rule.per_written * written[0].elements


def _plain_shape(call: OperatorCall) -> str:
    """Write the sizes of the largest tensor; of a list, how many there are."""
    group = call.arguments[0] if call.arguments else None
    if isinstance(group, tuple) and group:
        return f"{len(group)} tensors, {sum(each.elements for each in group):,} numbers"
    largest = max(call.tensors, key=lambda each: each.elements, default=None)
    if largest:
        return "×".join(map(str, largest.shape))
    return ""


_T = TypeVar("_T")


def _known(compute: Callable[[], _T]) -> _T | None:
    """Compute a value; return None where shapes do not give it or do not fit the operator."""
    try:
        return compute()
    except (Unknown, IndexError, TypeError, ValueError, ZeroDivisionError):
        return None
