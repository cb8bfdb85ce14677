"""The table of operators: FLOPs as PyTorch's own counter has them, least bytes by hand, and no guesses."""

import json

import pytest
from nvtx_kernels.analysis.operators import cost_of, is_known, rule_of
from nvtx_kernels.analysis.operators.calls import call_of_text
from nvtx_kernels.analysis.operators.table import RULES


def call(name, dims, types="float", values=(), strides=()):
    """A call as the profiler writes it; `types` alone is that of all tensors."""
    names = types if isinstance(types, list) else [types if size else "" for size in dims]
    texts = [json.dumps(each).encode() if each else b"" for each in (dims, names, list(values), list(strides))]
    return call_of_text(name, *texts)


#: FLOPs by hand, and least bytes of fp32 (of bf16 where it says so).
BY_HAND = [
    ("aten::mm", [[2, 3], [3, 4]], (), 2 * 2 * 3 * 4, 4 * (6 + 12 + 8)),
    ("aten::addmm", [[4], [2, 3], [3, 4], [], []], (), 48, 4 * (4 + 6 + 12 + 8)),
    ("aten::bmm", [[5, 2, 3], [5, 3, 4]], (), 5 * 48, 4 * 5 * 26),
    ("aten::baddbmm", [[5, 2, 4], [5, 2, 3], [5, 3, 4]], (), 5 * 48, 4 * 5 * (8 + 26)),
    ("aten::mv", [[2, 3], [3]], (), 12, 4 * (6 + 3 + 2)),
    ("aten::dot", [[3], [3]], (), 6, 4 * 7),
    ("aten::linear", [[7, 2, 3], [4, 3], [4]], (), 2 * 14 * 3 * 4, 4 * (42 + 12 + 14 * 4)),
    ("aten::matmul", [[5, 2, 3], [3, 4]], (), 5 * 48, 4 * (30 + 12 + 40)),
    ("aten::_grouped_mm", [[10, 3], [4, 3, 6], [4], [], []], (), 2 * 10 * 3 * 6, None),
    ("aten::mul", [[8, 4], [4]], (), 0, 4 * (32 + 4 + 32)),
    ("aten::add_", [[8, 4], [8, 4], []], (), 0, 4 * 96),
    ("aten::gelu", [[8, 4], []], (), 0, 4 * 64),
    ("aten::fill_", [[8, 4], []], (), 0, 4 * 32),
    ("aten::copy_", [[8, 4], [4], []], (), 0, 4 * (4 + 32)),
    ("aten::_softmax", [[8, 4], [], []], ("", "-1", "False"), 0, 4 * 64),
    ("aten::sum", [[8, 4], [], [], []], ("", "[0]", "True", ""), 0, 4 * (32 + 4)),
    ("aten::mean", [[8, 4], [], [], []], (), 0, 4 * (32 + 1)),
    ("aten::embedding", [[100, 4], [3]], (), 0, None),
    ("aten::native_layer_norm", [[8, 4], [], [4], [4], []], (), 0, 4 * (32 + 8 + 32)),
    (
        "aten::max_pool2d_with_indices",
        [[1, 1, 4, 4]],
        ("", "[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]"),
        0,
        4 * 20 + 32,
    ),
    ("triton_poi_fused_add_0", [[8, 4], [8, 4], [8, 4], []], (), 0, 4 * 96),
]


@pytest.mark.parametrize(("name", "dims", "values", "flops", "moved"), BY_HAND, ids=[row[0] for row in BY_HAND])
def test_flops_and_bytes_are_those_by_hand(name, dims, values, flops, moved):
    cost = cost_of(call(name, dims, values=values))
    assert cost.flops == flops
    if moved is not None:
        assert cost.bytes == moved


def test_rows_that_are_picked_and_put_are_what_moves():
    table = call("aten::embedding", [[1000, 4], [3]], ["float", "long int"])
    assert cost_of(table).bytes == 3 * 4 * 4 + 3 * 8 + 3 * 4 * 4
    places = call("aten::index_add_", [[1000, 4], [], [3], [3, 4]], ["float", "Scalar", "long int", "float"])
    assert cost_of(places).bytes == 3 * 3 * 4 * 4


