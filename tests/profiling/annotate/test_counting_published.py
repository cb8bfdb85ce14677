"""FLOPs counted on models of their real sizes, without their memory, against published figures and formulas."""

import pytest
import torch
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.cost import matmul_flops
from nvtx_kernels.model.transformer import TransformerLM
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate.counting import Counting

from tests.conftest import slice_of

NEAR = 0.01
SMALLEST, *LARGER = (name for name in CONFIGS if name != "tiny")
#: Multiply-adds of one image in torchvision's tables of ResNet50_Weights and ViT_B_16_Weights.
RESNET_50, VIT_B_16 = 4.09e9, 17.56e9


def counted(model, run):
    """Return the FLOPs of forward and of backward of a model whose tensors have shapes alone."""
    with annotate.annotate_modules(model), Counting().step() as counting:
        run().sum().backward()
    found = {"forward": 0, "backward": 0}
    for (phase, _), figures in counting.of.items():
        if figures.flops:
            found[phase] += figures.flops.total()
    return found["forward"], found["backward"]


def of_tokens(weights, layers, width, tokens):
    """Return a step's FLOPs by PaLM's formula (Chowdhery et al. 2022, appendix B): 6N + 12·L·H·Q·T for each
    token."""
    return tokens * (6 * weights + 12 * layers * width * tokens)


def near(found, published):
    return abs(found / published - 1) < NEAR


def meta(make):
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize(
    "size", [SMALLEST, *(pytest.param(size, marks=pytest.mark.slow) for size in slice_of(LARGER, len(LARGER)))]
)
def test_our_sizes_are_palms_formula_and_our_own(size):
    config, tokens = CONFIGS[size], 512
    model = meta(lambda: TransformerLM(config, tokens))
    forward, backward = counted(model, lambda: model(torch.zeros(1, tokens, dtype=torch.long, device="meta")))
    assert (forward, backward) == (matmul_flops(config, 1, tokens), 2 * matmul_flops(config, 1, tokens))
    weights = config.parameters - config.vocabulary * config.d_model  # a lookup multiplies nothing
    assert near(forward + backward, of_tokens(weights, config.layers, config.d_model, tokens))


LLAMA_3_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
#: Of each language model: its sizes, its layers and width, a sequence's tokens, and the weights of lookups alone.
LANGUAGE_MODELS = [
    ("GPT2Config", "GPT2LMHeadModel", {}, 12, 768, 1024, 1024 * 768),
    ("LlamaConfig", "LlamaForCausalLM", LLAMA_3_8B, 32, 4096, 2048, 128256 * 4096),
]


@pytest.mark.parametrize(("config", "kind", "sizes", "layers", "width", "tokens", "lookups"), LANGUAGE_MODELS)
def test_gpt2_and_llama_3_8b_are_palms_formula(config, kind, sizes, layers, width, tokens, lookups):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, config)(**sizes, attn_implementation="eager")
    model = meta(lambda: getattr(transformers, kind)(config))
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    # A mask that transformers takes as it is: to make one it reads values, which are none here.
    mask = torch.zeros(1, 1, tokens, tokens, device="meta")
    forward, backward = counted(model, lambda: model(ids, attention_mask=mask, use_cache=False).logits)
    weights = sum(weight.numel() for weight in model.parameters()) - lookups
    assert near(forward + backward, of_tokens(weights, layers, width, tokens))
    assert backward == 2 * forward


#: Of each image model: its published multiply-adds, and FLOPs of the first layer, whose input needs no gradient.
IMAGE_MODELS = [
    ("ResNetConfig", "ResNetForImageClassification", RESNET_50, 2 * 112 * 112 * 64 * 3 * 7 * 7),
    ("ViTConfig", "ViTForImageClassification", VIT_B_16, 2 * 196 * 768 * 3 * 16 * 16),
]


@pytest.mark.parametrize(("config", "kind", "published", "stem"), IMAGE_MODELS)
def test_resnet_50_and_vit_b_16_are_as_published(config, kind, published, stem):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, config)(num_labels=1000, attn_implementation="eager")
    model = meta(lambda: getattr(transformers, kind)(config))
    forward, backward = counted(model, lambda: model(torch.zeros(1, 3, 224, 224, device="meta")).logits)
    assert near(forward, 2 * published)
    assert backward == 2 * forward - stem


def test_t5_small_is_its_weights_twice_for_each_token_that_they_see():
    """2N a token: the encoder's weights see its tokens, the decoder's their own, keys and values of both the
    read."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(decoder_start_token_id=0, attn_implementation="eager")
    model, read, written = meta(lambda: transformers.T5ForConditionalGeneration(config)), 512, 128
    ids = torch.zeros(1, read, dtype=torch.long, device="meta")
    forward, _ = counted(
        model, lambda: model(input_ids=ids, decoder_input_ids=ids[:, :written], use_cache=False).logits
    )
    width, layers = config.d_model, config.num_layers
    attention, dense = 4 * width * width, 2 * width * config.d_ff
    weights = layers * (
        (attention + dense) * read + (attention + dense) * written + 2 * width**2 * (written + read)
    )
    scores = layers * 2 * width * (read * read + written * written + read * written)
    assert forward == 2 * (weights + scores + written * width * config.vocab_size)
