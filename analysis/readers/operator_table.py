"""What PyTorch's operators do on a CPU: which have a kernel of their own, which only call others or make views.

The tables are PyTorch 2.13's own registrations, `aten::` left out: an operator is WORK if one of its overloads
has a kernel for the dispatch key CPU, and NO_WORK if it returns a view, allocates, or has no kernel at all because
it is composed of others. An operator with one kernel for all backends is in neither, and neither does what the
tables do not know, such as other libraries' operators: that is work where it calls no working operator.
"""

from __future__ import annotations

import re
from functools import cache

WORKS, DELEGATES, NOTHING = "works", "delegates", "nothing"

_OPERATOR = re.compile(r"\w+::\w+")
# Inductor's loops are not registered operators; this is how it calls them.
_FUSED_LOOP = "cpp_fused"


@cache
def role(name: str) -> str:
    """Return what an operator of this name does: WORKS, DELEGATES (works unless it calls some) or NOTHING.

    Autograd's nodes, such as `MmBackward0`, are not operators and do nothing themselves.
    """
    if _FUSED_LOOP in name:
        return WORKS
    if not _OPERATOR.fullmatch(name):
        return NOTHING
    bare = name.removeprefix("aten::")
    if bare in _work():
        return WORKS
    return NOTHING if bare in _no_work() else DELEGATES


@cache
def _work() -> frozenset[str]:
    return frozenset(WORK.split())


@cache
def _no_work() -> frozenset[str]:
    return frozenset(NO_WORK.split())


