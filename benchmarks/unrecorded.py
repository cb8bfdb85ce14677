"""Whether an answer tells the program and not its recording: a step's time without a recorder, ours and measured.

    python -m benchmarks.unrecorded [--programs "Llama 8" …] [--runs 5] [--nsys] [--output FILE]

Each program trains alone in `--runs` processes of its own, where the clock is read when the GPU is empty, before
the first of 20 steps and after the last. Then it trains under `nk.profile`, and with `--nsys` under nsys with a
capture range. The table has the step of the answer, its bounds and the GPU's busy share, against the runs alone,
whose share is a recorded step's work over their median; where the answer tells no step, the reason.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.recording_cost import DEVICE, PROGRAMS, Program, device_name, publish, wait

STEPS, BEFORE = 20, 6
LONG = 45  # as many steps as a recording and what is timed after it need
VOCABULARY = 8192


def _made(model: nn.Module, step: Callable[[torch.optim.Optimizer], None]) -> Program:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Program(model, optimizer, lambda: step(optimizer))


def _updated(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


class Recurrent(nn.Module):
    """A cell that is called for each token, in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(VOCABULARY, 256), nn.GRUCell(256, 256)
        self.head = nn.Linear(256, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits of the next token, of the shape (batch, length, vocabulary)."""
        state, states = torch.zeros(len(ids), 256, device=ids.device), []
        for at in range(ids.shape[1]):
            state = self.cell(self.embedding(ids[:, at]), state)
            states.append(state)
        return self.head(torch.stack(states, 1))


def _of_tokens(model: nn.Module, batch: int, length: Callable[[], int]) -> Program:
    model = model.to(DEVICE)

    def step(optimizer: torch.optim.Optimizer) -> None:
        ids = torch.randint(0, VOCABULARY, (batch, length()), device=DEVICE)
        _updated(optimizer, nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))

    return _made(model, step)


def _encoder(width: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.1, batch_first=True)
    return nn.Sequential(
        nn.Embedding(VOCABULARY, width), nn.TransformerEncoder(layer, layers), nn.Linear(width, VOCABULARY)
    )


def vision_transformer() -> Program:
    """Return a ViT on images that are drawn on the device."""
    patches = nn.Sequential(nn.Conv2d(3, 384, 16, 16), nn.Flatten(2))
    layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, batch_first=True)
    blocks, head = nn.TransformerEncoder(layer, 12), nn.Linear(384, 1000)
    model = nn.ModuleDict({"patches": patches, "blocks": blocks, "head": head}).to(DEVICE)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.parts["head"](self.parts["blocks"](self.parts["patches"](images).transpose(1, 2)).mean(1))

    whole = Whole()

    def step(optimizer: torch.optim.Optimizer) -> None:
        images, labels = torch.randn(64, 3, 224, 224, device=DEVICE), torch.randint(0, 1000, (64,), device=DEVICE)
        _updated(optimizer, nn.functional.cross_entropy(whole(images), labels))

    return _made(whole, step)


def gan() -> Program:
    """Return a generator and a discriminator, whose updates take turns."""
    made, judge = (
        nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, out))
        for out in (784, 1)
    )
    judge[0] = nn.Linear(784, 1024)
    model = nn.ModuleList([made, judge]).to(DEVICE)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-4)
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-4)

    def step() -> None:
        real, noise = torch.randn(256, 784, device=DEVICE), torch.randn(256, 128, device=DEVICE)
        _updated(of_judge, judge(made(noise).detach()).mean() - judge(real).mean())
        _updated(optimizer, -judge(made(noise)).mean())

    return Program(model, optimizer, step)


def every_other() -> Program:
    """Return a program with a second optimizer that updates in every other step."""
    program = _of_tokens(_encoder(256, 4), 8, lambda: 128)
    second = torch.optim.SGD(program.optimizer.param_groups[0]["params"][:1], lr=1e-4)
    count = iter(range(10**6))

    def step() -> None:
        if next(count) % 2:
            second.step()
        program.step()

    return Program(program.model, program.optimizer, step)


def growing() -> Program:
    """Return a program whose sequences grow."""
    count = iter(range(10**6))
    return _of_tokens(_encoder(256, 4), 8, lambda: 64 + 8 * next(count))


MORE: dict[str, Callable[[], Program]] = {
    "recurrent cell": lambda: _of_tokens(Recurrent(), 64, lambda: 64),
    "small BERT": lambda: _of_tokens(_encoder(256, 6), 16, lambda: 128),
    "ViT": vision_transformer,
    "GAN": gan,
    "every other step": every_other,
    "growing sequences": growing,
}
#: How many iterations of a program are one step of the answer: its second optimizer ends that.
ITERATIONS = {"every other step": 2}
ALL = {**{name: make for name, make in PROGRAMS.items() if name != "small GPT" or DEVICE == "cpu"}, **MORE}
USUAL = [*ALL] if DEVICE == "cuda" else ["small GPT", "recurrent cell", "GAN", "growing sequences"]


def work(name: str, case: str, report: str) -> None:
    """Train in this process, and print what a step took, ms."""
    if DEVICE == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    program = ALL[name]()

    def train(steps: int) -> float:
        wait()
        began = time.perf_counter()
        for _ in range(steps):
            program.step()
        wait()
        return (time.perf_counter() - began) / steps * 1e3

    if case == "alone":
        train(BEFORE)
        print(train(STEPS))
        return
    import nvtx_kernels as nk

    with nk.profile(program.model, None, report):
        train(LONG)


def measured(name: str, case: str, folder: Path) -> str:
    """Run one case in a process of its own; return what it printed last, or the report's path."""
    report = folder / f"{name}.{case}.sqlite"
    words = [sys.executable, "-m", "benchmarks.unrecorded", "--work", name, case, str(report)]
    if case == "nsys":
        words = ["nsys", "profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-c", "cudaProfilerApi",
                 "--capture-range-end=stop", "-f", "true", "-o", str(report.with_suffix("")), *words]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[1])
    if done.returncode:
        return "failed: " + (done.stderr.strip().splitlines() or ["no reason"])[-1][:90]
    if case == "nsys":
        export = ["nsys", "export", "--type", "sqlite", "-f", "true", "-o", str(report)]
        subprocess.run([*export, str(report.with_suffix(".nsys-rep"))], capture_output=True, check=True)
    return done.stdout.strip().splitlines()[-1] if case == "alone" else str(report)


