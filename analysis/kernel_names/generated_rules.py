"""The rules of names that are not written by hand: PyTorch's operators, and what compilers generate."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One row of the table: a kernel that `head` or `words` (and `inside`, where given) match is of `category`."""

    category: str
    example: str
    head: str = ""
    inside: str = ""
    helper: bool = False
    words: str = ""  # in place of `head`

    @property
    def pattern(self) -> str:
        """What to search in a function as it is written, or with `words` in snake case between underscores."""
        words = self.words.replace(r"\w", "[a-z0-9]").split()  # what begins in a word ends in it
        return f"_(?:{'|'.join(words)})_" if words else f"(?:{self.head})"


_TRITON = r"^(?:triton_(?:poi|per|red|mix|spl)|cpp)_fused_"
_XLA = r"^(?:loop|input|wrapped|concatenate)_"
#: TensorRT's Myelin joins the four (or three) letters of each operator that it fused: `SlicSiluMul`.
_MYELIN = r"^__myl_(?:[A-Z]\w*)?"
_OPERATOR_ENDS = r"(?:[A-Z_\d]|$)"
_MYELIN_MOVES = (
    r"(?:Resh?|Trans?|Mov|Move|Cas|Cast|Con|Conc|Sli|Slic|Rep|Repl|Pad|Padd|Copy|Flip|Squ|Squz|Iot|Iota|Bit|Bitc)"
)
_UFUNCS = (
    r"(?:add|subtract|multiply|divide|true_divide|floor_divide|remainder|fmod|divmod|negative|positive|power"
    r"|float_power|square|sqrt|cbrt|rsqrt|reciprocal|absolute|abs|fabs|sign|exp\d?|expm1|log\d*|log1p|logaddexp\d?"
    r"|a?(?:sin|cos|tan)h?|arc(?:sin|cos|tan)h?2?|hypot|deg2rad|rad2deg|maximum|minimum|fmax|fmin|clip|where"
    r"|equal|not_equal|less|less_equal|greater|greater_equal|logical_\w+|bitwise_\w+|invert|left_shift|right_shift"
    r"|is(?:nan|inf|finite|close|neginf|posinf)|floor|ceil|rint|trunc|fix|modf?|ldexp|frexp|copysign|nextafter|signbit"
    r"|real|imag|angle|conj\w*|fill|arange|linspace|eye|tri[lu]?|erf\w*|gamma\w*|sinc|heaviside|nan_to_num)"
)
_VIEWS = (
    r"(?:to_copy|clone|copy|cat|stack|constant_pad_nd|repeat|flip|roll|view|unsafe_view|reshape|transpose|t"
    r"|permute|expand|unsqueeze|squeeze|slice|slice_backward|select|split|split_with_sizes|unbind|alias|detach"
    r"|as_strided|mm|bmm)"
)

