"""The table that says what kind of work a kernel does: first match, over the parts of its demangled name.

`head` is searched in the kernel's own function (namespaces included, template arguments and parameters not),
`inside` in its template arguments and parameters: the functor of an element-wise kernel decides between
element-wise and copy, the instance inside `cutlass::Kernel2` between GEMM, convolution and attention, and a
template argument that only mentions another operation decides nothing. What no rule knows is `other`.

Decisions that a reader may want to know:

- A copy or cast is a kernel whose *functor* copies. An addition that loads with a cast is an addition.
- Matrix-vector and dot products of cuBLAS are gemm. So is what a GEMM leaves to a second kernel (split-K sums,
  epilogues): rules marked `helper`, whose launches are not counted as GEMMs.
- Triton's generated kernels are classed by their template or loop first: `tem` is a GEMM (or the attention or
  convolution it names), since an `addmm` in the name of a `poi` kernel is only the bias behind it. Then by
  the rarest of the fused operations: normalization (by name, or a mean with rsqrt), softmax (by name, or max,
  exp and sum), scan. A `red` or `per` kernel without these is a reduction; a `poi` kernel is index or rng
  where it names such an operation, copy where it names nothing but copies and views, else element-wise.
  PyTorch keeps the first ten operations of a long name only.
- Losses sum what they gather: reduction. A cross entropy fused with its softmax is softmax. Pooling is a
  reduction over windows, dropout is rng, rotary embeddings are element-wise, quantization is a cast.
- Every multi-tensor kernel (`_foreach_*`, gradient clipping among them) is optimizer, but one that only copies:
  CUDA graphs fill their inputs so.
- Operators recorded on a CPU (`aten::mm`) go through the same table. `aten::linear` and `aten::matmul` only call
  the operator that multiplies, which counts as the GEMM.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One row of the table: a kernel that `head` (and `inside`, where given) matches is of `category`."""

    category: str
    head: str
    example: str
    inside: str = ""
    helper: bool = False


_TRITON = r"^(?:triton_(?:poi|per|red|mix|spl)|cpp)_fused_"
_CUTLASS = r"^(?:cutlass\w*::)?(?:Kernel2?|device_kernel)$"
_VIEWS = (
    r"(?:to_copy|clone|copy|cat|stack|constant_pad_nd|repeat|flip|roll|view|unsafe_view|reshape|transpose|t"
    r"|permute|expand|unsqueeze|squeeze|slice|slice_backward|select|split|split_with_sizes|unbind|alias|detach"
    r"|as_strided|mm|bmm)"
)

