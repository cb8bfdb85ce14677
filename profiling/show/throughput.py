"""Tokens, FLOPs and the share of a GPU's peak, from a step's time: mostly a table of data.

A step's FLOPs are those of the matrix products (`model.cost.matmul_flops`): once for the forward, twice for
the backward, none for the optimizer. Recomputation does not count, so the share of the peak is the MFU of
PaLM (Chowdhery et al. 2022, appendix B), with the attention's products included.
"""

from collections.abc import Mapping
from typing import Any

from nvtx_kernels.model.config import config_of
from nvtx_kernels.model.cost import matmul_flops

FLOPS_OF_PHASE = {"forward": 1, "backward": 2, "optimizer": 0}

# Dense peak in TFLOP/s at boost clock, by the name that PyTorch and nvidia-smi give: fp32 outside the tensor
# cores, tf32, and bf16 or fp16 that accumulate in FP32. From NVIDIA's architecture white papers and data
# sheets of each GPU; where those state figures with 2:4 sparsity, half of them.
# fmt: off
PEAK_TFLOPS: Mapping[str, Mapping[str, float]] = {
    "NVIDIA B200":             {"fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0},
    "NVIDIA H200":             {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    "NVIDIA H200 NVL":         {"fp32": 60.0, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5},
    "NVIDIA H100 80GB HBM3":   {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    "NVIDIA H100 PCIe":        {"fp32": 51.2, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0},
    "NVIDIA H20":              {"fp32": 44.0, "tf32": 74.0, "bf16": 148.0, "fp16": 148.0},
    "NVIDIA A100-SXM4-80GB":   {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
    "NVIDIA A100-SXM4-40GB":   {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
    "NVIDIA A100 80GB PCIe":   {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
    "NVIDIA A100-PCIE-40GB":   {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
    "NVIDIA A40":              {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7},
    "NVIDIA A10":              {"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0},
    "NVIDIA RTX A6000":        {"fp32": 38.7, "tf32": 77.4, "bf16": 154.8, "fp16": 154.8},
    "NVIDIA L40S":             {"fp32": 91.6, "tf32": 183.0, "bf16": 362.0, "fp16": 362.0},
    "NVIDIA L4":               {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0},
    "NVIDIA GeForce RTX 4090": {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2},
    "NVIDIA GeForce RTX 3090": {"fp32": 35.6, "tf32": 35.6, "bf16": 71.0, "fp16": 71.0},
    "Tesla V100-SXM2-16GB":    {"fp32": 15.7, "fp16": 125.0},
    "Tesla V100-SXM2-32GB":    {"fp32": 15.7, "fp16": 125.0},
    "Tesla T4":                {"fp32": 8.1, "fp16": 65.0},
}
# fmt: on


def phase_flops(cell: Mapping[str, Any], phases: tuple[str, ...]) -> int:
    """Return the FLOPs of the matrix products in these phases of one step."""
    forward = matmul_flops(config_of(cell), cell["batch_size"], cell["context_length"])
    return forward * sum(FLOPS_OF_PHASE[phase] for phase in phases)


def tokens(cell: Mapping[str, Any]) -> int:
    """Return the tokens of one step."""
    return int(cell["batch_size"] * cell["context_length"])


def peak_tflops(device_name: str, dtype: str) -> float | None:
    """Return the dense peak of a GPU in TFLOP/s for a dtype, None where it is not known."""
    return PEAK_TFLOPS.get(device_name, {}).get(dtype)
