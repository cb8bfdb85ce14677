"""What a number depends on besides the program: versions, the device, precision flags, a profiler that watches.

It names no host, user or path, so it can be shared with a report.
"""

import os
import platform
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

import nvtx_kernels

from .annotate.nvtx_package import nvtx
from .cli import text_of
from .tf32 import convolutions_take_tf32, matmul_precision, products_take_tf32

# How the mark begins in which a report has all that affects its numbers.
MARK = "nvtx-kernels.run"
# cuBLAS obeys this variable whatever PyTorch asks for: 0 forbids TF32, 1 forces it.
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
# Whether an optimizer works on many tensors in one kernel, and can be captured in a CUDA graph.
OPTIMIZER_FLAGS = ("fused", "foreach", "capturable")
DRIVER_FILE = Path("/proc/driver/nvidia/version")


@cache
def versions() -> dict[str, str | int | None]:
    """Return the versions of Python, PyTorch, CUDA and nvtx; None for what is not installed."""
    return {
        "nvtx-kernels": nvtx_kernels.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "nvtx": metadata.version("nvtx") if nvtx else None,
    }


def gpu_facts(device: str) -> dict[str, Any]:
    """Return the name and size of a GPU, its driver, and the host's CPU, whose pace decides launch-bound times."""
    gpu = torch.cuda.get_device_properties(torch.device(device))
    driver = re.search(r"\b\d+\.\d+(\.\d+)?\b", text_of(DRIVER_FILE))
    host_cpu = re.search(r"^model name\s*:\s*(.+)$", text_of(Path("/proc/cpuinfo")), re.MULTILINE)
    return {
        "device_name": gpu.name,
        "device_memory_bytes": gpu.total_memory,
        "multiprocessors": gpu.multi_processor_count,
        "capability": f"{gpu.major}.{gpu.minor}",
        "driver": driver and driver[0],
        "host_cpu": host_cpu and host_cpu[1].strip(),
    }


def cpu_facts() -> dict[str, Any]:
    """Return the kind of CPU, its cores and PyTorch's threads."""
    kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {"device_name": f"CPU ({kind})", "threads": torch.get_num_threads(), "cores": os.cpu_count()}


def pytorch_settings() -> dict[str, str | bool]:
    """Return the settings of PyTorch that decide in which arithmetic products and convolutions compute, and how.

    That a program has them does not say that it chose them: most are PyTorch's defaults.
    """
    return {
        "float32_matmul_precision": matmul_precision(),
        "cudnn_tf32": convolutions_take_tf32(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }


def parameter_facts(parameters: Iterable[torch.Tensor]) -> dict[str, Any]:
    """Return how many numbers and tensors these parameters are, and how many tensors have each type."""
    tensors = list(parameters)
    with torch._C.DisableTorchFunction():  # they may be of a class of the program's own
        return {
            "parameters": sum(tensor.numel() for tensor in tensors),
            "parameter_tensors": len(tensors),
            "parameter_dtypes": Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors),
        }


def optimizer_flags(optimizer: Optimizer) -> dict[str, bool]:
    """Return the flags that an optimizer was made with; those left to PyTorch are absent."""
    flags = {f"optimizer_{flag}": optimizer.defaults.get(flag) for flag in OPTIMIZER_FLAGS}
    return {name: bool(flag) for name, flag in flags.items() if flag is not None}


def updated_tensors(optimizers: Iterable[Optimizer]) -> int:
    """Return how many tensors with a gradient these optimizers update, each counted once."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    with torch._C.DisableTorchFunction():  # the program may have a mode that sees what is asked of a tensor
        return len({id(tensor) for group in groups for tensor in group["params"] if tensor.requires_grad})


def tf32_allowed() -> bool:
    """Return whether FP32 matrix products may use TF32."""
    by_override = {"0": False, "1": True}.get(os.environ.get(TF32_OVERRIDE, ""))
    return products_take_tf32() if by_override is None else by_override