RULES = (
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
    # --- communication
    Rule(
        "communication",
        r"^(?:nccl|rccl|gloo:|c10d::|_c10d_functional::)|mscclpp|nvshmem|deep_ep|symm_mem",
        "ncclDevKernel_SendRecv",
    ),
    Rule(
        "communication",
        r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|multimem",
        "vllm::cross_device_reduce_1stage",
    ),
    # --- matrix work: attention before convolution before GEMM, whose words they contain
    Rule("copy", r"reshape_and_cache|concat_and_cache", "vllm::reshape_and_cache_flash_kernel"),
    Rule(
        "attention",
        r"(?i)attention|attn|fmha|sdpa|flash_(?:fwd|bwd)|flash::|scaled_dot_product|\bmha_|dot_do_o|convert_dq|Batch(?:Prefill|Decode)With",
        "flash::flash_fwd_kernel",
    ),
    Rule(
        "attention",
        _CUTLASS,
        "cutlass::device_kernel<flash::FlashAttnFwdSm90<…>>",
        inside=r"(?i)flash|fmha|attention",
    ),
    Rule(
        "convolution",
        r"(?i)fprop|dgrad|wgrad|implicit_(?:gemm|convolve)|convolve|winograd|conv_?(?:transpose|depthwise)?[123]d|"
        r"::conv[_\d]|_conv_|[sh]cudnn_|flip_filter|depthwise|im2col|col2im|fft2d_|computeOffsetsKernel",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_…",
    ),
    Rule(
        "convolution",
        _CUTLASS,
        "cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_…>",
        inside=r"fprop|dgrad|wgrad|conv",
    ),
    Rule(
        "gemm",
        r"(?i)splitk_?reduce|reduce_splitk|split_k_kernel|reduce_1Block_kernel|cublasLt::epilogue|prepare_grouped_gemm|group_gemm_starts",
        "cublasLt::splitKreduce_kernel",
        helper=True,
    ),
    Rule(
        "gemm",
        _CUTLASS,
        "cutlass::Kernel<cutlass::reduction::kernel::ReduceSplitK<…>>",
        inside=r"ReduceSplitK",
        helper=True,
    ),
    Rule("gemm", _CUTLASS, "cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>", inside=r"(?i)gemm"),
    Rule(
        "gemm",
        r"(?i)gemm[^:]*$|gemv|nvjet_|matmul|mul_mat|marlin|^Cijk_|^bmm_|^dot_kernel|fused_moe_kernel|_mm_kernel",
        "ampere_sgemm_128x64_tn",
    ),
    # --- reductions over a row that have a name of their own
    Rule("softmax", r"(?i)softmax|cross_entropy_kernel", "at::native::cunn_SoftMaxForward"),
    Rule(
        "normalization",
        r"(?i)(?:layer|batch|group|rms|instance|weight|rmsnorm|layernorm)_?norm|RowwiseMoments|GammaBeta|"
        r"InternalGradients|FusedParams|\bbn_|\bln_(?:fwd|bwd|parallel)|cuComputeGradInput|cuComputePartGrad",
        "at::native::vectorized_layer_norm_kernel",
    ),
    Rule(
        "copy",
        r"multi_tensor_apply",
        "at::native::multi_tensor_apply_kernel<M, at::native::Copy<long, long>>",
        inside=r"\bCopy<",
    ),
    Rule(
        "optimizer",
        r"(?i)multi_tensor_apply|_foreach_|fused_?(?:adam|sgd|adagrad|lamb)|adam|lpnorm_cleanup|amp_update_scale|"
        r"amp_non_finite|kOptimizer",
        "at::native::multi_tensor_apply_kernel",
    ),
    # --- PyTorch's own kernels, and what follows their naming
    Rule("elementwise", r"(?i)rotary|fused_rope|apply_rope", "vllm::rotary_embedding_kernel"),
    Rule(
        "index",
        r"index_elementwise|scatter_gather|(?i:indexing_backward|vectorized_gather|indexSelect|indexFunc|indexAdd|"
        r"index_put|index_(?:copy|fill|add|select)|embedding|gather_kernel|scatter|masked_select|write_indices|"
        r"compute_grad_weight|sum_and_scatter|segment_offset|partial_segments|num_of_segments|repeat_interleave|upsample|grid_sampler|moe_align)",
        "at::native::vectorized_gather_kernel",
    ),
    Rule(
        "rng",
        r"(?i)distribution_|dropout_kernel|philox|curand|bernoulli|multinomial|randperm|random",
        "at::native::fused_dropout_kernel_vec",
    ),
    Rule(
        "copy",
        r"elementwise_kernel",
        "at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(…)::[lambda…]>",
        inside=r"direct_copy_kernel|float\w*_copy_kernel|half_copy_kernel|conj_copy|[^a-z]copy_kernel|flip_kernel",
    ),
    Rule("elementwise", r"(?i)elementwise|pointwise", "at::native::vectorized_elementwise_kernel"),
    Rule(
        "scan",
        r"(?i)sort|DeviceScan|_scan\b|scan_|DeviceSelect|DeviceCompact|DevicePartition|DeviceUnique|RunLength|"
        r"top_?k|cumsum|cumprod|kthvalue|radixFind|computeBlockwise|computeDigit|prefix_sum|reverse_indices|"
        r"index_and_segment",
        "cub::DeviceRadixSortOnesweepKernel",
    ),
    Rule(
        "scan",
        r"_kernel_agent$",
        "thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__scan::ScanAgent<…>>",
        inside=r"__scan|[Ss]ort|__unique|__partition|__copy_if",
    ),
    Rule(
        "reduction",
        r"_kernel_agent$",
        "thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__reduce::ReduceAgent<…>>",
        inside=r"__reduce",
    ),
    Rule(
        "elementwise",
        r"_kernel_agent$|for_each::static_kernel$|transform_kernel$",
        "thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<…>>",
        inside=r"transform|fill|tabulate|for_each|parallel_for",
    ),
    Rule(
        "reduction",
        r"(?i)reduce|reduction|nll_loss|ClassNLL|_loss|argm(?:ax|in)|asum_kernel|nrm2|iamax|histogram|pool|welford|logsumexp|cdist",
        "at::native::reduce_kernel",
    ),
    Rule(
        "copy",
        r"(?i)CatArray|copy|cast|transpose|nchwTo|nhwcTo|AddPadding|chunk_cat|split_with_sizes|_pad\d?d?_|memcpy|"
        r"roll_cuda|flip|permute|quant|convert|concat",
        "at::native::CatArrayBatchedCopy",
    ),
    Rule(
        "elementwise",
        r"(?i)act_and_mul|silu|gelu|relu|[a-z]*glu_|sigmoid|tanh|bias|fill|triu_tril|arange|op_tensor|op_generic|"
        r"scal_kernel|axpy|masked_scale|scalePackedTensor",
        "vllm::act_and_mul_kernel",
    ),
)
