"""Small programs on a CPU with one mistake each, and the same without it: a function each returns a training step.

`PROGRAMS` has by rule the programs with the mistake; `HARMLESS` those that look like one and have none.
"""

from __future__ import annotations

import copy
from functools import partial
from itertools import count, pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import nvtx_kernels as nk

WIDTH, CLASSES = 256, 10


def mlp(*sizes):
    """Return linear layers with ReLU between them."""
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def stepping(model, inputs, optimizer=None):
    """Return a step that classifies new inputs, and the model and optimizer."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        given = inputs()
        loss = functional.cross_entropy(model(given), torch.zeros(len(given), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, optimizer, step


class Items(Dataset):
    """Items that take a loop in Python."""

    def __len__(self):
        return 10_000

    def __getitem__(self, row):
        total = sum(number * row % 7 for number in range(3_000))
        return torch.full((WIDTH,), float(total % 3))


def loading(is_slow):
    """Load batches in the program's own process, item by item, or as they are."""
    loader = DataLoader(Items(), batch_size=32)
    if not is_slow:
        loader = DataLoader([torch.randn(32, WIDTH)] * 100, batch_size=None)
    batches = iter(loader)
    return stepping(mlp(WIDTH, 512, 512, CLASSES), lambda: next(batches))


def updating(kind=torch.optim.AdamW, layers=40, **options):
    """Update many small parameters."""
    model = mlp(*[32] * layers, CLASSES)
    return stepping(model, lambda: torch.randn(8, 32), kind(model.parameters(), lr=1e-3, **options))


class Recurrent(nn.Module):
    """A recurrent layer, called in a loop or once."""

    def __init__(self, is_loop, steps=40):
        super().__init__()
        self.steps = steps
        self.layer = nn.LSTMCell(16, 32) if is_loop else nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, given):
        if isinstance(self.layer, nn.LSTM):
            return self.head(self.layer(given)[0][:, -1])
        state = None
        for at in range(self.steps):
            state = self.layer(given[:, at], state)
        return self.head(state[0])


def recurring(is_loop):
    """Train a recurrent network."""
    return stepping(Recurrent(is_loop), lambda: torch.randn(8, 40, 16))


class Shared(nn.Module):
    """A layer that is called many times."""

    def __init__(self, calls, width):
        super().__init__()
        self.calls, self.layer, self.head = calls, nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(self, given):
        for _ in range(self.calls):
            given = torch.relu(self.layer(given))
        return self.head(given)


def logging(how):
    """Train, and call the model for a log: not again, with gradient, without, or a copy of it."""
    model, optimizer, train = stepping(mlp(WIDTH, 1024, 1024, CLASSES), lambda: torch.randn(256, WIDTH))
    teacher = copy.deepcopy(model).requires_grad_(False)

    def step():
        train()
        if how == "again":
            model(torch.randn(256, WIDTH)).argmax(1)
        elif how == "without gradient":
            with torch.no_grad():
                model(torch.randn(256, WIDTH)).argmax(1)
        elif how == "by a teacher":
            teacher(torch.randn(256, WIDTH)).argmax(1)

    return model, optimizer, step


def two_batches():
    """Train by two batches that both reach backward."""
    model = mlp(WIDTH, 1024, 64)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        first, second = model(torch.randn(64, WIDTH)), model(torch.randn(64, WIDTH))
        loss = functional.cross_entropy(first @ second.T, torch.arange(64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, optimizer, step


def freezing(is_frozen, **options):
    """Train the head alone of a model whose body still computes gradients, or not."""
    body, head = mlp(WIDTH, 512, 512, 512), nn.Linear(512, CLASSES)
    body.requires_grad_(not is_frozen)
    model = nn.Sequential(body, head)
    return stepping(model, lambda: torch.randn(64, WIDTH), torch.optim.AdamW(head.parameters(), **options))


def accumulating(batches):
    """Train by micro-batches."""
    model = mlp(WIDTH, 512, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        for _ in range(batches):
            functional.cross_entropy(model(torch.randn(64, WIDTH)), torch.zeros(64, dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def updating_seldom():
    """Train by steps of which every second has an update."""
    model = mlp(WIDTH, 512, 512, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters())
    numbers = count()

    def step():
        with nk.annotate.range("step"):
            functional.cross_entropy(model(torch.randn(64, WIDTH)), torch.zeros(64, dtype=torch.long)).backward()
            if next(numbers) % 2:
                optimizer.step()
                optimizer.zero_grad()

    return model, optimizer, step


class Attending(nn.Module):
    """One layer of attention, written out or not."""

    def __init__(self, how):
        super().__init__()
        self.how, self.inputs, self.head = how, nn.Linear(32, 96), nn.Linear(32, CLASSES)

    def forward(self, given):
        batch, length, width = given.shape
        query, key, value = self.inputs(given).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        if self.how == "by hand":
            mixed = ((query @ key.transpose(-2, -1)) / (width // 4) ** 0.5).softmax(-1) @ value
        elif self.how == "by products":
            with sdpa_kernel(SDPBackend.MATH):
                mixed = functional.scaled_dot_product_attention(query, key, value)
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.head(mixed.transpose(1, 2).reshape(batch, length, width).mean(1))


def attending(how):
    """Train a layer of attention."""
    return stepping(Attending(how), lambda: torch.randn(4, 384, 32))


def in_double(model_dtype):
    """Train in a type of numbers."""
    model = mlp(WIDTH, 512, 512, CLASSES).to(model_dtype)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return stepping(model, lambda: torch.randn(64, WIDTH, dtype=model_dtype), optimizer)


class Checkpointed(nn.Module):
    """Layers that backward computes again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(mlp(WIDTH, 512, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, given):
        for layer in self.layers:
            given = given + checkpoint(layer, given, use_reentrant=False)
        return self.head(given)


#: The programs with a mistake, by the rule that names it.
PROGRAMS = {
    "loader": partial(loading, True),
    "optimizer": partial(updating, foreach=False),
    "loop": partial(recurring, True),
    "unused": partial(logging, "again"),
    "untrained": partial(freezing, False),
    "attention": partial(attending, "by hand"),
    "fp64": partial(in_double, torch.float64),
}
#: Programs without one: the same without the mistake, and near misses.
HARMLESS = {
    "loader: batches that are there": partial(loading, False),
    "optimizer: fused": partial(updating, fused=True),
    "optimizer: foreach": partial(updating, foreach=True),
    "optimizer: few parameters": partial(updating, layers=6, foreach=False),
    "optimizer: Rprop has no fused": partial(updating, kind=torch.optim.Rprop, foreach=False),
    "loop: one call": partial(recurring, False),
    "loop: 12 calls": lambda: stepping(Shared(12, 64), lambda: torch.randn(8, 64)),
    "loop: long operators": lambda: stepping(Shared(20, 256), lambda: torch.randn(2048, 256)),
    "unused: once": partial(logging, "not"),
    "unused: without gradient": partial(logging, "without gradient"),
    "unused: a teacher": partial(logging, "by a teacher"),
    "unused: two batches": two_batches,
    "unused: computed again in backward": lambda: stepping(Checkpointed(), lambda: torch.randn(64, WIDTH)),
    "untrained: frozen": partial(freezing, True),
    "untrained: frozen, fused": partial(freezing, True, fused=True),
    "untrained: micro-batches": partial(accumulating, 4),
    "untrained: an update every second step": updating_seldom,
    "attention: fused": partial(attending, "fused"),
    "attention: by PyTorch's products": partial(attending, "by products"),
    "fp64: float32": partial(in_double, torch.float32),
}
