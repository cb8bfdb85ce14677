"""Measure one configuration in this process, and write what came of it as one JSON row.

python -m profiling.measure_one --size small --mode forward --result row.json

A sweep runs one such process per configuration. It takes the options of `profiling.run`. The row's
`status` is ok, oom (with `phase` and `requested_bytes`) or failed (with `message`).
"""

import argparse
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from profiling import run

if TYPE_CHECKING:
    from profiling.settings import Settings
    from profiling.workload import NoMemoryError

T = TypeVar("T")
GIB = 1 << 30


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
    began, began_s = datetime.now(UTC), time.monotonic()
    row = {"started": began.strftime("%Y-%m-%dT%H:%M:%SZ"), **_row(asked)}
    row["seconds"] = round(time.monotonic() - began_s, 3)
    _publish(row, asked["result"])
    return 0


def _die_with_parent() -> None:
    # A sweep that is killed closes the pipe; its measurement must not go on beside the next one's.
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _publish(row: dict[str, Any], path: Path) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(row))
    beside.replace(path)


def _row(asked: dict[str, Any]) -> dict[str, Any]:
    # PyTorch takes seconds to import, and annotations are switched off before that.
    from profiling.environment import environment
    from profiling.settings import apply_precision, with_defaults
    from profiling.workload import NoMemoryError

    settings = with_defaults(asked)
    apply_precision(settings)
    limit_memory(settings, asked["memory_fraction"])
    known = {"state": environment(settings)}
    if asked["state_only"]:
        return known
    try:
        return {**known, **_measured(settings, asked)}
    except NoMemoryError as error:
        return {**known, **_no_memory(error)}
    except Exception as error:
        return {**known, "status": "failed", "message": f"{type(error).__name__}: {error}"}


def _measured(settings: "Settings", asked: dict[str, Any]) -> dict[str, Any]:
    from profiling import machine_checks, memory
    from profiling.measurement import Capture, measure
    from profiling.workload import Workload

    capture = Capture(asked["record"], operators=asked["emit_nvtx"])
    capture.check(settings)
    workload = Workload(settings)
    done = measure(workload, capture, lambda: None)
    lost: list[str] = []
    return {
        "status": "ok",
        "parameters": workload.parameters,
        "warmup": done.warmup,
        "measured": done.measured,
        "peak_bytes": done.peak_bytes,
        "phase_peak_bytes": _extra(lost, lambda: memory.phase_peaks(workload)),
        "clocks": _extra(lost, lambda: machine_checks.clocks_under_load(workload)),
        "warnings": [*(_extra(lost, lambda: machine_checks.warnings(settings)) or ()), *lost],
    }


def _extra(lost: list[str], look: Callable[[], T]) -> T | None:
    """Look at something beside the measurement, which is kept if this fails."""
    try:
        return look()
    except Exception as error:
        lost.append(f"not everything could be looked at: {type(error).__name__}: {error}")
        return None


def _no_memory(error: "NoMemoryError") -> dict[str, Any]:
    asked = None if error.asked_gib is None else round(error.asked_gib * GIB)
    return {"status": "oom", "phase": error.phase, "requested_bytes": asked}


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
