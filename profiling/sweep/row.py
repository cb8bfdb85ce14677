"""The row with the result of one run: its times, its state, and what is measured afterwards.

with kept("row.json", settings, capture) as row:
    row.update(measured(workload, measure(workload, capture, on_step)))
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from nvtx_kernels.analysis.support.files import replace_file

from ..annotate import range_stack
from ..workload import peaks
from ..workload.environment import environment
from ..workload.measurement import Capture, Measurement
from ..workload.model_steps import NoMemoryError, Workload
from ..workload.settings import Settings
from . import probes, results
from .configurations import Cell

T = TypeVar("T")
Row = dict[str, Any]
GIB = 1 << 30


@contextmanager
def kept(path: str | None, settings: Settings, capture: Capture) -> Iterator[Row]:
    """Yield a row to fill; write it to `path` when the block is done or memory is full, None writes nothing.

    The file is one line, a file of results that `profiling.benchmark --results` shows. Raises OSError if it
    cannot be written.
    """
    began, row = results.Began(), Row()
    try:
        yield row
    except NoMemoryError as error:
        row.update(out_of_memory(error))
        raise
    finally:
        if path is not None and row:
            publish(began.completed({**_known(settings, capture), **row}), Path(path))


def _known(settings: Settings, capture: Capture) -> Row:
    cell = Cell(settings, capture_name(capture)).key
    return {
        "version": results.VERSION,
        "kind": results.MODEL,
        "cell": cell,
        "state": environment(settings),
    }


def capture_name(capture: Capture) -> str:
    """Return how a run's steps are watched, in the words of `profiling.cells`."""
    watched = {
        "bare": range_stack.off,
        "recorder": capture.record_to is not None,
        "emit-nvtx": capture.operators,
    }
    return ", ".join(name for name, is_so in watched.items() if is_so) or "none"


def measured(workload: Workload, done: Measurement, *, more_steps: bool = True) -> Row:
    """Return the results of a measurement.

    With `more_steps`, steps run for the phases' peaks of memory and for clocks under load, and products for
    the warnings; without, these are None and empty.
    """
    lost: list[str] = []
    looks: dict[str, Callable[[], Any]] = {
        "phase_peak_bytes": lambda: peaks.phase_peaks(workload),
        "clocks": lambda: probes.clocks_under_load(workload),
        "warnings": lambda: probes.warnings(workload.settings),
    }
    found = {name: _extra(lost, look) if more_steps else None for name, look in looks.items()}
    return {
        "status": "ok",
        "parameters": workload.parameters,
        "warmup": done.warmup,
        "measured": done.measured,
        "peak_bytes": done.peak_bytes,
        **found,
        "warnings": [*(found["warnings"] or ()), *lost],
    }


def _extra(lost: list[str], look: Callable[[], T]) -> T | None:
    """Measure something more; if this fails, the measurement is kept."""
    try:
        return look()
    except Exception as error:
        lost.append(f"not everything could be measured: {type(error).__name__}: {error}")
        return None


def out_of_memory(error: NoMemoryError) -> Row:
    """Return what a run out of memory found: the phase, and the bytes it asked for if that is known."""
    asked = None if error.asked_gib is None else round(error.asked_gib * GIB)
    return {"status": "oom", "phase": error.phase, "requested_bytes": asked}


def publish(row: Row, path: Path) -> None:
    """Write a row as one line of JSON, whole or not at all."""
    replace_file(path, (json.dumps(row) + "\n").encode())
