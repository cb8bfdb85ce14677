"""The decoder of Stanford CS336, whole, top to bottom, with its ranges.

Pre-norm with RMSNorm, rotary positions, causal multi-head attention, SwiGLU, untied embeddings, no biases.
Every operation is written out as the course writes it, because each becomes kernels of its own: the softmax
is five, the scale and the mask are separate, silu is a sigmoid and a multiplication.

Letters at the end of a name are the shape of the tensor:
B batch, T tokens, S tokens attended to, D d_model, F d_ff, H heads, K d_head, P pairs (K/2), V vocabulary.
"""

from __future__ import annotations

import math

import torch
from nvtx_kernels.profiling import annotate
from torch import Tensor, nn

from .config import ROPE_THETA, ModelConfig
from .config import Attention as Attention


class TransformerLM(nn.Module):
    """A language model: token ids to logits."""

    def __init__(self, config: ModelConfig, context_length: int, *, attention: Attention = "reference") -> None:
        super().__init__()
        self.config = config
        self.token_embeddings = Embedding(config.vocabulary, config.d_model)
        self.layers = nn.ModuleList(
            TransformerLayer(config, context_length, index, attention) for index in range(config.layers)
        )
        self.final_norm = RMSNorm(config.d_model, "final norm")
        self.lm_head = Linear(config.d_model, config.vocabulary, "lm head")

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Return logits (B, T, V) for token ids (B, T)."""
        x_BTD = self.token_embeddings(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        logits_BTV: Tensor = self.lm_head(self.final_norm(x_BTD))
        return logits_BTV


class Embedding(nn.Module):
    """One row of weights per token id."""

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.weight = _truncated_normal(vocabulary, d_model, std=1.0)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Look the ids up: (B, T) to (B, T, D)."""
        with annotate.region("embedding") as part:
            return part.output(self.weight[ids_BT, :])


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig, context_length: int, index: int, attention: Attention) -> None:
        super().__init__()
        self.index, self.name = index, f"layer {index}"
        self.attention_norm = RMSNorm(config.d_model, "attention norm")
        self.attention = CausalSelfAttention(config, context_length, attention)
        self.ffn_norm = RMSNorm(config.d_model, "ffn norm")
        self.ffn = SwiGLU(config.d_model, config.d_ff)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map the residual stream (B, T, D) to the next."""
        with annotate.region(self.name, payload=self.index) as part:
            x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
            x_BTD = x_BTD + self.ffn(self.ffn_norm(x_BTD))
            return part.output(x_BTD)


class RMSNorm(nn.Module):
    """Divide by the root mean square, in float32 whatever comes in, and scale."""

    def __init__(self, d_model: int, name: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.name, self.eps = name, eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Normalize over D."""
        with annotate.region(self.name) as part:
            dtype = x_BTD.dtype
            x_BTD = x_BTD.to(torch.float32)
            inverse_rms_BT1 = torch.rsqrt(x_BTD.pow(2).mean(-1, keepdim=True) + self.eps)
            return part.output((self.weight * (x_BTD * inverse_rms_BT1)).to(dtype))


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a token sees itself and what came before."""

    def __init__(self, config: ModelConfig, context_length: int, attention: Attention) -> None:
        super().__init__()
        self.heads = config.heads
        self.attend = ATTENTION[attention]
        self.q_proj = Linear(config.d_model, config.d_model, "q projection")
        self.k_proj = Linear(config.d_model, config.d_model, "k projection")
        self.v_proj = Linear(config.d_model, config.d_model, "v projection")
        self.output_proj = Linear(config.d_model, config.d_model, "output projection")
        self.rope = RotaryEmbedding(config.d_head, context_length)

    @annotate.region("attention")
    def forward(self, x_BTD: Tensor) -> Tensor:
        """Mix tokens: (B, T, D) to (B, T, D)."""
        q_BHTK = self._split_heads(self.q_proj(x_BTD))
        k_BHTK = self._split_heads(self.k_proj(x_BTD))
        v_BHTK = self._split_heads(self.v_proj(x_BTD))
        q_BHTK, k_BHTK = self.rope(q_BHTK, k_BHTK)
        mixed_BHTK = self.attend(q_BHTK, k_BHTK, v_BHTK)
        mixed_BTD = mixed_BHTK.transpose(1, 2).flatten(2).contiguous()
        output_BTD: Tensor = self.output_proj(mixed_BTD)
        return output_BTD

    def _split_heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.view(*x_BTD.shape[:-1], self.heads, -1).transpose(1, 2)


def reference_attention(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
    """Attend with one kernel per operation, as the course writes it: (B, H, T, K)."""
    with annotate.region("computing attention scores") as scores:
        scores_BHTS = torch.einsum("bhtk,bhsk->bhts", q_BHTK, k_BHSK)
        with annotate.region("scale") as part:
            scores_BHTS = part.output(scores_BHTS / math.sqrt(q_BHTK.shape[-1]))
        with annotate.region("mask") as part:
            position_T = torch.arange(q_BHTK.shape[-2], device=q_BHTK.device)
            visible_TS = position_T[:, None] >= position_T[None, :]
            scores_BHTS = part.output(torch.where(visible_TS, scores_BHTS, float("-inf")))
        scores.output(scores_BHTS)
    with annotate.region("computing softmax") as part:
        weights_BHTS = part.output(softmax(scores_BHTS))
    with annotate.region("final matmul") as part:
        return part.output(torch.einsum("bhts,bhsk->bhtk", weights_BHTS, v_BHSK))


@annotate.region("scaled dot product attention")
def fused_attention(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
    """Attend with PyTorch's fused kernel: (B, H, T, K)."""
    return nn.functional.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, is_causal=True)


