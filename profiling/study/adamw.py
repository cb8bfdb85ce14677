"""A table: the AdamWs that a training step can use, by the name of how they launch their kernels."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

BETAS = (0.9, 0.999)
EPS = 1e-8
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01


class ReferenceAdamW(Optimizer):
    """AdamW as the Stanford CS336 course writes it: a Python loop over tensors, 16 kernels for each.

    Per tensor and step: 14 elementwise kernels, and two fills for the zeros that `state.get` is given as
    default and drops on every step but the first. Weight decay comes first, as in the 2026 course.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float = LEARNING_RATE, **options: Any) -> None:
        defaults = {"lr": lr, "betas": BETAS, "eps": EPS, "weight_decay": WEIGHT_DECAY}
        super().__init__(parameters, {**defaults, **options})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; a closure is called first and its loss returned."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad.data  # type: ignore[union-attr]
        (beta1, beta2), lr, t = group["betas"], group["lr"], state.get("t", 1)
        m = state.get("m", torch.zeros_like(gradient))
        v = state.get("v", torch.zeros_like(gradient))
        parameter.data -= lr * group["weight_decay"] * parameter.data
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * torch.square(gradient)
        corrected_lr = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
        parameter.data -= corrected_lr * m / (torch.sqrt(v) + group["eps"])
        state["m"], state["v"], state["t"] = m, v, t + 1


def _torch_adamw(parameters: Iterable[Tensor], **how: bool) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, **how)


OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "reference": ReferenceAdamW,
    "forloop": lambda parameters: _torch_adamw(parameters, foreach=False),
    "foreach": lambda parameters: _torch_adamw(parameters, foreach=True),
    "fused": lambda parameters: _torch_adamw(parameters, fused=True),
}
