"""The arithmetic that the GEMMs of a report used, as far as their kernels' names show it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from ..report import KernelRow, Number


class Arithmetic(NamedTuple):
    """An arithmetic, and how the GEMM kernels that use it are named."""

    name: str
    pattern: re.Pattern[str]


# First match. `s1688gemm` is TF32 only where no narrower type is named. nvjet kernels name their operands, as the
# entry points of cuBLASLt do (cublasLtTSTMatmul): one letter where both have one type, and then accumulator and
# result (`tst`, `hss`), or one for each (`qqtst`); t bf16, h fp16, q and r the two fp8. TF32 is spelled out
# (`sss_tf32`); `sss` without it does not tell, for cuBLAS also emulates FP32.
NVJET = r"^nvjet_(?:sm\d+_)?"
# Products with a vector use no tensor core.
VECTOR = r"\b(?:gemv\w*|dot_kernel)(?:::kernel)?<(?:int, )*float\b"
ARITHMETICS = (
    Arithmetic("bf16", re.compile(rf"bf16|bfloat16|{NVJET}t", re.IGNORECASE)),
    Arithmetic(
        "fp16", re.compile(rf"fp16|f16f16|_h\d+gemm|hgemm|half|(?:tensorop|gemm)_f16|{NVJET}h", re.IGNORECASE)
    ),
    Arithmetic("fp8", re.compile(rf"e4m3|e5m2|{NVJET}[qr]{{2}}", re.IGNORECASE)),
    Arithmetic("tf32", re.compile(r"tf32|tfloat32|s1688gemm|tensorop_s\d+gemm", re.IGNORECASE)),
    Arithmetic("fp64", re.compile(r"dgemm|_f64f64", re.IGNORECASE)),
    Arithmetic("fp32", re.compile(rf"sgemm|ffma|f32f32_f32f32|simt|{VECTOR}", re.IGNORECASE)),
)
UNKNOWN = "unknown"


@cache
def arithmetic_of(kernel: str) -> str:
    """Return the arithmetic that a GEMM's name shows, or UNKNOWN."""
    return next((arithmetic.name for arithmetic in ARITHMETICS if arithmetic.pattern.search(kernel)), UNKNOWN)


def launches_by_arithmetic(rows: Iterable[KernelRow]) -> dict[str, Number]:
    """Count the GEMM launches of each arithmetic."""
    counts: dict[str, Number] = {}
    for row in rows:
        if row.gemm_launch:
            name = arithmetic_of(row.kernel)
            counts[name] = counts.get(name, 0) + row.count
    return counts


def by_arithmetic(counts: Mapping[str, Number]) -> str:
    """Write the launches of each arithmetic, most first: `218 fp32, 2 with unknown arithmetic`."""
    called = {UNKNOWN: "with unknown arithmetic"}
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {called.get(name, name)}" for name, count in ranked)
