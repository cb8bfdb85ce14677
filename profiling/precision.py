"""Experiments on precision: sums of a thousand hundredths, the types that autocast chooses, layer norm in fp16.

python -m profiling.precision
python -m profiling.precision --device cuda --format markdown
"""

import argparse
import sys
from collections.abc import Sequence

from .cli import CommandParser, add_output, ended

TABLES = ("accumulation", "autocast", "layer-norm")


def parser(prog: str = "python -m profiling.precision") -> argparse.ArgumentParser:
    """Return the options of the command."""
    description = (
        "Show how precise sums and layer norms are in each dtype, and which dtypes autocast gives a toy model."
    )
    options = CommandParser(prog, description=description)
    options.add_argument("--device", help="cuda, cuda:1, cpu (default: cuda if available)")
    options.add_argument("--table", choices=TABLES, help="only this one")
    add_output(options)
    return options


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.precision") -> int:
    """Run the command and return its exit status."""
    command = parser(prog)
    options = command.parse_args(arguments)

    def work() -> int:
        # PyTorch and pandas take seconds to import.
        from nvtx_kernels.analysis.presenters.output import format_of, presented, write

        from .study.precision import document
        from .study.settings import check_device, default_device

        device = options.device or default_device()
        check_device(device)
        answer = document([options.table] if options.table else TABLES, device)
        write(presented(answer, format_of(options.format, options.output), options.output), options.output)
        return 0

    return ended(command, work)


if __name__ == "__main__":
    sys.exit(main())
