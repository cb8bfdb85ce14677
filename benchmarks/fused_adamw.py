"""Eager against fused AdamW, by `try --against`: python benchmarks/fused_adamw.py, 2 minutes on a GPU.

The program itself is `python benchmarks/fused_adamw.py train [--fused]`: a small transformer on random tokens.
"""

import subprocess
import sys

import torch
from torch import nn

BUDGET_S, STEPS = "110", "30"
VOCABULARY, WIDTH, LAYERS, LENGTH, BATCH = 8192, 1024, 12, 512, 4


def train(*, fused: bool) -> None:
    """Train until the process is stopped, or 100 steps are done."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
    layers = nn.TransformerEncoder(layer, LAYERS if device == "cuda" else 1)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), layers, nn.Linear(WIDTH, VOCABULARY)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False, fused=fused)
    size = (BATCH, LENGTH) if device == "cuda" else (1, 16)
    for _ in range(100):
        tokens = torch.randint(VOCABULARY, size, device=device)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(words: list[str]) -> int:
    """Train, or compare both; return the exit status."""
    if words[:1] == ["train"]:
        train(fused="--fused" in words)
        return 0
    limits = ["--levers", "none", "--budget", BUDGET_S, "--steps", STEPS]
    command = [sys.executable, "-m", "nvtx_kernels", "try", *limits]
    return subprocess.run(
        [*command, "--against", f"{__file__} train --fused", __file__, "train"], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
