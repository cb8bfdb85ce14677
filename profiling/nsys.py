"""Capture every combination of settings under nsys, one report for each.

python -m profiling.nsys --sizes small,medium --contexts 512 --preset light
python -m profiling.nsys --print-command -- --python-backtrace=cuda
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cli import add_limits, add_longest, add_output, add_preset, ended
from .sweep.lists import add_lists
from .sweep.nsight import PRESETS


def parser(prog: str = "python -m profiling.nsys") -> argparse.ArgumentParser:
    """Return the options of the command."""
    this = argparse.ArgumentParser(
        prog,
        description="Capture every combination of settings, one report for each.",
    )
    add_lists(this)
    add_preset(this, "--model-preset")
    presets = "; ".join(f"{name}: {preset.what}" for name, preset in PRESETS.items())
    this.add_argument(
        "--preset", choices=PRESETS, default="light", help=f"what is captured (default light). {presets}"
    )
    this.add_argument("--reports", metavar="FOLDER", type=Path, default=Path("reports"), help="folder for reports")
    this.add_argument("--export", action="store_true", help="export each report to SQLite too")
    this.add_argument("--print-command", action="store_true", help="run nothing; print nsys's command lines")
    add_limits(this)
    add_longest(this)
    add_output(this)
    this.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags for nsys profile, after --")
    nothing = {"repeats": 1, "memory_fraction": None, "steps_listing": False, "plot": None}
    this.set_defaults(**nothing)
    return this


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.nsys") -> int:
    """Run the command and return its exit status."""
    this = parser(prog)
    asked = vars(this.parse_args(arguments))
    return ended(this, lambda: _work(asked))


def _work(asked: Mapping[str, Any]) -> int:
    # Pandas and PyTorch take seconds to import.
    from .show import nsys as nsys_screen

    return nsys_screen.run(asked)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
