"""What affects a number in addition to the settings, and the limit on memory.

`python -m profiling.study.environment cuda` prints it as JSON.
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from ..machine import cpu_facts, gpu_facts, tf32_allowed, versions
from ..tool import watcher
from .settings import AUTOCAST_DTYPE, Settings


def environment(settings: Settings) -> dict[str, Any]:
    """Return the state of the machine and of PyTorch, once the settings are applied."""
    return {
        **versions(),
        **(gpu_facts(settings.device) if settings.device_type == "cuda" else cpu_facts()),
        "tf32": tf32_allowed(),
        "autocast": str(AUTOCAST_DTYPE.get(settings.dtype, "off")).removeprefix("torch."),
        "grad_scaler": False,
        **watcher(os.environ),
    }


def limit_memory(settings: Settings, fraction: float | None) -> None:
    """Let this process use a fraction of the GPU's memory, or of a CPU machine's on top of what it uses now."""
    if fraction is None:
        return
    if settings.device_type == "cuda":
        # PyTorch refuses `cuda` here: an index, or None for the current GPU.
        torch.cuda.set_per_process_memory_fraction(fraction, torch.device(settings.device).index)
        return
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    try:
        # What RLIMIT_DATA counts of this process: much where PyTorch brings CUDA's libraries.
        data_pages = int(Path("/proc/self/statm").read_text().split()[5])
    except (OSError, IndexError, ValueError):
        data_pages = 0
    most_bytes = (data_pages + int(fraction * os.sysconf("SC_PHYS_PAGES"))) * page_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(environment(Settings(device=sys.argv[1]))))
