"""Loops that people write, each under `nk.profile`, in the form of `step_programs.py`, which runs them.

A program's own names of phases are true: `other` is work outside of phases, and `evaluation` outside of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from stranger_programs import marked, synchronize
from torch import Tensor, nn
from torch.nn.functional import mse_loss

WIDTH, BATCH = 512, 256


class Loop(NamedTuple):
    """Models and optimizers for `nk.profile`, one iteration, and how many there are."""

    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    iteration: Callable[[Any], None]
    iterations: int = 5
    marks_itself: bool = False  # where its iterations are


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark a phase that its work does not outlast."""
    with marked(name):
        yield
        synchronize()


def net(device: torch.device, out: int | None = None) -> nn.Sequential:
    """Return two linear layers."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, out or WIDTH)).to(device)


def inputs(device: torch.device) -> Tensor:
    """Return one batch."""
    return torch.randn(BATCH, WIDTH, device=device)


def adam(*models: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of all parameters."""
    return torch.optim.AdamW([weight for model in models for weight in model.parameters()], lr=1e-4)


def update(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> None:
    """Compute a loss, its gradients and an update."""
    optimizer.zero_grad()
    with phase("forward"):
        loss = loss_of()
    with phase("backward"):
        loss.backward()
    with phase("optimizer"):
        optimizer.step()


def preferences(device: torch.device) -> Loop:
    """Ask a reference model once for two updates, as GRPO does; an iteration is two steps."""
    policy, reference, x = net(device), net(device).eval(), inputs(device)
    optimizer, asked = adam(policy), list[Tensor]()

    def iteration(_: Any) -> None:
        if not asked:
            with phase("forward"), torch.no_grad():
                asked.extend([reference(x)] * 2)
        update(optimizer, lambda: mse_loss(policy(x), asked.pop()))

    return Loop([policy, reference], [optimizer], iteration, iterations=10)


def many_updates(device: torch.device, *, calls_step: bool) -> Loop:
    """Ask a reference and a value model once for 32 updates, as PPO does."""
    policy, value, reference, x = net(device), net(device, 1), net(device).eval(), inputs(device)
    optimizer = adam(policy, value)

    def iteration(profile: Any) -> None:
        value.eval()
        with phase("forward" if calls_step else "evaluation"), torch.no_grad():
            worth, before = value(x), reference(x)
        value.train()
        for number in range(32):
            with nullcontext() if calls_step else marked(f"iteration {number}"):
                update(optimizer, lambda: mse_loss(policy(x), before) + mse_loss(value(x), worth))
        if calls_step:
            profile.step()

    return Loop(
        [policy, value, reference], [optimizer], iteration, 5 if calls_step else 2, marks_itself=not calls_step
    )


def rollouts(device: torch.device) -> Loop:
    """Make rollouts with the policy after `eval()`, ask a reference model, update twice, and call `p.step()`."""
    policy, reference, x = net(device), net(device).eval(), inputs(device)
    optimizer = adam(policy)

    def iteration(profile: Any) -> None:
        policy.eval()
        with phase("forward"), torch.no_grad():
            seen = x
            for _ in range(4):
                seen = policy(seen)
            before = reference(seen)
        policy.train()
        for _ in range(2):
            update(optimizer, lambda: mse_loss(policy(seen), before))
        profile.step()

    return Loop([policy, reference], [optimizer], iteration, iterations=2)


def scaled(device: torch.device) -> Loop:
    """Train with a GradScaler and clipping; one update is skipped."""
    model, x = net(device), inputs(device)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-4), torch.amp.GradScaler(device.type)
    numbers = iter(range(100))

    def iteration(_: Any) -> None:
        factor = float("inf") if next(numbers) == 2 else 1.0
        optimizer.zero_grad()
        with phase("forward"):
            loss = model(x).square().mean() * factor
            scaled_loss = scaler.scale(loss)
        with phase("backward"):
            scaled_loss.backward()
        with phase("optimizer"):
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with phase("optimizer"):
            scaler.step(optimizer)
        with phase("optimizer"):
            scaler.update()

    return Loop([model], [optimizer], iteration)


def compiled_update(device: torch.device) -> Loop:
    """Update by a compiled `optimizer.step`."""
    model, x = net(device), inputs(device)
    optimizer = adam(model)
    step = torch.compile(optimizer.step)

    def iteration(_: Any) -> None:
        optimizer.zero_grad()
        with phase("forward"):
            loss = model(x).square().mean()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            step()

    return Loop([model], [optimizer], iteration)


def compiled_autograd(device: torch.device) -> Loop:
    """Compile the backward pass, as `torch._dynamo.config.compiled_autograd` does."""
    from torch._dynamo import config

    model, x = net(device), inputs(device)
    optimizer, backward = adam(model), torch.compile(lambda loss: loss.backward())

    def iteration(_: Any) -> None:
        optimizer.zero_grad()
        with phase("forward"):
            loss = model(x).square().mean()
        with phase("backward"), config.patch(compiled_autograd=True):
            backward(loss)
        with phase("optimizer"):
            optimizer.step()

    return Loop([model], [optimizer], iteration)


def compiled_copy(device: torch.device) -> Loop:
    """Evaluate between the steps by a compiled copy of the model, in inference mode."""
    model, x = net(device), inputs(device)
    optimizer, copy, numbers = adam(model), torch.compile(model), iter(range(100))

    def iteration(_: Any) -> None:
        update(optimizer, lambda: model(x).square().mean())
        if next(numbers) == 2:
            model.eval()
            with phase("evaluation"), torch.inference_mode():
                for _ in range(3):
                    copy(x)
            model.train()

    return Loop([model], [optimizer], iteration)


