"""What annotating a whole model costs a training step: times of forward and backward, side by side.

    python -m benchmarks.annotation_cost [--turns 20] [--models GPT-2 ...] [--against FOLDER]
    nsys profile -t cuda,nvtx -o /tmp/cost --force-overwrite true python -m benchmarks.annotation_cost

Each model runs plain; with hooks on all modules that push and pop a range of a cached NVTX domain; and annotated.
Without a tool, listeners that do nothing stand in for it.
With `--against`, another checkout of this repository does the same in a process of its own. The ways take turns of
a few steps, in another order each time, so that other load on the machine affects all equally.

The table compares the annotated forward with that of hooks that push and pop, and the annotated backward with
plain, both of the same checkout and turn: the median of the turns' ratios, and their quartiles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import nvtx
import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Narrow on a CPU, where kernels would otherwise be all that is measured.
WIDTH, TOKENS, IMAGE = (768, 128, 64) if DEVICE == "cuda" else (48, 8, 32)
# Steps of one way before its times are taken, and in a row: what changes `nn.Module`, as annotating does, has
# Python look up the attributes of all modules again for some calls, of the way after it too.
WARMUP, STEPS = 2, 3
AIMS = {"annotated": (1.15, 1.35)}


class Case(NamedTuple):
    """A model and how to compute its loss."""

    model: nn.Module
    loss: Callable[[], torch.Tensor]


class Silent:
    """A listener that does nothing."""

    def push(self, name: str, payload: object) -> None:
        """Do nothing."""

    def pop(self) -> None:
        """Do nothing."""

    def mark(self, message: str) -> None:
        """Do nothing."""


def gpt2() -> Case:
    """Return 12 layers of Hugging Face's GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=WIDTH, vocab_size=1000)).to(DEVICE, torch.bfloat16)
    ids = torch.randint(1000, (1, TOKENS), device=DEVICE)
    return Case(model.train(), lambda: model(ids, labels=ids, use_cache=False).loss)


def llama() -> Case:
    """Return 8 layers of Hugging Face's Llama, narrow."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_attention_heads": 12, "vocab_size": 1000}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=8, **sizes)).to(DEVICE, torch.bfloat16)
    ids = torch.randint(1000, (1, TOKENS), device=DEVICE)
    return Case(model.train(), lambda: model(ids, labels=ids, use_cache=False).loss)


def resnet50() -> Case:
    """Return timm's ResNet-50 on small images."""
    import timm

    model = timm.create_model("resnet50", pretrained=False).to(DEVICE)
    images = torch.randn(2, 3, IMAGE, IMAGE, device=DEVICE)
    return Case(model.train(), lambda: model(images).float().mean())


def encoder() -> Case:
    """Return PyTorch's own transformer encoder."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(DEVICE)
    x = torch.randn(1, 16, 64, device=DEVICE)
    return Case(model.train(), lambda: model(x).mean())


MODELS = {"GPT-2": gpt2, "Llama": llama, "ResNet-50": resnet50, "TransformerEncoder": encoder}


@contextmanager
def _push_and_pop(model: nn.Module) -> Iterator[None]:
    """Have hooks push and pop a range around each module."""
    domain: Any = nvtx.get_domain("hooks")
    silent, handles = Silent(), []
    for path, module in model.named_modules():
        name = path.rpartition(".")[2] or type(model).__name__
        attributes: Any = domain.get_event_attributes(name)

        def push(_module: object, _args: object, attributes: Any = attributes, name: str = name) -> None:
            domain.push_range(attributes) if attributes is not None else silent.push(name, None)

        def pop(_module: object, _args: object, _output: object) -> None:
            domain.pop_range()

        handles += [module.register_forward_pre_hook(push), module.register_forward_hook(pop)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _annotated(model: nn.Module) -> Iterator[None]:
    from nvtx_kernels.profiling import annotate
    from nvtx_kernels.profiling.annotate import range_stack

    heard = nullcontext() if range_stack.active else annotate.listen(Silent())
    with annotate.annotate_modules(model), heard:
        yield


def _step_ms(case: Case) -> tuple[float, float]:
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


def work() -> None:
    """Answer a model's name and a way, on each line of stdin, with the times of some steps."""
    from nvtx_kernels.profiling.annotate import range_stack

    torch.set_num_threads(1)
    _answer({"is_heard": range_stack.active})
    name, case = "", Case(nn.Module(), torch.Tensor)
    for line in sys.stdin:
        wanted_name, way = json.loads(line)
        if wanted_name != name:
            name, case = wanted_name, MODELS[wanted_name]()
        contexts: dict[str, Callable[[], Any]] = {
            "plain": nullcontext,
            "push and pop": lambda: _push_and_pop(case.model),  # noqa: B023 - used at once
            "annotated": lambda: _annotated(case.model),  # noqa: B023
        }
        with contexts[way]():
            times = [_step_ms(case) for _ in range(WARMUP + STEPS)][WARMUP:]
        modules = len(list(case.model.modules()))
        _answer([modules, *(statistics.median(column) for column in zip(*times, strict=True))])


