"""Measure one configuration in this process, and write what came of it as one JSON row.

python -m profiling.measure_one --size small --mode forward --result row.json

A sweep runs one such process per configuration. It takes the options of `profiling.run`. The row's
`status` is ok, oom (with `phase` and `requested_bytes`) or failed (with `message`).
"""

import argparse
import os
import resource
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling import results, run

if TYPE_CHECKING:
    from profiling.settings import Settings


def parser() -> argparse.ArgumentParser:
    """Return the options: those of `profiling.run`, and what a sweep adds."""
    this = run.parser()
    this.prog, this.description, this.epilog = "python -m profiling.measure_one", __doc__, None
    this.add_argument("--result", metavar="FILE", type=Path, required=True, help="where the row goes")
    this.add_argument("--memory-fraction", type=float, help="of the GPU's memory, or a CPU machine's, to use")
    this.add_argument("--state-only", action="store_true", help="write the machine's state and measure nothing")
    this.add_argument("--die-with-parent", action="store_true", help="exit when standard input is closed")
    return this


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 0 whatever the row says."""
    asked = vars(parser().parse_args(arguments))
    if asked["die_with_parent"]:
        threading.Thread(target=_die_with_parent, daemon=True).start()
    if asked["no_annotate"]:
        os.environ["NVTX_KERNELS_OFF"] = "1"
    began = results.Began()
    # PyTorch takes seconds to import, and annotations are switched off before that.
    from profiling.run_row import publish

    publish(began.completed(_row(asked)), asked["result"])
    return 0


def _die_with_parent() -> None:
    # A sweep that is killed closes the pipe; its measurement must not go on beside the next one's.
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _row(asked: dict[str, Any]) -> dict[str, Any]:
    from profiling.environment import environment
    from profiling.settings import apply_precision, with_defaults

    settings = with_defaults(asked)
    apply_precision(settings)
    limit_memory(settings, asked["memory_fraction"])
    known = {"state": environment(settings)}
    return known if asked["state_only"] else {**known, **_outcome(settings, asked)}


def _outcome(settings: "Settings", asked: dict[str, Any]) -> dict[str, Any]:
    from profiling import run_row
    from profiling.measurement import Capture, measure
    from profiling.workload import NoMemoryError, Workload

    capture = Capture(asked["record"], operators=asked["emit_nvtx"])
    try:
        capture.check(settings)
        workload = Workload(settings)
        return run_row.measured(workload, measure(workload, capture, lambda: None))
    except NoMemoryError as error:
        return run_row.out_of_memory(error)
    except Exception as error:
        return {"status": "failed", "message": f"{type(error).__name__}: {error}"}


def limit_memory(settings: "Settings", fraction: float | None) -> None:
    """Let this process use a fraction of the GPU's memory, or of a CPU machine's beside what it holds now."""
    if fraction is None:
        return
    if settings.device_type == "cuda":
        import torch

        torch.cuda.set_per_process_memory_fraction(fraction, settings.device)
    else:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        most = _data_bytes() + int(fraction * total)
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


def _data_bytes() -> int:
    """Return what RLIMIT_DATA counts of this process: much where PyTorch brings CUDA's libraries; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
