"""Capture every combination of settings under nsys, one report for each.

python -m profiling.nsys --sizes small,medium --contexts 512 --preset light
python -m profiling.nsys --print-command -- --python-backtrace=cuda
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .cli import CommandParser, add_limits, add_longest, add_output, ended
from .study.nsight import PRESETS
from .study.studies import add_lists


def parser(prog: str = "python -m profiling.nsys") -> argparse.ArgumentParser:
    """Return the options of the command."""
    options = CommandParser(
        prog, description="Capture every combination of the course model's settings under nsys, a report each."
    )
    add = options.add_argument
    add_lists(options, "--model-preset")
    presets = "; ".join(f"{name}: {preset.description}" for name, preset in PRESETS.items())
    captured = f"what is captured (default light). {presets}"
    add("--preset", choices=PRESETS, default="light", metavar="NAME", help=captured)
    add("--reports", metavar="FOLDER", type=Path, default=Path("reports"), help="folder for reports")
    add("--export", action="store_true", help="export each report to SQLite too")
    add("--print-command", action="store_true", help="run nothing; print nsys's command lines")
    add_limits(options)
    add_longest(options)
    add_output(options)
    add("flags", nargs="*", metavar="-- FLAG", help="flags for nsys profile, after --")
    return options


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.nsys") -> int:
    """Run the command and return its exit status."""
    command = parser(prog)
    options = vars(command.parse_args(arguments))

    def work() -> int:
        # Pandas and PyTorch take seconds to import.
        from .study import nsys_reports

        return nsys_reports.capture(options)

    return ended(command, work, goes_on=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
