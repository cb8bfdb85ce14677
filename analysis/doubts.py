"""What makes an answer doubtful, in sentences that `analysis.doctor` and every answer share; '' is no doubt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from analysis.precision import UNKNOWN, by_arithmetic
from analysis.provenance import Provenance
from analysis.report import Number

# A step with fewer kernels than this share of the median was cut off.
WHOLE_STEP = 0.5
SHOWN = 6
# The newest of nsys's export schemas that reports were read of: nsys 2026.3.
NEWEST_SCHEMA = "3.27.0"
VERSION = re.compile(r"\d{1,9}(\.\d{1,9})*", re.ASCII)


def of_steps(kernels: Sequence[int]) -> str:
    """Say which steps have far fewer kernels than the others, given the count in each."""
    usual = median(kernels) if kernels else 0
    short = [step for step, count in enumerate(kernels) if count < WHOLE_STEP * usual]
    if not short:
        return ""
    some = ", ".join(f"{step} ({kernels[step]:,})" for step in short[:SHOWN])
    return (
        f"of {len(kernels)} steps with {usual:,.0f} kernels as a rule, some have far fewer: {some}: they do "
        "other work, or the capture began or ended, or memory ran out, within them"
    )


def of_arithmetic(run: Mapping[str, Any], launches: Mapping[str, Number]) -> str:
    """Hold what the run says of TF32 against the GEMM launches by arithmetic, of `precision`."""
    used = by_arithmetic(launches)
    if run.get("tf32") is False and "tf32" in launches:
        return f"the run says that TF32 is off, but its GEMMs tell otherwise ({used})"
    if run.get("tf32") is True and run.get("dtype") == "fp32":
        return f"the run says that it is FP32, and that TF32 is on ({used})"
    if run.get("tf32") is True and "tf32" not in launches and UNKNOWN not in launches and "fp32" in launches:
        return f"the run says that TF32 is on, but no GEMM used it ({used})"
    return ""


def of_schema(provenance: Provenance) -> str:
    """Say that an export is newer than any that was tried."""
    if not VERSION.fullmatch(provenance.schema) or _numbers(provenance.schema) <= _numbers(NEWEST_SCHEMA):
        return ""
    return (
        f"the export's schema is {provenance.schema}, and the newest that was tried {NEWEST_SCHEMA}: what its "
        "columns mean may have changed"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
