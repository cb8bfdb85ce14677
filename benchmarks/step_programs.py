"""Programs whose steps are hard to tell, each under `nk.profile` alone; `strangers.py --profiled` judges them.

A builder returns models, optimizers and one iteration, which marks its phases: marks are no ranges, and each phase
ends with a synchronization, so that the time of a piece of work says its phase.

    python benchmarks/step_programs.py OUT              # one GPU, or a CPU
    torchrun --nproc-per-node 2 benchmarks/step_programs.py OUT --pair
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from loop_programs import LOOPS
from stranger_programs import language, marked, synchronize, train_step

import nvtx_kernels as nk

ITERATIONS, WARM_UP, WIDTH, BATCH = 5, 1, 512, 256
Iteration = Callable[[Any], None]
Program = tuple[list[nn.Module], list[torch.optim.Optimizer], Iteration]


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Mark a phase that its work does not outlast."""
    with marked(name):
        yield
        synchronize()


def net(device: torch.device, out: int = WIDTH) -> nn.Sequential:
    """Return two linear layers."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, out)).to(device)


def adam(*models: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of all parameters."""
    return torch.optim.AdamW([weight for model in models for weight in model.parameters()], lr=1e-4)


def trained(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> None:
    """Run the usual three phases."""
    train_step(phase, loss_of, optimizer)


class FixedPoint(torch.autograd.Function):
    """An implicit layer: iterates without gradient, and solves for its gradient in backward."""

    @staticmethod
    def forward(ctx: Any, cell: nn.Module, x: Tensor, *weights: Tensor) -> Tensor:
        """Compute without gradient."""
        z = torch.zeros_like(x)
        for _ in range(8):
            z = cell(z) + x
        ctx.cell = cell
        ctx.save_for_backward(z, x, *weights)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Solve for the gradient."""
        z, x, *weights = ctx.saved_tensors
        with torch.enable_grad():
            z, x = z.detach().requires_grad_(), x.detach().requires_grad_()
            again = ctx.cell(z) + x
            u = gradients[0]
            for _ in range(4):
                u = gradients[0] + 0.1 * torch.autograd.grad(again, z, u, retain_graph=True)[0]
            grads = torch.autograd.grad(again, [x, *weights], u)
        return None, *grads


def implicit(device: torch.device) -> Program:
    """Train a layer that is defined by its fixed point."""
    cell, x, target = net(device), *torch.randn(2, BATCH, WIDTH, device=device)
    optimizer, apply = adam(cell), FixedPoint.apply
    return (
        [cell],
        [optimizer],
        lambda _: trained(optimizer, lambda: mse_loss(apply(cell, x, *cell.parameters()), target)),
    )


class Adjoint(torch.autograd.Function):
    """Euler's method whose gradient is integrated backwards, as `torchdiffeq.odeint_adjoint` does."""

    @staticmethod
    def forward(ctx: Any, field: nn.Module, x: Tensor, *weights: Tensor) -> Tensor:
        """Compute without gradient."""
        for _ in range(6):
            x = x + 0.1 * field(x)
        ctx.field = field
        ctx.save_for_backward(x, *weights)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Solve for the gradient."""
        x, *weights = ctx.saved_tensors
        a, sums = gradients[0], [torch.zeros_like(weight) for weight in weights]
        for _ in range(6):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                slope = ctx.field(x)
                a_slope, *of_weights = torch.autograd.grad(slope, [x, *weights], a)
            x, a = x.detach() - 0.1 * slope.detach(), a + 0.1 * a_slope
            sums = [total + 0.1 * part for total, part in zip(sums, of_weights, strict=True)]
        return None, a, *sums


def adjoint(device: torch.device) -> Program:
    """Train a neural differential equation."""
    field, x, target = net(device), *torch.randn(2, BATCH, WIDTH, device=device)
    optimizer = adam(field)
    return (
        [field],
        [optimizer],
        lambda _: trained(optimizer, lambda: mse_loss(Adjoint.apply(field, x, *field.parameters()), target)),
    )


def teacher(device: torch.device) -> Program:
    """Train a student by a teacher, which is asked without gradient."""
    student, large, x = (
        net(device),
        nn.Sequential(*net(device), *net(device)).eval(),
        torch.randn(BATCH, WIDTH, device=device),
    )
    optimizer = adam(student)

    def loss_of() -> Tensor:
        with torch.no_grad():
            target = large(x)
        return mse_loss(student(x), target)

    return [student, large], [optimizer], lambda _: trained(optimizer, loss_of)


def in_backward(device: torch.device) -> Program:
    """Update in backward, parameter by parameter, as in PyTorch's tutorial."""
    model, x = net(device), torch.randn(BATCH, WIDTH, device=device)
    optimizers = {weight: torch.optim.AdamW([weight], lr=1e-4) for weight in model.parameters()}

    def update(weight: Tensor) -> None:
        with phase("optimizer"):
            optimizers[weight].step()
            optimizers[weight].zero_grad()

    for weight in optimizers:
        weight.register_post_accumulate_grad_hook(update)

    def iteration(_: Any) -> None:
        with phase("forward"):
            loss = model(x).square().mean()
        with phase("backward"):
            loss.backward()

    return [model], [], iteration


def by_calls(device: torch.device) -> Program:
    """Make three updates for each call of `p.step()`."""
    model, x = net(device), torch.randn(BATCH, WIDTH, device=device)
    optimizer = adam(model)

    def iteration(profile: Any) -> None:
        for _ in range(3):
            trained(optimizer, lambda: model(x).square().mean())
        profile.step()

    return [model], [optimizer], iteration


def whole_graph(device: torch.device) -> Program:
    """Replay one CUDA graph that holds the whole step."""
    model, x = net(device), torch.randn(BATCH, WIDTH, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def iteration(profile: Any) -> None:
        with phase("other"):
            graph.replay()
        profile.step()

    return [model], [optimizer], iteration


def adversaries(device: torch.device) -> Program:
    """Train a generator and a discriminator, with an optimizer each."""
    g, d, x = net(device), net(device, 1), torch.randn(BATCH, WIDTH, device=device)
    of_g, of_d = adam(g), adam(d)

    def iteration(_: Any) -> None:
        trained(of_d, lambda: (d(g(x).detach()) - d(x)).mean())
        trained(of_g, lambda: -d(g(x)).mean())

    return [g, d], [of_d, of_g], iteration


def potential(device: torch.device) -> Program:
    """Train an interatomic potential: forces are gradients of the energy, and part of forward."""
    model, where = net(device, 1), torch.randn(BATCH, WIDTH, device=device)
    target, optimizer = torch.randn_like(where), adam(model)

    def loss_of() -> Tensor:
        at = where.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(at).sum(), at, create_graph=True)
        return mse_loss(-slope, target)

    return [model], [optimizer], lambda _: trained(optimizer, loss_of)


def maml(device: torch.device) -> Program:
    """Learn to learn: an update by gradients inside the loss, for two tasks."""
    model, x, y = net(device), *torch.randn(2, BATCH, WIDTH, device=device)
    optimizer = adam(model)

    def loss_of() -> Tensor:
        losses = []
        for sign in (1, -1):
            weights = dict(model.named_parameters())
            inner = mse_loss(torch.func.functional_call(model, weights, (x,)), sign * y)
            grads = torch.autograd.grad(inner, [*weights.values()], create_graph=True)
            moved = {
                name: weight - 0.1 * grad for (name, weight), grad in zip(weights.items(), grads, strict=True)
            }
            losses.append(mse_loss(torch.func.functional_call(model, moved, (x,)), sign * y))
        return sum(losses, torch.zeros((), device=device))

    return [model], [optimizer], lambda _: trained(optimizer, loss_of)


def policy(device: torch.device) -> Program:
    """Make rollouts without gradient, then two updates, and a call for each iteration."""
    actor, x = net(device), torch.randn(BATCH, WIDTH, device=device)
    optimizer = adam(actor)

    def iteration(profile: Any) -> None:
        with phase("forward"), torch.no_grad():
            seen = x
            for _ in range(4):
                seen = actor(seen)
        for _ in range(2):
            trained(optimizer, lambda: (actor(x) * seen).mean())
        profile.step()

    return [actor], [optimizer], iteration


def fsdp1(device: torch.device) -> Program:
    """Train with the first FSDP."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model, tokens = language(device, "llama")
    sharded = FullyShardedDataParallel(model, device_id=device)
    optimizer = adam(sharded)
    return (
        [sharded],
        [optimizer],
        lambda _: trained(optimizer, lambda: sharded(input_ids=tokens, labels=tokens).loss),
    )


def compiled_ddp(device: torch.device) -> Program:
    """Train with DistributedDataParallel, compiled."""
    model, x = net(device), torch.randn(BATCH, WIDTH, device=device)
    parallel: Any = torch.compile(nn.parallel.DistributedDataParallel(model, device_ids=[device.index]))
    optimizer = adam(model)
    for _ in range(2):  # compiles
        parallel(x).square().mean().backward()
    return [parallel], [optimizer], lambda _: trained(optimizer, lambda: parallel(x).square().mean())


def zero_bubble(device: torch.device) -> Program:
    """Run a pipeline whose backward is in two parts, so that forward and backward alternate."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [net(device) for _ in range(2)]
    stages = [PipelineStage(part, rank + ranks * n, 2 * ranks, device) for n, part in enumerate(parts)]
    schedule = ScheduleInterleavedZeroBubble(stages, 2 * ranks, loss_fn=mse_loss)  # type: ignore[arg-type]
    x, optimizer = torch.randn(BATCH, WIDTH, device=device), adam(*parts)

    def iteration(_: Any) -> None:
        with phase("forward and backward"):
            schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == ranks - 1 else {}))
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return list(parts), [optimizer], iteration


