"""All that a recording says of where it was made, in one short file: nothing says whose machine it was."""

from collections.abc import Iterator
from datetime import UTC, datetime

import torch

import nvtx_kernels

from .trace_file import SCHEMA_VERSION, Row

PRODUCT = "nvtx-kernels recorder"
VM_ID = 1 << 48
SCHEMA_PARTS = tuple(f"EXPORT_SCHEMA_VERSION_{part}" for part in ("MAJOR", "MINOR", "MICRO"))


def export_metadata(*, on_gpu: bool) -> dict[str, str]:
    """Return who wrote a recording, after which schema, and whether its work is the GPU's or a CPU's operators."""
    return {
        "EXPORT_PRODUCT_NAME": PRODUCT,
        "EXPORT_PRODUCT_VERSION": nvtx_kernels.__version__,
        "EXPORT_SCHEMA_VERSION": SCHEMA_VERSION,
        **dict(zip(SCHEMA_PARTS, SCHEMA_VERSION.split("."), strict=True)),
        "NVTX_KERNELS_WORK": "GPU" if on_gpu else "CPU",
        "NVTX_KERNELS_TORCH_VERSION": torch.__version__,
    }


def gpu_rows() -> Iterator[Row]:
    """Yield one TARGET_INFO_GPU row per GPU that this process sees."""
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        yield {
            "vmId": VM_ID,
            "id": index,
            "name": gpu.name,
            "totalMemory": gpu.total_memory,
            "smCount": gpu.multi_processor_count,
            "computeMajor": gpu.major,
            "computeMinor": gpu.minor,
        }


def start_row(origin_ns: int) -> Row:
    """Return the row that ties the report's time 0 to UTC."""
    began = datetime.fromtimestamp(origin_ns / 1e9, UTC)
    return {"utcEpochNs": origin_ns, "utcTime": began.strftime("%Y-%m-%dT%H:%M:%S")}