WORK = """
    __ilshift__ __irshift__ __lshift__ __rshift__ _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
    _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _add_relu _add_relu_ _addmm_activation _aminmax
    _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_ _assert_async _batch_norm_with_update
    _cdist_backward _cdist_forward _cholesky_solve_helper _compute_linear_combination
    _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo _convert_weight_to_int4pack_for_cpu
    _ctc_loss _ctc_loss_backward _cummax_helper _cummin_helper _dirichlet_grad _dyn_quant_matmul_4bit
    _dyn_quant_pack_4bit_weight _embedding_bag _embedding_bag_backward _embedding_bag_dense_backward
    _embedding_bag_forward_only _embedding_bag_per_sample_weights_backward _empty_affine_quantized
    _empty_per_channel_affine_quantized _fake_quantize_learnable_per_channel_affine
    _fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine
    _fake_quantize_learnable_per_tensor_affine_backward
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fft_c2c _fft_c2r _fft_r2c _foobar
    _functional_assert_async _fused_adagrad_ _fused_adam_ _fused_adamw_ _fused_moving_avg_obs_fq_helper
    _fused_sdp_choice _fused_sgd_ _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors
    _index_put_impl_ _int_mm _jagged_to_padded_dense_forward _linalg_det _linalg_eigh _linalg_eigvals
    _linalg_slogdet _linalg_solve_ex _linalg_svd _local_scalar_dense _log_softmax _log_softmax_backward_data
    _logcumsumexp _make_dep_token _make_per_channel_quantized_tensor _make_per_tensor_quantized_tensor
    _masked_softmax _masked_softmax_backward _native_batch_norm_legit _native_multi_head_attention
    _nested_compute_contiguous_strides_offsets _nested_from_padded _nested_tensor_from_mask
    _nested_tensor_from_mask_left_aligned _padded_dense_to_jagged_forward _pdist_backward _pdist_forward
    _prelu_kernel _prelu_kernel_backward _sample_dirichlet _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_mm _scaled_mm_v2 _segment_reduce_backward
    _slow_conv2d_backward _slow_conv2d_forward _softmax _softmax_backward_data _spdiags _stack _standard_gamma
    _standard_gamma_grad _test_functorch_fallback _test_optional_filled_intlist _test_optional_floatlist
    _test_optional_intlist _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr
    _transform_bias_rescale_qkv _transformer_encoder_layer_fwd _unique _unique2 _upsample_bicubic2d_aa
    _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward _upsample_nearest_exact1d
    _upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
    _upsample_nearest_exact3d _upsample_nearest_exact3d_backward _validate_compressed_sparse_indices
    _weight_int4pack_mm_for_cpu _weight_int8pack_mm _weight_norm_interface _weight_norm_interface_backward abs
    acos acos_ acosh acosh_ adaptive_avg_pool2d adaptive_avg_pool3d adaptive_avg_pool3d_backward
    adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward add add_
    addbmm addbmm_ addcdiv addcdiv_ addcmul addcmul_ addmm addmm_ addmv addmv_ addr all amax amin aminmax angle
    any arange argmax argmin asin asin_ asinh asinh_ atan atan2 atan2_ atan_ atanh atanh_ avg_pool2d
    avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm baddbmm_ batch_norm_backward
    batch_norm_update_stats bernoulli bernoulli_ binary_cross_entropy binary_cross_entropy_backward bincount
    binomial bitwise_and bitwise_and_ bitwise_left_shift bitwise_left_shift_ bitwise_not bitwise_not_ bitwise_or
    bitwise_or_ bitwise_right_shift bitwise_right_shift_ bitwise_xor bitwise_xor_ bmm bucketize cat cauchy_ ceil
    ceil_ channel_shuffle cholesky cholesky_inverse clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_
    col2im complex conj_physical copysign copysign_ cos cos_ cosh cosh_ count_nonzero cumprod cumprod_ cumsum
    cumsum_ dequantize digamma digamma_ div div_ dot elu elu_ elu_backward embedding_dense_backward
    embedding_renorm_ eq eq_ equal erf erf_ erfc erfc_ erfinv erfinv_ exp exp2 exp2_ exp_ expm1 expm1_
    exponential_ eye fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask fill_
    flip floor floor_ floor_divide floor_divide_ fmax fmin fmod fmod_ frac frac_ fractional_max_pool2d
    fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward frexp from_file gather
    gcd gcd_ ge ge_ gelu gelu_ gelu_backward geometric_ geqrf glu glu_backward glu_backward_jvp glu_jvp
    grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward gt gt_ hardshrink
    hardshrink_backward hardsigmoid hardsigmoid_ hardsigmoid_backward hardswish hardswish_ hardswish_backward
    hardtanh hardtanh_ hardtanh_backward hash_tensor heaviside heaviside_ histc histogram huber_loss
    huber_loss_backward hypot hypot_ i0 i0_ igamma igamma_ igammac igammac_ im2col index index_add index_add_
    index_copy index_copy_ index_fill_ index_reduce index_reduce_ index_select is_set_to isin isnan isneginf
    isposinf kthvalue lcm lcm_ le le_ leaky_relu leaky_relu_ leaky_relu_backward lerp lerp_ lgamma lgamma_
    linalg__powsum linalg_cholesky_ex linalg_cross linalg_eig linalg_eigvals linalg_householder_product
    linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex
    linalg_lu_solve linalg_matrix_exp linalg_qr linalg_solve_triangular linalg_vector_norm linspace log log10
    log10_ log1p log1p_ log2 log2_ log_ log_normal_ log_sigmoid_backward log_sigmoid_forward logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor logit logit_ logit_backward logspace lt lt_
    lu_unpack masked_fill_ masked_scatter_ masked_select max max_pool2d_with_indices
    max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d
    max_unpool3d maximum mean median min minimum mish mish_ mish_backward mkldnn_rnn_layer
    mkldnn_rnn_layer_backward mm mode mse_loss mse_loss_backward mul mul_ multi_margin_loss
    multi_margin_loss_backward multilabel_margin_loss_backward multilabel_margin_loss_forward multinomial
    mvlgamma nan_to_num nanmedian nansum narrow_copy native_batch_norm native_batch_norm_backward
    native_channel_shuffle native_dropout native_dropout_backward native_group_norm native_group_norm_backward
    native_layer_norm native_layer_norm_backward ne ne_ neg neg_ nextafter nextafter_ nll_loss2d_backward
    nll_loss2d_forward nll_loss_backward nll_loss_forward nonzero nonzero_static norm normal normal_ ormqr
    pixel_shuffle pixel_unshuffle poisson polar polygamma pow pow_ prod put_ quantize_per_channel
    quantize_per_tensor quantize_per_tensor_dynamic quantized_gru quantized_lstm random_ randperm range
    reciprocal reciprocal_ reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward
    reflection_pad3d reflection_pad3d_backward relu relu_ remainder remainder_ renorm renorm_ repeat_interleave
    replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
    replication_pad3d_backward roll round round_ rrelu_with_noise rrelu_with_noise_ rsqrt rsqrt_ rsub scatter
    scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ searchsorted segment_reduce sgn sgn_
    sigmoid sigmoid_ sigmoid_backward sign sign_ signbit silu silu_ silu_backward sin sin_ sinc sinc_ sinh sinh_
    slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d
    smooth_l1_loss smooth_l1_loss_backward softplus softplus_backward softshrink softshrink_backward sort
    special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_entr special_erfcx special_hermite_polynomial_h
    special_hermite_polynomial_he special_i0e special_i1 special_i1e special_laguerre_polynomial_l
    special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_zeta sqrt sqrt_
    sspaddmm std std_mean sub sub_ sum take tan tan_ tanh tanh_ tanh_backward threshold threshold_
    threshold_backward to_mkldnn topk trace triangular_solve tril tril_ tril_indices triu triu_ triu_indices
    trunc trunc_ unfold_backward uniform_ unique_consecutive unique_dim unique_dim_consecutive
    upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
    upsample_linear1d upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward
    upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward
    upsample_trilinear3d upsample_trilinear3d_backward var var_mean vdot where xlogy xlogy_ zero_
"""

