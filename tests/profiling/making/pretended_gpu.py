"""A GPU that is not there: what our code asks PyTorch of one is answered here, and kept in a log."""

from dataclasses import replace
from types import SimpleNamespace

import torch
from nvtx_kernels.profiling.study.workload import Workload

UUID = "11111111-2222-3333-4444-555555555555"
PROPERTIES = SimpleNamespace(
    name="NVIDIA Pretended", total_memory=1 << 30, multi_processor_count=1, major=9, minor=0, uuid=UUID
)
CUDART = {"cudaProfilerStart": "profiler starts", "cudaProfilerStop": "profiler stops"}


def pretend(monkeypatch, log):
    """Let PyTorch see one GPU that does nothing but write what it is asked to a log."""
    cudart = SimpleNamespace(**{name: lambda said=said: log.append(said) for name, said in CUDART.items()})
    answers = {
        "device_count": lambda: 1,
        "cudart": lambda: cudart,
        "synchronize": lambda device: log.append("GPU is waited for"),
        "reset_peak_memory_stats": lambda device: log.append("peak is reset"),
        "max_memory_allocated": lambda device: 1 << 20,
        "get_device_properties": lambda device: PROPERTIES,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)


def moved(workload: Workload) -> Workload:
    """Return a workload of the CPU that takes itself for one of the pretended GPU."""
    workload.settings = replace(workload.settings, device="cuda")
    return workload
