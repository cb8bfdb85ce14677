"""Models of many kinds of layers, and of weights that are computed, shared or pruned."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

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
def old_weight_norm(annotate):
    model = Model()
    nn.utils.spectral_norm(model.head)
    train(annotate(model))


@program()
def pruned(annotate):
    model = annotate(Model())
    prune.l1_unstructured(model.head, "weight", 0.5)
    train(model)
    prune.remove(model.head, "weight")
    return model(x_of())


@program()
def lazy_layers(annotate):
    model = annotate(nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(4)))
    model(x_of())
    train(model)
    return repr(model)


@program()
def lists_and_dictionaries_of_parameters(annotate):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = nn.ParameterList(nn.Parameter(torch.full((4,), i + 1.0)) for i in range(3))
            self.shifts = nn.ParameterDict({"low": torch.zeros(4), "high": torch.ones(4)})
            self.heads = nn.ModuleDict({"one": nn.Linear(4, 4), "two": nn.Linear(4, 4)})

        def forward(self, x):
            for scale in self.scales:
                x = x * scale + self.shifts["low"]
            return sum(head(x) for head in self.heads.values()) + self.shifts["high"]

    train(annotate(Mixed()), steps=2)


@program()
def shared_modules_and_tied_weights(annotate):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.one = self.two = nn.Linear(4, 4)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.two(self.one(self.embedding(tokens)).relu()))

    model, tokens = annotate(Tied()), torch.tensor([[0, 1, 5]])
    descend(sgd(model), lambda: nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))


@program()
def a_module_that_calls_itself(annotate):
    class Universal(nn.Module):
        def __init__(self):
            super().__init__()
            self.halt, self.step = nn.Linear(4, 1), nn.Linear(4, 4)

        def forward(self, x, depth=0):
            if depth == 4 or self.halt(x).mean() < -1:
                return x
            return self(self.step(x).tanh(), depth + 1)

    train(annotate(Universal()))


@program()
def packed_sequences(annotate):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
            self.gru, self.rnn = nn.GRU(6, 3, batch_first=True), nn.RNN(3, 2, batch_first=True)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            inner, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return self.rnn(self.gru(inner)[0])[0]

    model = annotate(Tagger())
    output = model(torch.ones(3, 5, 4), torch.tensor([5, 2, 3]))
    output.sum().backward()
    return output


@program()
def convolutions_and_batch_norms(annotate):
    layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(True), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    model = annotate(nn.Sequential(*layers, nn.Linear(8, 2)).to(memory_format=torch.channels_last))
    descend(sgd(model), lambda: model(torch.randn(2, 1, 6, 6)).sum())
    return model.eval()(torch.ones(1, 1, 6, 6))


@program()
def transformer_while_it_trains(annotate):
    model = annotate(nn.Transformer(4, 2, 1, 1, 8, dropout=0.1, batch_first=True))
    source, target = torch.randn(2, 3, 4), torch.randn(2, 2, 4)
    mask = nn.Transformer.generate_square_subsequent_mask(2)
    descend(sgd(model), lambda: model(source, target, tgt_mask=mask).sum(), 1)


@program()
def transformer_in_evaluation(annotate):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = annotate(nn.TransformerEncoder(layer, 2).eval())
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        return model(torch.ones(2, 3, 4)), model(torch.ones(2, 3, 4), src_key_padding_mask=padding)


@program()
def weights_of_attention(annotate):
    attention = annotate(nn.MultiheadAttention(4, 2, batch_first=True))
    x = torch.randn(2, 3, 4, requires_grad=True)
    output, weights = attention(x, x, x, need_weights=True, average_attn_weights=False)
    (output.sum() + weights.square().sum()).backward()
    return output, weights, x.grad, attention(x, x, x, need_weights=False)


@program()
def sparse_gradients(annotate):
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(10, 4, mode="sum", sparse=True)
            self.embedding = nn.Embedding(10, 4, sparse=True)

        def forward(self, tokens, offsets):
            return self.bag(tokens, offsets) + self.embedding(tokens[offsets])

    model = annotate(Bags())
    inputs = torch.tensor([1, 2, 4, 1]), torch.tensor([0, 2])
    descend(torch.optim.SparseAdam(model.parameters()), lambda: model(*inputs).sum())


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
