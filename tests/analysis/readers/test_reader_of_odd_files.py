"""Exports with tables missing, in other encodings, damaged, or not nsys's at all."""

import pytest
from nvtx_kernels.analysis.errors import NoGpuWork, NotAReport
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.requirements import require_work

from tests.analysis.making.building import MAIN, Dialect, Launch, Range, alter, build, launched
from tests.analysis.making.traces import attributed

STEP = [Range("step", 0, 100), Range("layer 0", 5, 50)]
ONE_CALL = launched((10, 12))
METADATA = {"EXPORT_PRODUCT_VERSION": "2025.3.2.0", "EXPORT_SCHEMA_VERSION": "3.20.3"}


@pytest.mark.parametrize(("year", "tool"), [(2020, "nsys"), (2022, "nsys 2025.3.2"), (2026, "nsys 2025.3.2")])
def test_metadata_is_in_an_old_table_or_a_new_one_or_absent(tmp_path, year, tool):
    provenance = read(build(tmp_path, Dialect(year), metadata=METADATA, gpus=["NVIDIA H200"] * 2)).provenance
    assert (provenance.tool, provenance.gpus) == (tool, ("NVIDIA H200",))
    assert provenance.schema == ("3.20.3" if year > 2020 else "")


def test_metadata_need_not_be_utf8(tmp_path):
    report = build(tmp_path, metadata={**METADATA, "TIME_ZONE": "x"}, ranges=STEP, **ONE_CALL)
    alter(report, "UPDATE META_DATA_EXPORT SET value = CAST(x'cce5e6' AS TEXT) WHERE name = 'TIME_ZONE'")
    assert read(report).provenance.tool == "nsys 2025.3.2"
    assert attributed(report) == ["own: step > layer 0"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE NVTX_EVENTS SET text = CAST(x'6c61796572fe' AS TEXT) WHERE text = 'layer 0'",
        "UPDATE NVTX_EVENTS SET textId = 1, text = NULL WHERE text = 'layer 0'",
    ],
    ids=["inline", "registered"],
)
def test_names_need_not_be_utf8(tmp_path, statement):
    report = build(tmp_path, ranges=STEP, **ONE_CALL)
    alter(report, "INSERT INTO StringIds VALUES (1, CAST(x'6c61796572fe' AS TEXT))", statement)
    assert attributed(report) == ["own: step > layer\ufffd"]


TABLES = ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "ThreadNames")
GONE = {"NVTX_EVENTS": ["outside"], "CUPTI_ACTIVITY_KIND_RUNTIME": ["outside"], "CUPTI_ACTIVITY_KIND_KERNEL": []}


@pytest.mark.parametrize("statement", ["DROP TABLE", "DELETE FROM"])
@pytest.mark.parametrize("table", TABLES)
def test_a_table_may_be_missing_or_empty(tmp_path, statement, table):
    report = build(tmp_path, ranges=STEP, thread_names={MAIN: "python"}, **ONE_CALL)
    alter(report, f"{statement} {table}")
    assert attributed(report) == GONE.get(table, ["own: step > layer 0"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"launches": [Launch(1, 10, 12)]}, "1 CUDA API calls but no kernel"),
        ({"ranges": STEP}, "2 NVTX ranges but no CUDA activity"),
        ({}, "neither CUDA activity nor NVTX ranges"),
    ],
)
def test_a_report_without_work_says_what_it_has_instead(tmp_path, rows, said):
    with pytest.raises(NoGpuWork, match=said):
        require_work(read(build(tmp_path, **rows)))


def test_a_refusal_repeats_what_nsys_itself_reported(tmp_path):
    report = build(tmp_path, ranges=STEP)
    alter(
        report,
        "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 2, 'No CUDA events collected.'), (2, 1, 'Started.')",
    )
    with pytest.raises(NoGpuWork, match=r"nsys says: No CUDA events collected$"):
        require_work(read(report))


def test_columns_of_third_parties_and_other_orders_do_not_matter(tmp_path):
    report = build(tmp_path, ranges=STEP, **ONE_CALL)
    alter(
        report,
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN note TEXT DEFAULT 'theirs'",
        "CREATE TABLE copy AS SELECT textId, text, domainId, globalTid, eventType, end, start FROM NVTX_EVENTS",
        "DROP TABLE NVTX_EVENTS",
        "ALTER TABLE copy RENAME TO NVTX_EVENTS",
        "CREATE INDEX theirs ON CUPTI_ACTIVITY_KIND_KERNEL (start)",
    )
    assert attributed(report) == ["own: step > layer 0"]


@pytest.mark.parametrize("column", ["deviceId", "correlationId", "gridX"])
def test_a_trimmed_export_is_not_said_to_be_damaged(tmp_path, column):
    report = build(tmp_path, ranges=STEP, **launched((10, 20)))
    alter(report, f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}")
    with pytest.raises(NotAReport, match=rf"has no column {column}: it is an export that was trimmed"):
        read(report)


def test_a_database_with_a_table_of_nsyss_name_and_other_columns_is_refused(tmp_path):
    report = build(tmp_path, ranges=STEP)
    alter(
        report, "DROP TABLE NVTX_EVENTS", "CREATE TABLE NVTX_EVENTS (start)", "INSERT INTO NVTX_EVENTS VALUES (1)"
    )
    with pytest.raises(NotAReport, match="has no column end: it is an export that was trimmed"):
        read(report)
