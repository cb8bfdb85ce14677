import math
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import RMSNorm, TransformerLM, cross_entropy, softmax
from nvtx_kernels.profiling import annotate
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tests.profiling.making.hearing import Heard, heard_from

TINY = CONFIGS["tiny"]
L = TINY.layers
GEMMS = ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm")

# Launches per forward of the course's model, as its users counted them (the loss adds to some).
LAUNCHES_FORWARD = {
    "aten.bmm": 9 * L + 1,
    "aten.mean": 2 * L + 1 + 1,
    "aten.pow": 2 * L + 1,
    "aten.rsqrt": 2 * L + 1,
    "aten.mul": 12 * L + 2 + 2 * L,
    "aten.sigmoid": L,
    "aten.where": L,
    "aten.max": L + 1,
    "aten.exp": L + 1,
    "aten.sum": L + 1,
    "aten.div": 2 * L,
    "aten.cat": 2 * L,
    "aten.index": 1,
    "aten.gather": 1,
}

ATTENTION = [
    "attention norm",
    "attention",
    "attention/q projection",
    "attention/k projection",
    "attention/v projection",
    "attention/rope",
    "attention/computing attention scores",
    "attention/computing attention scores/scale",
    "attention/computing attention scores/mask",
    "attention/computing softmax",
    "attention/final matmul",
    "attention/output projection",
]
FFN = ["ffn norm", "ffn", "ffn/gate projection", "ffn/up projection", "ffn/activation", "ffn/down projection"]
RANGES_FORWARD = [
    "embedding",
    *[path for i in range(L) for path in (f"layer {i}", *(f"layer {i}/{part}" for part in ATTENTION + FFN))],
    "final norm",
    "lm head",
    "loss",
]


