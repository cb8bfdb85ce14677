"""Hold nk.profile against time windows, and time it: python benchmarks/one_line.py [--only NAME] [--nsys REPORT].

Programs that know nothing of ranges run for a few steps, first alone and then in `nk.profile` or with a callback.
Every kernel is given to the phase whose range was open at its launch, on any thread, and held against the ranking:
differences must be 0 ns. Under nsys, run one of them (`--run NAME`), export, and give the report with `--nsys`.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy

import nvtx_kernels as nk

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = "small" if DEVICE == "cuda" else "tiny"
CONTEXT, BATCH, WARM_UP, STEPS = 128, 4, 2, 5
PHASES = ("forward", "backward", "optimizer")
# Each kernel's time by the phase that was open, on any thread, when its launch began.
OPENED = """
    SELECT coalesce(n.text, s.value) AS name, start, end
    FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE eventType = 59 ORDER BY start"""
LAUNCHED = """
    SELECT r.start, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)"""
#: What a program is given: where to record its report, or None.
Report = Path | None


def profiled(report: Report, model: nn.Module, *optimizers: torch.optim.Optimizer) -> Any:
    """Return `nk.profile` of what is trained, or a block that does nothing."""
    if report is None:
        return contextlib.nullcontext()
    return nk.profile(model, list(optimizers), report, warmup=WARM_UP, steps=STEPS)


def batches() -> Iterator[torch.Tensor]:
    """Yield the tokens of each step."""
    for _ in range(WARM_UP + STEPS):
        yield torch.randint(CONFIGS[SIZE].vocabulary, (BATCH, CONTEXT), device=DEVICE)


def our_model() -> tuple[TransformerLM, torch.optim.Optimizer]:
    """Return a model, and an optimizer of it."""
    with torch.device(DEVICE):
        model = TransformerLM(CONFIGS[SIZE], CONTEXT)
    return model, torch.optim.AdamW(model.parameters())


def layers(*more: nn.Module) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return a perceptron of 1,024 units, and an optimizer of it."""
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), *more).to(DEVICE)
    return model, torch.optim.SGD(model.parameters())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> None:
    """Run forward, backward and optimizer."""
    cross_entropy(model(tokens), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()


def loop(report: Report) -> None:
    """Run a plain training loop."""
    model, optimizer = our_model()
    with profiled(report, model, optimizer):
        for tokens in batches():
            train_step(model, optimizer, tokens)


def scaled(report: Report) -> None:
    """Run a loop with FP16 autocast, a GradScaler, accumulation and clipping."""
    model, optimizer = our_model()
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1.0)
    with profiled(report, model, optimizer):
        for tokens in batches():
            for _ in range(2):
                with torch.autocast(DEVICE, torch.bfloat16 if DEVICE == "cpu" else torch.float16):
                    loss = cross_entropy(model(tokens), tokens)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def evaluated(report: Report) -> None:
    """Run a loop that evaluates after each step."""
    model, optimizer = our_model()
    with profiled(report, model, optimizer):
        for tokens in batches():
            train_step(model, optimizer, tokens)
            with torch.no_grad():
                cross_entropy(model.eval()(tokens), tokens)
            model.train()


def adversaries(report: Report) -> None:
    """Train a generator and a critic, an optimizer each."""
    (generator, ours), (critic, theirs) = layers(), layers(nn.Linear(1024, 1))
    with profiled(report, nn.ModuleList([generator, critic]), theirs, ours):
        for _ in range(WARM_UP + STEPS):
            noise = torch.randn(256, 1024, device=DEVICE)
            (critic(generator(noise).detach()).mean() - critic(noise).mean()).backward()
            theirs.step()
            theirs.zero_grad()
            (-critic(generator(noise)).mean()).backward()
            ours.step()
            ours.zero_grad()


