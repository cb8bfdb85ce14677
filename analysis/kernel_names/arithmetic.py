"""The arithmetic of GEMM kernels, read from their names."""

from __future__ import annotations

import re
from functools import cache

# An arithmetic, and how the GEMM kernels that use it are named: the first match. `s1688gemm` is TF32 only where no
# narrower type is named. nvjet kernels name their operands, as cuBLASLt's entry points do (cublasLtTSTMatmul): one
# letter where both have one type, then accumulator and result (`tst`, `hss`), or one for each (`qqtst`); t bf16, h
# fp16, q and r the two fp8. TF32 is spelled out (`sss_tf32`); `sss` without it does not tell, for cuBLAS also
# emulates FP32. Products with a vector use no tensor core.
NVJET = r"^nvjet_(?:sm\d+_)?"
VECTOR = r"\b(?:gemv\w*|dot_kernel)(?:::kernel)?<(?:int, )*float\b"
ARITHMETICS = {
    "bf16": rf"bf16|bfloat16|{NVJET}t",
    "fp16": rf"fp16|f16f16|_h\d+gemm|hgemm|half|(?:tensorop|gemm)_f16|{NVJET}h",
    "fp8": rf"e4m3|e5m2|{NVJET}[qr]{{2}}",
    "tf32": r"tf32|tfloat32|s1688gemm|tensorop_s\d+gemm",
    "fp64": r"dgemm|_d\d+gemm|_f64f64",
    "fp32": rf"sgemm|ffma|f32f32_f32f32|simt|{VECTOR}",
}
UNKNOWN = "unknown"


#: Names of convolutions show it by their types, and by the shapes of tensor cores' instructions.
FP32_CONVOLUTION, NO_FP32_CONVOLUTION = (
    r"float|f32|ffma|sgemm",
    r"tf32|bf16|f16|half|s1688|16816|h\d*gemm|f64|double|dgemm",
)


@cache
def is_fp32_convolution(kernel: str) -> bool:
    """Return whether the name of a kernel of a convolution shows that it computes in fp32."""
    is_excluded = re.search(NO_FP32_CONVOLUTION, kernel, re.IGNORECASE) is not None
    return not is_excluded and re.search(FP32_CONVOLUTION, kernel, re.IGNORECASE) is not None


@cache
def arithmetic_of(kernel: str) -> str:
    """Return the arithmetic that a GEMM's name shows, or UNKNOWN."""
    matching = (name for name, pattern in ARITHMETICS.items() if re.search(pattern, kernel, re.IGNORECASE))
    return next(matching, UNKNOWN)