def tasks(device: torch.device) -> Loop:
    """Project the gradients of two tasks on each other, as PCGrad does."""
    body, heads, x = net(device), [net(device, 1) for _ in range(2)], inputs(device)
    model = nn.ModuleDict({"body": body, "first": heads[0], "second": heads[1]})
    optimizer, shared = adam(model), [*body.parameters()]

    def iteration(_: Any) -> None:
        with phase("forward"):
            hidden = body(x)
            losses = [head(hidden).square().mean() for head in heads]
        slopes = []
        for loss in losses:
            with phase("backward"):
                slopes.append(torch.autograd.grad(loss, shared, retain_graph=True))
        with phase("other"):
            first, second = (torch.cat([slope.flatten() for slope in of_task]) for of_task in slopes)
            merged = first + second - torch.clamp(first @ second, max=0) / (first @ first) * first
            sizes = [weight.numel() for weight in shared]
            for weight, slope in zip(shared, merged.split(sizes), strict=True):
                weight.grad = slope.view_as(weight).clone()
        with phase("optimizer"):
            optimizer.step()

    return Loop([body, *heads], [optimizer], iteration)


def own_phases(device: torch.device) -> Loop:
    """Open ranges `forward`, `backward` and `optimizer` around the same calls, as the assignment asks."""
    from torch.cuda import nvtx

    model, x = net(device), inputs(device)
    optimizer = adam(model)

    def iteration(_: Any) -> None:
        with nvtx.range("forward"), phase("forward"):
            loss = model(x).square().mean()
        with nvtx.range("backward pass"), phase("backward"):
            loss.backward()
        with nvtx.range("optimizer"), phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return Loop([model], [optimizer], iteration)


def own_steps(device: torch.device) -> Loop:
    """Open a range `warmup` around five steps, and ten ranges `step`."""
    from torch.cuda import nvtx

    model, x = net(device), inputs(device)
    optimizer = adam(model)
    numbers = iter(range(100))

    def step() -> None:
        update(optimizer, lambda: model(x).square().mean())

    def iteration(_: Any) -> None:
        if next(numbers):
            with nvtx.range("step"):
                step()
        else:
            with nvtx.range("warmup"):
                for _ in range(5):
                    step()

    return Loop([model], [optimizer], iteration, iterations=11)


def language_model(device: torch.device) -> nn.Sequential:
    """Return a model of tokens without attention."""
    return nn.Sequential(nn.Embedding(1000, WIDTH), *net(device), nn.Linear(WIDTH, 1000)).to(device).eval()


def generating(device: torch.device) -> Loop:
    """Sample tokens: the prompt in one call of the model, and a call a token."""
    model, prompt = language_model(device), torch.randint(1000, (2, 16), device=device)

    def iteration(profile: Any) -> None:
        tokens = prompt
        with torch.no_grad():
            for _ in range(8):
                with phase("forward"):
                    logits = model(tokens)
                with phase("other"):
                    tokens = torch.multinomial(logits[:, -1].softmax(-1), 1)
        profile.step()

    return Loop([model], [], iteration)


def speculating(device: torch.device) -> Loop:
    """Have a draft model propose three tokens, and the model verify them."""
    model, draft = language_model(device), language_model(device)
    prompt = torch.randint(1000, (1, 16), device=device)

    def iteration(profile: Any) -> None:
        tokens = prompt
        with torch.no_grad():
            for _ in range(4):
                proposed = [tokens]
                for _ in range(3):
                    with phase("forward"):
                        logits = draft(proposed[-1])
                    with phase("other"):
                        proposed.append(logits[:, -1:].argmax(-1))
                with phase("other"):
                    tokens = torch.cat(proposed, 1)
                with phase("forward"):
                    logits = model(tokens)
                with phase("other"):
                    tokens = torch.multinomial(logits[:, -1].softmax(-1), 1)
        profile.step()

    return Loop([model, draft], [], iteration)


def with_lost_end(device: torch.device) -> Loop:
    """Open eleven ranges of steps; an exception leaves one open."""
    from torch.cuda import nvtx

    model, x = net(device), inputs(device)
    optimizer = adam(model)
    numbers = iter(range(100))

    def iteration(_: Any) -> None:
        number = next(numbers)
        try:
            nvtx.range_push("step")
            if number == 4:
                with phase("lost"):
                    model(x)
                raise RuntimeError("out of memory")
            with marked(f"iteration {number}"):
                update(optimizer, lambda: model(x).square().mean())
            nvtx.range_pop()
        except RuntimeError:
            pass

    return Loop([model], [optimizer], iteration, iterations=12, marks_itself=True)


LOOPS: dict[str, Callable[[torch.device], Loop]] = {
    "GRPO": preferences,
    "PPO": partial(many_updates, calls_step=False),
    "PPO, calls": partial(many_updates, calls_step=True),
    "rollouts": rollouts,
    "GradScaler": scaled,
    "compiled update": compiled_update,
    "compiled copy": compiled_copy,
    "compiled autograd": compiled_autograd,
    "PCGrad": tasks,
    "own phases": own_phases,
    "own steps": own_steps,
    "generating": generating,
    "speculating": speculating,
    "a lost end": with_lost_end,
}
