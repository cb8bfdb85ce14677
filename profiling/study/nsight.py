"""Capture presets for nsys, and the argument lists that run it. Nothing here passes through a shell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvtx_kernels import DOMAIN


@dataclass(frozen=True)
class Preset:
    """What is captured: nsys's flags, and the options the watched program needs for it."""

    description: str
    flags: tuple[str, ...]
    program_options: tuple[str, ...] = ()


TRACE, NO_SWITCHES = "--trace=cuda,nvtx", "--cpuctxsw=none"
LIGHT = (TRACE, "--sample=none", NO_SWITCHES)
# nsys takes Python's call stack only together with CUDA's, and both only while it samples the CPU.
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
# cudaProfilerStart and Stop surround those steps on a GPU, and the range `measure` everywhere.
MEASURED_STEPS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
    "cpu": ("--capture-range=nvtx", f"--nvtx-capture=measure@{DOMAIN}", "--capture-range-end=stop"),
}


def profile_command(
    nsys: str,
    program: Sequence[str],
    report: Path,
    *,
    preset: str = "light",
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the arguments that run a program under nsys; `flags` come last, so that they win."""
    output = (f"--output={report}", "--force-overwrite=true")
    return [nsys, "profile", *PRESETS[preset].flags, *output, *flags, *program]


def export_command(nsys: str, report: Path) -> list[str]:
    """Return the arguments that export a report to SQLite, next to it."""
    output = f"--output={report.with_suffix('.sqlite')}"
    return [nsys, "export", "--type=sqlite", output, "--force-overwrite=true", str(report)]
