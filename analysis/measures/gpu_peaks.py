"""What GPUs can do at most, as their makers state it: dense arithmetic and memory bandwidth, a row per GPU.

TFLOP/s are those of tensor or matrix cores where the arithmetic has them, without sparsity (data sheets that state
only the figures with sparsity state twice these), at boost clock; fp16 and bf16 accumulate in fp32. GB/s are of
the GPU's own memory. What a GPU has no unit for is not in its row. The digits of Hopper's SXM rows are those of
the H100 white paper (https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper), which the data
sheets round. AMD's MI250 and MI250X are two devices each, and a row is of one: half of what the data sheet states.
No page of its maker's was found that states the H20.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MEASURED = "measured by nvtx-kernels check-machine --peaks"

_SITE = "https://www.nvidia.com/en-us/data-center/"
_FILES = "https://www.nvidia.com/content/dam/en-zz/Solutions/"
_H100 = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_A100_FILE = f"{_FILES}Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_AMD = "https://www.amd.com/content/dam/amd/en/documents/"
_MI200 = "https://www.amd.com/en/products/accelerators/instinct/mi200/"
_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"


class Peak(NamedTuple):
    """One GPU: what its name matches, dense TFLOP/s by arithmetic, GB/s, and where its maker states them."""

    pattern: str
    tflops: dict[str, float]
    gigabytes_per_s: float
    source: str

    def flops(self, arithmetic: str) -> float | None:
        """Return FLOP/s of an arithmetic; None where the GPU lacks it or the table does not say."""
        tflops = self.tflops.get(arithmetic)
        return None if tflops is None else tflops * 1e12

    @property
    def bytes(self) -> float:
        """Bytes per second of the GPU's memory."""
        return self.gigabytes_per_s * 1e9


