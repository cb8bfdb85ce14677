"""Measure cells one after another, each in its own process, and write every row at once."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from . import results
from .configurations import Cell
from .nsight import MEASURED_STEPS, NsysError, find_nsys, profile_command
from .results import NSYS

Row = dict[str, Any]
PATIENCE_S = 10
TAIL_LINES = 3
ROW = "row.json"
REPORT = "report"


class Measurable(Protocol):
    """A cell of a sweep: what identifies it in a file of results, a few words for it, and where it runs."""

    @property
    def key(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def label(self) -> str: ...  # noqa: D102
    @property
    def device(self) -> str: ...  # noqa: D102


class Progress(Protocol):
    """Receives the progress of a sweep."""

    def skip(self, count: int) -> None:
        """Handle the number of cells measured before."""

    def begin(self, cell: Measurable) -> None:
        """Handle the start of a cell."""

    def end(self, row: Row) -> None:
        """Handle the result of the cell."""


@dataclass(frozen=True)
class Plan:
    """How to sweep.

    `again` also measures what was measured before. No cell begins after `budget_s` or runs longer than `cell_s`.
    `nsys_flags` are added to every nsys command, and `keep_report` is given each report with its row. `kind` is of
    the rows, and `measure` measures a cell in another way than in a process of its own.
    """

    again: bool = False
    budget_s: float | None = None
    cell_s: float | None = None
    nsys_flags: tuple[str, ...] = ()
    keep_report: Callable[[Path, Row], None] | None = None
    kind: str = results.MODEL
    measure: Callable[[Any], Row] | None = None


def sweep(cells: Sequence[Measurable], path: Path, progress: Progress, plan: Plan) -> int:
    """Measure the cells that a file of results lacks, append their rows, and return how many are left."""
    began_s = time.monotonic()
    with results.appending(path) as file:
        waiting = list(cells) if plan.again else missing(cells, path, plan.kind)
        progress.skip(len(cells) - len(waiting))
        for index, cell in enumerate(waiting):
            if plan.budget_s is not None and time.monotonic() - began_s >= plan.budget_s:
                return len(waiting) - index
            progress.begin(cell)
            row = plan.measure(cell) if plan.measure else measured(cell, plan)  # type: ignore[arg-type]
            file.append(row)
            progress.end(row)
    return 0


def missing(cells: Sequence[Measurable], path: Path, kind: str = results.MODEL) -> list[Measurable]:
    """Return the cells without a result of this machine in a file of results; failures are tried again."""
    rows, _ = results.read(path, kind)
    done = {results.identity(row["cell"], row["state"]) for row in rows if row["status"] in results.FINAL}
    if not done:
        return list(cells)
    states = {device: state_of(device) for device in {cell.device for cell in cells}}
    return [cell for cell in cells if results.identity(cell.key, states[cell.device]) not in done]


def state_of(device: str) -> Row:
    """Return the state of the machine, from a separate process: this one does not use the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--state-only", "--device", device]
        row = row_of(_program(options, folder), folder, None)
    return dict(row.get("state", {}))


def measured(cell: Cell, plan: Plan) -> Row:
    """Measure one cell in a separate process and return its row, however the process ends."""
    known = {"version": results.VERSION, "kind": results.MODEL, "cell": cell.key, "state": {}, "status": "failed"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            arguments = command(cell, folder, plan.nsys_flags)
        except NsysError as error:
            return {**known, "message": str(error)}
        row = {**known, **row_of(arguments, folder, plan.cell_s)}
        for report in Path(folder).glob(f"{REPORT}.*"):
            if plan.keep_report is not None and row["status"] == "ok":
                plan.keep_report(report, row)
    return row


def command(cell: Cell, folder: str, nsys_flags: Sequence[str] = ()) -> list[str]:
    """Return the arguments that measure a cell, under nsys if it asks for that. Raises NsysError without nsys."""
    if not cell.capture.startswith(NSYS):
        return _program([*cell.options(folder), "--die-with-parent"], folder)
    program, preset = _program(cell.options(folder), folder), cell.capture.removeprefix(NSYS)
    where = MEASURED_STEPS[cell.settings.device_type]
    return profile_command(find_nsys(), program, Path(folder, REPORT), preset=preset, flags=(*where, *nsys_flags))


def _program(options: Iterable[str], folder: str) -> list[str]:
    measures = "nvtx_kernels.profiling.run.measure_one"
    return [sys.executable, "-m", measures, *options, "--result", f"{folder}/{ROW}"]


def row_of(arguments: Sequence[str], folder: str, longest_s: float | None) -> Row:
    """Run a program that leaves its row in a folder, and return it, or how the program ended."""
    said = Path(folder, "said.txt")
    with said.open("wb") as output, _running(arguments, output) as process:
        try:
            status = process.wait(longest_s)
        except subprocess.TimeoutExpired:
            return {"message": f"took longer than {longest_s:g} s"}
    try:
        return dict(json.loads(Path(folder, ROW).read_bytes()))
    except FileNotFoundError:
        return {"message": f"{_ending(status)}; its last words: {_last_words(said)}"}


@contextmanager
def _running(arguments: Sequence[str], output: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that never outlives the block; its standard input stays open as long as this process."""
    options = {"stdin": subprocess.PIPE, "stdout": output, "stderr": subprocess.STDOUT}
    with subprocess.Popen(arguments, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    _wait(process)


def _wait(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        return


def _ending(status: int) -> str:
    if status >= 0:
        return f"the process ended with status {status}"
    return f"the process was ended by {signal.Signals(-status).name}"


def _last_words(said: Path) -> str:
    lines = said.read_text(errors="replace").split("\n")
    return " / ".join([line.strip() for line in lines if line.strip()][-TAIL_LINES:]) or "none"
