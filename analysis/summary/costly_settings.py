"""Notes on settings of a run that cost time or memory, how much of it no replay tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..support.units import count_text, counted

#: By a fact of the run, and what it is: what that costs, and what to do.
COSTLY: tuple[tuple[str, bool, str], ...] = (
    (
        "anomaly_mode",
        True,
        "Autograd's anomaly detection is on: it checks each gradient, and keeps the stack of each forward "
        "operator. Switch torch.autograd.set_detect_anomaly off while training.",
    ),
    (
        "deterministic",
        True,
        "Deterministic algorithms are on (torch.use_deterministic_algorithms): those of some operators are slow.",
    ),
    ("cudnn_enabled", False, "cuDNN is off (torch.backends.cudnn.enabled): convolutions use slower kernels."),
    (
        "cudnn_deterministic",
        True,
        "cuDNN is held to deterministic kernels (torch.backends.cudnn.deterministic), which can be slower.",
    ),
    (
        "launch_blocking",
        True,
        "CUDA_LAUNCH_BLOCKING is set: the CPU waits for each kernel. Unset it, and record again.",
    ),
    (
        "no_memory_caching",
        True,
        "PYTORCH_NO_CUDA_MEMORY_CACHING is set: the driver allocates and frees each tensor. Unset it.",
    ),
    (
        "no_peer_to_peer",
        True,
        "NCCL_P2P_DISABLE is set: GPUs of one machine exchange through the CPU's memory. Unset it.",
    ),
    ("emit_nvtx", True, "torch.autograd.profiler.emit_nvtx is on: a range around each operator costs CPU time."),
    ("memory_history", True, "The history of memory is recorded: each allocation costs CPU time."),
    (
        "saved_tensor_hooks",
        True,
        "Hooks on saved tensors are in use, such as save_on_cpu: each tensor that backward needs passes them.",
    ),
)
DEBUGS = "TORCH_DISTRIBUTED_DEBUG is {}: collectives are logged{}. Unset it for training."
NO_WORKERS = (
    "A DataLoader has num_workers=0: the program makes its batches itself, between steps. Workers make them "
    "beside the step."
)
NOT_PINNED = "A DataLoader has pin_memory=False: batches are copied to the GPU while the program waits."
RETRIES = (
    "Memory was full: the allocator freed what it had cached and tried again {}. Use less memory, or "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
)
ODD = "{} is {}: kernels for sizes that 8 does not divide can be slower, so pad{}."
#: Smaller weights with odd sizes, such as a classifier's, cost little.
LARGE = 1 << 20


def of_settings(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence on each setting of a run that costs time or memory."""
    yield from (sentence for fact, costs, sentence in COSTLY if run.get(fact) is costs)
    if level := run.get("distributed_debug"):
        yield DEBUGS.format(level, " and checked across ranks" * (level == "DETAIL"))
    loaders = run.get("loaders") or ()
    if any(loader.get("num_workers") == 0 for loader in loaders):
        yield NO_WORKERS
    if run.get("device_memory_bytes") and any(loader.get("pin_memory") is False for loader in loaders):
        yield NOT_PINNED
    if retries := run.get("memory_retries"):
        yield RETRIES.format(counted(retries, "time"))
    large = {name: sizes for name, sizes in (run.get("odd_sizes") or {}).items() if sizes[0] * sizes[-1] >= LARGE}
    if large:
        name, sizes = max(large.items(), key=lambda item: item[1][0] * item[1][-1])
        more = f" it, and {counted(len(large) - 1, 'other weight')}" if len(large) > 1 else " it"
        yield ODD.format(name, " × ".join(map(count_text, sizes)), more)
