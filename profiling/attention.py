"""Measure attention alone, over head dimension and sequence length, reference, compiled and fused.

python -m profiling.attention
python -m profiling.attention --results attention.jsonl --format markdown --plot attention.png
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiling.commands import ended, list_of

DESCRIPTION = "Time attention alone: batch 8, one head, causal; forward, backward, memory between them."
GRID_OF_DEVICE = {
    "cuda": {"dims": [16, 32, 64, 128], "lengths": [256, 1024, 4096, 8192, 16384], "steps": 100},
    "cpu": {"dims": [16, 64], "lengths": [64, 128, 256], "steps": 5},
}
KINDS = ("reference", "compiled", "sdpa")


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    this = argparse.ArgumentParser("python -m profiling.attention", description=DESCRIPTION)
    numbers, words = list_of(int), list_of(str)
    this.add_argument(
        "--dims", metavar="LIST", type=numbers, help="head dimensions (16,32,64,128; fewer on a CPU)"
    )
    this.add_argument(
        "--lengths", metavar="LIST", type=numbers, help="sequence lengths (256 to 16384; a CPU's less)"
    )
    this.add_argument("--kinds", metavar="LIST", type=words, default=list(KINDS), help=", ".join(KINDS))
    this.add_argument(
        "--dtypes", metavar="LIST", type=words, default=["fp32"], help="fp32 (default), tf32, bf16, fp16"
    )
    this.add_argument("--batch-size", type=int, default=8, help="default 8")
    this.add_argument("--warmup", type=int, default=5, help="forward and backward passes before (default 5)")
    this.add_argument("--steps", type=int, help="measured passes (default 100; 5 on a CPU)")
    this.add_argument("--device", help="cuda, cuda:1, cpu (default: cuda where there is one)")
    this.add_argument("--memory-fraction", type=float, help="of the device's memory that may be used")
    this.add_argument("--into", metavar="FILE", type=Path, default=Path("attention.jsonl"), help="where rows go")
    this.add_argument("--again", action="store_true", help="measure what the file holds already, too")
    this.add_argument("--budget", type=float, metavar="S", help="begin nothing after so many seconds")
    this.add_argument(
        "--results", metavar="FILE", type=Path, nargs="+", help="measure nothing; show what these hold"
    )
    this.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw times and memory over length (png, svg, pdf)"
    )
    this.add_argument("--format", default="table", help="table (default), markdown, latex, typst, csv, json")
    return this


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    this = parser()
    asked = vars(this.parse_args(arguments))
    return ended(this, lambda: _work(asked))


def _work(asked: Mapping[str, Any]) -> int:
    # PyTorch and pandas take seconds to import.
    from profiling import attention_screen

    attention_screen.run(asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
