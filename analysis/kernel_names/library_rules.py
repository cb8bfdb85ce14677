"""The rules of names of libraries around PyTorch: rendering, point clouds, detection, graphs and others.

What such a kernel gathers from many places into one number (a pixel from the splats in front of it, a box's mean)
is a reduction, what finds neighbours or keeps the best is a scan, what only moves points or tokens to other places
is index. They come before the general rules, whose words their names contain: `FarthestPointSampling` draws
nothing.
"""

from __future__ import annotations

from .generated_rules import Rule

LIBRARY_RULES = (
    Rule(
        "convolution",
        "upfirdn2d_kernel_large",
        words=r"upfirdn2?d? filtered_lrelu carafe correlation_(?:forward|backward) (?:sp3_|gcn_)?asm_conv\w*"
        r" naive_conv\w* mi_?open_conv\w* mlir_(?:\w+_)*conv\w* gen\d+_conv\w* fused_?ssim\w*",
    ),
    Rule("attention", "parallax_decode_one_step_kernel", words=r"mlir_(?:\w+_)*attention parallax_decode"),
    Rule(
        "gemm",
        "_groupXtY",
        words=r"mlir_(?:\w+_)*dot (?:group_)?xt_y xxt xtx x_x_t x_t_x ba_plus_c_?aa scatter2scatter"
        r" spline_weighting moe_(?:fwd|bwd)_d_?[wx]\d*",
    ),
    Rule("elementwise", "ref_eltwise", words=r"\w*eltwise mlir"),
    Rule("softmax", "fused_softcapped_entropy_bwd_kernel", words=r"softcapped_entropy"),
    Rule(
        "scan",
        "bwd_segsum_dadt_kernel",
        words=r"segsum wu_(?:fwd|bwd) (?:intra|inter)_chunk compute_dh\d* p(?:re|ost)_process_(?:fwd|bwd)",
    ),
    Rule("scan", "nearest_cuda_kernel", r"(?:^|::)nearest_(?:cuda_)?kernel"),
    Rule(
        "scan",
        "nms_quadri_cuda_kernel",
        words=r"nms nms\w* knn \w*knearest\w* k_nearest_neighbou?r\w* (?:farthest|furthest)_point\w* fps"
        r" (?:stack_)?ball_query radius_(?:cuda|kernel) three_nn searchsorted sort_vertices marching_cubes",
    ),
    Rule(
        "index",
        "three_interpolate_forward_cuda_kernel",
        words=r"(?:group|gather|scatter)_points three_interpolate interp_face_attrs \w*voxelize\w* point_to_voxel"
        r" padded_to_packed packed_to_padded packunpack intersect_(?:tile|offset) rasterize_to_indices"
        r" points_to_volumes",
    ),
    Rule("index", "transformer_engine::permute_kernel", r"(?:^|::)_?(?:un)?permute_(?:bwd_)?kernel$"),
    Rule("normalization", "gn_cuda_kernel", words=r"gn_(?:cuda|fwd|bwd|forward|backward) sync_bn lrn\w*"),
    Rule(
        "reduction",
        "segment_max_csr_cuda_kernel",
        words=r"segment_(?:\w+_)*(?:csr|coo) grpo \w*losses chamfer\w* mean_scale \w*roi_(?:align|pool)\w*"
        r" \w*roiaware_pool\w* border_align rasterize\w* alpha_composite\w* \w*alpha_blend\w* weighted_sum\w*"
        r" (?:ref|gen\d+)_pooling mlo_pooling\w*",
    ),
    Rule("optimizer", "_sgd_update_kernel", words=r"(?:sgd|lion|muon|momentum|adagrad)_update"),
    Rule("copy", "stochastic_round_kernel", words=r"stochastic_round\w*"),
    Rule(
        "elementwise",
        "spherical_harmonics_bwd_kernel",
        words=r"fg dfg (?:exact|approx)_(?:forward|backward) (?:bias_add_)?relu_[fb]prop transducer_joint"
        r" quat_\w+ spherical_harmonics\w* projection_(?:\w+_)*\w*gs projection_ewa world_to_cam covar_\w+"
        r" camera_rays_\w+ bbox_overlaps \w*iou \w*iou_\w+ points_in_(?:boxes|polygons) spline_basis"
        r" output_correction relocation bias_act mi_?open_neuron\w*",
    ),
)
