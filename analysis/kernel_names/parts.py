"""The parts of a kernel's name: its function, its template arguments, the operators it fuses."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

#: Characters of a name that are read: what distinguishes instances comes far earlier.
READ: Final = 8192

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::")
_RETURN_TYPE = re.compile(r"void |(?:typename )?std::enable_if<[^;]{0,400}?>::type ")
#: Kernels of CUTLASS 4 have the Python class or function in their names, then all arguments.
_CUTE_DSL = re.compile(
    r"((?>\w*?kernel_cutlass)\w*?)_(?:object_at_|tensor(?:ptr|0000)|TiledMMA_|TiledCopy_|CopyAtom_|ThrLayout)"
)
_NODE = re.compile(r"(?:autograd::engine::evaluate_function: )?(?:struct )?([A-Z]\w*?)Backward\d*(?:\[.*)?$")
_SOURCE_NAME = re.compile(r"(\d{1,3})([A-Za-z_])")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_WORD = re.compile(r"[^A-Za-z0-9]+")
_LITERAL = re.compile(r"L[a-z](\d+)E")
_SUBSTITUTION = re.compile(r"[ST][0-9A-Z]*_")
_BRACKETS = re.compile(r"[<>()\[\]{},]")


def split_name(name: str) -> tuple[str, str]:
    """Split a demangled name into its function (no return type) and its template arguments and parameters.

    Anonymous namespaces are dropped, in nsys's spelling and in the C++ library's. Mangled names, which
    profilers leave when they are long, are split where their template arguments begin.
    """
    text = name[:READ]
    if text.startswith("_Z"):
        return _split_mangled(text)
    text = _ANONYMOUS.sub("", text)
    returned = _RETURN_TYPE.match(text)
    text = text[returned.end() :] if returned else text
    if cute := _CUTE_DSL.match(text):
        return cute[1], text[cute.end(1) :]
    ends = [place for place in (text.find("<"), text.find("(")) if place >= 0]
    end = min(ends, default=len(text))
    return text[:end], text[end:]


def operator_of_node(name: str) -> str:
    """Return the operator whose gradient a node of autograd's computes, aten::addmm of AddmmBackward0, or ""."""
    node = _NODE.match(name[:READ])
    return f"aten::{in_words(node[1]).strip('_')}" if node else ""


def in_words(head: str) -> str:
    """Return a function's name in snake case between underscores: `_radix_sort_kernel_` of `RadixSortKernel`."""
    return f"_{_NO_WORD.sub('_', _HUMP.sub('_', head)).lower()}_"


def _split_mangled(text: str) -> tuple[str, str]:
    """Split an Itanium-mangled name: `_ZN2at6native4copyILi512E…` is `at::native::copy` and `ILi512E…`."""
    place = 3 if text.startswith("_ZN") else 2
    parts = []
    while word := _SOURCE_NAME.match(text, place):
        place = word.start(2) + int(word[1])
        parts.append(text[word.start(2) : place])
    named = [part for part in parts if not part.startswith("_GLOBAL__N_")]
    return ("::".join(named), text[place:]) if named else (text, "")


def mangled_words(arguments: str) -> list[str]:
    """Return the source names and integers in the template arguments of a mangled name, in order."""
    words = []
    place = 0
    while place < len(arguments):
        if match := _SUBSTITUTION.match(arguments, place):
            place = match.end()
        elif match := _LITERAL.match(arguments, place):
            words.append(match[1])
            place = match.end()
        elif match := _SOURCE_NAME.match(arguments, place):
            place = match.start(2) + int(match[1])
            words.append(arguments[match.start(2) : place])
        else:
            place += 1
    return words


