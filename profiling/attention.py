"""Measure attention alone, over head dimension and sequence length, reference, compiled and fused.

python -m profiling.attention
python -m profiling.attention --results attention.jsonl --format markdown --plot attention.png
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .cli import CommandParser, add_output, add_running, ended, list_of
from .study.studies import KINDS

DESCRIPTION = "Time attention alone: batch 8, one head, causal; forward, backward, memory between them."


def parser(prog: str = "python -m profiling.attention") -> argparse.ArgumentParser:
    """Return the options of the command."""
    options = CommandParser(prog, description=DESCRIPTION)
    add = options.add_argument
    numbers, words = list_of(int), list_of(str)
    add("--dims", metavar="LIST", type=numbers, help="head dimensions (16,32,64,128; fewer on a CPU)")
    add("--lengths", metavar="LIST", type=numbers, help="sequence lengths (256 to 16384; a CPU's less)")
    add("--kinds", metavar="LIST", type=words, default=list(KINDS), help=", ".join(KINDS))
    add("--dtypes", metavar="LIST", type=words, default=["fp32"], help="fp32 (default), tf32, bf16, fp16")
    add("--batch-size", type=int, default=8, help="default 8")
    add("--warmup", type=int, default=5, help="forward and backward passes before (default 5)")
    add("--steps", type=int, help="measured passes (default 100; 5 on a CPU)")
    add("--device", help="cuda, cuda:1, cpu (default: cuda if available)")
    add_running(options, "attention.jsonl")
    add("--plot", metavar="FILE", type=Path, help="draw times and memory over length (png, svg, pdf)")
    add_output(options)
    return options


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.attention") -> int:
    """Run the command and return its exit status."""
    command = parser(prog)
    options = vars(command.parse_args(arguments))

    def work() -> int:
        # PyTorch and pandas take seconds to import, and PyTorch is not needed to show results.
        from nvtx_kernels.analysis.presenters.output import format_of

        from .study import results
        from .study.table import show

        format_of(options["format"], options["output"])
        if options["results"]:
            rows = results.latest(results.rows_in(options["results"], results.ATTENTION))
        else:
            from .study.attention import cases_of, measure
            from .study.environment import limit_memory
            from .study.processes import sweep

            cases, path = cases_of(options), options["into"]
            limit_memory(cases[0].settings, options["memory_fraction"])
            limits = {"again": options["again"], "budget_s": options["budget"]}
            sweep(cases, path, measure, kind=results.ATTENTION, **limits)
            rows = results.of_cells(results.rows_in([path], results.ATTENTION), (case.key for case in cases))
        show(rows, options, {"by": "phase"})
        return 0

    return ended(command, work, goes_on=True)


if __name__ == "__main__":
    sys.exit(main())