def _answer(value: object) -> None:
    print(json.dumps(value), flush=True)


class Worker:
    """A process that measures one checkout."""

    def __init__(self, checkout: Path, cache: str) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
            "NVTX_KERNELS_CACHE": cache,
        }
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).resolve(), "--work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=checkout,
        )
        about = self._read()
        self.ways = ["plain", "push and pop", *AIMS]
        self.is_heard: bool = about["is_heard"]

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process that measures has failed")
        return json.loads(line)

    def measure(self, model: str, way: str) -> tuple[int, float, float]:
        """Return a model's number of modules, and the times of forward and backward in a turn, ms."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([model, way]) + "\n")
        self._process.stdin.flush()
        modules, forward, backward = self._read()
        return modules, forward, backward

    def end(self) -> None:
        """Let the process end."""
        self._process.communicate()


def measured(workers: dict[str, Worker], model: str, turns: int) -> Iterator[str]:
    """Measure a model in turns; yield its lines of the table."""
    pairs = [(checkout, way) for way in AIMS for checkout in workers]
    every = [
        (checkout, way) for way in workers["new"].ways for checkout in workers if way in workers[checkout].ways
    ]
    times: dict[tuple[str, str], list[tuple[float, float]]] = {pair: [] for pair in every}
    modules = 0
    for turn in range(turns + 1):
        first = turn % len(every)
        for pair in every[first:] + every[:first]:
            modules, *pair_times = workers[pair[0]].measure(model, pair[1])
            if turn:  # the first one allocates
                times[pair].append((pair_times[0], pair_times[1]))
    for checkout, way in pairs:
        if (checkout, way) in times:
            columns = [
                _quartiles(
                    [own[phase] / other[phase] for own, other in zip(times[checkout, way], base, strict=True)]
                )
                for phase, base in enumerate((times[checkout, "push and pop"], times[checkout, "plain"]))
            ]
            aims = " ".join(f"{aim:5.2f}" for aim in AIMS[way])
            yield f"{model:18} {modules:7d}  {checkout:3} {way:14}  {columns[0]}  {columns[1]}  {aims}"
    for checkout, way in every:
        forward, backward = (statistics.median(column) for column in zip(*times[checkout, way], strict=True))
        print(f"  {model:18} {checkout:3} {way:14} {forward:8.2f} / {backward:.2f}", flush=True)


def _quartiles(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:5.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Measure, print the times, and the comparisons last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="turns of each way, at least 2")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["GPT-2", "Llama", "ResNet-50"])
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout of this repository")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    began, lines = time.monotonic(), []
    with tempfile.TemporaryDirectory() as cache:
        checkouts = {"new": Path(__file__).resolve().parents[1]}
        if options.against is not None:
            checkouts = {"old": options.against.resolve(), **checkouts}
        workers = {name: Worker(checkout, cache) for name, checkout in checkouts.items()}
        tool = "a tool" if workers["new"].is_heard else "no tool"
        print(f"torch {torch.__version__}, {DEVICE}, {tool} is attached; forward / backward, ms")
        for model in options.models:
            lines += measured(workers, model, max(2, options.turns))
        for worker in workers.values():
            worker.end()
    print(f"\nmedian (quartiles) of {options.turns} turns, after {time.monotonic() - began:.0f} s")
    print(f"{'model':18} {'modules':>7}  {'':18}  {'forward / push and pop':22} {'backward / plain':21} aims")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
