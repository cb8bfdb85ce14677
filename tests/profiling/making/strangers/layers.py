"""Models of many kinds of layers, and of weights that are computed, shared or pruned."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from .table import Model, descend, program, sgd, train, x_of


@program()
def weights_that_are_computed(annotate):
    model = Model()
    parametrizations.weight_norm(model.head)
    parametrizations.spectral_norm(model.layers[0].ffn[0])
    parametrizations.orthogonal(model.layers[1].ffn[0])
    train(annotate(model))


@program()
def weights_that_are_computed_once(annotate):
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).T

    model = annotate(Model())
    parametrize.register_parametrization(model.head, "weight", Symmetric())
    with parametrize.cached():
        (model(x_of()) + model(x_of())).sum().backward()
    parametrize.remove_parametrizations(model.head, "weight")
    return model(x_of())


@program()
def lazy_layers(annotate):
    model = annotate(nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(4)))
    model(x_of())
    train(model)
    return repr(model)


@program()
def convolutions_and_batch_norms(annotate):
    layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(True), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    model = annotate(nn.Sequential(*layers, nn.Linear(8, 2)).to(memory_format=torch.channels_last))
    descend(sgd(model), lambda: model(torch.randn(2, 1, 6, 6)).sum())
    return model.eval()(torch.ones(1, 1, 6, 6))


@program()
def transformer_in_evaluation(annotate):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = annotate(nn.TransformerEncoder(layer, 2).eval())
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        return model(torch.ones(2, 3, 4)), model(torch.ones(2, 3, 4), src_key_padding_mask=padding)


@program()
def quantized(annotate):
    from torch.ao.quantization import quantize_dynamic

    model = annotate(quantize_dynamic(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), {nn.Linear}))
    with torch.no_grad():
        return model(torch.ones(2, 4))


@program()
def generation_with_a_cache(annotate):
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.qkv, self.head = nn.Embedding(6, 4), nn.Linear(4, 12), nn.Linear(4, 6)

        def forward(self, token, cache):
            q, k, v = self.qkv(self.embedding(token)).chunk(3, -1)
            cache["k"] = torch.cat([cache["k"], k], 1) if cache else k
            cache["v"] = torch.cat([cache["v"], v], 1) if "v" in cache else v
            return self.head(nn.functional.scaled_dot_product_attention(q, cache["k"], cache["v"]))

    model, cache, token = annotate(Decoder().eval()), {}, torch.zeros(1, 1, dtype=torch.long)
    tokens = []
    with torch.inference_mode():
        for _ in range(5):
            token = torch.multinomial(model(token, cache)[:, -1].softmax(-1), 1)
            tokens.append(token.item())
    return tokens, cache["k"].clone()
