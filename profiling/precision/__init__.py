"""Two experiments on precision: sums of a thousand hundredths, and the types that autocast chooses.

python -m profiling.precision
python -m profiling.precision --device cuda --format markdown
"""

import argparse
from collections.abc import Sequence

from ..cli import UsageError, add_output, ended

TABLES = ("accumulation", "autocast")


def parser(prog: str = "python -m profiling.precision") -> argparse.ArgumentParser:
    """Return the options of the command."""
    description = "Compute the accumulation experiment, and the types that autocast gives a toy model."
    this = argparse.ArgumentParser(prog, description=description)
    this.add_argument("--device", help="cuda, cuda:1, cpu (default: cuda if available)")
    this.add_argument("--table", choices=TABLES, help="only this one")
    add_output(this)
    return this


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.precision") -> int:
    """Run the command and return its exit status."""
    this = parser(prog)
    asked = this.parse_args(arguments)
    return ended(this, lambda: _show(asked))


def _show(asked: argparse.Namespace) -> int:
    # PyTorch and pandas take seconds to import.
    from ..show.frame_tables import show
    from ..workload.settings import SettingsError, default_device, with_defaults
    from . import experiments

    device = asked.device or default_device()
    try:
        with_defaults({"device": device})
    except SettingsError as error:
        raise UsageError(str(error)) from error
    tables = [getattr(experiments, name)(device) for name in TABLES if asked.table in (None, name)]
    show(experiments.document(tables, device), vars(asked))
    return 0
