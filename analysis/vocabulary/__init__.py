"""What names mean: phases, steps, warm-up, libraries, operators and threads. Knowledge as tables.

This room imports nothing of the project. It promises that each name has its source, an example that it matches,
and a similar one that it does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from itertools import groupby

from .range_names import ENGINE_STEP_NAMES, PHASE_NAMES, STEP_NAMES, WARM_UP_NAMES, NamePattern

FORWARD, BACKWARD, OPTIMIZER, OTHER = "forward", "backward", "optimizer", "other"
#: The text between the ranges of a path.
PATH_SEPARATOR = " > "
# What a serving engine's forward computes: prompts, or the next token of each request.
PREFILL, DECODE = "prefill", "decode"
SERVING = (PREFILL, DECODE)
PHASES = (FORWARD, BACKWARD, OPTIMIZER, *SERVING, OTHER)
# What this project's annotation calls the range around what a backward computes again.
RECOMPUTE = "recompute"
#: What it calls the time in which it sets hooks for a backward, which is not the program's.
SETTING_HOOKS = "nvtx-kernels sets hooks"
#: What counts of FLOPs call those of element-wise operators and reductions, which are not among the others.
ELEMENTWISE = "elementwise"
#: Pairs of a phase and what the user calls its ranges.
PhaseNames = Sequence[tuple[str, str]]
#: The words that name a phase by themselves.
PLAIN_WORDS = {
    FORWARD: frozenset(("forward", "fwd")),
    BACKWARD: frozenset(("backward", "bwd")),
    OPTIMIZER: frozenset(("optimizer", "optimiser", "optim")),
}

# Ranges that a library pushes about itself must not become parents of the user's.
LIBRARY_DOMAINS = frozenset(
    """
    nccl cublas cublaslt cublasxt cudnn cufft cusolver cusparse cusparselt curand cutensor cccl thrust cub
    tensorrt myelin libcudf cudf cuml raft rmm nvjpeg npp nvshmem ucx ucc openmp mpi tsl xla nvimagecodec cufile
    """.split()  # noqa: SIM905
)

# How the ranges of a library's domain are named where the domain's own name is not in the report.
LIBRARY_RANGES = re.compile(
    r"nccl[A-Z]|cublas(Lt)?[A-Z]|cudnn[A-Z]|cufft[A-Z]|cusparse[A-Z]|cusolver[A-Z]|cub::|thrust::|myelin[A-Z]"
)

# NCCL's ranges around its own calls (ncclCommInitAll), in which it waits for threads that it starts.
NCCL_RANGES = re.compile(r"nccl[A-Z]")

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
#: How PyTorch's own range of an optimizer's update begins.
OPTIMIZER_STEP = "Optimizer.step#"

# What PyTorch's getNvtxStr (torch/csrc/profiler/util.cpp) appends to an operator's name, in its order.
OPERATOR_SUFFIXES = (", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = ")

AUTOGRAD_THREADS = re.compile(r"pt_autograd|autograd", re.IGNORECASE)
# Threads that work alone: they neither run a backward nor wait for one.
WORKER_THREADS = re.compile(
    r"pt_(data|pin|nccl|inductor|compile|elastic|gloo|tcpstore|thread_pool)|pin_memory|nccl|gloo|"
    r"data_?loader|data_?worker|prefetch|dali|inductor|compile_?worker|ptxas|"
    r"cuda-EvtHandlr|cuda0000|CUPTI|\[NSys|CommsProcess|jemalloc|watchdog|watchdg|heartbt",
    re.IGNORECASE,
)

# A Python function in a trace with stacks, by its file and the line of its `def`: `train.py(12): main`.
_FUNCTION = re.compile(r".+\(\d+\): .+", re.DOTALL)

# Longer names than this are not those of a phase.
_LONGEST = 512

#: What copies made by scrub have for an unknown word: its number tells it from others.
COPIED_WORD = r"name[0-9]+"
_NUMBER = re.compile(rf"({COPIED_WORD})|\d+", re.IGNORECASE)

FUSED = " + "
_ITEM = re.compile(r".*?(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_INDEX = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
# Nobody writes a longer list of layers, and one of 100 MB would take seconds each time.
_LONGEST_COLLAPSED = 1 << 16


def without_numbers(name: str) -> str:
    """Return a name with a star for each number: names that differ by numbers are of one kind.

    >>> without_numbers("request 17 of user4"), without_numbers("request 17 of name4")
    ('request * of user*', 'request * of name4')
    """
    return _NUMBER.sub(lambda match: match[1] or "*", name)


def phase_of(name: str) -> str | None:
    """Return the phase of the work in a range of this name, or None, as for most names."""
    return _meaning(_PHASES, name)[0]


def opens_phase(name: str) -> bool:
    """Return whether a range of this name is a phase as a whole, and not only a part of one."""
    phase, part = _meaning(_PHASES, name)
    return bool(phase) and not part


def phase_matcher(named: PhaseNames = ()) -> Callable[[str], tuple[str | None, bool]]:
    """Return a function that finds a name's phase, and whether the name is only a part's.

    `named` are pairs of a phase and what the user calls its ranges: a whole name, with `*` and `?`. These names
    come first, and replace the usual ones of the phases that they are given for.
    """
    user_patterns = [(phase, step_matcher(called)) for phase, called in named]
    user_phases = {phase for phase, _ in user_patterns}

    def matches(name: str) -> tuple[str | None, bool]:
        if phase := next((phase for phase, is_called in user_patterns if is_called(name)), None):
            return phase, False
        usual, part = _meaning(_PHASES, name)
        return (None, False) if usual in user_phases and not part else (usual, part)

    return matches


def is_warm_up(name: str) -> bool:
    """Return whether a range of this name is warm-up, which is not measured."""
    bare = without_marks(name)
    return len(bare) <= _LONGEST and any(pattern.fullmatch(bare) for _, _, pattern in _WARM_UPS)


def is_step(name: str) -> bool:
    """Return whether a range of this name is one step of training or inference."""
    return bool(_meaning(_STEPS, name)[0])


def is_of_engine(name: str) -> bool:
    """Return whether a serving engine named a step so, by what it held."""
    return bool(_meaning(_ENGINE_STEPS, name)[0])


def step_matcher(called: str = "") -> Callable[[str], bool]:
    """Return a function that decides whether a range is a step: its usual names, or what the user calls it.

    `called` is a whole name, in which `*` matches any characters and `?` one; case is ignored.
    """
    if not called:
        return is_step
    pattern = re.compile(translate(called.lstrip(":").strip()), re.IGNORECASE)
    return lambda name: bool(pattern.match(name.lstrip(":").strip()) or pattern.match(without_marks(name)))


def is_operator(name: str) -> bool:
    """Return whether a range of this name is one operator's, and not the user's."""
    return bool(OPERATOR_RANGES.match(name))


def is_function(name: str) -> bool:
    """Return whether a range of this name is a call of a Python function."""
    return bool(_FUNCTION.fullmatch(name))


def is_library_domain(name: str) -> bool:
    """Return whether an NVTX domain of this name belongs to a library."""
    return name.lower() in LIBRARY_DOMAINS


def some_of(names: Iterable[str], most: int = 12) -> str:
    """List distinct names of ranges, indices collapsed, the first of many."""
    distinct = list(dict.fromkeys(map(collapsed, names)))
    return ", ".join(distinct[:most]) + (", …" if len(distinct) > most else "") or "none"


def collapsed(name: str) -> str:
    """Replace the indices in a name by `*`: `layer 3` -> `layer *`, `block_3.attn` -> `block_*.attn`."""
    return name if len(name) > _LONGEST_COLLAPSED else _INDEX.sub("*", name)


def fused_parts(name: str) -> tuple[str, ...]:
    """Return the parts that a fusion's name lists (`norm + up projection`); () for a range of one part.

    profiling.annotate names a kernel so that a compiler made of several ranges' work.
    """
    parts = tuple(name.split(FUSED))
    return parts if len(parts) > 1 and all(parts) else ()


def spans_layers(parts: Iterable[str]) -> bool:
    """Return whether the parts of a fusion lie in several items of a list, as `layer 3 …` and `layer 4 …` do."""
    items = {match[0] for part in parts if (match := _ITEM.match(part))}
    return len(items) > len({collapsed(item) for item in items})


def without_marks(name: str) -> str:
    """Return a name without the marks that programs put around it: `## forward ##`, `=== step ===`."""
    return name.strip(" \t\n:#=*~<>")


def without_suffixes(name: str) -> tuple[str, int]:
    """Split PyTorch's suffixes off an operator's name: the bare name, and its `seq` (-1 without one)."""
    cuts = [position for position in (name.find(suffix) for suffix in OPERATOR_SUFFIXES) if position >= 0]
    if not cuts:
        return name, -1
    match = re.search(r", seq = (\d{1,18})(?!\d)", name)
    return name[: min(cuts)], int(match[1]) if match else -1


_Meanings = tuple[tuple[str, bool, re.Pattern[str]], ...]


def _compiled(rows: Iterable[NamePattern]) -> _Meanings:
    """Make one pattern of neighbouring rows that mean the same."""
    return tuple(
        (means, part, re.compile("|".join(f"(?:{row.pattern})" for row in group), re.IGNORECASE))
        for (means, part), group in groupby(rows, key=lambda row: (row.means, row.part))
    )


_PHASES, _STEPS = _compiled(PHASE_NAMES), _compiled(STEP_NAMES)
_ENGINE_STEPS, _WARM_UPS = _compiled(ENGINE_STEP_NAMES), _compiled(WARM_UP_NAMES)


def _meaning(meanings: _Meanings, name: str) -> tuple[str | None, bool]:
    """Return the meaning of the first pattern that matches the whole name, and whether it is a part's."""
    bare = without_marks(name)
    if len(bare) > _LONGEST:
        return None, False
    meaning = next(((means, part) for means, part, pattern in meanings if pattern.fullmatch(bare)), (None, False))
    return (None, False) if meaning[0] and _names_another(bare, meaning[0]) else meaning


def _names_another(name: str, phase: str) -> bool:
    """Return whether a name such as `forward (and backward)` holds a second phase's word."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    same = {phase, FORWARD} if phase in SERVING else {phase}  # prompts and tokens are computed by a forward
    return any(words & others for other, others in PLAIN_WORDS.items() if other not in same)
