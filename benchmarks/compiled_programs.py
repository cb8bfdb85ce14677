"""One program of `compiled.py`: forward and backward of a model in ranges, eager and compiled in several ways.

Range names: the mode, in it `warmup` and `step`, in these `forward` and `backward`. Of several processes of a
data-parallel program, the environment says which one this is (`RANK`, `WORLD_SIZE`, …), as torchrun sets it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch._dynamo.utils import counters

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.recorder import record

#: What each mode compiles with; None for eager.
MODES: dict[str, str | None] = {
    "eager": None,
    "compiled": "default",
    "graphed": "reduce-overhead",
    "autotuned": "max-autotune",
}
BASIC, WITH_GRAPHS = ("eager", "compiled"), ("eager", "compiled", "graphed")


class Case(NamedTuple):
    """What a program runs: the model, whether under bf16 autocast, in which modes, and how it is distributed."""

    model: str
    bf16: bool
    modes: tuple[str, ...] = BASIC
    parallel: str = ""


CASES = {
    "tiny-fp32": Case("tiny", False),
    "small-fp32": Case("small", False, WITH_GRAPHS),
    "small-bf16": Case("small", True),
    "small-bf16-autotune": Case("small", True, (*BASIC, "autotuned")),
    "medium-fp32": Case("medium", False),
    "medium-bf16": Case("medium", True),
    "llama": Case("llama", True, WITH_GRAPHS),
    "gpt2": Case("gpt2", True),
    "tiny-fp32-autotune": Case("tiny", False, (*BASIC, "autotuned")),
    "planted": Case("blocks", False),
    **{
        f"{size}-{precision}-{parallel}": Case(size, precision == "bf16", BASIC, parallel)
        for size, precision in (("tiny", "fp32"), ("small", "bf16"))
        for parallel in ("ddp", "fsdp2")
    },
}
WARM_UP, STEPS, BATCH = 3, 5, 4
#: How often the slow module of `planted` works when it is compiled, and the width of its blocks.
SLOW, WIDTH = 40, 1024
Loss = Callable[[], Tensor]
LossOf = Callable[[nn.Module], Loss]


class Mixer(nn.Module):
    """A projection, as often as wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.times = nn.Parameter(torch.eye(WIDTH)), 1

    def forward(self, x_BD: Tensor) -> Tensor:
        """Project (B, D) to (B, D)."""
        for _ in range(self.times):
            x_BD = x_BD @ self.weight
        return x_BD


class Block(nn.Module):
    """Two projections around a mixer and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mixer, self.down = nn.Linear(WIDTH, WIDTH), Mixer(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return (B, D) for (B, D)."""
        out_BD: Tensor = self.down(torch.sin(self.mixer(self.up(x_BD))))
        return out_BD


def made(name: str, device: str) -> tuple[nn.Module, LossOf]:
    """Return a model of random weights, annotated, and how to compute the loss of it or of what wraps it."""
    torch.manual_seed(0)
    if name == "blocks":
        return _blocks(device)
    return _library_model(name, device) if name in ("llama", "gpt2") else _course_model(name, device)


def _course_model(size: str, device: str) -> tuple[nn.Module, LossOf]:
    config, context = CONFIGS[size], 512 if device == "cuda" else 32
    with torch.device(device):
        model = TransformerLM(config, context)
        tokens_BT = torch.randint(config.vocabulary, (BATCH, context))
    return model, lambda call: lambda: cross_entropy(call(tokens_BT), tokens_BT)


def _library_model(name: str, device: str) -> tuple[nn.Module, LossOf]:
    import transformers

    sizes = {"vocab_size": 8192, "use_cache": False}
    if name == "llama":
        config = transformers.LlamaConfig(
            hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=16, **sizes
        )
        model = transformers.LlamaForCausalLM(config).to(device)
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6, **sizes)).to(device)
    tokens_BT = torch.randint(8192, (BATCH, 512 if device == "cuda" else 32), device=device)
    annotate.annotate_modules(model)
    return model, lambda call: lambda: call(tokens_BT, labels=tokens_BT).loss


def _blocks(device: str) -> tuple[nn.Module, LossOf]:
    model = nn.Sequential(*(Block() for _ in range(4))).to(device)
    x_BD = torch.randn(4096 if device == "cuda" else 128, WIDTH, device=device)
    annotate.annotate_modules(model)
    return model, lambda call: lambda: call(x_BD).square().mean()


def wrapped(case: Case, mode: str, model: nn.Module, device: str) -> nn.Module:
    """Return a model compiled for a mode and, where the case says so, distributed over processes."""
    how = MODES[mode]
    if case.parallel == "fsdp2":
        return _sharded(model, how, device)
    call = model if how is None else torch.compile(model, mode=how)
    if case.parallel == "ddp":
        return nn.parallel.DistributedDataParallel(call)
    return call


def _sharded(model: nn.Module, how: str | None, device: str) -> nn.Module:
    """Shard each layer and then the rest; where it is compiled, layer by layer, as is usual with FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (distributed.get_world_size(),))
    layers: list[nn.Module] = list(model.layers)  # type: ignore[arg-type]
    for layer in layers:
        if how is not None:
            layer.compile(mode=how)
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def step(loss: Loss, model: nn.Module, *, bf16: bool, device: str) -> None:
    """Run one forward and one backward in their ranges, each until the device is done."""
    model.zero_grad(set_to_none=True)
    torch.compiler.cudagraph_mark_step_begin()
    with annotate.range("forward"), torch.autocast(device, torch.bfloat16, enabled=bf16):
        result = loss()
        wait(device)
    with annotate.range("backward"):
        result.backward()
        wait(device)


def wait(device: str) -> None:
    """Wait until the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def run(case: Case, mode: str, device: str, *, steps: int, frame: str) -> None:
    """Warm up, then run the measured steps of one mode of a new model."""
    torch.compiler.reset()
    counters.clear()
    model, loss_of = made(case.model, device)
    if case.model == "blocks" and mode != "eager":
        model[2].mixer.times = SLOW  # type: ignore[index,union-attr]
    call = wrapped(case, mode, model, device)
    loss = loss_of(call)
    with annotate.range(frame):
        for number in range(WARM_UP + steps):
            with annotate.range("warmup" if number < WARM_UP else "step"):
                step(loss, call, bf16=case.bf16, device=device)


@contextmanager
def _process_group(case: Case, device: str) -> Iterator[None]:
    if not case.parallel:
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def main() -> None:
    """Run the modes one after another, each with a model of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--modes", nargs="+", choices=MODES, help="default: the program's own")
    parser.add_argument("--steps", type=int, default=STEPS, help="measured steps of each mode (%(default)s)")
    parser.add_argument("--record", metavar="FILE", help="record a report here, without nsys")
    options = parser.parse_args()
    case = CASES[options.case]
    recording = record(options.record, device=options.device) if options.record else nullcontext()
    with _process_group(case, options.device), recording:
        for mode in options.modes or case.modes:
            frame = "run" if case.model == "blocks" else mode
            run(case, mode, options.device, steps=options.steps, frame=frame)


if __name__ == "__main__":
    main()
