"""The nsys of this machine: where it is, and its version. Nothing here passes through a shell."""

import re
import shutil
import subprocess
from pathlib import Path

from .cli import CommandError

# Where nsys is installed when it is not on PATH; the newest of several is taken.
USUAL_PLACES = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
)
LONGEST_ANSWER_S = 60


class NsysError(CommandError):
    """nsys is missing or failed; the text is a sentence for the user."""


def find_nsys() -> str:
    """Return the nsys on PATH, else the newest in the usual places. Raises NsysError if neither exists."""
    on_path = shutil.which("nsys")
    if on_path is not None:
        return on_path
    if not (paths := installed()):
        raise NsysError(
            "nsys was not found on PATH, under /opt/nvidia or under /usr/local/cuda: install Nsight Systems"
        )
    return max(paths, key=lambda path: tuple(map(int, re.findall(r"\d+", path))))


def installed() -> list[str]:
    """Return the nsys programs in the usual places."""
    patterns = (pattern.lstrip("/") for pattern in USUAL_PLACES)
    return [str(path) for pattern in patterns for path in Path("/").glob(pattern) if path.is_file()]


def version(nsys: str) -> tuple[int, ...]:
    """Return nsys's version, as (2025, 3, 1). Raises NsysError if it cannot be determined."""
    try:
        answer = subprocess.run(
            [nsys, "--version"], capture_output=True, text=True, timeout=LONGEST_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NsysError(f"{nsys} does not run: {error}") from error
    numbers = re.search(r"version (\d+)\.(\d+)\.(\d+)", answer.stdout)
    if numbers is None:
        raise NsysError(f"{nsys} --version reported no version: {answer.stdout.strip()[:80]}")
    return tuple(map(int, numbers.groups()))
