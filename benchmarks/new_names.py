"""Say what share of the kernel time of programs that the rules were not written for is `other`, by name.

python benchmarks/new_names.py OUT          # run them under nsys on a GPU, and judge the report
python benchmarks/new_names.py --read FILE  # judge a report that was made before
python benchmarks/new_names.py --run        # only run the programs, on a CPU where there is no GPU

The first figure is the one that counts: after rules were added for what it shows, it says nothing about new names.
"""

from __future__ import annotations

import argparse
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.analysis.kernel_names.categories import categorize
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.sweep.nsight import export_command, find_nsys, profile_command

Loss = Callable[[], torch.Tensor]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
WIDE: dict[str, Any] = {**SMALL, "intermediate_size": 512, "num_key_value_heads": 4}

# Each program ends with a synchronization, so that its time holds all of its work.
KERNELS = """
SELECT COALESCE(p.text, ps.value), ks.value, SUM(k.end - k.start) FROM NVTX_EVENTS p
LEFT JOIN StringIds ps ON ps.id = p.textId
JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON k.start >= p.start AND k.end <= p.end
JOIN StringIds ks ON ks.id = k.demangledName
WHERE COALESCE(p.text, ps.value) LIKE 'program %' GROUP BY 1, 2 ORDER BY MIN(k.start), 3 DESC"""


def language_model(kind: str, **changes: Any) -> tuple[nn.Module, Loss]:
    """Return a causal language model of Transformers' with random weights, and its loss."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**WIDE, **changes})).to(DEVICE)
    tokens = torch.randint(0, 1000, (4, 128), device=DEVICE)
    return model, lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss


def translation() -> tuple[nn.Module, Loss]:
    """Return T5."""
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(d_model=256, num_layers=2, vocab_size=1000, decoder_start_token_id=0)
    ).to(DEVICE)
    tokens = torch.randint(0, 1000, (4, 128), device=DEVICE)
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


def speech() -> tuple[nn.Module, Loss]:
    """Return wav2vec 2.0 with connectionist temporal classification."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    model = Wav2Vec2ForCTC(Wav2Vec2Config(**{**SMALL, "vocab_size": 32, "intermediate_size": 512})).to(DEVICE)
    sound, text = torch.randn(2, 16_000, device=DEVICE), torch.randint(1, 32, (2, 20), device=DEVICE)
    return model, lambda: model(sound, labels=text).loss


def vision(name: str) -> tuple[nn.Module, Loss]:
    """Return a model of timm's."""
    import timm

    model = timm.create_model(name, num_classes=10).to(DEVICE)
    pictures = torch.randn(4, 3, 224, 224, device=DEVICE)
    return model, lambda: model(pictures).square().mean()


def recurrent() -> tuple[nn.Module, Loss]:
    """Return an LSTM and a GRU, in a row."""
    model = nn.ModuleList([nn.LSTM(128, 256, 2, bidirectional=True), nn.GRU(512, 128)]).to(DEVICE)
    data = torch.randn(64, 16, 128, device=DEVICE)
    return model, lambda: model[1](model[0](data)[0])[0].square().mean()


def graph() -> tuple[nn.Module, Loss]:
    """Return graph attention and convolution of PyTorch Geometric."""
    from torch_geometric.nn import GATConv, GCNConv

    model = nn.ModuleList([GCNConv(64, 128), GATConv(128, 64, heads=4)]).to(DEVICE)
    nodes, edges = torch.randn(5000, 64, device=DEVICE), torch.randint(0, 5000, (2, 40_000), device=DEVICE)
    return model, lambda: model[1](model[0](nodes, edges).relu(), edges).square().mean()


class Signals(nn.Module):
    """Fourier transforms, resampling, and bags of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.grid = nn.EmbeddingBag(1000, 256), nn.Parameter(torch.rand(2, 64, 64, 2))

    def forward(self, waves: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Return a loss of (batch, 2, 64, 64) waves and (batch, n) words."""
        spectrum = torch.fft.rfft2(waves).abs()
        moved = nn.functional.grid_sample(waves, self.grid, align_corners=False)
        larger = nn.functional.interpolate(moved, scale_factor=2, mode="bicubic")
        bagged: torch.Tensor = self.bag(words)
        return spectrum.mean() + larger.mean() + bagged.mean() + torch.cdist(bagged, bagged).mean()


