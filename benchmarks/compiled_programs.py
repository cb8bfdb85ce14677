"""One program of `compiled.py`: forward and backward of a model, eager, compiled and graphed, in ranges.

Range names: `eager`, `compiled`, `graphed`, in each `warmup` and `step`, in these `forward` and `backward`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.recorder import record

MODES = ("eager", "compiled", "graphed")
#: Per case: the model's size or the library's class, and whether it runs under bf16 autocast.
CASES = {
    "tiny-fp32": ("tiny", False), "small-fp32": ("small", False), "small-bf16": ("small", True),
    "medium-fp32": ("medium", False), "medium-bf16": ("medium", True), "llama": ("llama", True),
    "gpt2": ("gpt2", True),
}  # fmt: skip
WARM_UP, STEPS = 3, 5
Loss = Callable[[], Tensor]


def course_model(size: str, device: str) -> tuple[nn.Module, Loss, Callable[[nn.Module], Loss]]:
    """Return this project's model, and how to have the loss of it or of what it was compiled to."""
    config, context, batch = CONFIGS[size], 512 if device == "cuda" else 32, 4
    with torch.device(device):
        model = TransformerLM(config, context)
        tokens_BT = torch.randint(config.vocabulary, (batch, context))
    return (
        model,
        lambda: cross_entropy(model(tokens_BT), tokens_BT),
        lambda call: lambda: cross_entropy(call(tokens_BT), tokens_BT),
    )


def library_model(name: str, device: str) -> tuple[nn.Module, Loss, Callable[[nn.Module], Loss]]:
    """Return a Hugging Face model of random weights, annotated by its modules, and how to have its loss."""
    import transformers

    sizes = {"vocab_size": 8192, "use_cache": False}
    if name == "llama":
        config = transformers.LlamaConfig(
            hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=16, **sizes
        )
        model = transformers.LlamaForCausalLM(config).to(device)
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6, **sizes)).to(device)
    tokens_BT = torch.randint(8192, (4, 512), device=device)
    annotate.annotate_modules(model)

    def loss_of(call: nn.Module) -> Loss:
        return lambda: call(tokens_BT, labels=tokens_BT).loss

    return model, loss_of(model), loss_of


def step(loss: Loss, model: nn.Module, *, bf16: bool, device: str) -> None:
    """Run one forward and one backward in their ranges, each until the device is done."""
    model.zero_grad(set_to_none=True)
    torch.compiler.cudagraph_mark_step_begin()
    with annotate.range("forward"), torch.autocast(device, torch.bfloat16, enabled=bf16):
        result = loss()
        _wait(device)
    with annotate.range("backward"):
        result.backward()
        _wait(device)


def run(mode: str, loss: Loss, model: nn.Module, *, bf16: bool, device: str) -> dict[str, float]:
    """Warm up, then time steps; return ms of a step and seconds of the first, which compiles."""
    times = []
    with annotate.range(mode):
        for number in range(WARM_UP + STEPS):
            name = "warmup" if number < WARM_UP else "step"
            began = time.perf_counter()
            with annotate.range(name):
                step(loss, model, bf16=bf16, device=device)
            times.append(time.perf_counter() - began)
    return {"step_ms": statistics.median(times[WARM_UP:]) * 1e3, "compile_s": times[0]}


def digest(loss: Loss, model: nn.Module, *, bf16: bool, device: str) -> str:
    """Return a hash of the loss and of every gradient."""
    model.zero_grad(set_to_none=True)
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        result = loss()
    result.backward()
    tensors = [result, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().float().cpu().numpy().tobytes())
    return total.hexdigest()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Run the modes one after another; print what the last one says of itself as JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--record", metavar="FILE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    name, bf16 = CASES[options.case]
    torch.manual_seed(0)
    make = library_model if name in ("llama", "gpt2") else course_model
    model, plain, loss_of = make(name, options.device)
    made: dict[str, Callable[[], Loss]] = {
        "eager": lambda: plain,
        "compiled": lambda: loss_of(torch.compile(model)),
        "graphed": lambda: loss_of(torch.compile(model, mode="reduce-overhead")),
    }
    said: dict[str, object] = {}
    with record(options.record, device=options.device) if options.record else nullcontext():
        for mode in options.modes:
            torch.compiler.reset()
            counters.clear()
            loss = made[mode]()
            said = dict(run(mode, loss, model, bf16=bf16, device=options.device))
    said["graphs"], said["recompiled"] = counters["stats"]["unique_graphs"], len(counters["recompiles"])
    if options.json:
        said["digests"] = [digest(loss, model, bf16=bf16, device=options.device) for _ in range(2)]
        print(json.dumps(said))


if __name__ == "__main__":
    main()
