"""Which arithmetic the GEMMs of a report used, as far as their kernels' names tell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from analysis.report import KernelRow, Number


class Arithmetic(NamedTuple):
    """An arithmetic, and how the GEMM kernels that use it are named."""

    name: str
    pattern: re.Pattern[str]


# First match. `s1688gemm` is TF32 only where no narrower type is named; names of nvjet kernels do not tell.
ARITHMETICS = (
    Arithmetic("bf16", re.compile(r"bf16|bfloat16", re.IGNORECASE)),
    Arithmetic("fp16", re.compile(r"fp16|f16f16|_h\d+gemm|hgemm|half|s16816gemm_f16", re.IGNORECASE)),
    Arithmetic("fp8", re.compile(r"e4m3|e5m2", re.IGNORECASE)),
    Arithmetic("tf32", re.compile(r"tf32|tfloat32|s1688gemm|tensorop_s\d+gemm", re.IGNORECASE)),
    Arithmetic("fp64", re.compile(r"dgemm|_f64f64", re.IGNORECASE)),
    Arithmetic("fp32", re.compile(r"sgemm|ffma|f32f32_f32f32|simt", re.IGNORECASE)),
)
UNKNOWN = "unknown"


def arithmetic_of(kernel: str) -> str:
    """Return the arithmetic that a GEMM's name tells, or UNKNOWN."""
    return next((one.name for one in ARITHMETICS if one.pattern.search(kernel)), UNKNOWN)


def launches_by_arithmetic(rows: Iterable[KernelRow]) -> dict[str, Number]:
    """Count the GEMM launches of each arithmetic."""
    counts: dict[str, Number] = {}
    for row in rows:
        if row.gemm_launch:
            name = arithmetic_of(row.kernel)
            counts[name] = counts.get(name, 0) + row.count
    return counts
