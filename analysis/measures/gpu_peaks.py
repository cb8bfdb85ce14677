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

MEASURED = "measured by nvtx-kernels doctor --peaks"

_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_FILES = "https://www.nvidia.com/content/dam/en-zz/Solutions"
_H100 = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_A100 = f"{_FILES}/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_A100_40 = "https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/"
_L40S = "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
_A40 = f"{_FILES}/Data-Center/a40/proviz-print-nvidia-a40-datasheet-us-nvidia-1469711-r8-web.pdf"
_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_A10 = f"{_FILES}/Data-Center/a10/pdf/datasheet-new/nvidia-a10-datasheet.pdf"
_A30 = f"{_FILES}/data-center/products/a30-gpu/pdf/a30-datasheet.pdf"
_T4 = f"{_FILES}/Data-Center/tesla-t4/t4-tensor-core-product-brief.pdf"
_L4 = "https://nvdam.widen.net/s/rvq98gbwsw/l4-datasheet-2595652"
_H20 = "https://huggingface.co/hardware/h20"
_AMD = "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/data-sheets"
_MI300X = f"{_AMD}/amd-instinct-mi300x-data-sheet.pdf"
_MI = "https://www.amd.com/en/products/accelerators/instinct"
_MI325X, _MI350X, _MI355X = (f"{_MI}/{page}.html" for page in ("mi300/mi325x", "mi350/mi350x", "mi350/mi355x"))


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
    def narrower(self) -> str | None:
        """The arithmetic in which tensor cores could compute what is in fp32; None where none is known."""
        plain = self.tflops.get("fp32", 0)
        return next((kind for kind in ("tf32", "fp16") if self.tflops.get(kind, 0) > plain > 0), None)

    @property
    def bytes(self) -> float:
        """Bytes per second of the GPU's memory."""
        return self.gigabytes_per_s * 1e9


_ARITHMETICS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
# The name as a pattern | TFLOP/s of these | GB/s | source. Blackwell Ultra gave its units of fp64 to fp4.
_TABLE = rf"""
NVIDIA GB300 | 1.3 80 1250 2500 2500 5000 - | 8000 | GB300 NVL72, a GPU of it; {_NVIDIA}gb300-nvl72/
NVIDIA B300(?: SXM6 AC)? | 1.2 75 1125 2250 2250 4500 - | 8000 | HGX B300, an eighth of it; {_NVIDIA}hgx/
NVIDIA GB200 | 40 80 1250 2500 2500 5000 - | 8000 | GB200 NVL72, a GPU of it; {_NVIDIA}gb200-nvl72/
NVIDIA B200(?: SXM6)? | 37 75 1125 2250 2250 4500 - | 8000 | HGX B200, an eighth of it; {_NVIDIA}hgx/
NVIDIA H20 | 1 44 74 148 148 296 296 | 4000 | H20 data sheet as others repeat it, 96 GB; {_H20}
NVIDIA H200 | 67 67 494.7 989.4 989.4 1978.9 1978.9 | 4800 | H200 data sheet, SXM; {_NVIDIA}h200/
NVIDIA H200 NVL | 60 60 417.5 835.5 835.5 1670.5 1670.5 | 4800 | H200 data sheet, NVL; {_NVIDIA}h200/
NVIDIA H100 80GB HBM3 | 67 67 494.7 989.4 989.4 1978.9 1978.9 | 3350 | H100 data sheet, SXM; {_H100}
NVIDIA H100 NVL | 60 60 417.5 835.5 835.5 1670.5 1670.5 | 3900 | H100 data sheet, NVL; {_NVIDIA}h100/
NVIDIA H100 PCIe | 51 51 378 756 756 1513 1513 | 2000 | H100 data sheet, PCIe; {_H100}
NVIDIA A100-SXM4-80GB | 19.5 19.5 156 312 312 - 624 | 2039 | A100 data sheet, 80 GB SXM; {_A100}
NVIDIA A100 80GB PCIe | 19.5 19.5 156 312 312 - 624 | 1935 | A100 data sheet, 80 GB PCIe; {_A100}
(?:NVIDIA )?A100-(?:SXM4|PCIE)-40GB | 19.5 19.5 156 312 312 - 624 | 1555 | A100, 40 GB; {_A100_40}
NVIDIA L40S | - 91.6 183 362.05 362.05 733 733 | 864 | L40S data sheet; {_L40S}
NVIDIA L4 | - 30.3 60 121 121 242.5 242.5 | 300 | L4 data sheet; {_L4}
NVIDIA A10 | - 31.2 62.5 125 125 - 250 | 600 | A10 data sheet; {_A10}
NVIDIA A30 | 10.3 10.3 82 165 165 - 330 | 933 | A30 data sheet; {_A30}
NVIDIA A40 | - 37.4 74.8 149.7 149.7 - 299.3 | 696 | A40 data sheet; {_A40}
Tesla V100-SXM2-.* | 7.8 15.7 - - 125 - - | 900 | V100 data sheet; {_V100}
Tesla V100-PCIE-.* | 7 14 - - 112 - - | 900 | V100 data sheet; {_V100}
(?:NVIDIA |Tesla )?T4 | - 8.1 - - 65 - 130 | 320 | T4 product brief; {_T4}
AMD Instinct MI300X(?: OAM| VF)? | 163.4 163.4 653.7 1307.4 1307.4 2614.9 2614.9 | 5300 | MI300X sheet; {_MI300X}
AMD Instinct MI325X(?: OAM)? | 163.4 163.4 653.7 1307.4 1307.4 2614.9 2614.9 | 6000 | MI325X sheet; {_MI325X}
AMD Instinct MI350X(?: OAM)? | 72.1 144.2 - 2306.9 2306.9 4613.7 4613.7 | 8000 | MI350X sheet; {_MI350X}
AMD Instinct MI355X(?: OAM)? | 78.6 157.3 - 2516.6 2516.6 5033.2 5033.2 | 8000 | MI355X sheet; {_MI355X}
AMD Instinct MI250X | 47.85 47.85 - 191.5 191.5 - 191.5 | 1638.4 | half of the MI250X; {_MI}/mi200/mi250x.html
AMD Instinct MI250 | 45.25 45.25 - 181.05 181.05 - 181.05 | 1638.4 | half of the MI250; {_MI}/mi200/mi250.html
"""