def told(report: str) -> dict[str, Any]:
    """Return what the answer says of recording."""
    words = [sys.executable, "-m", "nvtx_kernels", "rank", "--per-step", "--format", "json", report]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if done.returncode:
        return {"reason": done.stderr.strip()[:120]}
    recording: dict[str, Any] = json.loads(done.stdout)["report"]["recording"]
    work_ns = [float(row["busy_ns"]) for row in json.loads(done.stdout)["steps"] if row.get("busy_ns")]
    return {**recording, "work_ns": statistics.median(work_ns) if work_ns else 0.0}


def rows_of(name: str, cases: Sequence[str], runs: int, folder: Path) -> list[str]:
    """Return the lines of a Markdown table for one program."""
    alone = [float(measured(name, "alone", folder)) * ITERATIONS.get(name, 1) for _ in range(runs)]
    median, low, high = statistics.median(alone), min(alone), max(alone)
    lines = []
    for case in cases:
        report = measured(name, case, folder)
        if report.startswith("failed"):
            lines.append(f"| {name} | {case} | {median:.2f} ({low:.2f} to {high:.2f}) | {report} | | | |")
            continue
        one = told(report)
        step = (one.get("unrecorded_step_ns") or 0) / 1e6
        recorded = f"{(one.get('step_ns') or 0) / 1e6:.2f}"
        works = one.get("work_ns", 0) / 1e6
        shares = f"{min(1, works / step):.0%} / {min(1, works / median):.0%}" if step and works else ""
        bounds = f"{step:.2f}" if step else "–"
        if step:
            bounds += f" ({one['unrecorded_low_ns'] / 1e6:.2f} to {one['unrecorded_high_ns'] / 1e6:.2f})"
        is_told = "told" if one.get("trusted") else f"not told: {one.get('reason')}"
        lines.append(
            f"| {name} | {case} | {median:.2f} ({low:.2f} to {high:.2f}) | {recorded} | {bounds} "
            f"| {f'{step / median:.2f}' if step else ''} | {shares} | {is_told} |"
        )
    return lines


HEAD = (
    "| program | recorder | alone, ms | recorded, ms | without recording, ms | ÷ alone | busy / alone | |",
    "|---|---|---|---|---|---|---|---|",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=[*ALL], default=USUAL, help="%(default)s")
    parser.add_argument("--runs", type=int, default=5, help="processes alone (%(default)s)")
    parser.add_argument("--nsys", action="store_true", help="also under nsys with a capture range")
    parser.add_argument("--folder", type=Path, help="keep the reports here")
    parser.add_argument("--output", type=Path, help="write the table here, too")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(*options.work)
        return 0
    lines = [f"{device_name()}, PyTorch {torch.__version__}, {options.runs} runs alone.", "", *HEAD]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        for name in options.programs:
            rows = rows_of(name, ["nk.profile", *["nsys"] * options.nsys], options.runs, folder)
            sys.stderr.write("\n".join(rows) + "\n")
            lines += rows
    publish(lines, options.output)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
