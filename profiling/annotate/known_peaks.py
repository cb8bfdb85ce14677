"""What GPUs of this machine reached when `nvtx-kernels check-machine --peaks` measured them.

One file in the user's cache folder, `peaks.json`, holds by the GPU's name `{"tflops": {"bf16": 812.3, …},
"gigabytes_per_s": 4100.0}`. Marks of counted FLOPs have it, so that reports are compared with what their GPU can
do, not with what its data sheet promises.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import platformdirs
import torch
from nvtx_kernels.analysis.support.files import replacing


def file() -> Path:
    """Return where the peaks are kept: in NVTX_KERNELS_CACHE if that is set, else in the user's cache folder."""
    return Path(os.environ.get("NVTX_KERNELS_CACHE") or platformdirs.user_cache_dir("nvtx-kernels")) / "peaks.json"


def known() -> dict[str, Any]:
    """Return what was measured of the current GPU; nothing without one, or if it was not measured."""
    if not torch.cuda.is_available():
        return {}
    found = _read().get(torch.cuda.get_device_name())
    return found if isinstance(found, dict) else {}


def keep(gpu: str, peaks: dict[str, Any]) -> None:
    """Keep what was measured of the GPUs of a name. Raises OSError where the file cannot be written."""
    place = file()
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as open_file:
        open_file.write(json.dumps({**_read(), gpu: peaks}).encode())


def _read() -> dict[str, Any]:
    try:
        found = json.loads(file().read_text(encoding="utf-8")) if file().is_file() else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