def images(report: Report) -> None:
    """Train a convolutional network."""
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1)
    ).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with profiled(report, model, optimizer):
        for _ in range(WARM_UP + STEPS):
            model(torch.randn(32, 3, 64, 64, device=DEVICE)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def accelerate(report: Report) -> None:
    """Run the loop of Accelerate's documentation, which accumulates."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=DEVICE == "cpu", gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(*our_model())
    with profiled(report, model, optimizer):
        for tokens in batches():
            for _ in range(2):
                with accelerator.accumulate(model):
                    accelerator.backward(cross_entropy(model(tokens), tokens))
                    optimizer.step()
                    optimizer.zero_grad()


def trainer(report: Report) -> None:
    """Run Hugging Face's Trainer, unchanged but for one callback."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    size: dict[str, int] = {} if DEVICE == "cuda" else {"n_layer": 2, "n_head": 2, "n_embd": 32}
    model = GPT2LMHeadModel(GPT2Config(**size))
    tokens = torch.randint(100, (2 * BATCH * (WARM_UP + STEPS), CONTEXT))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    callback = nk.integrations.hugging_face(report, warmup=WARM_UP, steps=STEPS) if report else None
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, use_cpu=DEVICE == "cpu", per_device_train_batch_size=BATCH, max_steps=WARM_UP + STEPS,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        Trainer(model, arguments, train_dataset=data, callbacks=[callback] if callback else []).train()


def lightning(report: Report) -> None:
    """Run Lightning's Trainer, unchanged but for one callback."""
    from lightning import LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset

    class Regressor(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body, _ = layers()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.body(batch[0]).square().mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    data = DataLoader(TensorDataset(torch.randn(256 * (WARM_UP + STEPS), 1024)), batch_size=256)
    callback = nk.integrations.lightning(report, warmup=WARM_UP, steps=STEPS) if report else None
    Trainer(
        max_epochs=1, accelerator="gpu" if DEVICE == "cuda" else "cpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[callback] if callback else [],
    ).fit(Regressor(), data)  # fmt: skip


PROGRAMS: dict[str, Callable[[Report], None]] = {
    program.__name__: program
    for program in (loop, scaled, evaluated, adversaries, images, accelerate, trainer, lightning)
}


def by_windows(path: Path) -> dict[str, int]:
    """Return the kernel time, ns, that was launched inside each phase of the measured steps."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        ranges = database.execute(OPENED).fetchall()
        launches, lasted = np.array(database.execute(LAUNCHED).fetchall(), np.int64).reshape(-1, 2).T
    (measure,) = (row for row in ranges if row[0] == "measure")
    steps = [row for row in ranges if row[0] == "step" and measure[1] <= row[1] and row[2] <= measure[2]]
    found = dict.fromkeys(PHASES, 0)
    for name, start, end in ranges:
        if name in found and any(step[1] <= start and end <= step[2] for step in steps):
            found[name] += int(lasted[(launches >= start) & (launches < end)].sum())
    return found


def compare(name: str, path: Path) -> None:
    """Print each phase's time as ranked and by windows, and what stayed outside."""
    ranking = nk.rank(path)
    kernels = ranking.kernels[ranking.kernels["kind"] == "kernel"]
    inside = kernels[kernels["path"].map(lambda names: "step" in names)]
    ranked = inside.groupby("phase")["total_ns"].sum()
    windows = by_windows(path)
    for phase in PHASES:
        ours, theirs = int(ranked.get(phase, 0)), int(windows.get(phase, 0))
        print(f"{name:<12} {phase:<10} {ours / 1e6:>10.3f} ms {ours - theirs:>12} ns apart")
    lost = int(ranking.totals["outside_ns"] + ranking.totals["ambiguous_ns"])
    print(f"{name:<12} {ranking.report.steps} steps, {lost} ns outside or ambiguous, {len(ranking.ranges)} ranges")


def seconds(program: Callable[[Report], None], report: Report) -> float:
    """Run a program, and return how long it took."""
    began = time.perf_counter()
    program(report)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Run, compare and time the programs, run one alone, or compare a report of nsys."""
    this = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    this.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="these programs")
    this.add_argument("--run", choices=PROGRAMS, help="run one program alone, under nsys for instance")
    this.add_argument("--nsys", type=Path, metavar="REPORT", help="compare this export of such a run")
    asked = this.parse_args()
    with TemporaryDirectory() as folder:
        if asked.nsys:
            compare("nsys", asked.nsys)
        elif asked.run:
            PROGRAMS[asked.run](Path(folder) / "report.sqlite")
        else:
            for name in asked.only:
                seconds(PROGRAMS[name], None)  # imports and first kernels
                alone = seconds(PROGRAMS[name], None)
                both = seconds(PROGRAMS[name], path := Path(folder) / f"{name}.sqlite")
                compare(name, path)
                print(f"{name:<12} {alone:.2f} s alone, {both:.2f} s recorded and written", flush=True)


if __name__ == "__main__":
    main()
