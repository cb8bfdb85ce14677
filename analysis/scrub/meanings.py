"""What the analysis reads of a name, and the words with which another name means the same.

A name in a copy must mean what the report's name does: `meaning` of a range, `kernel_meaning` and `frame_meaning`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import product
from typing import Any

from ..attribution.kernel_categories import function_text
from ..attribution.named_steps import EVALUATES, UPDATE
from ..kernel_names.arithmetic import arithmetic_of, is_fp32_convolution
from ..kernel_names.categories import classify
from ..kernel_names.parts import compiled_parts, fused_ops
from ..measures.attention_parts import NAMES as ATTENTION_PARTS
from ..measures.exchanges import COLLECTIVES
from ..measures.exchanges import named as collective_of
from ..measures.gpu_rules import BEFORE_TF32, FUSED_ALREADY, OF_LOSS, WITH_TF32
from ..readers.nccl_payloads import EXCHANGES, SHARES
from ..vocabulary import (
    BACKWARD_OPERATORS,
    LIBRARY_RANGES,
    NCCL_RANGES,
    PHASES,
    RECOMPUTE,
    SETTING_HOOKS,
    is_operator,
    is_step,
    is_warm_up,
    opens_phase,
    phase_of,
)
from ..vocabulary.loading import loads_data, waits
from ..vocabulary.served import PATTERNS as SERVED

CACHED_NAMES = 1 << 16
# The numbers that copies have in names.
_NUMBERS = re.compile(r"(?i)(?<=name)[0-9]+(?:num[0-9]+)?|9[0-9]{5}")
NCCL_OPERATIONS = EXCHANGES.union(SHARES, ("ncclallreduce", "ncclbroadcast", "ncclreduce"))

# Words with which a kernel's name is of a category, and that of an operator, which is one on a CPU.
KERNEL_WORDS = {
    "gemm": ("gemm", "splitk_reduce"),
    "attention": ("attention",),
    "convolution": ("fprop", "init_device_workspace"),
    "elementwise": ("elementwise_kernel",),
    "reduction": ("reduce_kernel",),
    "softmax": ("softmax",),
    "normalization": ("layer_norm",),
    "copy": ("CatArrayBatchedCopy",),
    "index": ("index_elementwise",),
    "rng": ("distribution",),
    "scan": ("radix_sort",),
    "linalg": ("cholesky",),
    "optimizer": ("multi_tensor_apply",),
    "communication": ("ncclDevKernel",),
    "other": ("other",),
}
# Names of ranges that mean what other names do, whose words alone would not.
RANGE_SHAPES = (
    *(f"{phase}: {{}}" for phase in PHASES),
    *("warmup {}", "loss: {}", "FSDP::pre_backward ({})", "zero_grad: {}", "range {}", "range {} Backward0"),
    *("custom::{}", "nccl_custom::{}", "custom::{}Backward0", "{}Backward0", "cub::{}", "cublasGemm_{}"),
    *("nccl_custom_{}Backward0", "nccl:{}", "ncclGroup_{}"),
    *(f"nccl:{collective}_{{}}" for collective in COLLECTIVES),
)
# Of what libraries' ranges have a category, too, if they are called as operators are.
LIBRARIES = ("custom::", "aten::", "cublas_", "cublasLt_", "cub_", "cub::", "nccl_", "nccl:")
# Words on arithmetic in GEMMs' names, and on collectives in communication kernels' names.
_ARITHMETICS = ("bf16", "fp16", "e4m3", "tf32", "dgemm", "sgemm", "ffma")
_KERNEL_DETAILS = ("", *(f"{name}_" for name in (*_ARITHMETICS, *COLLECTIVES)))
# What names of kernels say besides: for which GPUs they are made, how much they load at a time, what they fuse.
_KERNEL_MARKS = {
    "_multi_tensor": re.compile(FUSED_ALREADY, re.IGNORECASE),
    "_nll_loss": re.compile(OF_LOSS, re.IGNORECASE),
    "_sm80": WITH_TF32,
    "_sm70": BEFORE_TF32,
    **{f"_align{count}": re.compile(rf"_align{count}(?!\d)") for count in (1, 2)},
}


# Words in a name that mean something wherever they stand.
ALSO: dict[str, Callable[[str], object]] = {"_load_batch": loads_data, "_eval": EVALUATES.search, "_wait": waits}


@lru_cache(CACHED_NAMES)
def meaning(name: str) -> tuple[object, ...]:
    """Return everything that the analysis reads from the name of a range."""
    of_operator = is_operator(name)
    return (
        phase_of(name),
        opens_phase(name),
        is_warm_up(name),
        is_step(name),
        name if name in (RECOMPUTE, SETTING_HOOKS) else "",
        of_operator,
        bool(BACKWARD_OPERATORS.match(name)),
        name.startswith("aten::"),
        bool(LIBRARY_RANGES.match(name)),
        bool(NCCL_RANGES.match(name)),
        collective_of(name) if name.startswith("nccl:") else "",
        name.lower() if name.lower() in NCCL_OPERATIONS else "",
        classified(name) if of_operator else None,
        [part for part, pattern in ATTENTION_PARTS.items() if pattern.fullmatch(name.lstrip(":").strip())],
        [match.groupdict() for pattern in SERVED if (match := pattern.fullmatch(name))],
        bool(UPDATE.fullmatch(name)),
        [bool(means(name)) for means in ALSO.values()],
    )


@lru_cache(CACHED_NAMES)
def frame_meaning(name: str) -> tuple[Any, ...]:
    """Return everything that the analysis reads from the name of a Python function: a category first."""
    return classified(function_text(name))[0], loads_data(name), waits(name)


class _Classified(dict[str, tuple[str, bool]]):
    """What `classify` answers by name, a copy's number left aside; many together take hardly longer than one."""

    def learn(self, names: Iterable[str]) -> None:
        """Classify the names that are not known yet."""
        new = [name for name in dict.fromkeys(map(of_any_number, names)) if name not in self]
        if new and len(self) + len(new) > CACHED_NAMES:
            self.clear()
        self.update(zip(new, classify(new) if new else (), strict=True))

    def __missing__(self, name: str) -> tuple[str, bool]:
        self.learn([name])
        return self[name]