class Operators(TorchDispatchMode):
    """Count every operator that reaches a backend."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count[str(function.overloadpacket)] += 1
        return function(*args, **(kwargs or {}))


def step(*, annotated=False, attention="reference", size=TINY):
    """Run one step; return forward's and backward's operators, and the loss with all gradients."""
    torch.manual_seed(0)
    model = TransformerLM(size, 16, attention=attention)
    ids_BT, targets_BT = torch.randint(size.vocabulary, (2, 2, 16))
    with annotate.listen(Heard()) if annotated else nullcontext():
        with Operators() as forward:
            loss = cross_entropy(model(ids_BT), targets_BT)
        with Operators() as backward:
            loss.backward()
    return forward.count, backward.count, [loss, *(parameter.grad for parameter in model.parameters())]


def test_every_linear_layer_and_attention_product_is_one_gemm():
    forward, backward, _ = step()
    assert sum(forward[name] for name in GEMMS) == 9 * L + 1
    assert sum(backward[name] for name in GEMMS) == 18 * L + 2


@pytest.mark.parametrize(("operator", "count"), LAUNCHES_FORWARD.items())
def test_forward_launches_what_the_course_model_launches(operator, count):
    assert step()[0][operator] == count


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_annotation_changes_no_operator_and_no_bit(attention):
    forward, backward, plain = step(attention=attention)
    forward_annotated, backward_annotated, annotated = step(attention=attention, annotated=True)
    assert forward_annotated == forward
    assert backward_annotated == backward
    assert all(torch.equal(one, other) for one, other in zip(annotated, plain, strict=True))


@pytest.mark.parametrize("with_gradients", [True, False])
def test_forward_opens_the_documented_ranges_in_order(with_gradients):
    model, ids_BT = TransformerLM(TINY, 16), torch.zeros(1, 16, dtype=torch.long)
    with torch.set_grad_enabled(with_gradients):
        assert heard_from(lambda: cross_entropy(model(ids_BT), ids_BT)) == RANGES_FORWARD


@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_backward_opens_the_forward_ranges_once_each(attention):
    model, ids_BT = TransformerLM(TINY, 16, attention=attention), torch.zeros(1, 16, dtype=torch.long)
    losses = []
    forward = heard_from(lambda: losses.append(cross_entropy(model(ids_BT), ids_BT)))
    assert Counter(heard_from(losses[0].backward)) == Counter(forward)


def test_sdpa_computes_what_the_reference_computes():
    _, _, reference = step()
    _, _, fused = step(attention="sdpa")
    torch.testing.assert_close(fused, reference, rtol=1e-4, atol=1e-6)


def test_model_equals_one_written_with_pytorch_functions():
    torch.manual_seed(0)
    model, ids_BT = TransformerLM(TINY, 16), torch.randint(TINY.vocabulary, (2, 12))
    torch.testing.assert_close(model(ids_BT), logits_by_pytorch(model, ids_BT), rtol=1e-4, atol=1e-5)


def logits_by_pytorch(model, ids_BT):
    x = functional.embedding(ids_BT, model.token_embeddings.weight)
    for layer in model.layers:
        y = functional.rms_norm(x, (TINY.d_model,), layer.attention_norm.weight, 1e-5)
        q, k, v = (
            functional.linear(y, linear.weight).unflatten(-1, (TINY.heads, -1)).transpose(1, 2)
            for linear in (layer.attention.q_proj, layer.attention.k_proj, layer.attention.v_proj)
        )
        y = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + functional.linear(y.transpose(1, 2).flatten(2), layer.attention.output_proj.weight)
        y = functional.rms_norm(x, (TINY.d_model,), layer.ffn_norm.weight, 1e-5)
        gate, up = functional.linear(y, layer.ffn.w1.weight), functional.linear(y, layer.ffn.w3.weight)
        x = x + functional.linear(functional.silu(gate) * up, layer.ffn.w2.weight)
    x = functional.rms_norm(x, (TINY.d_model,), model.final_norm.weight, 1e-5)
    return functional.linear(x, model.lm_head.weight)


def turned(x_BHTK):
    """Rotate pairs as complex numbers, by position times 10000^(-2p/K)."""
    tokens, width = x_BHTK.shape[-2:]
    frequency = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angle = torch.outer(torch.arange(tokens), frequency)
    pairs = torch.view_as_complex(x_BHTK.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def test_token_sees_nothing_that_comes_after_it():
    model, ids_BT = TransformerLM(TINY, 16), torch.randint(TINY.vocabulary, (1, 16))
    changed_BT = ids_BT.clone()
    changed_BT[:, 10:] = (changed_BT[:, 10:] + 1) % TINY.vocabulary
    assert torch.equal(model(ids_BT)[:, :10], model(changed_BT)[:, :10])
    assert not torch.equal(model(ids_BT)[:, 10:], model(changed_BT)[:, 10:])


def test_softmax_is_five_operators_and_agrees_with_pytorch():
    x = torch.randn(3, 5) * 50
    with Operators() as operators:
        result = softmax(x)
    assert operators.count == Counter(["aten.max", "aten.sub", "aten.exp", "aten.sum", "aten.div"])
    torch.testing.assert_close(result, torch.softmax(x, -1))


def test_cross_entropy_agrees_with_pytorch_on_large_logits():
    logits_BTV, targets_BT = torch.randn(2, 3, 7) * 100, torch.randint(7, (2, 3))
    expected = functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
    torch.testing.assert_close(cross_entropy(logits_BTV, targets_BT), expected)


def test_norm_computes_in_float32_and_returns_the_type_it_got():
    x = (torch.randn(4, 64) * 300).to(torch.float16)
    result = RMSNorm(64, "norm")(x)
    assert result.dtype == torch.float16
    torch.testing.assert_close(result, functional.rms_norm(x.float(), (64,), eps=1e-5).half())


def test_bf16_autocast_runs_the_products_in_bf16_and_leaves_parameters_alone():
    model, ids_BT = TransformerLM(TINY, 16), torch.zeros(1, 16, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        logits_BTV = model(ids_BT)
    assert logits_BTV.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_weights_start_truncated_at_three_deviations():
    weight = TransformerLM(TINY, 16).layers[0].ffn.w1.weight
    deviation = math.sqrt(2 / (TINY.d_model + TINY.d_ff))
    assert weight.abs().max() <= 3 * deviation
    assert weight.std().item() == pytest.approx(deviation, rel=0.05)