SINGLE = {
    "implicit layer": implicit,
    "adjoint solver": adjoint,
    "teacher": teacher,
    "optimizer in backward": in_backward,
    "three updates a call": by_calls,
    "whole CUDA graph": whole_graph,
    "GAN": adversaries,
    "potential": potential,
    "MAML": maml,
    "policy": policy,
    **LOOPS,
}
PAIR = {"FSDP1": fsdp1, "compiled DDP": compiled_ddp, "zero-bubble pipeline": zero_bubble}


def run(name: str, build: Callable[[torch.device], Program], device: torch.device, out: Path) -> None:
    """Profile some iterations of one program; one that cannot run here says why and is left out."""
    torch.manual_seed(0)
    rank = f" {dist.get_rank()}" if dist.is_initialized() else ""
    try:
        made = build(device)
        models, optimizers, iteration, *how = made
        iterations, marks_itself = how or (ITERATIONS, False)
        path = out / f"{name}{rank}.sqlite"
        with nk.profile(models, optimizers, path, warmup=WARM_UP, steps=None) as profile:
            for number in range(iterations):
                with nullcontext() if marks_itself else marked(f"iteration {number}"):
                    iteration(profile)
    except Exception:  # the others still run
        print(f"left out: {name}: {traceback.format_exc().splitlines()[-1]}", file=sys.stderr)


def main() -> None:
    """Run one set of programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pair", action="store_true", help="those of two GPUs, under torchrun")
    parser.add_argument("--only", default="", help="only programs with this in their names")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
    if kind == "cuda":
        torch.cuda.set_device(device)
    if options.pair:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    for name, build in (PAIR if options.pair else SINGLE).items():
        if options.only in name:
            run(name, build, device, options.out)
    if options.pair:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
