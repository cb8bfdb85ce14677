"""What recording costs: a step's time by the program's own clock, alone and while each recorder watches.

    python -m benchmarks.recording_cost [--models "Llama 8" ...] [--steps 20] [--turns 1] [--output FILE]

On a GPU Llama with 8 and 16 layers, GPT-2 and ResNet-50 train (those whose libraries are installed), without one a
GPT with contexts of 128 and 32 tokens and eight micro-batches. Each case runs in a process of its own, the cases
of a turn one after another: the program alone, under `torch.profiler` with its export, annotated while nothing
listens, under `nk.record`, and under `nk.profile`. The table has the median and the slowest of the measured steps,
with the median as a multiple of the program's alone; how long the block takes with the file, and what it adds to
its steps; and the process's peak of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 16384
WARMUP, BEFORE = 3, 5
CASES = ("alone", "torch.profiler", "annotate only", "nk.record", "nk.profile")
LONGEST_S = 240


class Program(NamedTuple):
    """A model, its optimizer, and a step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], None]


def _program(model: nn.Module, loss: Callable[[], torch.Tensor], batches: int = 1) -> Program:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def step() -> None:
        for _ in range(batches):
            loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return Program(model, optimizer, step)


def llama(layers: int, batch: int, context: int, width: int) -> Program:
    """Return a Llama of transformers'."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = width // 64
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, use_cache=False,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).to(DEVICE).train()
    ids = torch.randint(0, VOCABULARY, (batch, context), device=DEVICE)
    return _program(model, lambda: model(input_ids=ids, labels=ids).loss)


def gpt2() -> Program:
    """Return GPT-2 of transformers'."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model: Any = GPT2LMHeadModel(GPT2Config(use_cache=False)).to(DEVICE).train()
    ids = torch.randint(0, 50257, (4, 512), device=DEVICE)
    return _program(model, lambda: model(input_ids=ids, labels=ids).loss)


def resnet50() -> Program:
    """Return ResNet-50 of torchvision's."""
    from torchvision.models import resnet50 as made

    model: Any = made().to(DEVICE).train()
    images = torch.randn(32, 3, 224, 224, device=DEVICE)
    labels = torch.randint(0, 1000, (32,), device=DEVICE)
    return _program(model, lambda: nn.functional.cross_entropy(model(images), labels))


class Block(nn.Module):
    """A layer of a small GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of its input (batch, time, width)."""
        batch, time_, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, time_, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time_, width))
        return x + self.mlp(self.norm_2(x))


def gpt(context: int) -> Program:
    """Return a GPT of six blocks with eight micro-batches a step, for a CPU."""
    width, vocabulary = 128, 256
    blocks = [Block(width, 4) for _ in range(6)]
    model = nn.Sequential(
        nn.Embedding(vocabulary, width), *blocks, nn.LayerNorm(width), nn.Linear(width, vocabulary)
    )
    ids = torch.randint(0, vocabulary, (4, context))

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(model(ids).view(-1, vocabulary), ids.view(-1))

    return _program(model, loss, batches=8)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "Llama 8": lambda: llama(8, 2, 256, 512),
    "Llama 16": lambda: llama(16, 4, 512, 1024),
    "GPT-2": gpt2,
    "ResNet-50": resnet50,
    "GPT 128": lambda: gpt(128),
    "GPT 32": lambda: gpt(32),
}
USUAL = {"cuda": ["Llama 8", "Llama 16", "GPT-2", "ResNet-50"], "cpu": ["GPT 128", "GPT 32"]}


