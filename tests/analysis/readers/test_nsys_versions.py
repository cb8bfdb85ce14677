"""What each version of nsys's schema added, a change at a time: a report is read as the same without and with it.

The columns and tables are those of NVIDIA's documentation of the export (schema 3.28.1, nsys 2026.4).
"""

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize

from tests.analysis.making.building import Dialect, Range, alter, build, launched
from tests.analysis.making.parquet_folders import as_parquet

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
CONTEXTS = """CREATE TABLE TARGET_INFO_CUDA_CONTEXT_INFO (nullStreamId INTEGER NOT NULL, hwId INTEGER NOT NULL,
    vmId INTEGER NOT NULL, processId INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    parentContextId INTEGER, isGreenContext INTEGER, numMultiprocessors INTEGER)"""
DEVICES = """CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL,
    uuid TEXT, numMultiprocessors INTEGER)"""
GREEN = [
    CONTEXTS,
    DEVICES,
    "INSERT INTO TARGET_INFO_CUDA_CONTEXT_INFO VALUES (7, 0, 0, 100, 0, 1, NULL, 0, NULL)",
    "INSERT INTO TARGET_INFO_CUDA_CONTEXT_INFO VALUES (13, 0, 0, 100, 0, 2, 1, 1, 66)",
    "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 100, 'GPU-0', 132)",
]
CHANGES = {
    "3.17.2, MEMCPY.copyCount": ["UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyCount = 1"],
    "2025.6, rows in any order": [
        f"CREATE TABLE other AS SELECT * FROM {KERNEL} ORDER BY start DESC", f"DROP TABLE {KERNEL}",
        f"ALTER TABLE other RENAME TO {KERNEL}",
    ],
    "3.24.14, graphs and clusters": [
        f"ALTER TABLE {KERNEL} ADD {column} INTEGER" for column in ("maxActiveClusters", "clusterY", "clusterZ")
    ],
    "3.24.14, no green context": [CONTEXTS, DEVICES],
    "3.25.0, tensorSizeMinusOneElements": [f"ALTER TABLE {KERNEL} ADD tensorSizeMinusOneElements TEXT"],
    "3.25.0, schemas of payloads": [
        "CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId INTEGER, schemaId INTEGER, name TEXT)",
        'CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, type INTEGER, name TEXT, '
        '"offset" INTEGER)',
    ],
    "3.28.1, HES: launched by a graph on the device": [
        f"ALTER TABLE {KERNEL} ADD {column} INTEGER" for column in ("launcherGraphId", "deviceLaunchMode")
    ],
    "3.28.1, host nodes of graphs": [
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH (start INTEGER, \"end\" INTEGER)",
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH VALUES (1, 2)",
    ],
    "3.28.1, JIT, overhead, pools": [
        f"CREATE TABLE {table} (start INTEGER)"
        for table in ("CUPTI_ACTIVITY_KIND_JIT", "CUPTI_ACTIVITY_KIND_OVERHEAD", "CUDA_GPU_MEMORY_POOL_EVENTS")
    ],
    "3.28.1, links of events and payloads": [
        "ALTER TABLE NVTX_EVENTS ADD eventId INTEGER",
        "CREATE TABLE NVTX_EVENTS_PAYLOAD_SCHEMAS (eventId INTEGER, globalPid INTEGER, domainId INTEGER)",
        "CREATE TABLE DYNAMIC_NVTXPAYLOAD_DATATYPE_1_2_3 (eventId INTEGER)",
    ],
}  # fmt: skip


def rows():
    copies = launched((60, 70), kind="memcpy", name=1, first=9)
    kernels = launched((10, 20), (30, 40))
    return {
        "ranges": [Range("step", 0, 500), Range("forward", 5, 50)],
        **{key: kernels[key] + copies[key] for key in kernels},
    }


def answer(path):
    trace = read(path)
    report = summarize(attribute(trace))
    return report.totals, report.kernels, report.ranges, len(trace.launches), len(trace.ranges), report.notes


@pytest.mark.parametrize("change", CHANGES)
def test_a_newer_schema_gives_the_same_answer(tmp_path, change):
    before = answer(build(tmp_path, Dialect(year=2025), **rows()))
    changed = alter(build(tmp_path, Dialect(year=2025), **rows()), *CHANGES[change])
    assert answer(changed) == before
    assert answer(as_parquet(changed, tmp_path / "report_pqtdir")) == before


def test_green_contexts_say_their_share_of_the_gpu(tmp_path):
    path = alter(build(tmp_path, Dialect(year=2025), **rows()), *GREEN)
    for report in (path, as_parquet(path, tmp_path / "report_pqtdir")):
        (note,) = read(report).notes
        assert note.startswith("Green contexts had 66 of 132 multiprocessors of their GPU: ")


def test_gpus_on_which_nothing_ran_are_not_named(tmp_path):
    gpus = ["NVIDIA H200", "NVIDIA T4", "Intel Iris"]
    devices = [f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES ({n}, {n}, 100, '', 132)" for n in (0, 1)]
    path = alter(build(tmp_path, Dialect(year=2025), **rows(), gpus=gpus), DEVICES, *devices)
    for report in (path, as_parquet(path, tmp_path / "report_pqtdir")):
        assert read(report).provenance.gpus == ("NVIDIA H200",)


def test_json_lines_are_refused_with_what_to_export_instead(tmp_path):
    """Since nsys 2026.4, `--type jsonlines` takes the place of `--type json`."""
    path = tmp_path / "report.jsonl"
    path.write_text('{"Type":"String","id":"1","value":"kernel"}\n{"Type":59,"NvtxEvent":{"Text":"step"}}\n')
    with pytest.raises(NotAReport, match="Of nsys's exports, the SQLite one is read"):
        read(path)
