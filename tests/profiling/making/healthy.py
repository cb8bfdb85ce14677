"""Twelve small training programs without a mistake: python -m tests.profiling.making.healthy NAME [STEPS].

`benchmarks/try_false_wins.py` tries changes on them, of which none should win.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

STEPS = 100_000


class Net(nn.Module):
    """A module made of a function of its parts."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = forward

    def forward(self, *inputs):
        return self.function(self, *inputs)


def mlp():
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    x, y = torch.randn(4096, 128), torch.randint(10, (4096,))

    def loss(step):
        rows = torch.randint(4096, (128,))
        return functional.cross_entropy(model(x[rows]), y[rows])

    return model, loss


def cnn():
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    x, y = torch.randn(512, 3, 32, 32), torch.randint(10, (512,))

    def loss(step):
        rows = torch.randint(512, (16,))
        return functional.cross_entropy(model(x[rows]), y[rows])

    return model, loss


def encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = Net(lambda self, x: self.head(self.body(x).mean(1)), body=body, head=nn.Linear(64, 5))

    def loss(step):
        return functional.cross_entropy(model(torch.randn(8, 32, 64)), torch.randint(5, (8,)))

    return model, loss


def decoder():
    def forward(self, ids):
        q, k, v = self.qkv(self.embed(ids)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(self.mlp(mixed))

    block = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    parts = {"embed": nn.Embedding(256, 64), "qkv": nn.Linear(64, 192), "mlp": block, "head": nn.Linear(64, 256)}
    model = Net(forward, **parts)

    def loss(step):
        ids = torch.randint(256, (8, 65))
        return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return model, loss


def lstm():
    model = Net(
        lambda self, x: self.head(self.cell(x)[0][:, -1]),
        cell=nn.LSTM(32, 64, batch_first=True),
        head=nn.Linear(64, 1),
    )

    def loss(step):
        x = torch.randn(32, 24, 32)
        return functional.mse_loss(model(x), x.mean((1, 2))[:, None])

    return model, loss


def autoencoder():
    model = nn.Sequential(
        nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 16), nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 256)
    )

    def loss(step):
        x = torch.randn(256, 256)
        return functional.mse_loss(model(x), x)

    return model, loss


def tables():
    model = Net(lambda self, i: self.head(self.bag(i)), bag=nn.EmbeddingBag(5000, 32), head=nn.Linear(32, 1))

    def loss(step):
        return model(torch.randint(5000, (512, 10))).square().mean()

    return model, loss


def denoiser():
    layers = [nn.Conv1d(4, 32, 3, padding=1), nn.SiLU(), nn.Conv1d(32, 32, 3, padding=1), nn.SiLU()]
    model = nn.Sequential(*layers, nn.Conv1d(32, 4, 3, padding=1))
    x = torch.randn(64, 4, 128)

    def loss(step):
        noise, t = torch.randn_like(x), torch.rand(64, 1, 1)
        return functional.mse_loss(model(x * t + noise * (1 - t)), noise)

    return model, loss


def accumulating():
    model, one = mlp()
    return model, lambda step: sum(one(step) for _ in range(3)) / 3


def contrastive():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))

    def loss(step):
        x = torch.randn(128, 64)
        a, b = (functional.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
        return functional.cross_entropy(a @ b.T / 0.1, torch.arange(128))

    return model, loss


def graph():
    model = Net(
        lambda self, x, mix: self.b(mix @ functional.relu(self.a(mix @ x))),
        a=nn.Linear(32, 64),
        b=nn.Linear(64, 3),
    )
    mix, x, y = torch.rand(400, 400).softmax(1), torch.randn(400, 32), torch.randint(3, (400,))
    return model, lambda step: functional.cross_entropy(model(x, mix), y)


def lengths():
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))

    def loss(step):
        x = torch.randn((64, 128, 192)[step % 3], 64)
        return functional.mse_loss(model(x), x)

    return model, loss


PROGRAMS = {
    make.__name__: make
    for make in (
        mlp,
        cnn,
        encoder,
        decoder,
        lstm,
        autoencoder,
        tables,
        denoiser,
        accumulating,
        contrastive,
        graph,
        lengths,
    )
}


def main(name: str, steps: int) -> None:
    torch.manual_seed(0)
    model, loss = PROGRAMS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(steps):
        loss(step).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else STEPS)
