"""What annotating a whole model costs a training step: times of forward and backward, side by side.

    python -m benchmarks.annotation_cost [--steps 100]
    nsys profile -t nvtx -o /tmp/cost --force-overwrite true python -m benchmarks.annotation_cost

For each model: plain; with hooks on all modules that do nothing; with hooks that push and pop a range of a
cached NVTX domain, or tell a listener; annotated; and, where `nvtx-kernels accelerate` was run before, annotated
with the part in C++ (accelerated). Without a tool it also shows what annotating costs while nobody listens, and a
listener that does nothing stands in for the tool. The ways take turns of a few steps, so that whatever else the
machine does falls on all alike; times are first deciles. GPT-2, Llama and ResNet-50 run where transformers and
torchvision are installed, besides the models that need neither.

The table at the end compares the forward of the annotated model, and of the accelerated one, with that of hooks
that push and pop, and their backward with plain: microseconds per module above it, and times as long. Both are
computed in each round of turns, from the fastest step of each turn, and shown as the median of the rounds with
their quartiles. An aim is reached where the upper quartile is within it, missed where the lower one is above it,
and undecided in between.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import torch
from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.annotate import accelerator, range_stack, trail
from nvtx_kernels.profiling.annotate.open_ranges import OpenRange, label
from torch import nn

from benchmarks.annotation import Silent

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Narrow on a CPU, where kernels would otherwise be all that is measured.
WIDTH, TOKENS, IMAGE = (768, 128, 64) if DEVICE == "cuda" else (48, 8, 32)
# Steps of one way before its times are taken, and in a row: what changes `nn.Module`, as annotating does, has
# Python look up the attributes of all modules anew for some calls, of the way after it too.
WARMUP, TURN = 5, 5
# Of fewer than five rounds, quartiles say nothing.
FEWEST = 5 * TURN
AIM = 1.15


class Step(NamedTuple):
    """The times of one forward and one backward, ms, or the smallest of several."""

    forward: float
    backward: float


# The steps of each way, by round.
Rounds = dict[str, list[list[Step]]]


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
def _annotated(model: nn.Module, listener: Silent | None, library: Any = None) -> Iterator[None]:
    before = trail.accelerate(library)
    try:
        with annotate.annotate_modules(model):
            if listener is None or range_stack.active:
                yield
            else:
                with annotate.listen(listener):
                    yield
    finally:
        trail.accelerate(before)


def ways(model: nn.Module) -> dict[str, Callable[[], Any]]:
    """Return the ways to run a model, each as a context to run it in."""
    listener, library = Silent(), accelerator.load()
    faster = {} if library is None else {"accelerated": lambda: _annotated(model, listener, library)}
    quiet = {} if range_stack.active else {"annotated, unheard": lambda: _annotated(model, None)}
    return {
        "plain": nullcontext,
        "hooks": lambda: _hooks(model, lambda _: None, lambda: None),
        "push and pop": lambda: _push_and_pop(model, listener),
        "annotated": lambda: _annotated(model, listener),
        **faster,
        **quiet,
    }


def step_ms(case: Case) -> Step:
    """Return the times of one forward and one backward, in ms, as the program waits for them."""
    case.model.zero_grad(set_to_none=True)
    _wait()
    began = time.perf_counter()
    loss = case.loss()
    between = time.perf_counter()
    _wait()
    again = time.perf_counter()
    loss.backward()  # type: ignore[no-untyped-call]
    return Step((between - began) * 1e3, (time.perf_counter() - again) * 1e3)


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measured(case: Case, steps: int) -> Rounds:
    """Run the ways in turns, in another order each round."""
    rounds: Rounds = {}
    contexts = list(ways(case.model).items())
    for number in range(-(-steps // TURN)):
        first = number % len(contexts)
        for way, context in contexts[first:] + contexts[:first]:
            with context():
                for _ in range(WARMUP):
                    step_ms(case)
                rounds.setdefault(way, []).append([step_ms(case) for _ in range(TURN)])
    return {way: rounds[way] for way, _ in contexts}


def first_decile(turns: list[list[Step]], phase: str) -> float:
    """Return a way's time in a phase, ms."""
    times = sorted(getattr(step, phase) for turn in turns for step in turn)
    return times[len(times) // 10]


class Comparison(NamedTuple):
    """How much longer a phase takes annotated: quartiles over the rounds, of us per module and of the ratio."""

    us: list[float]
    ratio: list[float]

    def line(self) -> str:
        """Return it with the verdict on the aim."""
        verdict = "reached" if self.ratio[2] <= AIM else "missed" if self.ratio[0] > AIM else "undecided"
        us, ratio = self.us, self.ratio
        spread = f"{us[1]:6.1f} ({us[0]:.1f} to {us[2]:.1f})"
        return f"{spread:24} {ratio[1]:5.2f} ({ratio[0]:.2f} to {ratio[2]:.2f})  {verdict}"


def compared(rounds: Rounds, phase: str, ours: str, base: str, modules: int) -> Comparison:
    """Compare a phase of the annotated model with the same of another way, round by round."""
    pairs = [
        [min(getattr(step, phase) for step in turn) for turn in both]
        for both in zip(rounds[ours], rounds[base], strict=True)
    ]
    us = [1e3 * (own - other) / modules for own, other in pairs]
    ratios = [own / other for own, other in pairs]
    return Comparison(*(statistics.quantiles(column, n=4, method="inclusive") for column in (us, ratios)))


def print_model(name: str, case: Case, steps: int) -> list[str]:
    """Measure a model and print its times; return its lines of the table at the end."""
    modules = len(list(case.model.modules()))
    print(f"\n{name}, {modules} modules: forward / backward, ms")
    rounds = measured(case, steps)
    for way, turns in rounds.items():
        forward, backward = first_decile(turns, "forward"), first_decile(turns, "backward")
        print(f"  {way:20} {forward:8.2f} / {backward:.2f}", flush=True)
    phases = {"forward": "push and pop", "backward": "plain"}
    return [
        f"{name:19} {modules:7d}  {way:12} {phase:9}{compared(rounds, phase, way, base, modules).line()}"
        for way in ("annotated", "accelerated")
        if way in rounds
        for phase, base in phases.items()
    ]


def main() -> None:
    """Measure, print all times, and the comparisons last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help=f"steps of each way, at least {FEWEST}")
    torch.set_num_threads(1)
    steps, lines = max(FEWEST, parser.parse_args().steps), []
    print(f"torch {torch.__version__}, {DEVICE}, {'a tool' if range_stack.active else 'no tool'} is attached")
    for name, make in MODELS.items():
        with suppress(ImportError):
            lines += print_model(name, make(), steps)
    print("\nannotated, forward against hooks that push and pop, backward against plain: median (quartiles)")
    heads = f"{'model':19} {'modules':>7}  {'way':12} {'phase':9}"
    print(f"{heads}{'us per module above':24} {'times as long':21}  aim {AIM}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
