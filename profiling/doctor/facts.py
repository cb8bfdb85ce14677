"""What this machine offers to a profiler, looked up once and judged by the checks."""

import os
import platform
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from ..cli import text_of
from ..nsys_program import LONGEST_ANSWER_S, NsysError, find_nsys, version

DRIVER_FILE = "proc/driver/nvidia/version"
DRIVER_PARAMETERS = "proc/driver/nvidia/params"
# Where the kernel does not show its driver, as in WSL.
ASK_DRIVER = ("--query-gpu=driver_version", "--format=csv,noheader")
PARANOID_FILE = "proc/sys/kernel/perf_event_paranoid"
CONTAINER_FILES = (".dockerenv", "run/.containerenv")
KERNEL_FILE = "proc/version"
# What a variable does to a measurement, and what to do about it.
OF_VARIABLE = {
    "NVTX_KERNELS_OFF": ("switches every range off", "unset NVTX_KERNELS_OFF"),
    "NVIDIA_TF32_OVERRIDE": ("overrides the TF32 setting of --dtype", "unset NVIDIA_TF32_OVERRIDE"),
    "CUDA_INJECTION64_PATH": ("loads another profiler, and only one can trace", "unset CUDA_INJECTION64_PATH"),
    "CUDA_LAUNCH_BLOCKING": ("makes every launch wait for its kernel", "unset CUDA_LAUNCH_BLOCKING"),
    "CUDA_VISIBLE_DEVICES": ("hides and renumbers GPUs", "nothing, if intended"),
}
TRIAL = ("profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true")


@dataclass(frozen=True)
class Facts:
    """A machine; None is unknown, an empty text means no problem."""

    torch: str | None = None
    nvtx: str | None = None
    torch_cuda: str | None = None
    gpus: tuple[str, ...] = ()
    recorder_sees_gpu: bool = False
    driver: str | None = None
    nsys: str | None = None
    nsys_version: tuple[int, ...] | None = None
    nsys_trouble: str | None = None
    trial_trouble: str | None = None
    paranoid: int | None = None
    counters_for_admins: bool | None = None
    is_root: bool = False
    in_container: bool = False
    in_wsl: bool = False
    wsl_clock_fixed: bool = False
    variables: dict[str, str] = field(default_factory=dict)


def look(root: Path = Path("/"), *, trial: bool = True) -> Facts:
    """Return the facts of this machine, with its files under `root`; `trial` lets nsys write a small report."""
    parameters, paranoid = text_of(root / DRIVER_PARAMETERS), text_of(root / PARANOID_FILE).strip()
    driver = driver_of(text_of(root / DRIVER_FILE)) or driver_of(_output(["nvidia-smi", *ASK_DRIVER]))
    for_admins = re.search(r"RmProfilingAdminOnly:\s*(\S+)", parameters)
    return Facts(
        **_pytorch(),  # type: ignore[arg-type]
        **_nsys(trial=trial),  # type: ignore[arg-type]
        driver=driver,
        paranoid=int(paranoid) if paranoid.lstrip("-").isdigit() else None,
        counters_for_admins=for_admins[1] == "1" if for_admins else None,
        is_root=os.geteuid() == 0,
        in_container=any((root / name).exists() for name in CONTAINER_FILES),
        in_wsl="microsoft" in (text_of(root / KERNEL_FILE) or platform.release()).lower(),
        variables={name: os.environ[name] for name in OF_VARIABLE if name in os.environ},
    )


def _pytorch() -> dict[str, object]:
    """Return the versions of what records, and what PyTorch sees."""
    facts: dict[str, object] = {}
    for package in ("torch", "nvtx"):
        with suppress(metadata.PackageNotFoundError):
            facts[package] = metadata.version(package)
    try:
        import torch
        from torch.profiler import ProfilerActivity, supported_activities
    except ImportError:
        return facts
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    sees = ProfilerActivity.CUDA in supported_activities()  # type: ignore[no-untyped-call]
    return {**facts, "torch_cuda": torch.version.cuda, "gpus": tuple(names), "recorder_sees_gpu": sees}


def _nsys(*, trial: bool) -> dict[str, object]:
    """Return where nsys is, and whether it can write a report of a program that does nothing."""
    try:
        nsys = find_nsys()
        facts: dict[str, object] = {"nsys": nsys, "nsys_version": version(nsys)}
    except NsysError as error:
        return {"nsys_trouble": str(error)}
    settings = _output([nsys, "-z"]).strip()
    facts["wsl_clock_fixed"] = bool(settings) and "CuptiUseRawGpuTimestamps=false" in text_of(Path(settings))
    if not trial:
        return facts
    with tempfile.TemporaryDirectory() as folder:
        program = [nsys, *TRIAL, f"--output={folder}/trial", sys.executable, "-c", "pass"]
        try:
            ran = subprocess.run(program, capture_output=True, text=True, timeout=LONGEST_ANSWER_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return {**facts, "trial_trouble": str(error)}
        lines = f"{ran.stdout}\n{ran.stderr}".strip().splitlines()
        trouble = lines[-1].strip() if lines else f"status {ran.returncode}"
        return {**facts, "trial_trouble": "" if any(Path(folder).glob("trial.*rep")) else trouble}


def _output(program: list[str]) -> str:
    try:
        return subprocess.run(program, capture_output=True, text=True, timeout=LONGEST_ANSWER_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def driver_of(text: str) -> str | None:
    """Return the version of the NVIDIA kernel driver in its own words, None without one."""
    numbers = (word for word in text.split() if word.count(".") >= 1 and word.replace(".", "").isdigit())
    return next(numbers, None)
