"""The tool that may watch this process, nsys, and the package nvtx that ranges reach it through."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

# What nsys gives every process it watches: the session's id, and its own library to load. Other tools come in
# through the same variables, with libraries of other names.
NSYS_SESSION = "NSYS_PROFILING_SESSION_ID"
INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD")
NSYS_LIBRARY = "libToolsInjection"
#: How nsys itself is called among processes, and its option for a range: a program's own `-c` has other values.
NSYS_PROGRAM = "nsys"
CAPTURE_RANGE = re.compile(r"(?:\A|\0)(?:-c\0?|--capture-range[=\0])(?:cudaProfilerApi|nvtx|hotkey)(?:\0|\Z)")
#: The newest Python that nvtx has a wheel for.
NEWEST_PYTHON = (3, 14)


def watcher(variables: Mapping[str, str]) -> dict[str, str]:
    """Return `watched_by`, the profiler that watches a process with these variables; nothing without one."""
    libraries = (variables.get(name, "") for name in INJECTIONS)
    is_nsys = variables.get(NSYS_SESSION) or any(NSYS_LIBRARY in library for library in libraries)
    return {"watched_by": "nsys"} if is_nsys else {}


def captures_a_range() -> bool:
    """Return whether the nsys that started this process captures only a part of it.

    nsys tells its program nothing of that; its own command line, that of a parent, does. Where the system does not
    show it, the answer is False.
    """
    number = os.getpid()
    while number > 1:
        try:
            command = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
            stat = Path(f"/proc/{number}/stat").read_text()
        except OSError:
            return False
        if Path(command.partition("\0")[0]).name == NSYS_PROGRAM:
            return CAPTURE_RANGE.search(command) is not None
        number = int(stat.rpartition(")")[2].split()[1])
    return False


def how_to_get_nvtx(python: tuple[int, int] = sys.version_info[:2]) -> str:
    """Return how to get nvtx, or what to do instead where this version of Python has no wheel of it."""
    if python <= NEWEST_PYTHON:
        return "pip install 'nvtx-kernels[profiling]'"
    newest, here = (".".join(map(str, version)) for version in (NEWEST_PYTHON, python))
    return f"it has no wheel for Python {here}; use Python {newest}, or record without nsys (nvtx-kernels record)"
