"""The columns of nsys's tables, with the year in which a later one was added; `!` is for those never NULL."""

FIRST_YEAR = 2020

TABLES = {
    "StringIds": "id! value!",
    "ThreadNames": "nameId! priority globalTid",
    "NVTX_EVENTS": """
        start! end eventType! rangeId category color text globalTid endGlobalTid textId domainId uint64Value
        int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText binaryData@2024""",
    "CUPTI_ACTIVITY_KIND_RUNTIME": """
        start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId@2022""",
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! returnValue!",
    "CUPTI_ACTIVITY_KIND_KERNEL": """
        start! end! deviceId! contextId! greenContextId@2024 streamId! correlationId globalPid demangledName!
        shortName! mangledName@2022 launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX! blockY!
        blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId!
        sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig@2022 graphId@2025 clusterX@2025""",
    "CUPTI_ACTIVITY_KIND_MEMCPY": """
        start! end! deviceId! contextId! greenContextId@2024 streamId! correlationId globalPid bytes! copyKind!
        srcKind dstKind graphNodeId virtualAddress@2022 copyCount@2025""",
    "CUPTI_ACTIVITY_KIND_MEMSET": """
        start! end! deviceId! contextId! greenContextId@2024 streamId! correlationId globalPid value! bytes!
        graphNodeId memKind""",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": """
        start! end! deviceId! contextId! greenContextId@2024 streamId! correlationId globalPid graphId!
        graphExecId!""",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": """
        start! end! deviceId! contextId! greenContextId@2024 streamId! correlationId globalPid syncType! eventId!
        eventSyncId@2025""",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": """
        deviceId! contextId! greenContextId@2024 streamId! correlationId globalPid eventId! eventSyncId@2025""",
    "CUDA_GRAPH_NODE_EVENTS": "start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": """
        start! globalPid! deviceId! contextId! address! pc! bytes! memKind! memoryOperationType! name
        correlationId streamId""",
    # The recorder's, which nsys has not.
    "NVTX_KERNELS_ALLOCATIONS": "start! globalTid! deviceId! block! bytes! totalBytes!",
    "TARGET_INFO_GPU": "id name",
    "META_DATA_EXPORT": "name! value",
    "EXPORT_META_DATA": "name! value",
}

# The table that describes the export, from this year on.
METADATA = {2022: "EXPORT_META_DATA", 2024: "META_DATA_EXPORT"}

_TEXT = {"value", "text", "name", "jsonText", "binaryData"}


def metadata_table(year):
    """Return the name of the table that describes the export, or None for the oldest exports."""
    return next((table for since, table in sorted(METADATA.items(), reverse=True) if year >= since), None)


def columns(table, year):
    """Return {column: must it have a value} of a table, as nsys wrote it in that year."""
    described = [column.partition("@") for column in TABLES[table].split()]
    known = [name for name, _, since in described if year >= int(since or FIRST_YEAR)]
    return {name.rstrip("!"): name.endswith("!") for name in known}


def create_statement(table, year):
    """Return the SQL that creates a table."""
    parts = [
        f'"{name}" {_type(table, name)}{" NOT NULL" if required else ""}'
        for name, required in columns(table, year).items()
    ]
    return f"CREATE TABLE {table} ({', '.join(parts)})"


def _type(table, column):
    is_number = column not in _TEXT or table.endswith("MEMSET")
    return "INTEGER" if is_number else "TEXT"
