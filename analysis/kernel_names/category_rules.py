"""The table of kernel categories: first match, over the parts of its demangled name.

`head` is searched in the kernel's own function (namespaces included, template arguments and parameters not),
`inside` in its template arguments and parameters: the functor of an element-wise kernel decides between
element-wise and copy, the instance inside `cutlass::Kernel2` between GEMM, convolution and attention, and a
template argument that only mentions another operation decides nothing. `words` are whole words of the function's
name, in snake case: `fill` is a word of `FillKernel` and of `fill_2d`, and of no `Prefill`. A kernel that no
rule matches is `other`.

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
- What cuSOLVER, cuBLAS's triangular solves and cuFFT do is linalg. The Fourier transforms inside a convolution of
  cuDNN's belong to the convolution.
- Losses sum what they gather: reduction. A cross entropy fused with its softmax is softmax. Pooling is a
  reduction over windows, dropout is rng, rotary embeddings are element-wise, quantization is a cast.
- Every multi-tensor kernel (`_foreach_*`, also for gradient clipping) is optimizer, except one that only copies,
  with which CUDA graphs fill their inputs.
- Unfused attention's parts keep their names (a softmax is a softmax); what merges the parts of a split fused
  attention is attention. Writing keys and values into a cache is a copy. Routing tokens to experts is index, a
  top-k among them scan. A state-space model's chunked scan is scan, its convolution a convolution.
- Positions, metadata and inputs that are prepared for attention or experts are index; rows and pages that are
  moved are copies. A rotary embedding fused with a norm is a normalization. Hadamard transforms are linalg.
- XLA names a fusion after its root: `loop_transpose_fusion` copies, `loop_broadcast_fusion` computes. TensorRT's
  Myelin joins all that it fused: the product, the norm or the sum in `__myl_FcMulAdd` decides, as for Triton.
- The last rules have one word each that other names use for something else: they see what no other rule knows.
- Operators recorded on a CPU (`aten::mm`) go through the same table. `aten::linear` and `aten::matmul` only call
  the operator that multiplies, which counts as the GEMM. Views are copies, as in Triton's names, and what
  allocates is element-wise, as what fills. A node of autograd's (`AddmmBackward0`) has the category of its
  operator, and is no GEMM itself.
"""

from __future__ import annotations

from .generated_rules import GENERATED_RULES, Rule
from .library_rules import LIBRARY_RULES

_CUTLASS = r"^(?:cutlass\w*::)?(?:Kernel2?|device_kernel)$"
_CK_TILE = r"^ck_tile::k?entry"