GENERATED_RULES = (
    # --- operators recorded on a CPU
    Rule(
        "attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        r"^aten::\w*(?:attention|scaled_dot_product)",
    ),
    Rule(
        "convolution",
        "aten::mkldnn_convolution",
        r"^aten::\w*conv(?:olution|_?(?:transpose|depthwise)?[123]d|_tbc)|^aten::(?:im2col|col2im)",
    ),
    Rule(
        "gemm",
        "aten::linear",
        r"^aten::(?:lstm|gru|rnn_tanh|rnn_relu|matmul|linear|einsum|inner|outer|ger|bilinear|tensordot|chain_matmul|linalg_multi_dot)(?:_backward)?$",
        helper=True,
    ),
    Rule(
        "gemm",
        "aten::addmm",
        r"^(?:aten|mkl|mkldnn)::_?(?:\w*mm|mv|addmv|dot|vdot|addr|addmm_activation|\w*linear(?:_pointwise|_backward)?)_?$",
    ),
    Rule(
        "gemm",
        "aten::mkldnn_rnn_layer",
        r"^aten::(?:mkldnn_rnn_layer|_?(?:cudnn|miopen|thnn)_(?:fused_)?(?:rnn|lstm|gru)\w*|lstm_cell|gru_cell|quantized_lstm)"
        r"(?:_backward)?$",
    ),
    Rule("softmax", "aten::_softmax_backward_data", r"^aten::_?(?:log_|masked_|safe_)*softmax(?:_backward\w*)?$"),
    Rule("normalization", "aten::native_layer_norm", r"^aten::\w*(?:layer|batch|group|rms|instance|weight)_norm"),
    Rule("copy", "aten::_foreach_copy_", r"^aten::_foreach_copy"),
    Rule("optimizer", "aten::_foreach_addcdiv_", r"^aten::(?:_foreach_|_fused_(?:adamw?|sgd|adagrad)_?$|_amp_)"),
    Rule(
        "rng",
        "aten::bernoulli_",
        r"^aten::(?:native_|alpha_|feature_)*dropout_?$|^aten::(?:rand|randn|randint|randperm)(?:_like)?$|"
        r"^aten::(?:normal|uniform|bernoulli|multinomial|exponential|poisson|random|cauchy|geometric|log_normal)_?$",
    ),
    Rule(
        "index",
        "aten::index_put_",
        r"^aten::_?(?:unsafe_)?(?:index\w*|embedding\w*|gather\w*|scatter\w*|take|take_along_dim|put|masked_select|masked_scatter\w*|"
        r"nonzero|one_hot|repeat_interleave|bincount|bucketize|searchsorted|select_backward|slice_backward|"
        r"(?:select|slice|diagonal)_scatter|grid_sampler\w*|upsample\w*)_?$",
    ),
    Rule(
        "scan",
        "aten::cumsum",
        r"^aten::(?:sort|argsort|msort|topk|kthvalue|cum\w+|_?logcumsumexp|median|unique\w*|_unique2?|histc)_?$",
    ),
    Rule(
        "reduction",
        "aten::mean",
        r"^aten::(?:sum|mean|prod|any|all|a?max|a?min|aminmax|argmax|argmin|var|std|var_mean|std_mean|norm|nansum|nanmean|"
        r"linalg_vector_norm|count_nonzero|logsumexp|trace|equal|\w*_pool[123]d\w*|\w*_loss\w*|cross_entropy\w*|dist|cdist|kl_div|"
        r"binary_cross_entropy\w*|sum_to_size|value_selecting_reduction_backward)$",
    ),
    Rule(
        "copy",
        "aten::copy_",
        r"^aten::(?:copy|_copy_from|_to_copy|to|clone|contiguous|cat|concat|stack|hstack|vstack|_cat|constant_pad_nd|pad|"
        r"\w+_pad[123]d|repeat|tile|flip|roll|item|_local_scalar_dense|\w+_copy|\w*quantize\w*|type_as|resolve_conj|"
        r"pixel_shuffle|unfold|_chunk_cat|pin_memory|_pin_memory|is_pinned|resolve_neg)_?$",
    ),
    # --- views, which move nothing: the time is that of the call
    Rule(
        "copy",
        "aten::as_strided",
        r"^(?:aten::)?(?:as_strided|t|transpose|permute|view|_unsafe_view|_?reshape(?:_alias)?|view_as|reshape_as|expand|expand_as"
        r"|narrow|slice|select|split|split_with_sizes|chunk|tensor_split|unbind|unsafe_split|unsafe_chunk|squeeze|unsqueeze"
        r"|flatten|unflatten|ravel|movedim|swapaxes|swapdims|moveaxis|diagonal|numpy_T|mT|adjoint|alias|detach"
        r"|lift_fresh|view_as_real|view_as_complex|real|imag|broadcast_to|set|set_data)_?$",
    ),
    Rule(
        "elementwise",
        "aten::mul",
        r"^aten::(?:a?(?:sin|cos|tan)h?|atan2|abs|neg|negative|sign|sgn|signbit|add|sub|rsub|subtract|mul|multiply|div|divide|"
        r"true_divide|floor_divide|addcmul|addcdiv|add_relu|remainder|fmod|pow|float_power|square|sqrt|rsqrt|reciprocal|"
        r"exp|exp2|expm1|log|log2|log10|log1p|logaddexp2?|xlogy|erf|erfc|erfinv|lgamma|digamma|polygamma|ceil|floor|round|"
        r"trunc|frac|lerp|clamp|clamp_min|clamp_max|clip|maximum|minimum|fmax|fmin|where|masked_fill|tril|triu|"
        r"eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|__\w+__|is\w+|nan_to_num|fill|fill_diagonal|zero|zeros|ones|full|"
        r"(?:zeros|ones|full|empty)_like|new_(?:zeros|ones|full|empty|empty_strided)|empty|empty_strided|resize|resize_as|arange|linspace|eye|scalar_tensor|\w*(?:sigmoid|relu6?|gelu|silu|"
        r"tanh|softplus|elu|selu|celu|mish|glu|hardswish|hardtanh|hardshrink|softshrink|threshold|dropout|masked_scale|prelu)"
        r"(?:_backward)?|conj_physical|angle|copysign|hypot|heaviside|sinc|logit|special_\w+|complex|polar)_?$",
    ),
    Rule(
        "elementwise",
        "torch::autograd::AccumulateGrad",
        r"^(?:autograd::engine::\w+: )?torch::autograd::AccumulateGrad",
    ),
    Rule("communication", "record_param_comms", r"^record_param_comms$"),
    # --- on a CPU, the loops of a compiled graph are one operator, or one each where Inductor profiles them
    Rule(
        "elementwise",
        "## Call CompiledFxGraph f4hlkwd7esokijeuua5l476ji7bcdbrthvlx3tm6uqbceqvgkdb5 ##",
        r"^## Call CompiledFxGraph|^Torch-Compiled Region|^CompiledFunction$|^aten::compiled_function$",
    ),
    # --- generated by torch.compile: the loop, then the rarest fused operation
    Rule("attention", "triton_tem_fused_flex_attention_0", r"^triton_(?:tem\w*(?:attention|flex)|flex_)"),
    Rule("convolution", "triton_tem_fused_convolution_1", r"^triton_tem\w*conv"),
    Rule("gemm", "triton_tem_fused_addmm_relu_3", r"^triton_(?:tem_|mm|bmm)"),
    Rule("optimizer", "triton_for_fused_3", r"^triton_for_"),
    Rule(
        "normalization",
        "triton_red_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0",
        _TRITON + r"\w*(?:(?:layer|batch|group|rms|instance|weight)_norm|_mean_\w*rsqrt|rsqrt_\w*var_mean)",
    ),
    Rule(
        "softmax",
        "triton_per_fused__to_copy_div_exp_max_scalar_tensor_sub_sum_view_where_3",
        _TRITON + r"\w*(?:softmax|amax_(?:\w*_)?exp_\w*sum|_exp_(?:\w*_)?max_\w*sum)",
    ),
    Rule(
        "scan",
        "triton_spl_fused_cumsum_0",
        r"^triton_spl_|" + _TRITON + r"(?:\w*_)?(?:sort|cum\w+|topk|argsort|\w*_scan)_",
    ),
    Rule("reduction", "triton_red_fused_sum_4", r"^triton_(?:per|red|mix)_|^triton_poi_\w*_pool"),
    Rule(
        "reduction",
        "cpp_fused_mean_pow_1",
        r"^cpp_fused_(?:\w*_)?(?:sum|mean|prod|any|all|a?max|a?min|argm\w+|var|std|nll_loss\w*)_",
    ),
    Rule("index", "triton_poi_fused_embedding_0", _TRITON + r"(?:\w*_)?(?:embedding|index|gather|scatter)_"),
    Rule(
        "rng",
        "triton_poi_fused_native_dropout_2",
        _TRITON + r"\w*(?:dropout_(?:[^b]|b[^a])|rand|bernoulli|inductor_seeds)",
    ),
    Rule("copy", "triton_poi_fused__to_copy_1", rf"^(?:triton_poi|cpp)_fused(?:_+{_VIEWS})+_\d+$"),
    Rule("elementwise", "triton_poi_fused__unsafe_view_mul_silu_8", r"^(?:triton_poi|cpp)_fused"),
    # --- what other compilers generate: nvFuser says its loop, or what it reads by tensor maps to multiply it
    Rule("elementwise", "nvfuser_pointwise_f0_c1_r0_g0", r"^nvfuser_pointwise"),
    Rule(
        "reduction", "nvfuser_reduction_f0_c1", r"^nvfuser_(?:inner_|outer_|inner_outer_)?(?:persistent|reduction)"
    ),
    Rule("copy", "nvfuser_transpose_f0_c0_r0_g0", r"^nvfuser_transpose"),
    Rule("gemm", "gemm_fusion_dot_1", r"^nvfuser_matmul|^gemm_fusion"),
    Rule(
        "gemm",
        "nvfuser_none_f0_c0_r0_g0(Tensor<__half, 3, 3>, TensorMap, TensorMap, Tensor<__half, 2, 2>)",
        r"^nvfuser_none",
        inside=r"TensorMap,.*TensorMap,",
    ),
    # --- TensorRT's Myelin: all that it fused; a product decides before what follows it
    Rule("gemm", "__myl_FcCast_myl0_8", rf"{_MYELIN}(?:Fc|Gemm|Matm)\d?{_OPERATOR_ENDS}"),
    Rule("convolution", "__myl_CorrMulAddRelu_myl0_1", rf"{_MYELIN}(?:Corr|Conv){_OPERATOR_ENDS}"),
    Rule("softmax", "__myl_MaxrSubExpSumDiv_myl0_9", rf"{_MYELIN}Max[A-Zr]\w*Exp\w*Sum{_OPERATOR_ENDS}"),
    Rule(
        "normalization",
        "__myl_AddCastMulMeanAddSqrtDivMulCastMulCast_myl2_3",
        rf"{_MYELIN}(?:Inor|(?:Mean?|Sum)\w*R?(?:sqrt?|Sqrt?)){_OPERATOR_ENDS}",
    ),
    Rule("scan", "__myl_Topk_myl0_10", rf"{_MYELIN}(?:Topk?|Sort?|Cums?){_OPERATOR_ENDS}"),
    Rule("index", "__myl_Scat_myl4_8", rf"{_MYELIN}(?:Scat?|Gath?){_OPERATOR_ENDS}"),
    Rule("reduction", "__myl_SlicSum_myl4_11", rf"{_MYELIN}(?:Sum|Mean?|Maxr|Minr|Prod?|Argm?){_OPERATOR_ENDS}"),
    Rule("copy", "__myl_MoveReshTran_myl3_7", rf"^__myl_{_MYELIN_MOVES}+(?:_|$)"),
    Rule(
        "elementwise",
        "__myl_SlicSiluSlicMul_myl0_4",
        rf"{_MYELIN}(?:Add|Sub|Mul|Div|Neg|Abs|Exp|Log|Pow|Sqrt?|Rsqr?|Erf|Sin|Cos|Tanh?|Sigm?|Silu?|Relu?|Gelu?|Clip?"
        rf"|Max|Min|Sele?|Gtr|Les|Eql|And|Or|Not|Fill){_OPERATOR_ENDS}",
    ),
    # --- CuPy's functions, by NumPy's names of them
    Rule(
        "reduction",
        "cupy_max",
        r"^cupy_(?:nan)?(?:sum|prod|a?max|a?min|mean|var|std|any|all|count_nonzero)(?:_|$)",
    ),
    Rule("index", "cupy_getitem_mask", r"^cupy_(?:take|put|getitem|setitem|scatter|choose|nonzero|place)(?:_|$)"),
    Rule("elementwise", "cupy_subtract__float64_float64_float64", rf"^cupy_{_UFUNCS}(?:__|$)"),
    # --- XLA names a fusion after its root, and a library's call after the operation
    Rule(
        "communication",
        "all-gather-start",
        r"^(?:all-(?:reduce|gather|to-all)|reduce-scatter|collective-\w+)(?:-start|-done)?(?:\.\d+)*$",
    ),
    Rule("linalg", "fft.0.0", r"^(?:fft|cholesky|triangular-solve)(?:\.\d+)+$"),
    Rule(
        "copy",
        "loop_transpose_fusion",
        rf"{_XLA}(?:copy|convert|transpose|concatenate|slice|pad|reverse|reshape|bitcast)(?:_fusion)?(?:[._]\d+)*$",
    ),
    Rule("index", "input_scatter_fusion_2", rf"{_XLA}(?:\w+_)?(?:gather|scatter|dynamic(?:_update)?_slice)"),
    Rule("reduction", "input_reduce_fusion_12", rf"{_XLA}(?:\w+_)?reduce"),
    Rule("elementwise", "loop_broadcast_fusion", rf"{_XLA}(?:\w+_)?fusion|^wrapped_"),
)
