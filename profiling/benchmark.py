"""Measure every combination of settings, each in its own process, and print tables.

python -m profiling.benchmark --sizes small,medium --modes forward,train --dtypes fp32,bf16
python -m profiling.benchmark --study warmup --sizes small
python -m profiling.benchmark --results benchmark.jsonl --format markdown --plot times.png
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cli import add_longest, add_output, add_preset, add_running, ended, list_of
from .sweep.lists import STUDIES, add_lists

DESCRIPTION = "Measure every combination of settings, each in its own process."
EPILOG = """\
lists     are separated by commas: --sizes small,medium. What is not given has the default of the device.
studies   set lists and tables for one question; a list that is given wins
results   every measurement is appended to a file of JSON lines at once. The same command again measures
          only what that file lacks; --again measures everything, and the latest rows count
exit      0 done, out-of-memory rows included; 1 a configuration failed, or a file could not be used;
          2 wrong usage; 130 interrupted
"""


def parser(prog: str = "python -m profiling.benchmark") -> argparse.ArgumentParser:
    """Return the options of the command."""
    this = argparse.ArgumentParser(
        prog,
        None,
        DESCRIPTION,
        EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_lists(this)
    add_preset(this, "--preset", "--model-preset")
    this.add_argument(
        "--captures", metavar="LIST", type=list_of(str), help="none, bare, recorder, nsys-light, ..."
    )
    this.add_argument("--repeats", type=int, default=1, metavar="N", help="measure everything N times, and pool")
    this.add_argument("--study", choices=STUDIES, default="times", help="the question (default times)")
    running = this.add_argument_group("running")
    add_running(running, "benchmark.jsonl")
    add_longest(running)
    _add_showing(this.add_argument_group("showing"))
    return this


def _add_showing(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--table", metavar="LIST", type=list_of(str), help="the tables, instead of the study's")
    add_output(group)
    group.add_argument("--steps-listing", action="store_true", help="print every step's time before the tables")
    group.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw mean times with their spread (png, svg, pdf)"
    )


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m profiling.benchmark") -> int:
    """Run the command and return its exit status."""
    this = parser(prog)
    asked = vars(this.parse_args(arguments))
    return ended(this, lambda: _work(asked))


def _work(asked: Mapping[str, Any]) -> int:
    # Pandas and PyTorch take seconds to import.
    from .show import benchmark

    return benchmark.run(asked, STUDIES[asked["study"]])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
