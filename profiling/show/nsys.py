"""The work of `nvtx-kernels nsys`: a sweep that writes reports."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvtx_kernels.analysis.presenters.output import format_of
from nvtx_kernels.analysis.support.files import Unfinished

from ..sweep import results
from ..sweep.configurations import Cell
from ..sweep.lists import STUDIES
from ..sweep.nsight import MEASURED_STEPS, export_command, find_nsys, profile_command
from ..sweep.processes import Plan, sweep
from ..sweep.results import NSYS
from ..workload.environment import gpu_facts
from .benchmark import cells_of, progress_bar, show

Row = dict[str, Any]
# What a report's name adds for an unusual setting: the usual value, and how another one is written.
UNUSUAL: Mapping[str, tuple[Any, str]] = {
    "attention": ("reference", "{}"),
    "compile": (False, "compiled"),
    "optimizer": ("reference", "{}"),
    "batch_size": (4, "b{}"),
    "warmup": (5, "w{}"),
    "steps": (10, "n{}"),
    "seed": (0, "seed{}"),
    "d_model": (None, "d{}"),
    "d_ff": (None, "ff{}"),
    "layers": (None, "l{}"),
    "heads": (None, "h{}"),
    "vocab_size": (None, "v{}"),
}
INDEX = "index.jsonl"


def run(asked: Mapping[str, Any]) -> int:
    """Capture every requested cell, or print the commands for that, and return the exit status."""
    format_of(asked["format"], asked["output"])
    capture = f"{NSYS}{asked['preset']}"
    cells = cells_of({**asked, "captures": [capture]}, STUDIES["times"])
    nsys, folder = find_nsys(), asked["reports"]
    if asked["print_command"]:
        for cell in cells:
            sys.stdout.write(f"{shlex.join(standalone(cell, nsys, folder, asked['flags']))}\n")
        return 0
    keeper = Keeper(folder, nsys if asked["export"] else None)
    plan = Plan(asked["again"], asked["budget"], asked["longest"], tuple(asked["flags"]), keeper)
    with progress_bar(len(cells)) as bar:
        sweep(
            [cell for cell in cells if _lacks_report(cell, folder)], folder / INDEX, bar, replace(plan, again=True)
        )
        sweep(cells, folder / INDEX, bar, plan)
    done = _rows(cells, folder)
    show(done, ["times"], asked)
    for path in keeper.kept:
        sys.stdout.write(f"{path}\n")
    return int(any(row["status"] == "failed" for row in done) or keeper.failed)


def _rows(cells: Sequence[Cell], folder: Path) -> list[Row]:
    return results.of_cells(results.read(folder / INDEX)[0], (cell.key for cell in cells))


def _lacks_report(cell: Cell, folder: Path) -> bool:
    """Return whether a cell was captured before, and its report is gone."""
    names = [
        name_of(row["cell"], row["state"]["device_name"]) for row in _rows([cell], folder) if row["status"] == "ok"
    ]
    return any(not list(folder.glob(f"{name}.*rep")) for name in names)


def standalone(cell: Cell, nsys: str, folder: Path, flags: Sequence[str]) -> list[str]:
    """Return a command that captures a cell without this one, as one would type it."""
    program = [sys.executable, "-m", "nvtx_kernels.profiling.run", *cell.options(str(folder))]
    report = folder / name_of(cell.key, device_name(cell.settings.device))
    where = MEASURED_STEPS[cell.settings.device_type]
    preset = cell.capture.removeprefix(NSYS)
    return profile_command(nsys, program, report, preset=preset, flags=(*where, *flags))


def device_name(device: str) -> str:
    """Return the name of a GPU, or CPU."""
    return str(gpu_facts(device)["device_name"]) if device.startswith("cuda") else "CPU"


def name_of(cell: Mapping[str, Any], gpu: str) -> str:
    """Return a report's name without ending: size, context, mode, dtype, GPU, and what is unusual. It sorts."""
    words = [cell["size"], f"ctx{cell['context_length']:05d}", cell["mode"], cell["dtype"], slug(gpu)]
    extras = [
        said.format(cell[name]) for name, (usual, said) in UNUSUAL.items() if cell.get(name) not in (usual, None)
    ]
    preset = cell["capture"].removeprefix(NSYS)
    return "_".join([*words, *extras, *([] if preset == "light" else [preset])])


def slug(gpu: str) -> str:
    """Return a GPU's name for use in a file's: NVIDIA H100 80GB HBM3 becomes h100-80gb-hbm3."""
    if gpu.startswith("CPU"):
        return "cpu"
    plain = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return plain.removeprefix("nvidia-").removeprefix("geforce-")


class Keeper:
    """Move reports to their folder under their names, and export them where nsys is given."""

    def __init__(self, folder: Path, exporter: str | None) -> None:
        self.kept: list[Path] = []
        self.failed = False
        self._folder, self._exporter = folder, exporter

    def __call__(self, report: Path, row: Row) -> None:
        """Keep one report."""
        kept = self._folder / (name_of(row["cell"], row["state"]["device_name"]) + report.suffix)
        unfinished = Unfinished(kept)
        try:
            shutil.move(report, unfinished.path)
            unfinished.publish()
        finally:
            unfinished.discard()
        self.kept.append(kept)
        if self._exporter is not None:
            self._export(kept)

    def _export(self, report: Path) -> None:
        done = subprocess.run(export_command(str(self._exporter), report), capture_output=True, text=True)
        if done.returncode != 0:
            self.failed = True
            sys.stderr.write(f"profiling.nsys: {report} could not be exported: {done.stderr.strip()[-200:]}\n")