_HOPPER = {"fp64": 67.0, "fp32": 67.0, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9, "int8": 1978.9}
_NVL = {"fp64": 60.0, "fp32": 60.0, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5, "fp8": 1670.5, "int8": 1670.5}
_MI300 = {
    "fp64": 163.4,
    "fp32": 163.4,
    "tf32": 653.7,
    "bf16": 1307.4,
    "fp16": 1307.4,
    "fp8": 2614.9,
    "int8": 2614.9,
}
_A100 = {"fp64": 19.5, "fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0, "int8": 624.0}

_BLACKWELL = {"fp64": 37.0, "fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0}
_GB200 = {"fp64": 40.0, "fp32": 80.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0, "fp8": 5000.0}
# Blackwell Ultra gave its units of fp64 to fp4.
_ULTRA = {"fp64": 1.2, "fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0}
_GB300 = {"fp64": 1.3, "fp32": 80.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0, "fp8": 5000.0}
_INSTINCT = "https://www.amd.com/en/products/accelerators/instinct/"

#: The first row whose pattern matches a whole name holds.
PEAKS = (
    Peak(r"NVIDIA GB300", _GB300, 8000, f"GB300 NVL72, a GPU of it; {_SITE}gb300-nvl72/"),
    Peak(r"NVIDIA B300(?: SXM6 AC)?", _ULTRA, 8000, f"HGX B300, an eighth of it; {_SITE}hgx/"),
    Peak(r"NVIDIA GB200", _GB200, 8000, f"GB200 NVL72, a GPU of it; {_SITE}gb200-nvl72/"),
    Peak(r"NVIDIA B200(?: SXM6)?", _BLACKWELL, 8000, f"HGX B200, an eighth of it; {_SITE}hgx/"),
    Peak(
        r"NVIDIA H20",
        {"fp64": 1.0, "fp32": 44.0, "tf32": 74.0, "bf16": 148.0, "fp16": 148.0, "fp8": 296.0, "int8": 296.0},
        4000,
        "H20 data sheet as others repeat it, 96 GB; https://huggingface.co/hardware/h20",
    ),
    Peak(r"NVIDIA H200", _HOPPER, 4800, f"H200 data sheet, SXM; {_SITE}h200/"),
    Peak(
        r"NVIDIA H200 NVL",
        _NVL,
        4800,
        f"H200 data sheet, NVL; {_SITE}h200/",
    ),
    Peak(r"NVIDIA H100 80GB HBM3", _HOPPER, 3350, f"H100 data sheet, SXM; {_H100}"),
    Peak(
        r"NVIDIA H100 NVL",
        _NVL,
        3900,
        f"H100 data sheet, NVL; {_SITE}h100/",
    ),
    Peak(
        r"NVIDIA H100 PCIe",
        {"fp64": 51.0, "fp32": 51.0, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0, "fp8": 1513.0, "int8": 1513.0},
        2000,
        f"H100 data sheet, PCIe; {_H100}",
    ),
    Peak(r"NVIDIA A100-SXM4-80GB", _A100, 2039, f"A100 data sheet, 80 GB SXM; {_A100_FILE}"),
    Peak(r"NVIDIA A100 80GB PCIe", _A100, 1935, f"A100 data sheet, 80 GB PCIe; {_A100_FILE}"),
    Peak(
        r"(?:NVIDIA )?A100-(?:SXM4|PCIE)-40GB",
        _A100,
        1555,
        "A100, 40 GB; https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/",
    ),
    Peak(
        r"NVIDIA L40S",
        {"fp32": 91.6, "tf32": 183.0, "bf16": 362.05, "fp16": 362.05, "fp8": 733.0, "int8": 733.0},
        864,
        "L40S data sheet; https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413",
    ),
    Peak(
        r"NVIDIA L4",
        {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5, "int8": 242.5},
        300,
        "L4 data sheet; https://nvdam.widen.net/s/rvq98gbwsw/l4-datasheet-2595652",
    ),
    Peak(
        r"NVIDIA A10",
        {"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0, "int8": 250.0},
        600,
        f"A10 data sheet; {_FILES}Data-Center/a10/pdf/datasheet-new/nvidia-a10-datasheet.pdf",
    ),
    Peak(
        r"NVIDIA A30",
        {"fp64": 10.3, "fp32": 10.3, "tf32": 82.0, "bf16": 165.0, "fp16": 165.0, "int8": 330.0},
        933,
        f"A30 data sheet; {_FILES}data-center/products/a30-gpu/pdf/a30-datasheet.pdf",
    ),
    Peak(
        r"NVIDIA A40",
        {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7, "int8": 299.3},
        696,
        f"A40 data sheet; {_FILES}Data-Center/a40/proviz-print-nvidia-a40-datasheet-us-nvidia-1469711-r8-web.pdf",
    ),
    Peak(r"Tesla V100-SXM2-.*", {"fp64": 7.8, "fp32": 15.7, "fp16": 125.0}, 900, f"V100 data sheet; {_V100}"),
    Peak(r"Tesla V100-PCIE-.*", {"fp64": 7.0, "fp32": 14.0, "fp16": 112.0}, 900, f"V100 data sheet; {_V100}"),
    Peak(
        r"(?:NVIDIA |Tesla )?T4",
        {"fp32": 8.1, "fp16": 65.0, "int8": 130.0},
        320,
        f"T4 product brief; {_FILES}Data-Center/tesla-t4/t4-tensor-core-product-brief.pdf",
    ),
    Peak(
        r"AMD Instinct MI300X(?: OAM)?",
        _MI300,
        5300,
        f"MI300X data sheet; {_AMD}instinct-tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf",
    ),
    Peak(
        r"AMD Instinct MI325X(?: OAM)?",
        _MI300,
        6000,
        f"MI325X data sheet; {_INSTINCT}mi300/mi325x.html",
    ),
    Peak(
        r"AMD Instinct MI350X(?: OAM)?",
        {"fp64": 72.1, "fp32": 144.2, "bf16": 2306.9, "fp16": 2306.9, "fp8": 4613.7, "int8": 4613.7},
        8000,
        f"MI350X data sheet; {_INSTINCT}mi350/mi350x.html",
    ),
    Peak(
        r"AMD Instinct MI355X(?: OAM)?",
        {"fp64": 78.6, "fp32": 157.3, "bf16": 2516.6, "fp16": 2516.6, "fp8": 5033.2, "int8": 5033.2},
        8000,
        f"MI355X data sheet; {_INSTINCT}mi350/mi355x.html",
    ),
    Peak(
        r"AMD Instinct MI250X",
        {"fp64": 47.85, "fp32": 47.85, "bf16": 191.5, "fp16": 191.5, "int8": 191.5},
        1638.4,
        f"half of the MI250X; {_MI200}mi250x.html",
    ),
    Peak(
        r"AMD Instinct MI250",
        {"fp64": 45.25, "fp32": 45.25, "bf16": 181.05, "fp16": 181.05, "int8": 181.05},
        1638.4,
        f"half of the MI250; {_MI200}mi250.html",
    ),
)


def peak_of(names: Sequence[str]) -> Peak | None:
    """Return the row of these GPUs; None where they are of several kinds, or not in the table."""
    if len(set(names)) != 1:
        return None
    return next((row for row in PEAKS if re.fullmatch(row.pattern, names[0])), None)


def peak_for(names: Sequence[str], measured: Mapping[str, Any]) -> Peak | None:
    """Return what was measured of a report's GPUs, and what the table says of the rest; else the table's row."""
    stated = peak_of(names)
    if not measured:
        return stated
    tflops, speed = measured["tflops"], measured["gigabytes_per_s"]
    source = f"{MEASURED}: {', '.join(tflops)} and memory"
    if stated is None:
        return Peak("", dict(tflops), speed, source)
    from_table = [kind for kind in stated.tflops if kind not in tflops]
    return Peak("", {**stated.tflops, **tflops}, speed, f"{source}; {', '.join(from_table)}: {stated.source}")
