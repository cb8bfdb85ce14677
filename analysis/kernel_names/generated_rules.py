"""The rules of names that are not written by hand: PyTorch's operators, and what compilers generate."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One row of the table: a kernel that `head` or `words` (and `inside`, where given) match is of `category`."""

    category: str
    head: str
    example: str
    inside: str = ""
    helper: bool = False
    words: str = ""  # with it, `head` is empty

    @property
    def pattern(self) -> str:
        """What to search in a function as it is written, or with `words` in snake case between underscores."""
        words = self.words.replace(r"\w", "[a-z0-9]").split()  # what begins in a word ends in it
        return f"_(?:{'|'.join(words)})_" if words else f"(?:{self.head})"


_TRITON = r"^(?:triton_(?:poi|per|red|mix|spl)|cpp)_fused_"
_XLA = r"^(?:loop|input|wrapped|concatenate)_"
_VIEWS = (
    r"(?:to_copy|clone|copy|cat|stack|constant_pad_nd|repeat|flip|roll|view|unsafe_view|reshape|transpose|t"
    r"|permute|expand|unsqueeze|squeeze|slice|slice_backward|select|split|split_with_sizes|unbind|alias|detach"
    r"|as_strided|mm|bmm)"
)

GENERATED_RULES = (
    # --- operators recorded on a CPU
    Rule(
        "attention",
        r"^aten::\w*(?:attention|scaled_dot_product)",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ),
    Rule(
        "convolution",
        r"^aten::\w*conv(?:olution|_?(?:transpose|depthwise)?[123]d|_tbc)|^aten::(?:im2col|col2im)",
        "aten::mkldnn_convolution",
    ),
    Rule(
        "gemm",
        r"^aten::(?:matmul|linear|einsum|inner|outer|ger|bilinear|tensordot|chain_matmul|linalg_multi_dot)(?:_backward)?$",
        "aten::linear",
        helper=True,
    ),
    Rule(
        "gemm",
        r"^(?:aten|mkl|mkldnn)::_?(?:\w*mm|mv|addmv|dot|vdot|addr|addmm_activation|\w*linear(?:_pointwise|_backward)?)_?$",
        "aten::addmm",
    ),
    Rule(
        "softmax",
        r"^aten::_?(?:log_|masked_|safe_)*softmax(?:_backward\w*)?$",
        "aten::_softmax_backward_data",
    ),
    Rule("normalization", r"^aten::\w*(?:layer|batch|group|rms|instance|weight)_norm", "aten::native_layer_norm"),
    Rule("copy", r"^aten::_foreach_copy", "aten::_foreach_copy_"),
    Rule("optimizer", r"^aten::(?:_foreach_|_fused_(?:adamw?|sgd|adagrad)_?$|_amp_)", "aten::_foreach_addcdiv_"),
    Rule(
        "rng",
        r"^aten::(?:native_|alpha_|feature_)*dropout_?$|^aten::(?:rand|randn|randint|randperm)(?:_like)?$|"
        r"^aten::(?:normal|uniform|bernoulli|multinomial|exponential|poisson|random|cauchy|geometric|log_normal)_?$",
        "aten::bernoulli_",
    ),
    Rule(
        "index",
        r"^aten::_?(?:unsafe_)?(?:index\w*|embedding\w*|gather\w*|scatter\w*|take|take_along_dim|put|masked_select|masked_scatter\w*|"
        r"nonzero|one_hot|repeat_interleave|bincount|bucketize|searchsorted|select_backward|slice_backward|"
        r"(?:select|slice|diagonal)_scatter|grid_sampler\w*|upsample\w*)_?$",
        "aten::index_put_",
    ),
    Rule(
        "scan",
        r"^aten::(?:sort|argsort|msort|topk|kthvalue|cum\w+|_?logcumsumexp|median|unique\w*|_unique2?|histc)_?$",
        "aten::cumsum",
    ),
    Rule(
        "reduction",
        r"^aten::(?:sum|mean|prod|any|all|a?max|a?min|aminmax|argmax|argmin|var|std|var_mean|std_mean|norm|nansum|nanmean|"
        r"linalg_vector_norm|count_nonzero|logsumexp|trace|equal|\w*_pool[123]d\w*|\w*_loss\w*|cross_entropy\w*|dist|cdist|kl_div|"
        r"binary_cross_entropy\w*|sum_to_size|value_selecting_reduction_backward)$",
        "aten::mean",
    ),
    Rule(
        "copy",
        r"^aten::(?:copy|_copy_from|_to_copy|to|clone|contiguous|cat|concat|stack|hstack|vstack|_cat|constant_pad_nd|pad|"
        r"\w+_pad[123]d|repeat|tile|flip|roll|item|_local_scalar_dense|\w+_copy|\w*quantize\w*|type_as|resolve_conj|"
        r"pixel_shuffle|unfold|_chunk_cat)_?$",
        "aten::copy_",
    ),
    Rule(
        "elementwise",
        r"^aten::(?:a?(?:sin|cos|tan)h?|atan2|abs|neg|negative|sign|sgn|signbit|add|sub|rsub|subtract|mul|multiply|div|divide|"
        r"true_divide|floor_divide|addcmul|addcdiv|add_relu|remainder|fmod|pow|float_power|square|sqrt|rsqrt|reciprocal|"
        r"exp|exp2|expm1|log|log2|log10|log1p|logaddexp2?|xlogy|erf|erfc|erfinv|lgamma|digamma|polygamma|ceil|floor|round|"
        r"trunc|frac|lerp|clamp|clamp_min|clamp_max|clip|maximum|minimum|fmax|fmin|where|masked_fill|tril|triu|"
        r"eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|__\w+__|is\w+|nan_to_num|fill|fill_diagonal|zero|zeros|ones|full|"
        r"(?:zeros|ones|full)_like|new_(?:zeros|ones|full)|arange|linspace|eye|scalar_tensor|\w*(?:sigmoid|relu6?|gelu|silu|"
        r"tanh|softplus|elu|selu|celu|mish|glu|hardswish|hardtanh|hardshrink|softshrink|threshold|dropout|masked_scale|prelu)"
        r"(?:_backward)?|conj_physical|angle|copysign|hypot|heaviside|sinc|logit|special_\w+|complex|polar)_?$",
        "aten::mul",
    ),
    # --- generated by torch.compile: the loop, then the rarest fused operation
    Rule("attention", r"^triton_(?:tem\w*(?:attention|flex)|flex_)", "triton_tem_fused_flex_attention_0"),
    Rule("convolution", r"^triton_tem\w*conv", "triton_tem_fused_convolution_1"),
    Rule("gemm", r"^triton_(?:tem_|mm|bmm)", "triton_tem_fused_addmm_relu_3"),
    Rule("optimizer", r"^triton_for_", "triton_for_fused_3"),
    Rule(
        "normalization",
        _TRITON + r"\w*(?:(?:layer|batch|group|rms|instance|weight)_norm|_mean_\w*rsqrt|rsqrt_\w*var_mean)",
        "triton_red_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0",
    ),
    Rule(
        "softmax",
        _TRITON + r"\w*(?:softmax|amax_(?:\w*_)?exp_\w*sum|_exp_(?:\w*_)?max_\w*sum)",
        "triton_per_fused__to_copy_div_exp_max_scalar_tensor_sub_sum_view_where_3",
    ),
    Rule(
        "scan",
        r"^triton_spl_|" + _TRITON + r"(?:\w*_)?(?:sort|cum\w+|topk|argsort|\w*_scan)_",
        "triton_spl_fused_cumsum_0",
    ),
    Rule("reduction", r"^triton_(?:per|red|mix)_|^triton_poi_\w*_pool", "triton_red_fused_sum_4"),
    Rule(
        "reduction",
        r"^cpp_fused_(?:\w*_)?(?:sum|mean|prod|any|all|a?max|a?min|argm\w+|var|std|nll_loss\w*)_",
        "cpp_fused_mean_pow_1",
    ),
    Rule("index", _TRITON + r"(?:\w*_)?(?:embedding|index|gather|scatter)_", "triton_poi_fused_embedding_0"),
    Rule(
        "rng",
        _TRITON + r"\w*(?:dropout_(?:[^b]|b[^a])|rand|bernoulli|inductor_seeds)",
        "triton_poi_fused_native_dropout_2",
    ),
    Rule("copy", rf"^(?:triton_poi|cpp)_fused(?:_+{_VIEWS})+_\d+$", "triton_poi_fused__to_copy_1"),
    Rule("elementwise", r"^(?:triton_poi|cpp)_fused", "triton_poi_fused__unsafe_view_mul_silu_8"),
    # --- what other compilers generate: nvFuser says its loop, XLA a fusion's root
    Rule("elementwise", r"^nvfuser_pointwise", "nvfuser_pointwise_f0_c1_r0_g0"),
    Rule(
        "reduction", r"^nvfuser_(?:inner_|outer_|inner_outer_)?(?:persistent|reduction)", "nvfuser_reduction_f0_c1"
    ),
    Rule("copy", r"^nvfuser_transpose", "nvfuser_transpose_f0_c0_r0_g0"),
    Rule("gemm", r"^nvfuser_matmul|^gemm_fusion", "gemm_fusion_dot_1"),
    Rule(
        "copy",
        rf"{_XLA}(?:copy|convert|transpose|concatenate|slice|pad|reverse|reshape|bitcast)(?:_fusion)?(?:_\d+)*$",
        "loop_transpose_fusion",
    ),
    Rule("index", rf"{_XLA}(?:\w+_)?(?:gather|scatter|dynamic(?:_update)?_slice)", "input_scatter_fusion_2"),
    Rule("reduction", rf"{_XLA}(?:\w+_)?reduce", "input_reduce_fusion_12"),
    Rule("elementwise", rf"{_XLA}(?:\w+_)?fusion|^wrapped_", "loop_broadcast_fusion"),
)
