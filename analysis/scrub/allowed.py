"""What a shared copy may contain, as one table; a table, column, key or event not listed here is left out.

Readers take their columns from the same tables; in addition there are the sizes of copies and the facts of a GPU's
model. docs/trust.md explains why everything else in a report is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, Flag, auto

from ..readers.nccl_payloads import ENTRIES_TABLE
from ..readers.nsys_tables import (
    CATEGORY_TYPE,
    CONTEXTS,
    CUDA_EVENTS,
    DEVICES,
    DOMAIN_TYPE,
    MARK_TYPE,
    MEMORY_USAGE,
    METADATA_TABLES,
    NODES,
    OVERHEAD,
    PUSH_POP_TYPES,
    RECORDED_ALLOCATIONS,
    START_END_TYPES,
    SYNCHRONIZATIONS,
)


class Role(Flag):
    """What a text is, which decides what of it may be shared; a string can have several roles."""

    KERNEL = auto()
    RANGE = auto()
    BARE_RANGE = auto()  # in a trace of PyTorch's, which appends nothing to operators' names
    DOMAIN = auto()
    CATEGORY = auto()  # of annotation's ranges; those of other domains stay behind
    MARK = auto()
    THREAD = auto()
    CALL = auto()  # of CUDA
    FACT = auto()  # of the export itself
    FIELD = auto()  # of what a range carries
    GPU = auto()


class Kind(Enum):
    """The type of a column."""

    NUMBER = auto()  # an integer or nothing
    TIME = auto()  # such a number, in nanoseconds
    STRING = auto()  # the id of a string, which goes along
    TEXT = auto()
    LISTED = auto()  # a text of METADATA; rows of others are left out
    PAYLOAD = auto()  # bytes that a range of NCCL's carries


NUMBER, TIME, STRING, TEXT, LISTED, PAYLOAD = Kind
Columns = Mapping[str, Kind]


def _numbers(names: str) -> Columns:
    return dict.fromkeys(names.split(), NUMBER)


_EVENT: Columns = {"start": TIME, "end": TIME}
_WORK: Columns = {**_EVENT, **_numbers("deviceId streamId correlationId globalPid graphNodeId")}

TABLES: Mapping[str, Columns] = {
    "NVTX_EVENTS": {
        **_EVENT,
        "eventType": NUMBER,
        "text": TEXT,
        "globalTid": NUMBER,
        "textId": STRING,
        **_numbers("domainId category"),
        "binaryData": PAYLOAD,
    },
    "CUPTI_ACTIVITY_KIND_RUNTIME": {**_EVENT, **_numbers("eventClass globalTid correlationId"), "nameId": STRING},
    NODES.name: {"start": TIME, **_numbers("globalTid graphNodeId originalGraphNodeId")},
    "CUPTI_ACTIVITY_KIND_KERNEL": {**_WORK, "demangledName": STRING, **_numbers("gridX gridY gridZ")},
    "CUPTI_ACTIVITY_KIND_MEMCPY": {**_WORK, **_numbers("bytes copyKind srcKind dstKind")},
    "CUPTI_ACTIVITY_KIND_MEMSET": {**_WORK, **_numbers("bytes")},
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _WORK,
    SYNCHRONIZATIONS.name: _numbers("globalPid correlationId streamId eventId"),
    CUDA_EVENTS.name: _numbers("globalPid correlationId streamId eventId"),
    RECORDED_ALLOCATIONS.name: {"start": TIME, **_numbers("globalTid deviceId block bytes totalBytes")},
    MEMORY_USAGE.name: {
        "start": TIME,
        **_numbers("globalPid deviceId address bytes memoryOperationType correlationId"),
    },
    OVERHEAD: {**_EVENT, "globalTid": NUMBER},
    "ThreadNames": {"nameId": STRING, "globalTid": NUMBER},
    "TARGET_INFO_GPU": {"id": NUMBER, "name": TEXT, **_numbers("totalMemory smCount computeMajor computeMinor")},
    ENTRIES_TABLE: {**_numbers("domainId schemaId type"), "name": TEXT, "offset": NUMBER},
    CONTEXTS: _numbers("processId deviceId isGreenContext numMultiprocessors"),
    DEVICES: _numbers("pid cudaId gpuId numMultiprocessors"),
    **{table: {"name": LISTED, "value": TEXT} for table in METADATA_TABLES},
}
STRING_COLUMNS: Columns = {"id": NUMBER, "value": TEXT}
GPU_NAMES = "TARGET_INFO_GPU"
EVENTS, KERNELS, THREADS = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "ThreadNames"

# Whose text the strings of a table are; in NVTX_EVENTS the event's type says so.
ROLES: Mapping[str, Role] = {
    KERNELS: Role.KERNEL,
    "CUPTI_ACTIVITY_KIND_RUNTIME": Role.CALL,
    THREADS: Role.THREAD,
    GPU_NAMES: Role.GPU,
    ENTRIES_TABLE: Role.FIELD,
}
EVENT_ROLES: Mapping[int, Role] = {
    **dict.fromkeys((*PUSH_POP_TYPES, *START_END_TYPES), Role.RANGE),
    MARK_TYPE: Role.MARK,
    DOMAIN_TYPE: Role.DOMAIN,
    CATEGORY_TYPE: Role.CATEGORY,
}

METADATA = frozenset(
    """
    EXPORT_PRODUCT_NAME EXPORT_PRODUCT_VERSION EXPORT_SCHEMA_VERSION EXPORT_SCHEMA_VERSION_MAJOR
    EXPORT_SCHEMA_VERSION_MINOR EXPORT_SCHEMA_VERSION_MICRO NVTX_KERNELS_WORK NVTX_KERNELS_KERNEL_TIMES
    NVTX_KERNELS_TORCH_VERSION NVTX_KERNELS_INTERRUPTED_BY NVTX_KERNELS_ENDED_EARLY NVTX_KERNELS_RANGES_DROPPED
    NVTX_KERNELS_UNRECORDED_NS NVTX_KERNELS_CLOCK_ERROR_NS
    """.split()  # noqa: SIM905
)
