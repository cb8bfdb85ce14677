"""Cells of a sweep, measured one after another, each in its own process, and every row written at once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvtx_kernels.analysis.support import progress
from nvtx_kernels.model.config import name_of

from ..cli import last_lines
from ..nsys_program import NsysError, find_nsys
from . import results
from .nsight import MEASURED_STEPS, PRESETS, profile_command
from .results import NSYS, Row
from .settings import Settings, SettingsError, with_defaults

if TYPE_CHECKING:
    from .attention import Case

PATIENCE_S = 10
TAIL_LINES = 3
ROW = "row.json"
REPORT = "report"
RUN = (sys.executable, "-m", "nvtx_kernels.profiling.run")
# How a cell's measured steps are watched, and the options that make `profiling.run` do so. Names that begin with
# `nsys-` run the process under that preset of `profiling.nsys`.
CAPTURES: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "bare": ("--no-annotate",),
    "recorder": ("--record", "{folder}/recording.sqlite"),
    "emit-nvtx": ("--emit-nvtx",),
}


@dataclass(frozen=True)
class Cell:
    """One configuration: settings, how it is watched, which of several repeats, how much memory it may use.

    `memory_fraction` is of the GPU's memory, on a CPU of the machine's; None leaves memory unlimited.
    """

    settings: Settings
    capture: str = "none"
    memory_fraction: float | None = None
    repeat: int = 0

    @property
    def key(self) -> dict[str, Any]:
        """Return the values that identify the cell in a file of results; without an optimizer if none runs."""
        identity = {**self.settings.by_name(), **asdict(self)}
        del identity["settings"]
        if "optimizer" not in self.settings.phases:
            identity["optimizer"] = None
        return identity

    @property
    def label(self) -> str:
        """Return the cell in a few words, for progress and errors."""
        settings = self.settings
        words = [name_of(settings.by_name()), f"ctx{settings.context_length}", settings.mode, settings.dtype]
        extras = {
            f"b{settings.batch_size}": True,
            settings.attention: settings.attention != "reference",
            "compiled": settings.compile is True,
            str(settings.compile): isinstance(settings.compile, str),
            settings.optimizer: settings.mode == "train",
            f"w{settings.warmup}": True,
            self.capture: self.capture != "none",
            f"repeat {self.repeat + 1}": self.repeat > 0,
        }
        words += [word for word, applies in extras.items() if applies]
        return " ".join(words)

    def options(self, folder: str) -> list[str]:
        """Return the options with which `profiling.run` measures this cell, files going to `folder`."""
        values = self.settings.by_name()
        compiles = values.pop("compile")
        words = []
        for name, value in values.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        if compiles:
            words += ["--compile"] if compiles is True else ["--compile", compiles]
        if self.memory_fraction is not None:
            words += ["--memory-fraction", str(self.memory_fraction)]
        if self.capture.startswith(NSYS):
            preset = PRESETS[self.capture.removeprefix(NSYS)]
            watching = preset.program_options
        else:
            watching = CAPTURES[self.capture]
        words += [word.format(folder=folder) for word in watching]
        return words


def product(
    lists: Mapping[str, Sequence[Any]],
    *,
    captures: Sequence[str] = ("none",),
    repeats: int = 1,
    memory_fraction: float | None = None,
) -> list[Cell]:
    """Return the cells of the product of lists of settings, without those that measure the same.

    Repeats are apart in time: all cells once, then all again. Raises SettingsError for impossible settings.
    """
    names = (*CAPTURES, *(f"{NSYS}{preset}" for preset in PRESETS))
    for capture in captures:
        if capture not in names:
            raise SettingsError(f"capture must be one of {', '.join(names)}, not {capture}")
    cells: dict[tuple[Any, ...], Cell] = {}
    combinations = itertools.product(*lists.values())
    for repeat, values, capture in itertools.product(range(repeats), combinations, captures):
        settings = with_defaults(dict(zip(lists, values, strict=True)))
        cell = Cell(settings, capture, memory_fraction, repeat)
        cells.setdefault(tuple(cell.key.items()), cell)
    return list(cells.values())


def sweep(
    cells: Sequence[Cell | Case],
    path: Path,
    measure: Callable[[Any], Row],
    *,
    kind: str = results.MODEL,
    again: bool = False,
    budget_s: float | None = None,
) -> tuple[int, int]:
    """Measure the cells that a file of results lacks, append their rows, and return how many, and how many remain.

    `again` also measures what was measured before; no cell begins after `budget_s`. A terminal shows a bar;
    elsewhere each cell is announced on a line of standard error.
    """
    began_s = time.monotonic()
    with results.appending(path) as append, progress.on_screen("configurations"):
        waiting: Sequence[Cell | Case] = cells if again else missing(cells, path, kind)
        progress.expect(len(waiting))
        for index, cell in enumerate(waiting):
            if budget_s is not None and time.monotonic() - began_s >= budget_s:
                return index, len(waiting) - index
            announce(f"{index + 1} of {len(waiting)}: {cell.label}")
            row = measure(cell)
            append(row)
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


def missing(cells: Sequence[Cell | Case], path: Path, kind: str = results.MODEL) -> list[Cell | Case]:
    """Return the cells without a result of this machine in a file of results; failures are tried again."""
    rows, _ = results.read(path, kind)
    final = [row for row in rows if row["status"] in results.FINAL]
    if not final:
        return list(cells)
    measured_before = {results.identity(row["cell"], row["state"]) for row in final}
    devices = {cell.key["device"] for cell in cells}
    states = {device: state_of(device) for device in devices}
    remaining = []
    for cell in cells:
        state = states[cell.key["device"]]
        if results.identity(cell.key, state) not in measured_before:
            remaining.append(cell)
    return remaining


def state_of(device: str) -> Row:
    """Return the state of the machine, from a separate process: this one does not use the GPU."""
    command = [sys.executable, "-m", "nvtx_kernels.profiling.study.environment", device]
    answer = subprocess.run(command, capture_output=True, text=True)
    return dict(json.loads(answer.stdout)) if answer.returncode == 0 else {}


def measured(
    cell: Cell,
    *,
    longest_s: float | None = None,
    nsys_flags: Sequence[str] = (),
    keep_report: Callable[[Path, Row], None] | None = None,
) -> Row:
    """Measure one cell in a separate process and return its row, however the process ends.

    It is ended after `longest_s`. `nsys_flags` are added to nsys's own, and `keep_report` is given nsys's report.
    """
    row = {
        "version": results.VERSION,
        "kind": results.MODEL,
        "cell": cell.key,
        "state": {},
        "status": "failed",
    }
    with tempfile.TemporaryDirectory() as folder:
        words = [*RUN, *cell.options(folder), "--quiet", "--json", f"{folder}/{ROW}"]
        if not cell.capture.startswith(NSYS):
            words.append("--die-with-parent")
        else:
            try:
                words = under_nsys(cell, find_nsys(), words, Path(folder, REPORT), nsys_flags)
            except NsysError as error:
                return {**row, "message": str(error)}
        # The process knows neither which repeat it is nor that nsys runs it.
        row |= row_of(words, folder, longest_s, cold=cell.settings.warmup == 0)
        row["cell"] = cell.key
        for report in Path(folder).glob(f"{REPORT}.*"):
            if keep_report is not None and row["status"] == "ok":
                keep_report(report, row)
    return row


def under_nsys(
    cell: Cell,
    nsys: str,
    words: Sequence[str],
    report: Path,
    flags: Sequence[str],
) -> list[str]:
    """Return the command line that captures a program's measured steps with a cell's nsys preset.

    Warm-up is captured, too, if kernels of CUDA graphs are asked for: the model's graphs are made there.
    """
    preset = cell.capture.removeprefix(NSYS)
    is_whole = preset == "graphs" and cell.settings.compile == "reduce-overhead"
    steps = () if is_whole else MEASURED_STEPS[cell.settings.device_type]
    return profile_command(nsys, words, report, preset=preset, flags=(*steps, *flags))


def empty_caches(folder: str) -> dict[str, str]:
    """Return the environment in which Inductor and Triton find nothing that an earlier process compiled."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}


def row_of(
    words: Sequence[str],
    folder: str,
    longest_s: float | None,
    *,
    cold: bool = False,
) -> Row:
    """Run a program that leaves its row in a folder, and return it, or how the program ended.

    Its standard input stays open as long as this process, and it never outlives the call. A `cold` program finds
    nothing that an earlier one compiled: Inductor's and Triton's caches are in the folder.
    """
    log = Path(folder, "output.txt")
    environment = dict(os.environ)
    if cold:
        environment |= empty_caches(folder)
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            start_new_session=True,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    with process:
        try:
            status = process.wait(longest_s)
        except subprocess.TimeoutExpired:
            return {"message": f"took longer than {longest_s:g} s"}
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(PATIENCE_S)
    try:
        return dict(json.loads(Path(folder, ROW).read_bytes()))
    except FileNotFoundError:
        lines = [line.strip() for line in last_lines(log, TAIL_LINES)]
        ending = f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
        return {"message": f"the process {ending}; its last words: {' / '.join(lines) or 'none'}"}
