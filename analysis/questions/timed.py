"""Times of phases that `profiling.benchmark` measured without a profiler, for (a) to hold a report's against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import UsageError

Row = Mapping[str, Any]
# Settings that decide the time of forward and backward; which AdamW comes after them does not.
SAME = (
    *("size", "d_model", "d_ff", "layers", "heads", "vocab_size", "context_length"),
    *("batch_size", "mode", "dtype", "attention", "compile"),
)


@dataclass(frozen=True, slots=True)
class Timed:
    """The wall time of a phase, synchronized: median and range over the n steps of all repeats, ns."""

    n: int
    median_ns: float
    least_ns: float
    most_ns: float


def read(path: Path) -> list[Row]:
    """Return the runs of a file of results that nothing watched, oldest first.

    Raises UsageError where the file cannot be read, or holds none.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    rows = [row for row in map(_parsed, lines) if _is_plain(row)]
    if not rows:
        command = f"nvtx-kernels benchmark --into {path.name}"
        raise UsageError(f"{path} holds no times of runs that nothing watched: make some with `{command}`.")
    return sorted(rows, key=lambda row: str(row.get("started")))


def of_run(run: Mapping[str, Any], rows: Sequence[Row], phase: str) -> Timed | None:
    """Return a phase's times with a run's settings and GPU, of the most warm-up: the newest of each repeat."""
    same = [row for row in rows if _is_same(run, row) and any(phase in step for step in row["measured"])]
    if not same or not run:
        return None
    newest = max(same, key=lambda row: (row["cell"].get("warmup") or 0, str(row.get("started"))))
    repeats = {row["cell"].get("repeat"): row for row in same if _cell(row) == _cell(newest)}
    times_ns = [step[phase] * 1e6 for row in repeats.values() for step in row["measured"] if phase in step]
    return Timed(len(times_ns), median(times_ns), min(times_ns), max(times_ns))


def _cell(row: Row) -> dict[str, Any]:
    """Return what identifies a run, whichever of its repeats it is."""
    return {name: value for name, value in row["cell"].items() if name != "repeat"}


def _parsed(line: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError:  # the last line of a sweep that was killed
        return {}
    return row if isinstance(row, dict) else {}


def _is_plain(row: Row) -> bool:
    cell, state, measured = (row.get(name) for name in ("cell", "state", "measured"))
    if not (isinstance(cell, dict) and isinstance(state, dict) and isinstance(measured, list)):
        return False
    return row.get("status") == "ok" and cell.get("capture") == "none" and "watched_by" not in state


def _is_same(run: Mapping[str, Any], row: Row) -> bool:
    same = all(_base(run, name) == row["cell"].get(name) for name in SAME)
    return same and run.get("device_name") == row["state"].get("device_name")


def _base(run: Mapping[str, Any], name: str) -> Any:
    """Return a setting of a mark; its size names the dimensions too that were changed."""
    value = run.get(name)
    return value.partition(",")[0] if name == "size" and isinstance(value, str) else value
