"""Hold the phases of nk.profile against time windows: python benchmarks/one_line.py [--nsys REPORT].

Programs that know nothing of ranges are recorded here, each for a few steps, and every kernel is given to the
phase whose range was open at its launch, on any thread. Under nsys, run one of them (`--run NAME`), export, and
give the report with `--nsys`. Differences must be 0 ns.
"""

import argparse
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.model.config import CONFIGS
from nvtx_kernels.model.transformer import TransformerLM, cross_entropy

import nvtx_kernels as nk

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = "small" if DEVICE == "cuda" else "tiny"
CONTEXT, BATCH, STEPS = 128, 4, 5
PHASES = ("forward", "backward", "optimizer")
# Each kernel's time by the innermost phase that was open, on any thread, when its launch began.
WINDOWS = """
    WITH opened AS (
        SELECT start, end, coalesce(n.text, s.value) AS name
        FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE eventType = 59),
    steps AS (SELECT s.start, s.end FROM opened s JOIN opened m ON s.start >= m.start AND s.end <= m.end
        WHERE s.name = 'step' AND m.name = 'measure')
    SELECT p.name, sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)
    JOIN steps ON r.start BETWEEN steps.start AND steps.end
    JOIN opened p ON p.name IN ('forward', 'backward', 'optimizer') AND r.start BETWEEN p.start AND p.end
    GROUP BY p.name
"""


def loop(path: Path) -> None:
    """Run a plain training loop."""
    model, optimizer, tokens = _model()
    with nk.profile(model, optimizer, path, warmup=2, steps=STEPS):
        for _ in range(2 + STEPS):
            cross_entropy(model(tokens), tokens).backward()
            optimizer.step()
            optimizer.zero_grad()


def scaled(path: Path) -> None:
    """Run a loop with FP16 autocast, a GradScaler, accumulation and clipping."""
    model, optimizer, tokens = _model()
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1.0)
    with nk.profile(model, optimizer, path, warmup=2, steps=STEPS):
        for _ in range(2 + STEPS):
            for _ in range(2):
                with torch.autocast(DEVICE, torch.bfloat16 if DEVICE == "cpu" else torch.float16):
                    loss = cross_entropy(model(tokens), tokens)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def trainer(path: Path) -> None:
    """Run Hugging Face's Trainer, unchanged but for one callback."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    size = {} if DEVICE == "cuda" else {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 100}
    model = GPT2LMHeadModel(GPT2Config(**size))
    tokens = torch.randint(100, (2 * BATCH * (2 + STEPS), CONTEXT))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    with TemporaryDirectory() as folder:
        how = {
            "per_device_train_batch_size": BATCH,
            "report_to": [],
            "save_strategy": "no",
            "max_steps": 2 + STEPS,
        }
        arguments = TrainingArguments(folder, use_cpu=DEVICE == "cpu", **how)
        callback = nk.integrations.hugging_face(path, warmup=2, steps=STEPS)
        Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()


PROGRAMS: dict[str, Callable[[Path], None]] = {"loop": loop, "scaled": scaled, "trainer": trainer}


def compare(name: str, path: Path) -> None:
    """Print each phase's time as ranked and by windows, and what stayed outside."""
    ranking = nk.rank(path)
    kernels = ranking.kernels[ranking.kernels["kind"] == "kernel"]
    inside = kernels[kernels["path"].map(lambda names: "step" in names)]
    ranked = inside.groupby("phase")["total_ns"].sum()
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        windows = dict(database.execute(WINDOWS))
    for phase in PHASES:
        ours, theirs = int(ranked.get(phase, 0)), int(windows.get(phase, 0))
        print(f"{name:<10} {phase:<10} {ours / 1e6:>10.3f} ms {ours - theirs:>12} ns apart")
    lost = int(ranking.totals["outside_ns"] + ranking.totals["ambiguous_ns"])
    print(f"{name:<10} steps {ranking.report.steps}, {lost} ns outside or ambiguous, {len(ranking.ranges)} ranges")


def _model() -> tuple[TransformerLM, torch.optim.Optimizer, torch.Tensor]:
    config = CONFIGS[SIZE]
    with torch.device(DEVICE):
        model = TransformerLM(config, CONTEXT)
        tokens = torch.randint(config.vocabulary, (BATCH, CONTEXT))
    return model, torch.optim.AdamW(model.parameters()), tokens


def main() -> None:
    """Record and compare all programs, run one, or compare a report of nsys."""
    this = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    this.add_argument("--run", choices=PROGRAMS, help="run one program alone, under nsys for instance")
    this.add_argument("--nsys", type=Path, metavar="REPORT", help="compare this export of such a run")
    asked = this.parse_args()
    with TemporaryDirectory() as folder:
        if asked.nsys:
            compare("nsys", asked.nsys)
        elif asked.run:
            PROGRAMS[asked.run](Path(folder) / "report.sqlite")
        else:
            for name, program in PROGRAMS.items():
                program(path := Path(folder) / f"{name}.sqlite")
                compare(name, path)


if __name__ == "__main__":
    main()
