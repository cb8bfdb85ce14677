"""What names mean: phases, steps, warm-up, libraries, operators and threads. Knowledge as tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import translate

FORWARD, BACKWARD, OPTIMIZER, OTHER = "forward", "backward", "optimizer", "other"
PHASES = (FORWARD, BACKWARD, OPTIMIZER, OTHER)

# A range has the phase whose word its name starts with. `_flash_attn_forward` therefore has none.
PHASE_WORDS: dict[str, tuple[str, ...]] = {
    FORWARD: ("forward", "fwd"),
    BACKWARD: ("backward", "bwd", "loss.backward"),
    OPTIMIZER: ("optimizer", "optimiser", "optim", "zero_grad", "zero grad"),
}

# Ranges that a library pushes about itself must not become parents of the user's.
LIBRARY_DOMAINS = frozenset(
    name.lower()
    for name in (
        "NCCL", "cuBLAS", "cuBLASLt", "cuBLASXt", "cuDNN", "cuFFT", "cuSOLVER", "cuSPARSE", "cuSPARSELt", "cuRAND",
        "cuTENSOR", "CCCL", "Thrust", "CUB", "TensorRT", "Myelin", "libcudf", "cudf", "cuML", "raft", "rmm",
        "nvJPEG", "NPP", "NVSHMEM", "UCX", "UCC", "OpenMP", "MPI", "TSL", "XLA", "nvImageCodec", "cuFile",
    )
)  # fmt: skip

# How the ranges of a library's domain are named where the domain's own name is not in the report.
LIBRARY_RANGES = re.compile(
    r"nccl[A-Z]|cublas(Lt)?[A-Z]|cudnn[A-Z]|cufft[A-Z]|cusparse[A-Z]|cusolver[A-Z]|cub::|thrust::|myelin[A-Z]"
)

# PyTorch pushes one range per operator under emit_nvtx; these are theirs and not the user's.
OPERATOR_RANGES = re.compile(
    r"[a-z_][a-z0-9_]*::"  # aten::mm, c10d::alltoall_base_, autograd::engine::evaluate_function: …
    r"|\w+Backward\d+$"  # MmBackward0
    r"|torch\.(nn\.functional|Tensor|functional|linalg|autograd)\."  # nsys --pytorch=functions-trace
    r"|nccl:|record_param_comms$|detach_?$"
    r"|triton_\w+$|CompiledFunction|Torch-Compiled Region|TorchDynamo |Pregraph bytecode$|AOTDispatcher "
    r"|## Call CompiledFxGraph"  # what torch.compile pushes
)
BACKWARD_OPERATORS = re.compile(r"autograd::engine::evaluate_function: |(?:[\w.]+::)*\w+Backward\d*$")
ENGINE_OPERATOR = "autograd::engine::evaluate_function: "

# What PyTorch's getNvtxStr (torch/csrc/profiler/util.cpp) appends to an operator's name, in its order.
OPERATOR_SUFFIXES = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")

AUTOGRAD_THREADS = re.compile(r"pt_autograd|autograd", re.IGNORECASE)
# Threads that work for themselves: nobody's backward, and no one waits in them for a backward.
WORKER_THREADS = re.compile(
    r"pt_(data|pin|nccl|inductor|compile|elastic|gloo|tcpstore|thread_pool)|pin_memory|nccl|gloo|"
    r"data_?loader|data_?worker|prefetch|dali|inductor|compile_?worker|ptxas|"
    r"cuda-EvtHandlr|cuda0000|CUPTI|\[NSys|CommsProcess|jemalloc|watchdog|watchdg|heartbt",
    re.IGNORECASE,
)

_WARM_UP = re.compile(r"warm[-_ ]?up", re.IGNORECASE)
_STEP = re.compile(
    r"(?:(?:train|training|eval|profiler)[-_ ]?)?(?:step|iter|iteration)(?:[-_ #:]*\d+)?", re.IGNORECASE
)
_INDEX = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")


def phase_of(name: str) -> str | None:
    """Return the phase that a range of this name opens, or None: most ranges open none."""
    bare = name.lstrip(":").strip().lower()
    found = [phase for phase, words in PHASE_WORDS.items() if any(_starts_with(bare, word) for word in words)]
    if not found or _names_another(bare, found[0]):
        return None
    return found[0]


def is_warm_up(name: str) -> bool:
    """Tell whether a range of this name holds warm-up, which is not measurement."""
    return bool(_WARM_UP.match(name.lstrip(":").strip()))


def is_step(name: str) -> bool:
    """Tell whether a range of this name is one step of training or inference."""
    return bool(_STEP.fullmatch(name.lstrip(":").strip()))


def step_matcher(called: str = "") -> Callable[[str], bool]:
    """Return what tells whether a range is a step: its usual names, or what the user calls it.

    `called` is a whole name, in which `*` and `?` stand for any characters and one; case does not count.
    """
    if not called:
        return is_step
    pattern = re.compile(translate(called.lstrip(":").strip()), re.IGNORECASE)
    return lambda name: bool(pattern.match(name.lstrip(":").strip()))


def is_operator(name: str) -> bool:
    """Tell whether a range of this name is one operator's, and not the user's."""
    return bool(OPERATOR_RANGES.match(name))


def is_library_domain(name: str) -> bool:
    """Tell whether an NVTX domain of this name belongs to a library."""
    return name.lower() in LIBRARY_DOMAINS


def some_of(names: Iterable[str], most: int = 12) -> str:
    """List distinct names of ranges, indices collapsed, the first of many."""
    distinct = list(dict.fromkeys(map(collapsed, names)))
    return ", ".join(distinct[:most]) + (", …" if len(distinct) > most else "") or "none"


def collapsed(name: str) -> str:
    """Replace the indices in a name by `*`: `layer 3` -> `layer *`, `block_3.attn` -> `block_*.attn`."""
    return _INDEX.sub("*", name)


def without_suffixes(name: str) -> tuple[str, int]:
    """Split PyTorch's suffixes off an operator's name: the bare name, and its `seq` (-1 without one)."""
    cuts = [at for at in (name.find(suffix) for suffix in OPERATOR_SUFFIXES) if at >= 0]
    if not cuts:
        return name, -1
    found = re.search(r", seq = (\d{1,18})(?!\d)", name)
    return name[: min(cuts)], int(found[1]) if found else -1


def _starts_with(name: str, word: str) -> bool:
    return name.startswith(word) and not name[len(word) : len(word) + 1].isalpha()


def _names_another(name: str, phase: str) -> bool:
    """Tell whether a name such as `forward_backward` holds a second phase's word."""
    parts = re.split(r"[^a-z]+", name)
    return any(word in parts for other, words in PHASE_WORDS.items() if other != phase for word in words[:2])
