"""FLOP/s, shares of the GPU's peaks, MFU and HFU of models with counted FLOPs, from reports of nsys.

python benchmarks/efficiency.py OUT                # one GPU with nsys: `small` in three precisions, and HF's Llama
python benchmarks/efficiency.py OUT --device cpu   # try it on a CPU: tiny sizes, the recorder instead of nsys

Prints `--view efficiency` of each report: its longest ranges, and MFU and HFU of a step. Llama needs transformers.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nvtx_kernels.profiling.sweep.nsight import MEASURED_STEPS, export_command, find_nsys, profile_command

import nvtx_kernels as nk

ROOT = Path(__file__).resolve().parents[1]
DTYPES = ("fp32", "tf32", "bf16")
WARMUP, STEPS = 3, 5
# A Llama with grouped queries of about 0.3 billion parameters, and one for a CPU.
LLAMA = {
    "cuda": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 1024,
    },
    "cpu": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 32,
    },
}  # fmt: skip
BATCH = {"cuda": (8, 1024), "cpu": (2, 16)}


def train_llama(device: str, report: Path) -> None:
    """Train HF's Llama in bf16 for some steps; under nsys nothing is recorded here."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA[device])).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    ids = torch.randint(model.config.vocab_size, BATCH[device], device=device)
    with nk.profile(model, optimizer, report, warmup=WARMUP, steps=STEPS, flops=True):
        for _ in range(WARMUP + STEPS):
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def programs(device: str) -> dict[str, list[str]]:
    """Return the programs to record, by what they are called."""
    size = "small" if device == "cuda" else "tiny"
    ours = ["-m", "profiling.run", "--size", size, "--device", device, "--flops"]
    steps = ["--warmup", str(WARMUP), "--steps", str(STEPS)]
    found = {f"{size} {dtype}": [*ours, *steps, "--dtype", dtype] for dtype in DTYPES}
    if find_spec("transformers"):
        found["HF Llama bf16"] = [str(Path(__file__).resolve()), str(ROOT), "--device", device, "--train-llama"]
    return found


def recorded(out: Path, device: str) -> dict[str, Path]:
    """Record all programs, and return their reports; exporting one goes on during the next program."""
    reports, exports = {}, []
    for name, program in programs(device).items():
        report, began = out / f"{name.replace(' ', '_')}.sqlite", time.monotonic()
        if device == "cuda":
            words = [*program, str(report)] if program[-1] == "--train-llama" else program
            exports.append(under_nsys(words, report.with_suffix(".nsys-rep")))
        else:
            run([sys.executable, *program, *([] if program[-1] == "--train-llama" else ["--record"]), str(report)])
        print(f"{name}: recorded in {time.monotonic() - began:.1f} s", flush=True)
        reports[name] = report
    if sum(abs(export.wait()) for export in exports):
        raise SystemExit("nsys could not export a report")
    return reports


def under_nsys(program: list[str], report: Path) -> subprocess.Popen[bytes]:
    """Run a program under nsys, and begin to export its report."""
    nsys = find_nsys()
    run(profile_command(nsys, [sys.executable, *program], report, flags=MEASURED_STEPS["cuda"]))
    return subprocess.Popen(export_command(nsys, report), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run(command: Sequence[str]) -> str:
    """Run a command, and return what it said; end with that where it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    """Record, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--train-llama", type=Path, metavar="REPORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train_llama:
        train_llama(options.device, options.train_llama)
        return
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, report in recorded(options.out.resolve(), options.device).items():
        print(f"\n== {name}", flush=True)
        nk.efficiency(report, per_step=True).show()
    print(f"\n{time.monotonic() - began:.0f} s in total")


if __name__ == "__main__":
    main()
