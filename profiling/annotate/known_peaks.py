"""What GPUs of this machine reached when `nvtx-kernels check-machine --peaks` measured them.

One file in the user's cache folder, `peaks.json`, holds by the GPU's name `{"tflops": {"bf16": 812.3, …},
"gigabytes_per_s": 4100.0}`. Marks of counted FLOPs have it, so that reports are compared with what their GPU can
do, not with what its data sheet promises.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from nvtx_kernels.analysis.support.files import replace_file
from nvtx_kernels.analysis.support.user_cache import content_of, folder, is_ours_alone

FILE, MOST_BYTES = "peaks.json", 2**20


def known() -> dict[str, Any]:
    """Return what was measured of the current GPU; nothing without one, or if it was not measured."""
    measured = _read().get(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return measured if isinstance(measured, dict) else {}


def keep(gpu: str, peaks: dict[str, Any]) -> None:
    """Keep what was measured of the GPUs of a name. Raises OSError where the file cannot be kept."""
    if not is_ours_alone(folder()):
        raise OSError(f"others can write to {folder()}")
    replace_file(folder() / FILE, json.dumps({**_read(), gpu: peaks}).encode())


def _read() -> dict[str, Any]:
    try:
        content = json.loads(content_of(folder() / FILE, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
