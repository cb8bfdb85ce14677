"""What annotating a whole model costs a training step: times of forward and backward, side by side.

    python -m benchmarks.annotation_cost [--steps 50]
    nsys profile -t nvtx -o /tmp/cost --force-overwrite true python -m benchmarks.annotation_cost

For each model: plain; with hooks on all modules that do nothing; with hooks that push and pop a range of a
cached NVTX domain, or tell a listener; and annotated. Without a tool it also shows what annotating costs
while nobody listens, and a listener that does nothing stands in for the tool. The ways take turns of a few
steps, so that whatever else the machine does falls on all alike; each figure is the first decile. GPT-2, Llama
and ResNet-50 run where transformers and torchvision are installed, besides the models that need neither. The
short table is last: forward as a share of that with hooks that push and pop, backward as a share of plain.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import range_stack
from nvtx_kernels.profiling.annotate.open_ranges import OpenRange, label
from torch import nn

from benchmarks.annotation import Silent

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Narrow on a CPU, where kernels would otherwise be all that is measured.
WIDTH, TOKENS, IMAGE = (768, 128, 64) if DEVICE == "cuda" else (48, 8, 32)
# Steps of one way before its times are taken, and in a row: what changes `nn.Module`, as annotating does, has
# Python look up the attributes of all modules anew for some calls, of the way after it too.
WARMUP, TURN = 5, 5


class Case(NamedTuple):
    """A model and how to compute its loss."""

    model: nn.Module
    loss: Callable[[], torch.Tensor]


def gpt2(*, checkpointed: bool = False) -> Case:
    """Return 6 layers of Hugging Face's GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=WIDTH, vocab_size=1000)).to(DEVICE, torch.bfloat16)
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(1000, (1, TOKENS), device=DEVICE)
    return Case(model.train(), lambda: model(ids, labels=ids, use_cache=False).loss)


def llama() -> Case:
    """Return 6 layers of Hugging Face's Llama, narrow."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_attention_heads": 12, "vocab_size": 1000}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=6, **sizes)).to(DEVICE, torch.bfloat16)
    ids = torch.randint(1000, (1, TOKENS), device=DEVICE)
    return Case(model.train(), lambda: model(ids, labels=ids, use_cache=False).loss)


def resnet50() -> Case:
    """Return torchvision's ResNet-50 on small images."""
    from torchvision.models import resnet50 as made

    model, images = made().to(DEVICE), torch.randn(2, 3, IMAGE, IMAGE, device=DEVICE)
    return Case(model.train(), lambda: model(images).float().mean())


def encoder() -> Case:
    """Return PyTorch's own transformer encoder."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(DEVICE)
    x = torch.randn(1, 16, 64, device=DEVICE)
    return Case(model.train(), lambda: model(x).mean())


def own() -> Case:
    """Return the tiny model of this repository, which has regions of its own besides."""
    model = TransformerLM(CONFIGS["tiny"], 16).to(DEVICE)
    ids = torch.randint(CONFIGS["tiny"].vocabulary, (1, 16), device=DEVICE)
    return Case(model, lambda: cross_entropy(model(ids), ids))


MODELS: dict[str, Callable[[], Case]] = {
    "GPT-2": gpt2,
    "GPT-2 checkpointed": lambda: gpt2(checkpointed=True),
    "Llama": llama,
    "ResNet-50": resnet50,
    "TransformerEncoder": encoder,
    "own model, tiny": own,
}


@contextmanager
def _hooks(model: nn.Module, before: Callable[[str], object], after: Callable[[], object]) -> Iterator[None]:
    handles: list[Any] = []
    for path, module in model.named_modules():
        name = path.rpartition(".")[2] or type(model).__name__
        handles.append(module.register_forward_pre_hook(lambda _module, _args, name=name: before(name) and None))
        handles.append(module.register_forward_hook(lambda _module, _args, _output: after() and None))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _push_and_pop(model: nn.Module, listener: Silent) -> Any:
    if not range_stack.active:
        return _hooks(model, lambda name: listener.push(name, None), listener.pop)
    labels = {name: label(name, None, "model/forward") for name in map(_last, model.named_modules())}
    labels[type(model).__name__] = label(type(model).__name__, None, "model/forward")
    opened = [OpenRange(label) for label in labels.values()]
    for one in opened:
        range_stack.push(one)
        range_stack.close(one)
    attributes = {name: label.attributes for name, label in labels.items()}
    domain = range_stack._domain
    return _hooks(model, lambda name: domain.push_range(attributes[name]), domain.pop_range)


def _last(named: tuple[str, nn.Module]) -> str:
    return named[0].rpartition(".")[2]


@contextmanager
def _annotated(model: nn.Module, listener: Silent | None) -> Iterator[None]:
    with annotate.annotate_modules(model):
        if listener is None or range_stack.active:
            yield
        else:
            with annotate.listen(listener):
                yield


@contextmanager
def _plain() -> Iterator[None]:
    yield


def ways(model: nn.Module) -> dict[str, Callable[[], Any]]:
    """Return the ways to run a model, each as a context to run it in."""
    listener = Silent()
    quiet = {} if range_stack.active else {"annotated, unheard": lambda: _annotated(model, None)}
    return {
        "plain": _plain,
        "hooks": lambda: _hooks(model, lambda _: None, lambda: None),
        "push and pop": lambda: _push_and_pop(model, listener),
        "annotated": lambda: _annotated(model, listener),
        **quiet,
    }


def step_ms(case: Case) -> tuple[float, float]:
    """Return the times of one forward and one backward, in ms, as the program waits for them."""
    case.model.zero_grad(set_to_none=True)
    _wait()
    began = time.perf_counter()
    loss = case.loss()
    between = time.perf_counter()
    _wait()
    again = time.perf_counter()
    loss.backward()  # type: ignore[no-untyped-call]
    return (between - began) * 1e3, (time.perf_counter() - again) * 1e3


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measured(case: Case, steps: int) -> dict[str, tuple[float, float]]:
    """Return each way's forward and backward time, ms: the first deciles of its steps."""
    times: dict[str, list[tuple[float, float]]] = {}
    contexts = ways(case.model)
    for _ in range(-(-steps // TURN)):
        for way, context in contexts.items():
            with context():
                for _ in range(WARMUP):
                    step_ms(case)
                times.setdefault(way, []).extend(step_ms(case) for _ in range(TURN))
    return {
        way: tuple(sorted(column)[len(column) // 10] for column in zip(*found, strict=True))
        for way, found in times.items()
    }


def main() -> None:
    """Measure, print all times, and the shares last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="steps of each way")
    torch.set_num_threads(1)
    steps, shares = parser.parse_args().steps, []
    print(f"torch {torch.__version__}, {DEVICE}, {'a tool' if range_stack.active else 'no tool'} is attached")
    for name, make in MODELS.items():
        with suppress(ImportError):
            case = make()
            modules = len(list(case.model.modules()))
            print(f"\n{name}, {modules} modules: forward / backward, ms")
            found = measured(case, steps)
            for way, (forward, backward) in found.items():
                print(f"  {way:20} {forward:8.2f} / {backward:.2f}")
            forward = found["annotated"][0] / found["push and pop"][0]
            backward = found["annotated"][1] / found["plain"][1]
            shares.append(f"{name:20} {modules:7d} {forward:8.2f} {backward:9.2f}")
    print(f"\n{'model':20} {'modules':>7} {'forward':>8} {'backward':>9}   (aim: 1.15 and 1.15)")
    print("\n".join(shares))


if __name__ == "__main__":
    main()