def _peak(row: str) -> Peak:
    pattern, tflops, gigabytes_per_s, source = row.split(" | ")
    rates = zip(_ARITHMETICS, tflops.split(), strict=True)
    stated = {arithmetic: float(rate) for arithmetic, rate in rates if rate != "-"}
    return Peak(pattern, stated, float(gigabytes_per_s), source)


#: The first row whose pattern matches a whole name holds.
PEAKS = tuple(map(_peak, _TABLE.strip().splitlines()))


def peak_of(names: Sequence[str]) -> Peak | None:
    """Return the row of these GPUs; None where they are of several kinds, or not in the table."""
    if len(set(names)) != 1:
        return None
    return next((row for row in PEAKS if re.fullmatch(row.pattern, names[0])), None)


def peak_for(names: Sequence[str], measured: Mapping[str, Any]) -> Peak | None:
    """Return the measured peaks of a report's GPUs, completed by the table; without any, the table's row."""
    stated = peak_of(names)
    if not measured:
        return stated
    tflops = measured["tflops"]
    source = f"{MEASURED}: {', '.join(measured['tflops'])} and memory"
    if stated is not None:
        source += f"; {', '.join(kind for kind in stated.tflops if kind not in tflops)}: {stated.source}"
        tflops = stated.tflops | tflops
    return Peak("", dict(tflops), measured["gigabytes_per_s"], source)


#: GB/s of a GPU's NVLink in one direction, half of what data sheets state, for GPUs that machines link all to all.
_NVLINK = (
    (r"NVIDIA (?:GB|B)(?:200|300).*", 900),
    (r"NVIDIA (?:H200|H20|H100 80GB HBM3|GH200.*)", 450),
    (r"(?:NVIDIA )?A100-SXM4-.*", 300),
    (r"Tesla V100-SXM[23]-.*", 150),
)


def nvlink_bytes_per_s(name: str) -> float:
    """Return what a GPU's NVLink carries in one direction, bytes per second; 0 for GPUs without or unknown."""
    return next((rate * 1e9 for pattern, rate in _NVLINK if re.fullmatch(pattern, name)), 0.0)
