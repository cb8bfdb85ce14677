"""Capture presets for nsys, and the argument lists that run it. Nothing here passes through a shell.

python -m profiling.nsys --sizes small,medium --contexts 512 --preset light
python -m profiling.nsys --print-command -- --python-backtrace=cuda
"""

import argparse
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.commands import CommandError, add_preset, ended

# Where nsys is installed when it is not on PATH; the newest of several is taken.
USUAL_PLACES = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
)
LONGEST_ANSWER_S = 60
DOMAIN = "nvtx-kernels"


class NsysError(CommandError):
    """nsys is missing or failed; the text is a sentence for the user."""


@dataclass(frozen=True)
class Preset:
    """What is captured: nsys's flags, and the options the watched program needs for it."""

    what: str
    flags: tuple[str, ...]
    program_options: tuple[str, ...] = ()


TRACE, NO_SWITCHES = "--trace=cuda,nvtx", "--cpuctxsw=none"
LIGHT = (TRACE, "--sample=none", NO_SWITCHES)
# nsys takes Python's call stack with CUDA's alone, and either only while it samples the CPU.
BACKTRACE = (TRACE, "--sample=process-tree", NO_SWITCHES, "--cudabacktrace=all", "--python-backtrace=cuda")
PRESETS: Mapping[str, Preset] = {
    "light": Preset("CUDA and NVTX, without CPU sampling", LIGHT),
    "ops": Preset("a range per operator, with sequence numbers (emit_nvtx)", LIGHT, ("--emit-nvtx",)),
    "graphs": Preset("every kernel inside CUDA graphs", (*LIGHT, "--cuda-graph-trace=node")),
    "memory": Preset("allocations of GPU memory", (*LIGHT, "--cuda-memory-usage=true")),
    "shapes": Preset("a range per operator, with its inputs' shapes", (*LIGHT, "--pytorch=autograd-shapes-nvtx")),
    "backtrace": Preset("CUDA calls with their call stacks, Python's too (much slower)", BACKTRACE),
    # nsys numbers GPUs in its own way; these are the ones that the program can see.
    "metrics": Preset("GPU counters over time", (*LIGHT, "--gpu-metrics-devices=cuda-visible")),
}
# Flags that capture the measured steps alone, by the kind of device; the program runs on to its end after them.
# cudaProfilerStart and Stop stand around those steps on a GPU, and the range `measure` everywhere.
MEASURED_STEPS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
    "cpu": ("--capture-range=nvtx", f"--nvtx-capture=measure@{DOMAIN}", "--capture-range-end=stop"),
}


def profile_command(
    nsys: str, program: Sequence[str], report: Path, *, preset: str = "light", flags: Sequence[str] = ()
) -> list[str]:
    """Return the arguments that run a program under nsys; `flags` come last, so that they win."""
    output = (f"--output={report}", "--force-overwrite=true")
    return [nsys, "profile", *PRESETS[preset].flags, *output, *flags, *program]


def export_command(nsys: str, report: Path) -> list[str]:
    """Return the arguments that export a report to SQLite, beside it."""
    output = f"--output={report.with_suffix('.sqlite')}"
    return [nsys, "export", "--type=sqlite", output, "--force-overwrite=true", str(report)]


def find_nsys() -> str:
    """Return the nsys on PATH, else the newest in the usual places. NsysError says where it was sought."""
    found = shutil.which("nsys") or max(_installed(), key=_numbers, default=None)
    if found is None:
        raise NsysError(
            "nsys was not found on PATH nor under /opt/nvidia or /usr/local/cuda; install Nsight Systems"
        )
    return found


def _installed() -> Iterator[str]:
    for place in USUAL_PLACES:
        yield from (str(path) for path in Path("/").glob(place.lstrip("/")) if path.is_file())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def version(nsys: str) -> tuple[int, ...]:
    """Return nsys's version, as (2025, 3, 1). NsysError says why it cannot be asked."""
    try:
        answer = subprocess.run(
            [nsys, "--version"], capture_output=True, text=True, timeout=LONGEST_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NsysError(f"{nsys} does not run: {error}") from error
    found = re.search(r"version (\d+)\.(\d+)\.(\d+)", answer.stdout)
    if found is None:
        raise NsysError(f"{nsys} --version said no version: {answer.stdout.strip()[:80]}")
    return tuple(map(int, found.groups()))


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    from profiling.benchmark import add_lists

    this = argparse.ArgumentParser(
        "python -m profiling.nsys",
        description="Capture every combination of lists of settings, a report for each.",
    )
    add_lists(this)
    add_preset(this, "--model-preset")
    presets = "; ".join(f"{name}: {preset.what}" for name, preset in PRESETS.items())
    this.add_argument(
        "--preset", choices=PRESETS, default="light", help=f"what is captured (default light). {presets}"
    )
    this.add_argument("--reports", metavar="FOLDER", type=Path, default=Path("reports"), help="where they go")
    this.add_argument("--export", action="store_true", help="export each report to SQLite too")
    this.add_argument("--print-command", action="store_true", help="run nothing; print nsys's command lines")
    this.add_argument("--again", action="store_true", help="capture what the folder holds already, too")
    this.add_argument("--budget", type=float, metavar="S", help="begin no configuration after so many seconds")
    this.add_argument("--longest", type=float, metavar="S", help="give up a configuration after so many seconds")
    this.add_argument("--format", default="table", help="of the times: table (default), markdown, ...")
    this.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags for nsys profile, after --")
    nothing = {"repeats": 1, "memory_fraction": None, "steps_listing": False, "output": None, "plot": None}
    this.set_defaults(**nothing)
    return this


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    this = parser()
    asked = vars(this.parse_args(arguments))
    return ended(this, lambda: _work(asked))


def _work(asked: Mapping[str, Any]) -> int:
    # Pandas and PyTorch take seconds to import.
    from profiling import nsys_screen

    return nsys_screen.run(asked)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
