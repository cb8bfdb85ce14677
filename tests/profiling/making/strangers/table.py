"""The table of strangers' programs, and the small models that most of them use.

A program is a function of `annotate`, which it calls with the models that are to be annotated, and which
returns them. What it returns or raises must not depend on whether they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Program:
    """A program of the table.

    `rehearsals` is how often it runs before it is looked at, for what PyTorch compiles or caches on the way.
    `threads` says that it computes on threads of its own, whose operators only a profiler sees. `compiles`
    says that a compiler takes part, which a dispatch mode would keep from it. A `silent` one calls no annotated
    module itself, so that no range opens.
    """

    run: Callable[[Callable[[nn.Module], nn.Module]], Any]
    rehearsals: int = 0
    threads: bool = False
    compiles: bool = False
    slow: bool = False
    silent: bool = False
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the function's name."""
        return self.run.__name__


PROGRAMS: list[Program] = []


def program(**features):
    """Put a function into the table."""

    def add(function):
        assert function.__name__ not in {one.name for one in PROGRAMS}
        PROGRAMS.append(Program(function, **features))
        return function

    return add


class Block(nn.Module):
    """A residual block, with activation checkpointing where `checkpointed` says how."""

    def __init__(self, checkpointed=None):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(4), nn.Dropout(0.1)
        self.ffn = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
        self.checkpointed = checkpointed

    def forward(self, x):
        if self.checkpointed is None:
            inner = self.ffn(self.norm(x))
        else:
            inner = checkpoint(lambda x: self.ffn(self.norm(x)), x, use_reentrant=self.checkpointed)
        return x + self.drop(inner)


class Model(nn.Module):
    """Two blocks and a head."""

    def __init__(self, checkpointed=None):
        super().__init__()
        self.layers = nn.ModuleList(Block(checkpointed) for _ in range(2))
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def x_of(rows=4):
    """Return a leaf of four columns that wants a gradient."""
    return torch.arange(4.0 * rows).reshape(rows, 4).div(16).requires_grad_()


def sgd(model):
    """Return the simplest optimizer of a model."""
    return torch.optim.SGD(model.parameters(), lr=0.1)


def descend(optimizer, loss, steps=2):
    """Lower a loss, which is a function, by a few steps."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def train(model, optimizer=None, steps=3):
    """Train for a few steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.1)
    descend(optimizer, lambda: model(x_of()).square().sum(), steps)