def template_arguments(arguments: str) -> list[str]:
    """Return the top-level template arguments at the start of the second part of `split_name`."""
    if not arguments.startswith("<"):
        return []
    depth = 0
    cuts = [0]
    for match in _BRACKETS.finditer(arguments):
        bracket = match[0]
        depth += (bracket in "<([{") - (bracket in ">)]}")
        if depth == 0 or (depth == 1 and bracket == ","):
            cuts.append(match.start())
        if depth == 0:
            break
    else:
        cuts.append(len(arguments))
    return [arguments[begin + 1 : end].strip() for begin, end in pairwise(cuts)]


#: Words of more than one part in the operator names that torch.compile joins with underscores.
_LONG_OPERATOR_NAMES = """
    add_relu addcdiv_backward adaptive_avg_pool2d amax_backward avg_pool2d avg_pool2d_backward
    batch_norm bitwise_and bitwise_not bitwise_or bitwise_xor clamp_max clamp_min constant_pad_nd
    convolution_backward copy_backward cross_entropy_loss detach_copy embedding_backward
    embedding_dense_backward empty_like eq_backward expand_copy fill_backward flex_attention
    flex_attention_backward floor_divide foreach_add foreach_addcdiv foreach_addcmul foreach_div
    foreach_lerp foreach_mul foreach_sqrt full_like fused_rms_norm fused_rms_norm_backward gelu_backward
    glu_backward group_norm grouped_mm index_add index_copy index_put index_put_impl index_select
    inductor_lookup_seed inductor_random inductor_seeds layer_norm leaky_relu linalg_vector_norm
    log_softmax log_softmax_backward_data logical_and logical_not logical_or masked_fill
    max_pool2d_with_indices max_pool2d_with_indices_backward mse_loss mse_loss_backward
    native_batch_norm native_batch_norm_backward native_batch_norm_legit
    native_batch_norm_legit_functional native_dropout native_dropout_backward native_group_norm
    native_group_norm_backward native_layer_norm native_layer_norm_backward new_empty new_full new_ones
    new_zeros nll_loss_backward nll_loss_forward ones_like prepare_softmax_online rand_like randn_like
    reflection_pad2d rms_norm scalar_tensor scaled_mm scaled_dot_product_cudnn_attention
    scaled_dot_product_efficient_attention scaled_dot_product_efficient_attention_backward
    scaled_dot_product_flash_attention scaled_dot_product_flash_attention_backward scatter_add
    scatter_reduce select_backward select_scatter sigmoid_backward silu_backward slice_backward
    slice_scatter softmax_backward_data split_with_sizes sum_backward tanh_backward threshold_backward
    to_copy true_divide unsafe_index unsafe_index_put unsafe_view upsample_bilinear2d upsample_nearest2d
    var_mean where_backward zeros_like
"""
_LONG_OPERATORS = frozenset(_LONG_OPERATOR_NAMES.split())
_LONGEST = max(operator.count("_") for operator in _LONG_OPERATORS) + 1
_COMPILED = re.compile(r"(?:triton_([a-z]{3})|(cpp))_fused_?(\w*)$")


def compiled_parts(name: str) -> tuple[str, str, str] | None:
    """Return loop, operators and number in a name of torch.compile: poi, add, 3 in `triton_poi_fused_add_3`."""
    compiled = _COMPILED.match(name[:READ].removesuffix(".kd"))
    if not compiled:
        return None
    operators = compiled[3].rstrip("0123456789")
    return compiled[1] or compiled[2], operators, compiled[3][len(operators) :]


def fused_ops(name: str) -> tuple[str, ...]:
    """Return the operators that a kernel of torch.compile fuses, as its name lists them; else nothing."""
    parts = compiled_parts(name)
    words = [word for word in parts[1].split("_") if word] if parts else []
    operators: list[str] = []
    index = 0
    while index < len(words):
        sizes = range(min(_LONGEST, len(words) - index), 0, -1)
        size = next(n for n in sizes if n == 1 or "_".join(words[index : index + n]) in _LONG_OPERATORS)
        operators.append("_".join(words[index : index + size]))
        index += size
    return tuple(operators)