RULES = (
    *GENERATED_RULES,
    *LIBRARY_RULES,
    # --- communication
    Rule(
        "communication",
        "ncclDevKernel_SendRecv",
        r"^(?:nccl|rccl|gloo:|c10d::|_c10d_functional::|mori::|uccl::|pplx::)|msccl|nvshmem|rocshmem|symm_mem|"
        r"userbuffers|^ub_|mnnvl",
    ),
    Rule(
        "communication",
        "vllm::cross_device_reduce_1stage",
        r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all|cross_device_reduce|multimem",
    ),
    # --- experts' libraries: DeepEP and what was made of it in any namespace, mori, pplx, hybrid_ep, TensorRT-LLM
    Rule(
        "communication",
        "dpsk::ep::internode::notify_dispatch",
        r"(?:^|::)(?:\w+_)?ep::|(?:^|::)(?:dispatch|combine)(?:Kernel|_kernel|_impl)?$|"
        r"(?:^|::)(?:cached_)?notify(?:_dispatch|_combine)?$",
    ),
    Rule(
        "communication",
        "EpDispatchIntraNodeKernel",
        words=r"int(?:ra|er)_?node\w* ep_(?:dispatch|combine)\w* (?:\w+_)?a2_?a (?:dispatch|combine)_tokens?"
        r" (?:dispatch|combine)_(?:send|recv)\w* moe_comm (?:ag|ar|rs)_gfx\d+ lamport\w* barrier"
        r" one_rank_reduce nvls rsag\d* push_(?:oneshot|remote)\w* remote_push reduce_symmetric",
    ),
    # --- matrix work: attention before convolution before GEMM, whose words they contain
    # --- ROCm's generic kernels say inside what they do
    Rule("attention", "ck_tile::kentry<1, ck_tile::FmhaFwdKernel<…>>", _CK_TILE, inside=r"Fmha"),
    Rule("normalization", "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdI…", _CK_TILE, inside=r"(?i)(?:rms|layer)norm"),
    Rule("gemm", "ck_tile::kentry<1, ck_tile::GemmKernel<…>>", _CK_TILE, inside=r"Gemm"),
    Rule("index", "ck_tile::kentry<2, ck_tile::MoeSortingKernel<…>>", _CK_TILE, inside=r"(?i)moe_?sort"),
    Rule(
        "scan",
        "rocprim::detail::trampoline_kernel<…radix_sort_config_selector…>",
        _CK_TILE + r"|rocprim::.*(?:trampoline_|_)kernel$",
        inside=r"[Ss]ort|[Tt]op_?[Kk]|[^a-z]scan|partition|select_|unique|run_length",
    ),
    Rule(
        "reduction",
        "rocprim::detail::trampoline_kernel<…reduce_config_selector…>",
        _CK_TILE + r"|rocprim::.*trampoline_kernel$",
        inside=r"(?i)reduc|histogram",
    ),
    Rule(
        "elementwise",
        "rocprim::detail::trampoline_kernel<…transform_config_selector…>",
        r"rocprim::.*trampoline_kernel$",
        inside=r"transform",
    ),
    Rule(
        "copy",
        "vllm::reshape_and_cache_flash_kernel",
        r"(?:reshape|concat)_and_cache|(?:store|write|copy|set|append)_(?:mla_)?kv_?(?:cache|buffer)|"
        r"(?:^|_)qkv(?:zba)?_split(?:_(?:gdn|kda|reshape|cat|contiguous|prefill|decode))*(?:_kernel)?$|"
        r"(?:^|_)qkvzba_(?:prefill|decode)",
    ),
    # --- kernels that prepare, move and list data for attention, experts and GEMMs, and are not part of these
    Rule(
        "copy",
        "_stage_compact_index_pages",
        words=r"(?:append|set|insert)_(?:paged_)?kv\w* (?:latent|cache)_(?:write|insert) kv_transfer"
        r" \w*repack stage_(?:\w+_)*(?:pages?|inputs?|rows|planes?|blocks?)"
        r" (?:store|load|save|restore|copy)_(?:\w+_)*states? states?_(?:snapshot|copy) copy_(?:to|from)"
        r" destindex_copy",
    ),
    Rule(
        "index",
        "rtp_llm::buildAttentionInputMetadataKernel",
        words=r"metadata prepare_(?:\w+_)*(?:inputs?|topk)"
        r" (?:pre|post)_reorder gather_(?:kv_)?cache gather_from global_topk_(?:indices|slots)"
        r" topk_(?:lens|to_(?:\w+_)*slots)",
    ),
    # --- linear attention and state spaces scan; what normalizes queries and keys is no attention
    Rule(
        "normalization",
        "fusedQKNormRopeKernel",
        words=r"qkv?_(?:\w+_)?(?:rms|layer|l2)?norm l2_?norm\w* norm_rope rope_norm",
    ),
    Rule("elementwise", "fused_gdn_gating_kernel", words=r"(?:gdn|kda|gla)_gating\w*"),
    Rule("scan", "chunk_fwd_kernel_o", r"^_?(?:fused_)?chunk(?:wise)?_\w*(?:fwd|bwd)|^_?parallel_(?:re)?based_"),
    Rule(
        "scan",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
        words=r"delta_(?:rule|net) gdn\w* kda kkt wy(?:_repr)? recompute_w_u solve_tril"
        r" merge_\d+x\d+_to_\d+x\d+_inverse fused_recurrent rwkv\d* gla gsa hgrn\d? retention dplr iplr comba"
        r" mesa_net mamba\d* ssd ssm ssu gdr selective_state\w* (?:linear|lightning)_(?:attention|attn)\w*"
        r" gated_delta recurren(?:t|ce) initial_states?",
    ),
    Rule(
        "attention",
        "flash::flash_fwd_kernel",
        r"(?i)attention|attn|fmha|sdpa|flash_(?:fwd|bwd)|flash::|flash_?mla|"
        r"scaled_dot_product|\bmha_|dot_do_o|convert_dq|(?:Batch|Single)(?:Prefill|Decode)With|(?:^|_)sage_(?:fwd|bwd)|"
        r"(?:^|[^a-z])mla_(?:fwd|bwd|merge|reduce)|mla_(?:decode|prefill)|^reduce_segments(?:_|$)|merge_?states?|"
        r"_mha_|^_fwd_(?:grouped_)?kernel_stage[12](?:_|$)|^_?(?:fwd|bwd)_(?:pre|post)process|^_(?:fwd|bwd)_kernel$|"
        r"^_?(?:fwd|bwd)_kernel_(?:(?:non)?causal|one_col|alibi|token_att\d?|(?:int|fp)8_?kv|no_prompt_cache)(?:_|$)|flash_(?:decode|prefill)|"
        r"(?:^|::)fwd_b?fp?\d+_\d+t(?:_|$)|(?:^|::)pa_(?:b?fp?\d+|a\d+w\d+)_|"
        r"^_?bwd_kernel_(?:\w+_)?(?:fuse|d[kqv])|(?:^|_)pa_(?:prefill|decode)|^_?parallel_\w+_(?:fwd|bwd)_kernel",
    ),
    Rule(
        "attention",
        "cutlass::device_kernel<flash::FlashAttnFwdSm90<…>>",
        _CUTLASS,
        inside=r"(?i)flash|fmha|attention",
    ),
    Rule(
        "linalg",
        "void trsv_ln_exec<float, (unsigned int)32, (unsigned int)32, (unsigned int)4, (bool)0>",
        r"(?i)(?:^|[^a-z])[sdcz]?(?:trs[mv]|trtri|xxtrf\d?|getr[fs]|getf2|potr[fsi]|potf2|geqr[f2]|(?:or|un)[mg][ql]r|"
        r"(?:sy|he)(?:ev|trd)\w*|gesvd\w*|gebrd|la(?:swp|scl|rf[tbg]?|cpy|set|ed\d)|stedc|svd)(?:[^a-z]|$)|cholesky|"
        r"batch_(?:fnrma|eye)|^off[ad]_stage|^colperm|linalg_",
    ),
    Rule(
        "linalg",
        "void kernel<getrf_wo_pivot_params_<float, (int)0, (int)256, (int)1, (int)64, (int)64, (int)68, (int)8>>",
        r"^kernel$",
        inside=r"(?:getrf|potrf|geqrf|trs[mv])_",
    ),
    Rule(
        "linalg",
        "void vector_fft_r2c<(unsigned int)64, EPT<(unsigned int)8>, (unsigned int)8>",
        r"(?i)(?:^|[^a-z])_?fft(?:_(?:r2c|c2r|c2c)|$)|(?:regular|vector|composite|multi|bluestein)\w*_fft|"
        r"^(?:sp|dp)(?:radix|vector|real)|bluestein",
    ),
    Rule(
        "convolution",
        "cask_plugin__5x_cudnn::…::init_device_workspace_kernel",
        r"init_device_workspace",
        helper=True,
    ),
    Rule(
        "convolution",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_…",
        r"(?i)fprop|dgrad|wgrad|implicit_(?:gemm|convolve)|convolve|winograd|conv_?(?:transpose|depthwise)?[123]d|"
        r"::conv[_\d]|_conv_|[sh]cudnn_|flip_filter|depthwise|"
        r"im2d?2?col|col2im|fft[12]d_|compute[AB]?OffsetsKernel|^igemm_|bwd_weight|bwd_data|causal_?conv|fft_?conv",
    ),
    Rule(
        "convolution",
        "cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_…>",
        _CUTLASS,
        inside=r"fprop|dgrad|wgrad|conv",
    ),
    Rule(
        "gemm",
        "cublasLt::splitKreduce_kernel",
        r"(?i)splitk_?reduce|reduce_splitk|split_k_kernel|reduce_1Block_kernel|cublasLt::epilogue|cublasLtEpilogue|"
        r"(?:prepare|setup)_grouped_gemm|group_gemm_starts|finalize_matmul|computeStrides",
        helper=True,
    ),
    Rule(
        "gemm",
        "cutlass::Kernel<cutlass::reduction::kernel::ReduceSplitK<…>>",
        _CUTLASS,
        inside=r"ReduceSplitK",
        helper=True,
    ),
    Rule("gemm", "cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>", _CUTLASS, inside=r"(?i)gemm"),
    Rule(
        "gemm",
        "ampere_sgemm_128x64_tn",
        r"(?:[Gg]emm|GEMM)(?:[^a:][^:]*)?$|(?i:gemv|nvjet_|matmul|mul_mat|marlin|(?:^|_)Cijk_|^bmm_|^dot_kernel|"
        r"fused_moe_kernel|(?:^|_)(?:b?mm|grouped_mm|scaled_mm)(?:_chunk\w*)?(?:_kernel|_fwd|_bwd|$)|wv_?splitk|"
        r"skinny|LLMM|(?:^|[^a-z])(?:spmm|spmv|sddmm|csrmm)|(?:^|_)moe_(?:\w+_)?q\d|routed_moe|(?:^|_)w?mfma_|^wmma_|"
        r"(?:^|[^a-z])fmoe_)",
    ),
    Rule(
        "gemm",
        "_lora_shrink_kernel",
        words=r"lora_(?:shrink|expand) moe_lora bmm mmv[qf] (?:mega|e2_?e)_moe_(?:impl|kernel|persistent)"
        r" fc1_?fc2 fused_moe_(?:\w+_)*(?:fp\d|w\d+a\d+|int\d)\w*_kernel fused_moe_(?:kernel|persistent)\w*"
        r" moe_stage\d t?gmm [sb]gmv\w*"
        r" (?:up|down|gate|kv_[ab]|[qkvo]|qkv|out)_proj mhc_fused\w*",
    ),
    # --- CUTLASS 4 and ThunderKittens say inside what their generic kernels do
    Rule(
        "gemm",
        "kernel_cutlass_kernel_TiledMMA_ThrLayoutVMNK11110000_PermutationMNK",
        r"^kernel_cutlass(?:_kernel)?$",
        inside=r"TiledMMA",
    ),
    Rule(
        "gemm",
        "kernel_cutlass_kernel_tensorrt_llm_torchcute_dsl_kernelsblackwelldense",
        r"^kernel_cutlass\w*dense$",
    ),
    Rule(
        "gemm",
        "kittens::prototype::lcf::kernel<matmul_template<2> >",
        r"^kittens::\w+::.*kernel$",
        inside="matmul",
    ),
    # cuDNN's recurrent layers: the products of all time steps, with what is between them, in one kernel
    Rule("gemm", "RNN_blockPersist_fp_GRU_HMMA", r"RNN_(?:block|grid)?[Pp]ersist|persist\w*RNN(?:_[fb]p|$)"),
    # --- reductions over a row that have a name of their own
    Rule("scan", "vllm::moe::topkGatingSoftmax", words=r"topk_(?:\w+_)?gating\w* topk_?softmax\w*"),
    Rule(
        "softmax", "at::native::cunn_SoftMaxForward", r"(?i)soft_?max|sparse_?max|cross_?entropy|vocab_parallel_ce"
    ),
    Rule(
        "normalization",
        "at::native::vectorized_layer_norm_kernel",
        r"(?i)(?:layer|batch|group|rms|instance|weight|rmsnorm|layernorm)_?norm|RowwiseMoments|GammaBeta|"
        r"InternalGradients|FusedParams|\bbn_|\bln_(?:fwd|bwd|parallel)|cuComputeGradInput|cuComputePartGrad|sinkhorn|"
        r"(?:^|[^a-z])rms_",
    ),
    Rule(
        "copy",
        "at::native::multi_tensor_apply_kernel<M, at::native::Copy<long, long>>",
        r"multi_tensor_apply",
        inside=r"\bCopy<",
    ),
    Rule(
        "optimizer",
        "at::native::multi_tensor_apply_kernel",
        r"(?i)multi_tensor_apply|_foreach_|lpnorm_cleanup|amp_update_scale|amp_non_finite|kOptimizer",
    ),
    Rule(
        "optimizer",
        "fused_adam_cuda_kernel",
        words=r"adamw? fused_?(?:adamw?|sgd|adagrad|lamb|lion) lamb_stage\d optimizer\w*",
    ),
    # --- PyTorch's own kernels, and what follows their naming
    Rule("elementwise", "vllm::rotary_embedding_kernel", words=r"rotary\w* m?rope"),
    Rule(
        "index",
        "moe::dev::routing::routingRenormalize::routingIndicesBlockKernel",
        r"(?i)routing|moe_?(?:align|permute|unpermute|finalize|expand)|expand_?input_?rows|finalize_?moe|"
        r"moe_fused_gate|(?:^|_)(?:fused_)?route_|bounds_check_indices|"
        r"offsets_range|expert_offsets",
    ),
    Rule(
        "index",
        "at::native::vectorized_gather_kernel",
        r"index_elementwise|scatter_gather|(?i:indexing_backward|vectorized_gather|indexSelect|indexFunc|indexAdd|"
        r"index_put|(?:^|[^a-z])index_(?:copy|fill|add|select|mul)|embedding|gather_kernel|scatter|masked_select|write_indices|"
        r"compute_grad_weight|sum_and_scatter|segment_offset|partials?_(?:segment|per_segment|to_segment)|num_of_segments|repeat_interleave|upsample|grid_sampler|moe_align)",
    ),
    Rule(
        "index",
        "aiter::mxfp4_moe_sort_kernel",
        words=r"(?:moe|experts?)_(?:\w+_)*(?:sort\w*|maps?|prefix_sum\w*|counts?|offsets?|histogram|finalize\w*|reorder)"
        r" sort_experts? router_sort token_gather\w* bitmatrix (?:pre|post)_reorder",
    ),
    Rule(
        "rng",
        "at::native::fused_dropout_kernel_vec",
        r"(?i)distribution_|dropout_kernel|philox|curand|bernoulli|multinomial|randperm|random",
    ),
    Rule("scan", "flashinfer::sampling::TopPRenormProbKernel", words=r"top_[kp]_(?:renorm|mask)\w*"),
    Rule(
        "rng",
        "flashinfer::sampling::TopKTopPSamplingFromProbKernel",
        words=r"sampl(?:e|ed|ing) ssampling gumbel\w* rejection rand_\w+ (?:generate_)?seed gen_sequenced"
        r" verify_(?:tree|chain)",
    ),
    # --- an engine's own lists: which token is where
    Rule("scan", "_topk_to_block_table_multirow_kernel", words=r"topk_to_(?:\w+_)*tables?"),
    Rule(
        "index",
        "compute_position_kernel",
        words=r"req_to_token\w* token_to_req\w* slot_mappings? block_tables? page_tables? src2dst \w*indptr"
        r" kv_splits"
        r" (?:compute|update|prepare|get|fill)_(?:\w+_)?(?:positions?|pos|seq_?lens?|offsets|metadata)"
        r" next_token\w* build_tree\w* draft_tokens? coalesce\w* compressed_to_plain row_id_map",
    ),
    Rule(
        "copy",
        "fbgemm_gpu::permute_pooled_embs_kernel",
        r"(?i)permute_(?:pooled|2D|1D|indices|sequence|embedding)",
    ),
    Rule(
        "copy",
        "at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(…)::[lambda…]>",
        r"elementwise_kernel",
        inside=r"direct_copy_kernel|float\w*_copy_kernel|half_copy_kernel|conj_copy|[^a-z]copy_kernel|flip_kernel|"
        r"_to_(?:h?fp8|float|half|bfloat16)_gpu|_(?:de)?quantize",
    ),
    # an activation that also quantizes what it gives
    Rule(
        "elementwise",
        "vllm::act_and_mul_kernel",
        words=r"act_and_mul\w* act_mul d?gated_act\w* d?silu\w* d?gelu\w* (?:pow|d?swi|d?ge|re|sigmoid)glu\w*"
        r" swish softplus\w*",
    ),
    Rule(
        "elementwise",
        "at::native::vectorized_elementwise_kernel",
        r"(?i)elementwise|pointwise|elemwise|_kernel_vectorized\d|RNN_bidirectional_accum",
    ),
    Rule(
        "scan",
        "cub::DeviceRadixSortOnesweepKernel",
        words=r"sort\w* argsort scan topk top_k\w* select compact\w* partition unique run_length cumsum cumprod"
        r" top_p\w* min_p kthvalue radix\w* compute_(?:blockwise|digit)\w* prefix_sum reverse_indices"
        r" index_and_segment"
        r" inclusive_localscan state_passing logcumsumexp (?:selective|chunk)_(?:scan|state|cumsum)",
    ),
    Rule(
        "scan",
        "thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__scan::ScanAgent<…>>",
        r"_kernel_agent$",
        inside=r"__scan|[Ss]ort|__unique|__partition|__copy_if",
    ),
    Rule(
        "reduction",
        "thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__reduce::ReduceAgent<…>>",
        r"_kernel_agent$",
        inside=r"__reduce",
    ),
    Rule(
        "elementwise",
        "thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<…>>",
        r"_kernel_agent$|for_each::static_kernel$|transform_kernel$",
        inside=r"transform|fill|tabulate|for_each|parallel_for",
    ),
    Rule(
        "reduction",
        "at::native::reduce_kernel",
        words=r"reduc(?:e|es|er|tion)\d* nll_loss\d*d? class_nll\w* loss arg_?m(?:ax|in) asum nrm2 i?amax"
        r" histogram\w* max_?pool\w* avg_?pool\w* (?:avg|max|mean|sum)_pool(?:ing)?\d?d?"
        r" pool(?:ing)?\d?d? welford\w* logsumexp cdist moe_sum sum amax\w* absmax jsd kl_?div\w*"
        r" tv_distance stats compute_(?:\w+_)*block_scales?",
    ),
    Rule(
        "copy",
        "at::native::CatArrayBatchedCopy",
        words=r"cat cat_array\w* copy\w* cast\w* transpose\w* nch?wto\w* nchw_to\w* nhwc_to\w* \w*nchw2\w*"
        r" add_padding tensor_transform\w* chunk_cat split_with_sizes pad\d?d? memcpy\w* roll_cuda flip"
        r" permut(?:e|ation)\w* (?:de)?quant (?:de)?quanti[sz]e\w* quantization cpy"
        r" (?:float|half|bfloat|h?fp|bf|f|u?int)\d*\w*_to_(?:float|half|bfloat|h?fp|bf|f\d|u?int)\w*"
        r" \w*rowwise_to_float float_to_(?:\w+_)*\w*rowwise to_(?:mx|nv)fp\d\w* k?quant \w*cpy\w*"
        r" fp8_per_(?:group|token|tensor|block) scale_\d+x\d+ scale\d?_(?:\w+_)?fp\d\w* un_?permute\w*"
        r" \w*(?:float|half|fp\d+|bf16)2(?:h?fp|bf|half|float)\w* cvt\w* (?:up|down)cast"
        r" (?:un)?swizzle\w* (?:un)?shuffle swap requantize\w* convert\w* concat\w* reformat contiguous"
        r" reshape kdequant qkv_preprocess\w* kv_?cache\w* kv_block\w* sparse24 sparsify\w* unpad\w*"
        r" unpack",
    ),
    Rule(
        "elementwise",
        "at::native::FillKernel",
        words=r"\w*elu\d? \w*glu sigmoid tanh bias fill activation\w* backfill triu_tril arange"
        r" op_tensor\w* op_generic scal axpy masked_scale scale_packed_tensor bin_bcast memset"
        r" tensor_op\w* clamp\w* penalt(?:y|ies) dyt zero\w* clean_logits assert_async"
        r" mhc_(?:post|scale)\w* hc_(?:post|mix|expand) logsigmoid\w* token_shift (?:element_)?mul add sub div",
    ),
    Rule(
        "attention",
        "kernel_mha",
        words=r"mha mla mqa gqa nsa neighborhood attend [mg]qa_logits sparse_(?:prefill|decode)"
        r" compute_dq_dk_dv bwd_d(?:q|kv) compute_lse\w* lse",
    ),
    Rule("normalization", "mhc_pre_big_fuse_broadcast_with_norm_tilelang", words=r"\w*norm mhc_pre_big_fuse"),
    Rule(
        "index",
        "create_flashinfer_kv_indices_triton",
        words=r"kv_indices get_rows set_rows to_dense gather\w* scatter\w*",
    ),
    # --- one word that says it where no other does
    Rule("linalg", "fast_hadamard_transform_kernel", words=r"hadamard larf\w* sytr?d\d? tridiagonal gtsv fwht"),
    Rule("reduction", "_grouped_dbias_kernel", words=r"dbias dgamma dbeta group_?by aggs?"),
    Rule(
        "copy",
        "_rows_to_contig_kernel",
        words=r"pack restore append transfer reorder padding flatten\w* store\w* (?:de)?interleave"
        r" repeat_kv kv_trans to_jagged\d* to_padded_dense to_contig\w* (?:latent|[qkv]|kv)_cache",
    ),
    Rule("attention", "_dsa_selected_dense_wmma_kernel", words=r"dsa"),
    Rule("gemm", "_grouped_a16w4_situ_stage1_kernel", words=r"a\d+w\d+ w\d+a\d+ lora linear"),
    Rule(
        "elementwise",
        "_clear_unwritten_page_tail",
        words=r"mask \w*bitmask clear reset residual softcap addcmul bcast\w* unary binary add\d",
    ),
    Rule(
        "index",
        "_remap_index_pages",
        words=r"index indic(?:es?|e) positions? offsets? (?:re)?map(?:ping)? claim pages? lookups?"
        r" find_uncached (?:re)?hash bucketiz\w* collect (?:input|token)_ids"
        r" lens seq_?lens? slots? locs? counts? counters? plan schedule router"
        r" prepare (?:cta|block|tile|window|windows)_info tma_desc\w*",
    ),
    Rule("copy", "lxu_cache_flush_kernel", words=r"flush save"),
    Rule("communication", "pp_recv_impl", words=r"send recv"),
)
