"""Times of phases that `profiling.benchmark` measured without a profiler, for (a) to hold a report's against."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..readers.safety import opened_file
from ..vocabulary.settings import WORK
from .sweep import Run

# Settings that decide the time of forward and backward; which AdamW comes after them does not.
SAME = tuple(setting.name for setting in WORK if setting.name != "optimizer")
#: A run has some 3 kB, and a time for each phase of each step.
LARGEST_FILE, LONGEST_LINE, MOST_STEPS = 64 << 20, 4 << 20, 100_000
TOO_MUCH = "{} has more than {}: give --timed a file of fewer runs."


def read(path: Path) -> list[Run]:
    """Return the runs of a file of results that nothing watched, oldest first.

    Raises UsageError where the file cannot be read, or has none, or more than is read; NotAReport for a pipe.
    """
    rows: list[Run] = []
    steps = 0
    for line in _lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # the last line of a sweep that was killed
            continue
        match row:
            case {
                "status": "ok",
                "cell": {"capture": "none"} as cell,
                "state": dict(state),
                "measured": list(measured),
            }:
                counted = all(isinstance(cell.get(name, 0), int | None) for name in ("warmup", "repeat"))
                if counted and "watched_by" not in state and all(map(_is_step, measured)):
                    rows.append(row)
                    steps += len(measured)
        if steps > MOST_STEPS:
            raise UsageError(TOO_MUCH.format(path, f"{MOST_STEPS:,} measured steps"))
    if not rows:
        command = f"nvtx-kernels benchmark --into {path.name}"
        raise UsageError(f"{path} has no times of runs without a profiler: measure some with `{command}`.")
    return sorted(rows, key=lambda row: str(row.get("started")))


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; raises UsageError where it cannot be read, or is larger than is read."""
    read_bytes = 0
    try:
        with opened_file(path) as file:
            while line := file.readline(LONGEST_LINE + 1):
                read_bytes += len(line)
                if len(line) > LONGEST_LINE or read_bytes > LARGEST_FILE:
                    most = LONGEST_LINE if len(line) > LONGEST_LINE else LARGEST_FILE
                    where = " in a line" if len(line) > LONGEST_LINE else ""
                    raise UsageError(TOO_MUCH.format(path, f"{most >> 20} MiB{where}"))
                yield line
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


def _is_step(step: Any) -> bool:
    """Return whether this is a measured step: times by phase, ms."""
    return isinstance(step, dict) and all(isinstance(ms, int | float) and isfinite(ms) for ms in step.values())


def of_run(run: Run, rows: Sequence[Run], phase: str) -> list[float]:
    """Return a phase's synchronized wall times, ns, in runs with a run's settings and GPU, and the most warm-up.

    These are all steps of the newest run of each repeat; none where there is no such run.
    """
    # A run's size names the dimensions too that were changed.
    settings = {name: run.get(name) for name in SAME}
    if isinstance(size := run.get("size"), str):
        settings["size"] = size.partition(",")[0]
    same = [
        row
        for row in rows
        if all(row["cell"].get(name) == setting for name, setting in settings.items())
        and row["state"].get("device_name") == run.get("device_name")
        and any(phase in step for step in row["measured"])
    ]
    if not same or not run:
        return []
    newest = max(same, key=lambda row: (row["cell"].get("warmup") or 0, str(row.get("started"))))
    repeats = {row["cell"].get("repeat"): row for row in same if _cell(row) == _cell(newest)}
    return [step[phase] * 1e6 for row in repeats.values() for step in row["measured"] if phase in step]


def _cell(row: Run) -> dict[str, Any]:
    """Return the settings that identify a run; all of its repeats have the same."""
    return {name: value for name, value in row["cell"].items() if name != "repeat"}
