"""Programs in processes of their own in which PyTorch, and all that records, is imported already."""

from tests.analysis.making.forking import Forking

_FORKING = Forking(
    "torch",
    "torch._inductor",  # which PyTorch's profiler imports
    "nvtx_kernels.analysis.kernels",
    "nvtx_kernels.profiling.record",
    "nvtx_kernels.profiling.training",
    "nvtx_kernels.sessions",
)
run, start = _FORKING.run, _FORKING.start
