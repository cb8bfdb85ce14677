"""A compiled model with an autograd function of the program's own."""

import torch
from torch import nn


class Square(torch.autograd.Function):
    """Squares, with a backward of its own."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return 2 * x * gradient


class Block(nn.Module):
    """A norm, a projection and the square."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x):
        return x + Square.apply(self.up(self.norm(x)))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = torch.compile(model)
    for _ in range(4):
        optimizer.zero_grad()
        step(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