def wait() -> None:
    """Wait for the GPU, if there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def run_case(name: str, case: str, steps: int) -> dict[str, Any]:
    """Run one case in this process; return the ms of its steps, the s of its block, and the bytes at its peak."""
    if DEVICE == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    program = PROGRAMS[name]()
    for _ in range(BEFORE if DEVICE == "cuda" else 1):
        program.step()
    wait()
    times: list[float] = []

    def train() -> None:
        for _ in range(WARMUP + steps):
            began = time.perf_counter()
            program.step()
            wait()
            times.append((time.perf_counter() - began) * 1e3)

    folder = Path(tempfile.mkdtemp())
    began = time.perf_counter()
    _watched(case, program, train, folder, steps)
    block_s = time.perf_counter() - began
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"times": times[WARMUP:], "block_s": block_s, "steps_s": sum(times) / 1e3, "peak": peak}


def _watched(case: str, program: Program, train: Callable[[], None], folder: Path, steps: int) -> None:
    import nvtx_kernels as nk

    bounds: dict[str, Any] = {"warmup": WARMUP, "steps": steps}
    if case == "alone":
        train()
    elif case == "torch.profiler":
        with torch.profiler.profile() as profiler:
            train()
        profiler.export_chrome_trace(str(folder / "trace.json"))
    elif case == "annotate only":
        with nk.annotate_modules(program.model):
            train()
    elif case == "nk.record":
        with nk.record(folder / "report.sqlite", quiet=True, **bounds):
            train()
    else:
        with nk.profile(program.model, program.optimizer, folder / "report.sqlite", **bounds):
            train()


def measured(name: str, case: str, steps: int) -> dict[str, Any] | str:
    """Run one case in a process of its own; return what it measured, or why it could not, in a line."""
    words = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "benchmarks.recording_cost",
        "--work",
        name,
        case,
        "--steps",
        str(steps),
    ]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=LONGEST_S, cwd=Path(__file__).parents[1]
        )
    except subprocess.TimeoutExpired:
        return f"longer than {LONGEST_S} s"
    if done.returncode < 0:
        sys.stderr.write(done.stderr)  # where the process was, by faulthandler
        return f"ended by {signal.Signals(-done.returncode).name}"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no reason was given"])[-1][:100]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def rows_of(name: str, results: dict[str, list[dict[str, Any]]], failures: dict[str, str]) -> list[str]:
    """Return the lines of a Markdown table for one program."""
    lines, alone = [], 0.0
    for case in CASES:
        if case in failures:
            lines.append(f"| {name} | {case} | {failures[case]} | | | | | |")
            continue
        runs = results[case]
        steps = [run["times"] for run in runs]
        median = statistics.median(statistics.median(times) for times in steps)
        slowest = statistics.median(max(times) for times in steps)
        alone = median if case == "alone" else alone
        block = statistics.median(run["block_s"] for run in runs)
        after = statistics.median(run["block_s"] - run["steps_s"] for run in runs)
        peak = statistics.median(run["peak"] for run in runs) / 1e6
        times_alone = f"{median / alone:.2f}" if alone else "–"
        lines.append(
            f"| {name} | {case} | {median:.1f} | {times_alone} | {slowest:.1f} | {slowest / median:.2f} "
            f"| {block:.1f} | {after:.1f} | {peak:,.0f} |"
        )
    return lines


HEAD = (
    "| program | case | median ms | × alone | slowest ms | × median | block, file s | after steps s | peak MB |",
    "|---|---|---|---|---|---|---|---|---|",
)


def device_name() -> str:
    """Name what the programs run on."""
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "a CPU, one thread"


def publish(lines: Sequence[str], output: Path | None) -> None:
    """Print a table, and write it to a file if one is given."""
    text = "\n".join(lines)
    if output:
        output.write_text(f"{text}\n")
    print(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=[*PROGRAMS], default=USUAL[DEVICE], help="%(default)s")
    parser.add_argument("--steps", type=int, default=10, help="steps to measure (%(default)s)")
    parser.add_argument("--turns", type=int, default=1, help="how often each case is run (%(default)s)")
    parser.add_argument("--output", type=Path, help="write the table here, too")
    parser.add_argument("--work", nargs=2, metavar=("MODEL", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        print(json.dumps(run_case(*options.work, options.steps)))
        return 0
    about = f"{options.steps} steps after {WARMUP} of warm-up, {options.turns}×"
    lines = [f"{device_name()}, PyTorch {torch.__version__}, {about}.", "",
             *HEAD]  # fmt: skip
    for name in options.models:
        results: dict[str, list[dict[str, Any]]] = {}
        failures: dict[str, str] = {}
        for _ in range(options.turns):
            for case in CASES:
                result = measured(name, case, options.steps)
                if isinstance(result, str):
                    failures[case] = result
                else:
                    results.setdefault(case, []).append(result)
                print(f"{name}, {case}: {'done' if not isinstance(result, str) else result}", file=sys.stderr)
        lines += rows_of(name, results, failures)
    publish(lines, options.output)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