ATTENTION = {"reference": reference_attention, "sdpa": fused_attention}


def softmax(x: Tensor) -> Tensor:
    """Normalize the last dimension to sum to one: maximum, subtract, exponential, sum, divide."""
    exponentials = torch.exp(x - torch.max(x, dim=-1, keepdim=True).values)
    return exponentials / torch.sum(exponentials, dim=-1, keepdim=True)


class RotaryEmbedding(nn.Module):
    """Turn each pair of a query's or key's features by an angle that grows with its position."""

    cos_sin: Tensor

    def __init__(self, d_head: int, context_length: int) -> None:
        super().__init__()
        frequency_P = ROPE_THETA ** -(torch.arange(0, d_head, 2) / d_head)
        angle_TP = torch.outer(torch.arange(context_length), frequency_P)
        self.register_buffer("cos_sin", torch.stack((angle_TP.cos(), angle_TP.sin())), persistent=False)

    @annotate.region("rope")
    def forward(self, q_BHTK: Tensor, k_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys."""
        cos_TP, sin_TP = self.cos_sin[:, : q_BHTK.shape[-2]]
        return _rotate(q_BHTK, cos_TP, sin_TP), _rotate(k_BHTK, cos_TP, sin_TP)


def _rotate(x_BHTK: Tensor, cos_TP: Tensor, sin_TP: Tensor) -> Tensor:
    even_BHTP, odd_BHTP = x_BHTK.view(*x_BHTK.shape[:-1], -1, 2).unbind(-1)
    turned_even_BHTP = cos_TP * even_BHTP - sin_TP * odd_BHTP
    turned_odd_BHTP = sin_TP * even_BHTP + cos_TP * odd_BHTP
    pairs_BHTP2 = torch.cat((turned_even_BHTP[..., None], turned_odd_BHTP[..., None]), dim=-1)
    return pairs_BHTP2.flatten(-2)


class SwiGLU(nn.Module):
    """The gated feed-forward: w2(silu(w1 x) * w3 x)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w1 = Linear(d_model, d_ff, "gate projection")
        self.w3 = Linear(d_model, d_ff, "up projection")
        self.w2 = Linear(d_ff, d_model, "down projection")

    @annotate.region("ffn")
    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each token by itself: (B, T, D) to (B, T, D)."""
        gate_BTF = self.w1(x_BTD)
        up_BTF = self.w3(x_BTD)
        with annotate.region("activation") as part:
            gated_BTF = part.output(gate_BTF * torch.sigmoid(gate_BTF) * up_BTF)
        output_BTD: Tensor = self.w2(gated_BTF)
        return output_BTD


class Linear(nn.Module):
    """A matrix product with a weight of shape (out, in), in a range of its own."""

    def __init__(self, d_in: int, d_out: int, name: str) -> None:
        super().__init__()
        self.name = name
        self.weight = _truncated_normal(d_out, d_in, std=math.sqrt(2 / (d_in + d_out)))

    def forward(self, x: Tensor) -> Tensor:
        """Map the last dimension from d_in to d_out."""
        with annotate.region(self.name) as part:
            return part.output(torch.einsum("...i,oi->...o", x, self.weight))


@annotate.region("loss")
def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of the target ids."""
    shifted_BTV = logits_BTV - torch.max(logits_BTV, dim=-1, keepdim=True).values
    log_softmax_BTV = shifted_BTV - torch.log(torch.sum(torch.exp(shifted_BTV), dim=-1, keepdim=True))
    return -torch.mean(torch.gather(log_softmax_BTV, -1, targets_BT[..., None]))


def _truncated_normal(*shape: int, std: float) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=std, a=-3 * std, b=3 * std))