NO_WORK = """
    __and__ __iand__ __ior__ __ixor__ __or__ __xor__ _add_batch_dim _autocast_to_full_precision
    _autocast_to_reduced_precision _backward _batch_norm_impl_index _batch_norm_impl_index_backward _cast_Byte
    _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short _choose_qparams_per_tensor
    _coalesced_ _conj _conv_depthwise2d _convert_weight_to_int4pack _convolution_double_backward
    _convolution_mode _cslt_compress _cslt_sparse_mm _cslt_sparse_mm_search _cudnn_attention_backward
    _cudnn_attention_forward _cufft_clear_plan_cache _cufft_get_plan_cache_max_size _cufft_get_plan_cache_size
    _cufft_set_plan_cache_max_size _debug_has_internal_overlap _dimI _dimV _dim_arange
    _efficient_attention_backward _efficient_attention_forward _efficientzerotensor
    _embedding_bag_sparse_backward _fill_mem_eff_dropout_mask_ _flash_attention_backward
    _flash_attention_forward _flash_attention_forward_no_dropout_inplace _fused_rms_norm
    _fused_rms_norm_backward _fw_primal _gather_sparse_backward _has_compatible_shallow_copy_type _indices
    _is_zerotensor _lu_with_info _make_dual _mixed_dtypes_linear _mkldnn_transpose_ _neg_view
    _nested_from_padded_tensor _nested_get_jagged_dummy _nested_get_lengths _nested_get_max_seqlen
    _nested_get_min_seqlen _nested_get_offsets _nested_get_ragged_idx _nested_get_values _nested_select_backward
    _nested_sum_backward _nested_tensor_softmax_with_shape _nested_view_from_buffer _nested_view_from_jagged
    _nnpack_available _nnz _pack_padded_sequence_backward _pad_circular _pad_enum _pad_packed_sequence
    _philox_key_fold_in _philox_key_split _philox_normal_ _philox_uniform_ _propagate_xla_data _remove_batch_dim
    _reshape_alias _reshape_from_tensor _resize_output_ _rowwise_prune _saturate_weight_to_fp16
    _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward _scaled_grouped_mm
    _scaled_grouped_mm_v2 _shape_as_tensor _sobol_engine_draw _sobol_engine_ff_ _sobol_engine_initialize_state_
    _sobol_engine_scramble_ _sparse_broadcast_to _sparse_bsc_tensor_unsafe _sparse_bsr_tensor_unsafe
    _sparse_compressed_tensor_unsafe _sparse_coo_tensor_unsafe _sparse_csc_tensor_unsafe
    _sparse_csr_tensor_unsafe _sparse_mm _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward
    _sparse_semi_structured_addmm _sparse_semi_structured_apply _sparse_semi_structured_apply_dense
    _sparse_semi_structured_linear _sparse_semi_structured_mm _sparse_semi_structured_tile _spsolve
    _test_ambiguous_defaults _test_autograd_multiple_dispatch_view _test_check_tensor
    _test_serialization_subcmul _test_string_default _thnn_differentiable_gru_cell_backward
    _thnn_differentiable_lstm_cell_backward _thnn_fused_lstm_cell_backward _to_cpu _to_sparse_semi_structured
    _unpack_dual _unsafe_view _use_cudnn_ctc_loss _use_cudnn_rnn_flatten_weight _use_miopen_ctc_loss
    _validate_sparse_bsc_tensor_args _validate_sparse_bsr_tensor_args _validate_sparse_compressed_tensor_args
    _validate_sparse_coo_tensor_args _validate_sparse_csc_tensor_args _validate_sparse_csr_tensor_args _values
    _version _weight_int4pack_mm _weight_int4pack_mm_with_scales_and_zeros _weight_norm
    _weight_norm_differentiable_backward _wrapped_linear_prepack _wrapped_quantized_linear_prepacked absolute
    absolute_ adaptive_max_pool1d adjoint affine_grid_generator_backward alias alpha_dropout alpha_dropout_
    arccos arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan2 arctan2_ arctan_ arctanh
    arctanh_ argsort argwhere as_strided as_strided_ atleast_1d atleast_2d atleast_3d batch_norm
    batch_norm_elemt bilinear broadcast_tensors broadcast_to can_cast cartesian_prod ccol_indices cdist
    chain_matmul chalf choose_qparams_optimized chunk clip clip_ coalesce col_indices column_stack combinations
    concat concatenate conj contiguous conv1d conv2d conv3d conv_tbc_backward conv_transpose1d conv_transpose2d
    conv_transpose3d copy_sparse_to_sparse_ corrcoef cosine_embedding_loss cosine_similarity cov cross
    cross_entropy_loss crow_indices ctc_loss cudnn_batch_norm cudnn_convolution cudnn_is_acceptable
    cummaxmin_backward cumprod_backward cumulative_trapezoid data det detach diag diagflat diagonal diff dim
    divide divide_ dropout dropout_ dsplit dstack einsum embedding_backward embedding_bag
    embedding_sparse_backward empty empty_like empty_permuted empty_strided expand expand_as
    fake_quantize_per_channel_affine fake_quantize_per_channel_affine_cachemask_backward
    fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask_backward fbgemm_linear_fp16_weight
    fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight
    fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16
    fbgemm_pack_quantized_matrix feature_alpha_dropout feature_alpha_dropout_ feature_dropout feature_dropout_
    fft_fft fft_fft2 fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn
    fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn
    fill_diagonal_ fix fix_ flatten flatten_dense_tensors fliplr flipud float_power float_power_ frobenius_norm
    fused_moving_avg_obs_fake_quant gather_backward ger get_device get_gradients gradient greater greater_
    greater_equal greater_equal_ grid_sampler group_norm gru gru_cell hinge_embedding_loss histogramdd hsplit
    hspmm hstack imag index_select_backward indices infinitely_differentiable_gelu_backward inner instance_norm
    inverse is_complex is_conj is_contiguous is_distributed is_floating_point is_inference is_leaf is_neg
    is_nonzero is_signed is_vulkan_available isclose isfinite isreal istft item kl_div kron l1_loss layer_norm
    less less_ less_equal less_equal_ lift_fresh linalg_cholesky linalg_cond linalg_det linalg_diagonal
    linalg_eigh linalg_eigvalsh linalg_inv linalg_ldl_factor linalg_lu_factor linalg_matmul linalg_matrix_norm
    linalg_matrix_power linalg_matrix_rank linalg_multi_dot linalg_norm linalg_slogdet linalg_solve
    linalg_solve_ex linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot
    log_sigmoid logdet lstm lstm_cell lu_solve mH mT margin_ranking_loss masked_select_backward matmul matrix_H
    matrix_exp matrix_exp_backward matrix_power max_pool1d max_pool1d_with_indices max_pool2d max_pool3d
    meshgrid miopen_convolution_add_relu miopen_convolution_relu mkldnn_adaptive_avg_pool2d moveaxis movedim
    msort multilabel_margin_loss multiply multiply_ nanmean nanquantile narrow negative negative_
    nested_to_padded_tensor new_empty new_empty_strided nll_loss nll_loss2d nll_loss_nd nonzero_numpy
    norm_except_dim not_equal not_equal_ nuclear_norm numel numpy_T one_hot orgqr outer output_nr pad
    pad_sequence pairwise_distance pdist permute pin_memory pinverse poisson_nll_loss positive prelu
    promote_types q_per_channel_axis q_scale q_zero_point qr qscheme quantile quantized_gru_cell
    quantized_lstm_cell quantized_rnn_relu_cell quantized_rnn_tanh_cell ravel real record_stream relu6 relu6_
    requires_grad_ reshape reshape_as resize_ resize_as_ resize_as_sparse_ resolve_conj resolve_neg result_type
    retain_grad retains_grad rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell row_indices row_stack rrelu
    rrelu_ scaled_dot_product_attention select selu selu_ set_ set_data size slice slice_inverse slogdet
    slow_conv3d smm sparse_bsc_tensor sparse_bsr_tensor sparse_csc_tensor sparse_csr_tensor sparse_resize_
    sparse_resize_and_clear_ sparse_sampled_addmm special_digamma special_erf special_erfc special_erfinv
    special_exp2 special_expit special_expm1 special_gammainc special_gammaincc special_gammaln special_i0
    special_log1p special_log_softmax special_logit special_logsumexp special_multigammaln special_ndtr
    special_polygamma special_psi special_round special_sinc special_softmax special_xlogy split
    split_with_sizes square square_ squeeze stft storage_offset stride subtract subtract_ sum_to_size svd
    swapaxes swapaxes_ swapdims swapdims_ sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride t
    take_along_dim tensor_split tensordot thnn_conv2d tile to to_dense to_dense_backward to_mkldnn_backward
    to_sparse to_sparse_bsc to_sparse_bsr to_sparse_csc to_sparse_csr trace_backward transpose trapezoid trapz
    triplet_margin_loss true_divide true_divide_ type_as unbind unflatten unflatten_dense_tensors unfold
    unsafe_chunk unsqueeze value_selecting_reduction_backward values vander view view_as view_as_complex
    view_as_real vsplit vstack
"""