def test_what_is_expanded_is_read_once():
    expanded = call("aten::mul", [[8, 4], [8, 4]], strides=[[0, 1], [4, 1]])
    assert cost_of(expanded).bytes == 4 * (4 + 32 + 32)


def test_types_are_those_of_c10_and_the_result_has_the_wider():
    cost = cost_of(call("aten::add", [[8, 4], [8, 4], []], ["c10::BFloat16", "float", "Scalar"]))
    assert (cost.bytes, cost.dtype) == (32 * 2 + 32 * 4 + 32 * 4, "bf16")
    assert cost_of(call("aten::eq", [[8, 4], [8, 4]], "c10::Half")).bytes == 32 * (2 + 2 + 1)


@pytest.mark.parametrize(
    ("name", "values", "causal"),
    [
        ("aten::_scaled_dot_product_flash_attention", ["", "", "", "0.", "True", "False", ""], True),
        ("aten::_scaled_dot_product_flash_attention", ["", "", "", "0.", "False", "False", ""], False),
        ("aten::_scaled_dot_product_efficient_attention", ["", "", "", "", "False", "0.", "True", ""], True),
    ],
)
def test_attention_counts_all_scores_and_needs_those_that_a_causal_mask_leaves(name, values, causal):
    shape, heads = [2, 4, 6, 8], 2 * 4
    cost = cost_of(call(name, [shape, shape, shape, [], [], [], []], "c10::BFloat16", values))
    assert cost.flops == 2 * heads * 6 * 6 * (8 + 8)
    assert cost.least_flops == (cost.flops * 21 / 36 if causal else cost.flops)
    assert cost.bytes == 4 * 2 * 2 * 4 * 6 * 8


def test_grouped_queries_share_keys_and_heads_can_be_last():
    query, key = [2, 6, 8, 16], [2, 10, 2, 16]  # flash_attn's layout: positions before heads
    cost = cost_of(
        call("flash_attn::_flash_attn_forward", [query, key, key], values=["", "", "", "0.", "1.", "True"])
    )
    assert cost.flops == 2 * 2 * 8 * 6 * 10 * 32
    assert cost.least_flops == cost.flops * (21 + 6 * 4) / 60
    assert cost.bytes == 4 * (2 * 6 * 8 * 16 * 2 + 2 * 2 * 10 * 2 * 16)


#: What shapes do not tell: sizes in values that were not recorded, and types of lists.
UNKNOWN = [
    ("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []], ()),
    ("aten::_flash_attention_forward", [[9, 2, 8], [9, 2, 8], [9, 2, 8], [3], [3]], ()),
    ("aten::mm", [[2, 3], [4, 5]], ()),
    ("vllm::moe_forward", [[888, 3072], [888, 128], []], ()),
]


@pytest.mark.parametrize(("name", "dims", "values"), UNKNOWN, ids=[row[0] for row in UNKNOWN])
def test_what_shapes_do_not_tell_is_unknown(name, dims, values):
    assert cost_of(call(name, dims, values=values)).flops is None


def test_lists_of_tensors_have_bytes_once_their_type_is_known():
    lists = call("aten::_foreach_add_", [[[8, 4], [4]], []], ["TensorList", "Scalar"])
    assert cost_of(lists).bytes is None
    assert cost_of(lists, of_lists="bf16").bytes == 2 * 36 * 2


@pytest.mark.parametrize(
    "damaged", [b"", b"[", b"{}", b"[[-1]]", b'[["a"]]', b"[[1e400]]", b"[[[[1]]]]", b"[null]"]
)
def test_damaged_sizes_are_none_or_tell_nothing(damaged):
    found = call_of_text("aten::mm", damaged, b'["float"]', b"", b"")
    assert found is None or cost_of(found).flops is None


@pytest.mark.parametrize("name", RULES)
def test_no_rule_fails_on_shapes_that_do_not_fit(name):
    for dims in ([], [[]], [[2]], [[2, 3]] * 3, [[[2, 3]], [[2]]], [[2, 3, 4, 5]] * 14):
        if described := call(name, dims):
            cost_of(described)


def test_names_in_place_have_the_rule_of_those_that_are_not():
    assert is_known("aten::addcmul_")
    assert rule_of("aten::addcmul_").category == "elementwise"
    assert not is_known("mmcv::nms")