def signals() -> tuple[nn.Module, Loss]:
    """Return `Signals`."""
    model = Signals().to(DEVICE)
    waves, words = torch.randn(2, 2, 64, 64, device=DEVICE), torch.randint(0, 1000, (2, 64), device=DEVICE)
    return model, lambda: model(waves, words)


def algebra() -> tuple[nn.Module, Loss]:
    """Return a Gaussian process by hand: Cholesky, solves, a determinant, and a sort."""
    model = nn.Linear(8, 8).to(DEVICE)
    points, values = torch.randn(512, 8, device=DEVICE), torch.randn(512, 1, device=DEVICE)

    def loss() -> torch.Tensor:
        kernel = torch.exp(-torch.cdist(model(points), model(points))) + torch.eye(512, device=DEVICE)
        factor = torch.linalg.cholesky(kernel)
        fitted = (values * torch.cholesky_solve(values, factor)).sum() + factor.diagonal().log().sum()
        return fitted + torch.linalg.svdvals(kernel[:64, :64]).sort().values[:8].sum()

    return model, loss


PROGRAMS: dict[str, Callable[[], tuple[nn.Module, Loss]]] = {
    "Mixtral, experts": lambda: language_model("mixtral", num_local_experts=4),
    "Qwen3": lambda: language_model("qwen3", head_dim=64),
    "Gemma 2": lambda: language_model("gemma2", head_dim=64),
    "Mamba": lambda: language_model("mamba"),
    "BLOOM": lambda: language_model("bloom", n_head=4),
    "T5": translation,
    "wav2vec 2.0, CTC": speech,
    **{name: (lambda name=name: vision(name)) for name in (
        "swin_tiny_patch4_window7_224", "convnext_tiny", "efficientnet_b0", "mobilenetv3_small_100",
    )},
    "LSTM and GRU": recurrent,
    "graph attention": graph,
    "signals": signals,
    "Gaussian process": algebra,
}  # fmt: skip


def run(name: str) -> None:
    """Run two training steps of a program in a range; an error is a line of its own."""
    try:
        model, loss_of = PROGRAMS[name]()
        optimizer = torch.optim.AdamW(model.parameters())
        with annotate.range(f"program {name}"):
            for mixed in (False, True):
                with torch.autocast(DEVICE.type, torch.bfloat16, enabled=mixed and name != "Gaussian process"):
                    loss = loss_of()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
    except Exception as error:
        print(f"{name} did not run: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)


def recorded(out: Path) -> Path:
    """Run all programs under nsys, and export the report."""
    nsys, report = find_nsys(), out / "new.nsys-rep"
    subprocess.run(profile_command(nsys, [sys.executable, __file__, "--run"], report), check=True)
    subprocess.run(export_command(nsys, report), check=True)
    return report.with_suffix(".sqlite")


def judge(path: Path, into: Path | None) -> None:
    """Print each program's kernel time, the share of it that is `other`, and the names of that."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        rows = database.execute(KERNELS).fetchall()
    kinds = dict(zip(names := list({name for _, name, _ in rows}), categorize(names), strict=True))
    print(f"{'program':<32} {'kernels':>8} {'ms':>9} {'other, %':>9}  names that are other")
    for program in dict.fromkeys(row[0] for row in rows):
        times = {name: ns for of, name, ns in rows if of == program}
        other = [name for name in times if kinds[name] == "other"]
        share = sum(times[name] for name in other) / sum(times.values())
        print(f"{program[8:]:<32} {len(times):>8} {sum(times.values()) / 1e6:>9.3f} {share:>9.2%}  {other}")
    if into:
        into.write_text("\n".join(sorted(f"{kinds[name]}\t{name}" for name in names)), encoding="utf-8")


def main() -> None:
    """Run, or read and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="a folder for the report")
    parser.add_argument("--read", type=Path)
    parser.add_argument("--run", action="store_true", help="run the programs in this process, as nsys does")
    parser.add_argument("--names", type=Path, help="write all names with their categories to this file")
    options = parser.parse_args()
    if options.run:
        for name in PROGRAMS:
            run(name)
    elif path := options.read or (options.out and recorded(options.out)):
        judge(path, options.names)
    else:
        parser.error("name a folder for the report, or a report to read")


if __name__ == "__main__":
    main()
