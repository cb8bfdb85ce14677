"""What a shared copy may contain, as one table; a table, column, key or event not listed here is left out.

Readers take their columns from the same tables; in addition there are the sizes of copies and the facts of a GPU's
model. docs/trust.md explains why everything else in a report is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, Flag, auto

from ..readers.allocations import ALLOCATIONS_TABLE, USAGE_TABLE
from ..readers.nsys_tables import CATEGORY_TYPE, DOMAIN_TYPE, MARK_TYPE, PUSH_POP_TYPES, START_END_TYPES


class Role(Flag):
    """What a text is, which decides what of it may be shared; a string can have several roles."""

    KERNEL = auto()
    RANGE = auto()
    DOMAIN = auto()
    CATEGORY = auto()  # of annotation's ranges; those of other domains stay behind
    MARK = auto()
    THREAD = auto()
    CALL = auto()
    FACT = auto()  # of the export itself
    GPU = auto()


class Kind(Enum):
    """The type of a column."""

    NUMBER = auto()  # an integer or nothing
    TIME = auto()  # such a number, in nanoseconds
    STRING = auto()  # the id of a string, which goes along
    TEXT = auto()


NUMBER, TIME, STRING, TEXT = Kind
Columns = Mapping[str, Kind]

_EVENT: Columns = {"start": TIME, "end": TIME}
_WORK: Columns = {
    **_EVENT,
    "deviceId": NUMBER,
    "streamId": NUMBER,
    "correlationId": NUMBER,
    "globalPid": NUMBER,
    "graphNodeId": NUMBER,
}
_METADATA: Columns = {"name": TEXT, "value": TEXT}

TABLES: Mapping[str, Columns] = {
    "NVTX_EVENTS": {
        **_EVENT,
        "eventType": NUMBER,
        "text": TEXT,
        "globalTid": NUMBER,
        "textId": STRING,
        "domainId": NUMBER,
        "category": NUMBER,
    },
    "CUPTI_ACTIVITY_KIND_RUNTIME": {
        **_EVENT,
        "eventClass": NUMBER,
        "globalTid": NUMBER,
        "correlationId": NUMBER,
        "nameId": STRING,
    },
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        **_WORK,
        "demangledName": STRING,
        "gridX": NUMBER,
        "gridY": NUMBER,
        "gridZ": NUMBER,
    },
    "CUPTI_ACTIVITY_KIND_MEMCPY": {**_WORK, "bytes": NUMBER, "copyKind": NUMBER},
    "CUPTI_ACTIVITY_KIND_MEMSET": {**_WORK, "bytes": NUMBER},
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _WORK,
    ALLOCATIONS_TABLE: {
        "start": TIME,
        "globalTid": NUMBER,
        "deviceId": NUMBER,
        "block": NUMBER,
        "bytes": NUMBER,
        "totalBytes": NUMBER,
    },
    USAGE_TABLE: {
        "start": TIME,
        "globalPid": NUMBER,
        "deviceId": NUMBER,
        "address": NUMBER,
        "bytes": NUMBER,
        "memoryOperationType": NUMBER,
        "correlationId": NUMBER,
    },
    "ThreadNames": {"nameId": STRING, "globalTid": NUMBER},
    "TARGET_INFO_GPU": {
        "id": NUMBER,
        "name": TEXT,
        "totalMemory": NUMBER,
        "smCount": NUMBER,
        "computeMajor": NUMBER,
        "computeMinor": NUMBER,
    },
    "META_DATA_EXPORT": _METADATA,
    "EXPORT_META_DATA": _METADATA,
}
STRINGS = "StringIds"
GPU_NAMES, METADATA_TABLES = "TARGET_INFO_GPU", ("META_DATA_EXPORT", "EXPORT_META_DATA")
EVENTS, KERNELS, THREADS = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "ThreadNames"

# Whose text the strings of a table are; in NVTX_EVENTS the event's type says so.
ROLES: Mapping[str, Role] = {
    KERNELS: Role.KERNEL,
    "CUPTI_ACTIVITY_KIND_RUNTIME": Role.CALL,
    THREADS: Role.THREAD,
    GPU_NAMES: Role.GPU,
}
EVENT_ROLES: Mapping[int, Role] = {
    **dict.fromkeys((*PUSH_POP_TYPES, *START_END_TYPES), Role.RANGE),
    MARK_TYPE: Role.MARK,
    DOMAIN_TYPE: Role.DOMAIN,
    CATEGORY_TYPE: Role.CATEGORY,
}

METADATA = frozenset(
    {
        "EXPORT_PRODUCT_NAME",
        "EXPORT_PRODUCT_VERSION",
        "EXPORT_SCHEMA_VERSION",
        "EXPORT_SCHEMA_VERSION_MAJOR",
        "EXPORT_SCHEMA_VERSION_MINOR",
        "EXPORT_SCHEMA_VERSION_MICRO",
        "NVTX_KERNELS_WORK",
        "NVTX_KERNELS_KERNEL_TIMES",
        "NVTX_KERNELS_TORCH_VERSION",
        "NVTX_KERNELS_INTERRUPTED_BY",
        "NVTX_KERNELS_ENDED_EARLY",
        "NVTX_KERNELS_RANGES_DROPPED",
        "NVTX_KERNELS_CLOCK_ERROR_NS",
    }
)

# What a run of ours says about itself in its mark. The last two are by range.
RUN_FACTS = frozenset(
    {
        "size", "context_length", "batch_size", "mode", "dtype", "attention", "compile", "optimizer", "warmup",
        "steps", "seed", "device", "parameters", "nvtx-kernels", "python", "torch", "cuda", "cudnn", "nvtx",
        "device_name", "device_memory_bytes", "multiprocessors", "capability", "driver", "threads", "cores",
        "tf32", "autocast", "grad_scaler", "flops_convention", "flops", "bytes", "watched_by",
        "d_model", "d_ff", "layers", "heads", "vocab_size",
    }
)  # fmt: skip
RUN_FACTS_BY_RANGE = ("flops", "bytes")


# What a fact of the run may be: a word, a version, a device's name.
RUN_FACT = re.compile(r"[\w.+:;()/*=%, -]{0,200}")
# The names that makers give to GPUs.
GPU_NAME = re.compile(
    r"(?:NVIDIA|Microsoft|Tesla|Quadro|GeForce|GRID|AMD|Radeon|Intel|Apple)\b[\w ()./+-]{0,60}|CPU"
)
