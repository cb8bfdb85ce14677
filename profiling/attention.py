"""Measure attention alone, over head dimension and sequence length, reference, compiled and fused.

python -m profiling.attention
python -m profiling.attention --results attention.jsonl --format markdown --plot attention.png
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cli import add_output, add_running, ended, list_of

DESCRIPTION = "Time attention alone: batch 8, one head, causal; forward, backward, memory between them."
KINDS = ("reference", "compiled", "sdpa")


def parser(prog: str = "python -m profiling.attention") -> argparse.ArgumentParser:
    """Return the options of the command."""
    this = argparse.ArgumentParser(prog, description=DESCRIPTION)
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
    this.add_argument("--device", help="cuda, cuda:1, cpu (default: cuda if available)")
    add_running(this, "attention.jsonl")
    this.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw times and memory over length (png, svg, pdf)"
    )
    add_output(this)
    return this


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.attention") -> int:
    """Run the command and return its exit status."""
    this = parser(prog)
    asked = vars(this.parse_args(arguments))
    return ended(this, lambda: _work(asked))


def _work(asked: Mapping[str, Any]) -> int:
    # PyTorch and pandas take seconds to import.
    from .show import attention_grid

    attention_grid.run(asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
