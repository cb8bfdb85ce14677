"""The work of `profiling.nsys`: a sweep that writes reports."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nvtx_kernels.analysis.presenters.output import format_of, print_text
from nvtx_kernels.analysis.support.files import replacing
from nvtx_kernels.analysis.vocabulary.settings import in_order

from ..machine import gpu_facts
from ..nsys_program import NsysError, find_nsys
from . import results
from .nsight import export_command
from .processes import RUN, measured, product, sweep, under_nsys
from .results import NSYS, Row
from .settings import Settings
from .studies import STUDIES, lists_of
from .table import show

# What a report's name adds for a setting that is not the default, in this order.
UNUSUAL = in_order("attention", "compile", "optimizer", "batch_size", "warmup", "steps", "seed")
INDEX = "index.jsonl"


def capture(options: Mapping[str, Any]) -> int:
    """Capture every requested cell, or print the commands for that, and return the exit status."""
    format_of(options["format"], options["output"])
    cells = product(lists_of(options, STUDIES["times"]), captures=[f"{NSYS}{options['preset']}"])
    folder = options["reports"]
    index = options["reports"] / INDEX
    if options["print_command"]:
        try:
            nsys = find_nsys()
        except NsysError:
            nsys = "nsys"  # as one would type it elsewhere
        for cell in cells:
            device = cell.settings.device
            gpu = str(gpu_facts(device)["device_name"]) if device.startswith("cuda") else "CPU"
            words = [*RUN, *cell.options(str(folder))]
            report = folder / name_of(cell.key, gpu)
            print_text(f"{shlex.join(under_nsys(cell, nsys, words, report, options['flags']))}\n")
        return 0

    nsys = find_nsys()
    reports = []
    failures = []

    def keep_report(report: Path, row: Row) -> None:
        """Move a report to its folder under its name, and export it if that is asked for."""
        path = folder / f"{_name_of_row(row)}{report.suffix}"
        with report.open("rb") as source, replacing(path) as target:
            shutil.copyfileobj(source, target)
        report.unlink()
        reports.append(path)
        if options["export"]:
            export = subprocess.run(export_command(nsys, path), capture_output=True, text=True)
            if export.returncode != 0:
                failures.append(path)
                reason = export.stderr.strip()[-200:]
                sys.stderr.write(f"profiling.nsys: {path} could not be exported: {reason}\n")

    limits = {"longest_s": options["longest"], "nsys_flags": options["flags"]}
    measure = partial(measured, **limits, keep_report=keep_report)
    budget_s = options["budget"]
    keys = [cell.key for cell in cells]
    rows = results.of_cells(results.rows_in([index]), keys)
    captured = [row for row in rows if row["status"] == "ok"]
    lost = [row["cell"] for row in captured if not any(folder.glob(f"{_name_of_row(row)}.*rep"))]
    lost_cells = [cell for cell in cells if cell.key in lost]
    sweep(lost_cells, index, measure, again=True, budget_s=budget_s)
    sweep(cells, index, measure, again=options["again"], budget_s=budget_s)
    rows = results.of_cells(results.rows_in([index]), keys)
    show(rows, options, {"by": "phase"})
    for path in reports:
        print_text(f"{path}\n")
    return int(any(row["status"] == "failed" for row in rows) or bool(failures))


def _name_of_row(row: Row) -> str:
    return name_of(row["cell"], row["state"]["device_name"])


def name_of(cell: Mapping[str, Any], gpu: str) -> str:
    """Return a report's name without ending: size, context, mode, dtype, GPU, and what is unusual. It sorts."""
    plain_gpu = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    plain_gpu = plain_gpu.removeprefix("nvidia-").removeprefix("geforce-")
    words = [cell["size"], f"ctx{cell['context_length']:05d}", cell["mode"], cell["dtype"]]
    words.append("cpu" if gpu.startswith("CPU") else plain_gpu)
    for setting in UNUSUAL:
        value = cell.get(setting.name)
        if setting.short and value not in (getattr(Settings, setting.name), None):
            words.append(setting.short.format("compiled" if value is True else value))
    preset = cell["capture"].removeprefix(NSYS)
    return "_".join(words if preset == "light" else [*words, preset])
