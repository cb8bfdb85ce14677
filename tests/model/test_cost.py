import pytest
import torch
from nvtx_kernels.model import cost
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling import annotate
from torch.utils.flop_counter import FlopCounterMode

from tests.profiling.making.hearing import heard_from

CONTEXTS = (128, 256, 512, 1024, 2048)
# TFLOP of one forward at batch 4, two per multiply-add, as published for the assignment's sizes.
TFLOP_FORWARD = {
    "small": (0.13, 0.26, 0.53, 1.15, 2.60),
    "medium": (0.43, 0.87, 1.79, 3.79, 8.41),
    "large": (0.99, 2.01, 4.11, 8.61, 18.8),
    "2.7B": (3.48, 7.01, 14.2, 29.1, 60.9),
}
CELLS = [(size, T, value) for size, row in TFLOP_FORWARD.items() for T, value in zip(CONTEXTS, row, strict=True)]
ATTENTION_SHARE = {("small", 512): 7.2, ("small", 2048): 23.8, ("medium", 512): 5.7, ("2.7B", 2048): 9.0}
RATIO = {"small": 51.2, "2.7B": 64.0, "10B": 102.4}


def flops_by_range(*sizes, **options):
    return {path: one.flops for path, one in cost.cost_by_range(*sizes, **options).items() if one.flops}


def total(flops, phase, *, without=("computing softmax", "scale")):
    return sum(count for path, count in flops.items() if path[0] == phase and path[-1] not in without)


@pytest.mark.parametrize(("size", "context", "tera"), CELLS)
def test_forward_flops_are_those_published(size, context, tera):
    digits = 1 if tera > 10 else 2
    assert round(cost.matmul_flops(CONFIGS[size], 4, context) / 1e12, digits) == tera


@pytest.mark.parametrize("size", CONFIGS)
def test_ranges_add_up_to_the_model(size):
    config = CONFIGS[size]
    flops = flops_by_range(config, 4, 512)
    assert total(flops, "forward") == cost.matmul_flops(config, 4, 512)
    assert total(flops, "backward") == 2 * cost.matmul_flops(config, 4, 512)


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_both_kinds_of_attention_count_the_same_arithmetic(attention):
    config = CONFIGS["small"]
    flops = flops_by_range(config, 4, 512, attention=attention)
    assert sum(flops.values()) == sum(flops_by_range(config, 4, 512).values())


@pytest.mark.parametrize(("cell", "percent"), ATTENTION_SHARE.items())
def test_attention_products_have_their_published_share(cell, percent):
    config, context = CONFIGS[cell[0]], cell[1]
    products = config.layers * cost.attention_matmul_flops(config, 4, context)
    assert round(100 * products / cost.matmul_flops(config, 4, context), 1) == percent


def test_attention_ranges_hold_4bht2d_and_5bht2():
    config = CONFIGS["small"]
    flops = flops_by_range(config, 4, 512)
    layer = ("forward", "layer 0", "attention")
    scores, final = flops[*layer, "computing attention scores"], flops[*layer, "final matmul"]
    assert scores + final == cost.attention_matmul_flops(config, 4, 512) == 4 * 4 * 12 * 512**2 * 64
    assert flops[*layer, "computing softmax"] == 5 * 4 * 12 * 512**2
    assert flops[*layer, "computing attention scores", "scale"] == 4 * 12 * 512**2


@pytest.mark.parametrize(("size", "ratio"), RATIO.items())
def test_ratio_of_attention_products_to_softmax_depends_on_the_head_alone(size, ratio):
    flops = flops_by_range(CONFIGS[size], 4, 256)
    softmax = flops["forward", "layer 0", "attention", "computing softmax"]
    assert cost.attention_matmul_flops(CONFIGS[size], 4, 256) / softmax == ratio


def test_pytorch_counts_the_same_matmul_flops():
    config = CONFIGS["tiny"]
    model, ids_BT = TransformerLM(config, 16), torch.zeros(3, 16, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        loss = cross_entropy(model(ids_BT), ids_BT)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    assert forward.get_total_flops() == cost.matmul_flops(config, 3, 16)
    assert backward.get_total_flops() == total(flops_by_range(config, 3, 16), "backward")


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_every_cost_belongs_to_a_range_that_the_model_opens(attention):
    config = CONFIGS["tiny"]
    model, ids_BT = TransformerLM(config, 16, attention=attention), torch.zeros(1, 16, dtype=torch.long)

    def step():
        with annotate.range("forward"):
            loss = cross_entropy(model(ids_BT), ids_BT)
        with annotate.range("backward"):
            loss.backward()

    paths = {tuple(path.split("/")) for path in heard_from(step)}
    costs = cost.cost_by_range(config, 1, 16, attention=attention)
    assert set(costs) <= paths
    # These only hold other ranges; in backward a residual and a reshape cost nothing of their own.
    holders = {"forward", "backward", "layer 0", "layer 1", "attention", "ffn"}
    assert {path[-1] for path in paths - set(costs)} == holders


@pytest.mark.parametrize(
    ("path", "elements"),
    [
        (("layer 0", "attention", "computing softmax"), 2 * 4 * 12 * 512**2),
        (("layer 0", "attention", "q projection"), 2 * 2048 * 768 + 768**2),
        (("layer 0", "attention", "final matmul"), 4 * 12 * 512**2 + 2 * 2048 * 768),
        (("lm head",), 2048 * 768 + 768 * 10_000 + 2048 * 10_000),
        (("final norm",), 2 * 2048 * 768 + 768),
    ],
)
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_bytes_are_operands_and_results_once(path, elements, element_bytes):
    costs = cost.cost_by_range(CONFIGS["small"], 4, 512, element_bytes=element_bytes)
    assert costs["forward", *path].bytes == elements * element_bytes


def test_backward_of_a_product_moves_and_computes_twice_its_forward():
    costs = cost.cost_by_range(CONFIGS["small"], 4, 512)
    for path in [("lm head",), ("layer 3", "ffn", "down projection"), ("layer 3", "attention", "final matmul")]:
        forward, backward = costs["forward", *path], costs["backward", *path]
        assert (backward.flops, backward.bytes) == (2 * forward.flops, 2 * forward.bytes)
