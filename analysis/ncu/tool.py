"""The ncu program: where it is, the command line that profiles some kernels, and what its refusals mean."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import AnalysisError, UsageError
from ..support.text import printable
from .filters import Filter

# Where ncu is installed when it is not on PATH; the newest of several is taken.
USUAL_PLACES = ("usr/local/cuda*/bin/ncu", "opt/nvidia/nsight-compute/*/ncu", "opt/cuda/bin/ncu")
PLACEHOLDER = "PROGRAM"
# How the lines begin that ncu itself prints.
OWN_LINES = "=="
MOST_SAID, LONGEST_SAID = 1 << 20, 1 << 12

# Time, achieved occupancy, throughput of the SMs and of DRAM; the section has what warps waited for.
METRICS = (
    "gpu__time_duration.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
SECTION = "WarpStateStats"
# Values as a program reads them: a column a metric, in unscaled units, at the clocks at which the program runs.
OUTPUT = ("--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none")

PERMISSION = (
    "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM): run it as root, or have the administrator load the "
    "driver with NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)."
)
_REFUSALS = (
    (r"ERR_NVGPUCTRPERM", PERMISSION),
    (
        r"No kernels were profiled",
        "ncu profiled no kernel: the program opened no range that the filter names, or launched nothing in it. "
        "Check that it runs as it did for the report.",
    ),
    (
        r"[Ff]ailed to find metric (?:regex:)?(\S+)",
        "ncu does not know the metric {0}; `ncu --query-metrics` lists them.",
    ),
)


def find_ncu() -> str:
    """Return the ncu on PATH, else the newest of CUDA's toolkits and Nsight Compute's folders.

    Raises AnalysisError if neither exists.
    """
    installed = [str(path) for place in USUAL_PLACES for path in Path("/").glob(place) if path.is_file()]
    installed.sort(key=lambda path: [int(digits) for digits in re.findall(r"\d+", path)])
    ncu = shutil.which("ncu") or next(reversed(installed), None)
    if ncu is None:
        raise AnalysisError(
            "ncu was not found on PATH, in /usr/local/cuda*/bin nor in /opt/nvidia/nsight-compute: install Nsight "
            "Compute, or run the printed command where it is, and give its CSV to --read."
        )
    return ncu


def command(ncu: str, chosen: Filter, log: Path, metrics: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return the arguments that profile a program's chosen kernels and write their counters to a file.

    Without `metrics` these are the usual ones, with the reasons why warps stalled.
    """
    collected = ["--metrics", ",".join(metrics or METRICS)]
    if not metrics:
        collected = ["--section", SECTION, *collected]
    target = ["--log-file", str(log), "--", *(program or (PLACEHOLDER,))]
    return [ncu, *chosen.options(), *collected, *OUTPUT, *target]


def as_typed(arguments: Sequence[str]) -> str:
    """Return a command line as a shell takes it, an option a line, and the program after `--` on one."""
    end = arguments.index("--")
    lines = [shlex.quote(arguments[0])]
    for word in arguments[1:end]:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join([*lines, shlex.join(arguments[end:])])


def run_ncu(arguments: Sequence[str], log: Path) -> None:
    """Run ncu; its program's output goes to the screen as usual.

    Raises AnalysisError with the reason where ncu or the program fails, UsageError where ncu cannot be started.
    """
    try:
        status = subprocess.run(arguments, check=False).returncode
    except OSError as error:
        raise UsageError(f"{arguments[0]} does not run: {error.strerror}.") from error
    said = [*own_lines(log)] if log.is_file() else []
    if reason := refusal("".join(said)):
        raise AnalysisError(reason)
    if status:
        last = next((line for line in reversed(said) if line.startswith("==ERROR==")), "")
        raise AnalysisError(f"ncu ended with status {status}. {printable(last.removeprefix('==ERROR==').strip())}")


def own_lines(log: Path) -> Iterator[str]:
    """Yield the lines of a log that ncu itself printed, the first `MOST_SAID` characters of them."""
    kept = 0
    with log.open(encoding="utf-8", errors="replace") as file:
        begins = True
        while kept < MOST_SAID and (line := file.readline(LONGEST_SAID)):
            if begins and line.startswith(OWN_LINES):
                kept += len(line)
                yield line
            begins = line.endswith("\n")


def refusal(text: str) -> str:
    """Return the meaning of a refusal in ncu's output, with the next step, or "" without a refusal."""
    for pattern, sentence in _REFUSALS:
        if match := re.search(pattern, text):
            return sentence.format(*match.groups())
    return ""
