"""Measure cells one after another, each in its own process, and write every row at once."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nvtx_kernels.analysis.support import progress

from . import results
from .configurations import Cell
from .nsight import MEASURED_STEPS, NsysError, find_nsys, profile_command
from .results import NSYS, Row

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


def sweep(cells: Sequence[Measurable], path: Path, plan: Plan) -> tuple[int, int]:
    """Measure the cells that a file of results lacks, append their rows, and return how many, and how many remain.

    A terminal shows a bar; elsewhere each cell is announced on a line of standard error.
    """
    began_s = time.monotonic()
    with results.appending(path) as file, progress.on_screen("configurations"):
        waiting = list(cells) if plan.again else missing(cells, path, plan.kind)
        progress.expect(len(waiting))
        for index, cell in enumerate(waiting):
            if plan.budget_s is not None and time.monotonic() - began_s >= plan.budget_s:
                return index, len(waiting) - index
            announce(f"{index + 1} of {len(waiting)}: {cell.label}")
            row = plan.measure(cell) if plan.measure else measured(cell, plan)  # type: ignore[arg-type]
            file.append(row)
            progress.advance(1)
            if row["status"] != "ok":
                reason = row.get("message") or f"out of memory in {row['phase']}"
                sys.stderr.write(f"{cell.label}: {reason}\n")
    return len(waiting), 0


def announce(sentence: str) -> None:
    """Show what runs now: in the bar of a terminal, else as a line of standard error."""
    progress.now(sentence)
    if not sys.stderr.isatty():
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()


def missing(cells: Sequence[Measurable], path: Path, kind: str = results.MODEL) -> list[Measurable]:
    """Return the cells without a result of this machine in a file of results; failures are tried again."""
    rows, _ = results.read(path, kind)
    final = {results.identity(row["cell"], row["state"]) for row in rows if row["status"] in results.FINAL}
    if not final:
        return list(cells)
    states = {device: state_of(device) for device in {cell.device for cell in cells}}
    return [cell for cell in cells if results.identity(cell.key, states[cell.device]) not in final]


def state_of(device: str) -> Row:
    """Return the state of the machine, from a separate process: this one does not use the GPU."""
    command = [sys.executable, "-m", "nvtx_kernels.profiling.study.environment", device]
    answer = subprocess.run(command, capture_output=True, text=True)
    return dict(json.loads(answer.stdout)) if answer.returncode == 0 else {}


def measured(cell: Cell, plan: Plan) -> Row:
    """Measure one cell in a separate process and return its row, however the process ends."""
    row = {"version": results.VERSION, "kind": results.MODEL, "cell": cell.key, "state": {}, "status": "failed"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            arguments = command(cell, folder, plan.nsys_flags)
        except NsysError as error:
            return {**row, "message": str(error)}
        cold = cell.settings.warmup == 0
        # The process knows neither which repeat it is nor that nsys runs it.
        row = {**row, **row_of(arguments, folder, plan.cell_s, cold=cold), "cell": cell.key}
        for report in Path(folder).glob(f"{REPORT}.*"):
            if plan.keep_report is not None and row["status"] == "ok":
                plan.keep_report(report, row)
    return row


def command(cell: Cell, folder: str, nsys_flags: Sequence[str] = ()) -> list[str]:
    """Return the arguments that measure a cell, under nsys if it asks for that. Raises NsysError without nsys."""
    options = [*cell.options(folder), "--quiet", "--json", f"{folder}/{ROW}"]
    if not cell.capture.startswith(NSYS):
        return [*program(options), "--die-with-parent"]
    return under_nsys(cell, find_nsys(), program(options), Path(folder, REPORT), nsys_flags)


def under_nsys(cell: Cell, nsys: str, arguments: Sequence[str], report: Path, flags: Sequence[str]) -> list[str]:
    """Return the arguments that run a program under a cell's nsys preset, of which its measured steps are kept."""
    steps = MEASURED_STEPS[cell.settings.device_type]
    preset = cell.capture.removeprefix(NSYS)
    return profile_command(nsys, arguments, report, preset=preset, flags=(*steps, *flags))


def program(options: Iterable[str]) -> list[str]:
    """Return the arguments that run one configuration."""
    return [sys.executable, "-m", "nvtx_kernels.profiling.run", *options]


def row_of(arguments: Sequence[str], folder: str, longest_s: float | None, *, cold: bool = False) -> Row:
    """Run a program that leaves its row in a folder, and return it, or how the program ended.

    A `cold` program finds nothing that an earlier one compiled: Inductor's and Triton's caches are in the folder.
    """
    log, environment = Path(folder, "output.txt"), dict(os.environ)
    if cold:
        environment |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
    with log.open("wb") as output, _running(arguments, output, environment) as process:
        try:
            status = process.wait(longest_s)
        except subprocess.TimeoutExpired:
            return {"message": f"took longer than {longest_s:g} s"}
    try:
        return dict(json.loads(Path(folder, ROW).read_bytes()))
    except FileNotFoundError:
        lines = [line.strip() for line in log.read_text(errors="replace").split("\n") if line.strip()]
        ending = f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
        return {"message": f"the process {ending}; its last words: {' / '.join(lines[-TAIL_LINES:]) or 'none'}"}


@contextmanager
def _running(
    arguments: Sequence[str], output: Any, environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that never outlives the block; its standard input stays open as long as this process."""
    streams: Mapping[str, Any] = {"stdin": subprocess.PIPE, "stdout": output, "stderr": subprocess.STDOUT}
    with subprocess.Popen(arguments, start_new_session=True, env=environment, **streams) as process:
        try:
            yield process
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    try:
                        process.wait(PATIENCE_S)
                    except subprocess.TimeoutExpired:
                        continue