CLASSIFIED = _Classified()


def classified(name: str) -> tuple[str, bool]:
    """Return the category of a kernel or an operator, and whether it is a GEMM."""
    return CLASSIFIED[of_any_number(name)]


def of_any_number(name: str) -> str:
    """Return a name with 1 for numbers of copies; a mangled name counts letters, and stays."""
    return name if name.startswith("_Z") else _NUMBERS.sub("1", name)


def kernel_meaning(name: str) -> tuple[Any, ...]:
    """Return all that the analysis reads from the name of a kernel: its category first, what it fuses last."""
    category, is_gemm = classified(name)
    arithmetic = arithmetic_of(name) if is_gemm else ""
    if category == "convolution" and is_fp32_convolution(name):
        arithmetic = "fp32"
    collective = collective_of(name) if category == "communication" else ""
    loop = compiled_parts(name)
    fused = loop and (loop[0], len(fused_ops(name)))
    marks = "".join(mark for mark, pattern in _KERNEL_MARKS.items() if pattern.search(name))
    return category, is_gemm, arithmetic, collective, marks, fused


@cache
def kernel_form(needed: tuple[Any, ...]) -> str:
    """Return a name with `{}` for a number that has this category and these details, whatever the number is."""
    category = needed[0]
    marks = needed[-1]
    beginnings = [
        f"{word}_{detail}".removesuffix("_") for word, detail in product(KERNEL_WORDS[category], _KERNEL_DETAILS)
    ]
    for mark in dict.fromkeys((marks, "")):
        for begin in beginnings:
            if kernel_meaning(f"{begin}_name_1{mark}")[:-1] == (*needed[:-1], mark):
                return f"{begin}_{{}}{mark}"
    return f"{category}_{{}}"
