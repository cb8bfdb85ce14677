"""Small models with their FLOPs by hand: matrix products of one step, 2 per multiply-add, from the sizes alone.

Each maker returns a model, a function that returns its loss, and the FLOPs of forward, backward and what backward
computes again.
"""

from typing import Any, NamedTuple

import pytest
import torch
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.cost import matmul_flops
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling import annotate
from torch import nn
from torch.utils.checkpoint import checkpoint

B, T = 2, 6  # sequences, and tokens in each
D, H, L, V = 16, 4, 2, 32  # width, heads, layers, vocabulary
FF = 40  # width of the feed-forward


class Made(NamedTuple):
    model: nn.Module
    loss: Any
    forward: int
    backward: int
    again: int = 0


def product(rows, inner, columns):
    return 2 * rows * inner * columns


def mlp():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    first, second = product(5, 8, 32), product(5, 32, 4)
    # The data needs no gradient, so the first layer's backward has one product instead of two.
    return Made(model, lambda: model(torch.ones(5, 8)).square().mean(), first + second, first + 2 * second)


class Residual(nn.Module):
    """A stem, a residual block, a strided convolution and a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.norm = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.norm(self.stem(x))
        x = x + self.convs[1](self.convs[0](x).relu())
        return self.head(self.down(x).mean((2, 3)))


def cnn():
    model = Residual()
    stem = 2 * B * 8 * 8 * 8 * 3 * 9
    others = 2 * (2 * B * 8 * 8 * 8 * 8 * 9) + 2 * B * 4 * 4 * 16 * 8 * 9 + product(B, 16, 10)
    return Made(model, lambda: model(torch.ones(B, 3, 8, 8)).square().mean(), stem + others, stem + 2 * others)


def attention(queries, keys, heads=H, width=D // H):
    """The scores and their product with the values, of one layer."""
    return 2 * B * heads * product(queries, width, keys)


def tokens():
    return torch.arange(B * T).reshape(B, T) % V


def gpt2():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": D, "n_head": H, "n_layer": L, "vocab_size": V, "n_positions": T}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config)
    layer = product(B * T, D, 3 * D) + attention(T, T) + product(B * T, D, D) + 2 * product(B * T, D, 4 * D)
    forward = L * layer + product(B * T, D, V)
    return Made(model, lambda: model(tokens(), use_cache=False).logits.square().mean(), forward, 2 * forward)


def llama():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": D, "num_attention_heads": H, "num_key_value_heads": 2, "num_hidden_layers": L}
    config = transformers.LlamaConfig(
        **sizes, intermediate_size=FF, vocab_size=V, max_position_embeddings=T, attn_implementation="eager"
    )
    model = transformers.LlamaForCausalLM(config)
    key_and_value = 2 * product(B * T, D, 2 * D // H)
    layer = 2 * product(B * T, D, D) + key_and_value + attention(T, T) + 3 * product(B * T, D, FF)
    forward = L * layer + product(B * T, D, V)
    angles = product(D // H // 2, 1, T)  # of the rotary embedding, without gradient
    loss = lambda: model(tokens(), use_cache=False).logits.square().mean()  # noqa: E731
    return Made(model, loss, forward + angles, 2 * forward)


def t5():
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": D, "d_kv": D // H, "num_heads": H, "num_layers": L, "d_ff": FF, "vocab_size": V}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0, attn_implementation="eager")
    )
    read, written = B * T, B * 4  # tokens of the encoder and of the decoder
    feed_forward = 2 * product(1, D, FF)
    encoder = 4 * product(read, D, D) + attention(T, T) + read * feed_forward
    itself = 4 * product(written, D, D) + attention(4, 4)
    cross = 2 * product(written, D, D) + 2 * product(read, D, D) + attention(4, T)
    forward = L * (encoder + itself + cross + written * feed_forward) + product(written, D, V)

    def loss():
        found = model(input_ids=tokens(), decoder_input_ids=tokens()[:, :4], use_cache=False)
        return found.logits.square().mean()

    return Made(model, loss, forward, 2 * forward)


def vit():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": D, "num_attention_heads": H, "num_hidden_layers": L, "intermediate_size": FF}
    config = transformers.ViTConfig(
        **sizes, image_size=8, patch_size=4, num_labels=10, attn_implementation="eager"
    )
    model = transformers.ViTForImageClassification(config)
    patches = 2 * B * 4 * D * 3 * 16  # four patches of 4 x 4 pixels
    read = 4 + 1
    layer = 4 * product(B * read, D, D) + attention(read, read) + 2 * product(B * read, D, FF)
    rest = L * layer + product(B, D, 10)
    return Made(
        model, lambda: model(torch.ones(B, 3, 8, 8)).logits.square().mean(), patches + rest, patches + 2 * rest
    )


def lora():
    peft = pytest.importorskip("peft")
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    model = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["0", "2"], lora_dropout=0.0))
    bases = product(5, 8, 32), product(5, 32, 4)
    down, up = (product(5, 8, 2), product(5, 32, 2)), (product(5, 2, 32), product(5, 2, 4))
    # Frozen weights have no gradient, and the data needs none: of the first layer's products, only the adapters'.
    backward = down[0] + 2 * up[0] + bases[1] + 2 * down[1] + 2 * up[1]
    loss = lambda: model(torch.ones(5, 8)).square().mean()  # noqa: E731
    return Made(model, loss, sum(bases) + sum(down) + sum(up), backward)


class Checkpointed(nn.Module):
    """Blocks of two products each, computed again in backward."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(D, FF), nn.ReLU(), nn.Linear(FF, D)) for _ in range(L))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x


def checkpointed():
    model = Checkpointed()
    forward = L * 2 * product(B * T, D, FF)
    loss = lambda: model(torch.ones(B, T, D, requires_grad=True)).square().mean()  # noqa: E731
    return Made(model, loss, forward, 2 * forward, forward)


def compiled():
    made = mlp()
    call = torch.compile(made.model)
    call(torch.ones(5, 8)).sum().backward()  # compiled before it is counted

    def loss():
        with annotate.range("forward"):
            return call(torch.ones(5, 8)).square().mean()

    return made._replace(loss=loss)


def ours():
    config = CONFIGS["tiny"]
    model = TransformerLM(config, 8)
    ids = torch.arange(16).reshape(2, 8)
    forward = matmul_flops(config, 2, 8)
    return Made(model, lambda: cross_entropy(model(ids), ids), forward, 2 * forward)


MAKERS = (mlp, cnn, gpt2, llama, t5, vit, lora, checkpointed, compiled, ours)
