"""Measure one configuration in this process, and write the result as one JSON row.

python -m profiling.run.measure_one --size small --mode forward --result row.json

A sweep runs one such process per configuration. It takes the options of `profiling.run`. The row's
`status` is ok, oom (with `phase` and `requested_bytes`) or failed (with `message`).
"""

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sweep import results
from . import parser as options_of_a_run
from . import switch_off

if TYPE_CHECKING:
    from ..workload.settings import Settings


def parser() -> argparse.ArgumentParser:
    """Return the options: those of `profiling.run`, and what a sweep adds."""
    this = options_of_a_run()
    this.prog, this.description, this.epilog = "python -m profiling.run.measure_one", __doc__, None
    this.add_argument("--result", metavar="FILE", type=Path, required=True, help="write the row to this file")
    this.add_argument("--memory-fraction", type=float, help="of the GPU's memory, or a CPU machine's, to use")
    this.add_argument("--state-only", action="store_true", help="write the machine's state and measure nothing")
    this.add_argument("--die-with-parent", action="store_true", help="exit when standard input is closed")
    return this


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 0 regardless of the row's status."""
    asked = vars(parser().parse_args(arguments))
    if asked["die_with_parent"]:
        threading.Thread(target=_die_with_parent, daemon=True).start()
    switch_off(asked)
    began = results.Began()
    # PyTorch takes seconds to import, and annotations are switched off before that.
    from ..sweep.row import publish

    publish(began.completed(_row(asked)), asked["result"])
    return 0


def _die_with_parent() -> None:
    # A sweep that is killed closes the pipe; its measurement must not run in parallel with the next one.
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _row(asked: dict[str, Any]) -> dict[str, Any]:
    from ..workload.environment import environment, limit_memory
    from ..workload.settings import apply_precision, with_defaults

    settings = with_defaults(asked)
    apply_precision(settings)
    limit_memory(settings, asked["memory_fraction"])
    known = {"state": environment(settings)}
    return known if asked["state_only"] else {**known, **_outcome(settings, asked)}


def _outcome(settings: "Settings", asked: dict[str, Any]) -> dict[str, Any]:
    from ..sweep import row
    from ..workload.measurement import Capture, measure
    from ..workload.model_steps import NoMemoryError, Workload

    capture = Capture(asked["record"], operators=asked["emit_nvtx"])
    try:
        capture.check(settings)
        workload = Workload(settings)
        return row.measured(workload, measure(workload, capture, lambda: None))
    except NoMemoryError as error:
        return row.out_of_memory(error)
    except Exception as error:
        return {"status": "failed", "message": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.exit(main())
